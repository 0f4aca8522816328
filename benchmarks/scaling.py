"""docs/scaling.md from the formulas of `benchmarks.traffic`: what ranks send, and what a step would take on GPUs.

python -m benchmarks.scaling            print the page
python -m benchmarks.scaling --write    write it
"""

import sys
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from benchmarks.traffic import scoring, training, weights_of
from openmanus_rl.config.models import KNOWN_MODELS, ModelShape

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
MODELS = {"1.5 B": "Qwen/Qwen2.5-1.5B-Instruct", "7 B": "Qwen/Qwen2.5-7B-Instruct"}


@dataclass(frozen=True)
class Hardware:
    """An A100 with 80 GB, in nodes of eight; what is reached, not what is printed on the box."""

    flops: float = 312e12 * 0.40
    memory: float = 2.0e12 * 0.60
    inside: float = 200e9
    """Bytes a second of each GPU in a collective inside a node (NVLink)."""
    between: float = 20e9
    """The same between nodes: one 200 Gb/s adapter for each GPU."""
    launch: float = 1e-3
    """Seconds of a decoding step besides reading the weights."""


@dataclass(frozen=True)
class Work:
    """A step of the GiGPO recipes: 16 tasks, 8 episodes each."""

    episodes: int = 128
    turns: int = 30
    response: int = 60
    tokens: int = 6_000
    """Of an episode, observations included."""
    micro_batch: int = 16_384


@dataclass(frozen=True)
class Step:
    """Predicted seconds."""

    collect: float
    reference: float
    update: float
    update_traffic: float
    publish: float

    @property
    def one_after_another(self) -> float:
        return self.collect + self.reference + self.update + self.update_traffic + self.publish

    @property
    def hidden(self) -> float:
        """Where all communication of the update runs behind the arithmetic, as far as there is enough of it."""
        return self.collect + self.reference + max(self.update, self.update_traffic) + self.publish


def predict(shape: ModelShape, gpus: int, work: Work = Work(), hardware: Hardware = Hardware()) -> Step:  # noqa: B008
    weights = weights_of(shape, gpus)
    passes = ceil(work.episodes * work.tokens / gpus / work.micro_batch)
    speed = (hardware.inside if gpus <= 8 else hardware.between) * gpus / (gpus - 1)
    computed = shape.parameters * work.episodes * work.tokens / gpus / hardware.flops

    reading = 2 * shape.parameters / hardware.memory
    collect = work.turns * work.response * (reading + hardware.launch) + 2 * computed
    forward = scoring(weights, 2, passes)
    trained = training(weights, 2, passes)
    return Step(
        collect=collect,
        reference=2 * computed + forward.all_gather / speed,
        update=8 * computed,  # forward, backward, and activations computed again
        update_traffic=(trained.all_gather + trained.reduce_scatter) / speed,
        publish=4 * weights.all / speed,
    )


def page() -> str:
    near, far = (predict(KNOWN_MODELS[MODELS["7 B"]], gpus) for gpus in (8, 64))
    return TEXT.format(
        volumes="\n".join(_volumes()),
        steps="\n".join(_steps()),
        waiting=far.collect / far.one_after_another,
        near=near.update_traffic / near.update,
        far=far.update_traffic / far.update,
        share=Work.episodes * Work.tokens // 64,
    )


def _volumes() -> list[str]:
    lines = [
        "| bfloat16, one pass | ranks | log-probs gather | an update gathers | and reduces | a publication gathers |"
    ]
    lines += ["|---|---|---|---|---|---|"]
    for name, path in MODELS.items():
        for ranks in (8, 64):
            weights = weights_of(KNOWN_MODELS[path], ranks)
            forward, trained = scoring(weights, 2, 1), training(weights, 2, 1)
            sizes = [forward.all_gather, trained.all_gather, trained.reduce_scatter, 4 * weights.all]
            lines.append(f"| {name} | {ranks} | " + " | ".join(f"{size / 1e9:.2f} GB" for size in sizes) + " |")
    return lines


def _steps() -> list[str]:
    lines = ["| model | GPUs | collect | reference | update: arithmetic | update: communication | publish | step |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for name, path in MODELS.items():
        for gpus in (8, 64):
            step = predict(KNOWN_MODELS[path], gpus)
            cells = [step.collect, step.reference, step.update, step.update_traffic, step.publish]
            whole = f"{step.hidden:.0f} to {step.one_after_another:.0f} s"
            lines.append(f"| {name} | {gpus} | " + " | ".join(f"{cell:.1f} s" for cell in cells) + f" | {whole} |")
    return lines


TEXT = """# Scaling

What ranks send each other in a step, and what a step would take on GPUs. **No GPU was used for any number on this
page.** The volumes are a formula that a test compares with bytes counted in real worlds of two and three ranks on a CPU
(`tests/workers/test_traffic.py`): they agree exactly. The times are predictions from these volumes and from assumed
speeds. `python -m benchmarks.scaling --write` makes this page, and `make bench` does it as well.

## Volumes

P weights are sharded over N ranks, block by block. B of them are in transformer blocks; the rest R (embeddings, last
norm, output) is the root. Weights are gathered in the precision of the computation (2 bytes for bfloat16, 4 for
float32), gradients are reduced in float32, and rows are padded to a multiple of N. In k passes (micro-batches)

| | all-gather | reduce-scatter |
|---|---|---|
| log-probs or values of a batch | k B + R weights: the root is kept until the last pass | |
| an update | k (2 B + R) weights: blocks for forward and backward, the root for both at once | k P gradients |
| a publication | P weights, 4 bytes each | |

A rank sends and receives (N - 1) / N of it. Recomputing activations adds nothing, offloading neither. What else is sent
is small: a number a token for log-probs, a norm and a handful of metrics for an update. With Muon, each matrix inside
the model is gathered once more an update. All ranks make as many passes as the busiest, so k is the batch's tokens / (N
x `ppo_max_token_len_per_gpu`), rounded up: larger micro-batches send less. With `trainer.placement=separate` the first
rank also sends the published weights to the engines' nodes, 4 P bytes to each.

{volumes}

## Predicted steps

A step of the GiGPO recipes: 128 episodes of 30 turns with 60 tokens each, 6,000 tokens an episode with observations;
actor and reference, no critic; activations recomputed; micro-batches of 16,384 tokens; engines colocated. Assumed of
each A100: 125 TFLOP/s of its 312, 1.2 TB/s of its memory's 2.0, 200 GB/s in collectives inside a node of eight and
20 GB/s between nodes, 1 ms a decoding step besides reading the weights. Environments are taken to be free. The range of
the last column is with all communication of the update hidden behind its arithmetic, and with none.

{steps}

What follows from it, if the assumptions hold:

- Decoding one token after another does not get faster with more GPUs: at 64, {waiting:.0%} of a 7 B step is waiting for
  1,800 tokens in a row. More GPUs pay with more episodes a step, or with collection that runs ahead.
- Inside a node communication is {near:.0%} of the update's arithmetic (7 B, 8 GPUs). Between nodes it is {far:.0%}
  (64 GPUs, one pass of {share:,} tokens on each): with less work for each GPU, communication would be what is waited
  for.
"""


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page())
