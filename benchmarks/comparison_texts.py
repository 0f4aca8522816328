"""What docs/benchmarks.md says around its numbers."""

INTRODUCTION = """
# Benchmarks

This package beside others: the same work, in turns, in one run. `python -m benchmarks.comparison_page --write` makes
this page from the raw numbers in `benchmarks/results`, and a test compares the two.

<!-- runs in: Makefile -->
```bash
make bench                           # everything: TRL into .venv-peers, vLLM into .venv-vllm, then all benchmarks
python -m benchmarks update          # one of them, in .venv
python -m benchmarks --list          # what there is
```

`make bench` also computes the tables of [Scaling](scaling.md) (`python -m benchmarks.scaling --write`) and measures
that of [vLLM rollouts](vllm.md) (`.venv-vllm/bin/python -m benchmarks.vllm`, which fetches SmolLM2-135M). What recipes
learn takes hours, and is measured study by study: [Results](results.md), `python -m benchmarks.learning STUDY`.

Peers are those of `constraints-peers.txt` (TRL 1.16) and `constraints-vllm.txt` (vLLM 0.32 for CPUs), with torch and
transformers in the versions that we are measured with. TRL, vLLM and we beside them are processes that do one round
when they are told to, so that sides take turns and noise hits all of them alike; the bare loops of "Update" and
TextWorld, which is installed in our environment, take turns with us in one process. Figures are medians; a ratio is the
median of the ratios of rounds that were measured one after the other, with the lowest and the highest, but for
ALFWorld's, which are of one pass over all games. Everybody has **one thread**: the machine's two cores are shared with
others, and two threads then wait for each other. The load is the system's at the end, over five minutes: 1 is the
benchmark itself, and what is above it was busy beside it.
"""

GOALS = """
## Goals
"""

AFTER_GOALS = """
Where a goal is missed, the section says why. "In the median" means that the median meets it and the worst round does
not. A goal without a measurement is one whose benchmark, or whose other side, has not been run. "To be
repeated" means that the code has changed since then, or that what was measured is no commit; the section says which.
"""

ROLLOUT = """
## Rollout

Environment steps a second. The default recipe's environment (a room with a key, a door and a goal), its prompts and
its tasks: 16 tasks, 8 episodes of each at once, at most 20 turns of at most 8 tokens, sampled at temperature 1. The
model is the recipe's warm-started one in the size `tiny` (4 M parameters, Qwen2-shaped), read from the same directory
by all; float32.

- **TRL** is `GRPOTrainer` with `environment_factory` and transformers' generation, its default. Our environment is a
  class with one tool, whose results are our agent's texts word for word; a chat template and a response template make
  every answer of the model a call of that tool, so both sides read and write the same tokens. A round is
  `_generate_and_score_completions`, with settings under which it computes nothing else (no KL, one update a batch).
  In TRL's favour: an answer may have 8 tokens instead of as many as the whole episode (`generation_kwargs`); an
  episode that is over leaves TRL's loop without the closing answer that it would else generate.
- **vLLM** is asked turn by turn in two ways: `LLM.generate` on all episodes that go on, and our agent with vLLM as
  its engine, where no episode waits for another; and both eagerly, and compiled, which is its default, where there is a
  C++ compiler (`BENCH_VLLM_COMPILED=0` leaves it out). Prefix caching on; weights are read, and whatever is compiled is
  compiled, before the clock runs.
- **Ours** is what a training step does to collect: `RayPPOTrainer.collect`, rewards included.

What differs: episodes are sampled, so lengths differ a little between sides; rates take that out. Ours and vLLM also
end an answer at a new line, TRL at the end of the turn; the model hardly ever writes one.

Where the difference to TRL comes from: it generates with all episodes in lockstep, padded to the longest history, and
every turn reads the whole history again; ours keeps what it has read, and reads only what is new.
"""

STEP = """
## Training step

Tokens of episodes (prompts, observations and answers, without padding) for each second of a whole training step:
collect, score, reference, advantages, update. Both sides do GRPO on the task above, with two optimizer steps on each
batch of 128 episodes, the same learning rate, AdamW, gradient clipping, and a KL to the starting model.

TRL runs its own loop (`trainer.train()`), as its defaults have it but for float32, the recipe's numbers, no
recomputing of activations (its default on GPUs), and 16 episodes in a pass through the model
(`python -m benchmarks trl_settings` measures 8, 16, 32 and 64 beside each other). It pads episodes to
the longest of a batch: it computes {padded:.2f} tokens for each of an episode. Because the batch is used for two
updates it also computes the old log-probs anew; ours takes the engine's, after comparing some of them.
"""

TRL_SETTINGS = """
## TRL's settings

The training step above, TRL only, with other numbers of episodes in a pass through the model; and collecting 2 tasks x
8 episodes with transformers' `generate`, TRL's default, and with its continuous batching
(`use_transformers_continuous_batching`).
"""

UPDATE = """
## Update

One optimizer step of the actor on 30 episodes of 10 turns (15,600 tokens, 3,600 of them written by the agent), 4 M
parameters, float32, against a bare loop on the same tokens: transformers' model on a batch of equal rows, log-probs
of the written tokens times advantages, `backward`, fused AdamW. The loop has nothing else; ours also computes ratios
and their clip, the KL, the entropy, some twenty metrics, and the norm of the gradients, and packs the tokens. Where
episodes have different lengths (5 to 19 turns) the bare loop pads them, and ours does not.

Ours can be faster than the bare loop because it does less: of the last layer, only keys and values are computed where
the agent wrote nothing (`workers/last_layer.py`); and its micro-batches have 4,096 tokens, whose activations a CPU's
caches and its allocator like better than those of the whole batch.
"""

UPDATE_IN_PASSES = """
"Bare loop in micro-batches" is the same loop, whose rows go through the model in passes of at most as many tokens as
ours, 4,096, each padded to its own longest row: against it only the first of these reasons is left, and padding.
"""

MEMORY = """
Peak memory of a process that makes two updates on 8 episodes of 9 turns, one micro-batch for either side, beyond what
it held before there was a model. A larger vocabulary has a larger embedding, of which there are weights, gradients and
two moments; what else is held at the peak is the last column. Where gradients of several micro-batches are added up,
the output matrix's gradient of one micro-batch comes on top for a moment, on both sides.
"""

PRODUCTS = """
## Products of matrices

On an AMD processor with AVX-512, float32 layers, their gradients, logits and Muon compute by oneDNN, which is a part of
torch; torch itself leaves them to MKL, which uses half of such a processor's width. On other processors nothing is
changed. The products are those of a layer of 256 inputs and 1,024 outputs on 2,048 tokens; the update is the one above.
Both ways take turns in one process.
"""

ADVANTAGES = """
## Advantages

Milliseconds for the advantages of a batch, on one core; a row is a turn of 32 tokens. The same time a row means that
time grows in proportion.
"""

GROWTH = """
The time of a row at 262,144 rows. An estimator does the same work for a row in a batch of any size: GiGPO looks up
every state once, GAE's scan passes over the tokens log2(longest episode) times, in blocks that a core's cache holds,
GRPO adds up groups. Where the time of a row grows nevertheless, it is mostly the price of memory: one column of a batch
(32 floats a row) has 34 MB, which the C library asks of the system for every intermediate result and gives back, and
the system hands out such memory page by page. "Memory kept" is the same in a process whose allocator gives nothing back
(`KEPT` in `benchmarks/bench_advantages.py`): what is left there is the estimators' own growth. Of GiGPO something is
left: it reads every state once, texts of 300 letters, and those of 262,144 rows have 79 MB and lie in no cache. Where
the time of a row shrinks, a small batch pays more for what every call costs once.
"""

SHARES = """
Their share of a training step, with a model of 1 M parameters and about two thousand rows, where steps are as fast as
they get: whatever makes a step longer makes the share smaller. GiGPO looks at every state in Python, to find equal ones
whatever they are made of; keys of states that are known already are let go at once, so that Python's collector of
garbage is not called in these few milliseconds.
"""

ALFWORLD = """
## ALFWorld

Our engine and TextWorld on the same games and the same random commands, step by step in turn. A step lists the
admissible commands as well. Memory is what a further instance with a game of its own adds to a process.
"""

WEBSHOP = """
## WebShop

Customers who search for what they want and then click at random; products are variations of a thousand. "open" is
what a process needs for the whole catalogue, which all of its environments share.
"""

SKILL = """
## Time to skill

Training time until 80 % of 200 held-out tasks are solved, played greedily, from the default recipe's warm-started
model of 1 M parameters. Ours is the default recipe as it is (GiGPO), and for comparison with
`algorithm.adv_estimator=grpo`; TRL is its GRPO with the recipe's learning rate, schedule, clipping and groups, and no
KL, its default. An invalid action has a price in ours, at its own turn; TRL knows one reward an episode, and has the
plain one. All start from the same weights and play the same tasks in the same order, 16 groups of 8 a step, two
optimizer steps each. They take turns, step by step. Every 5 steps all are evaluated by the same function, on nobody's
clock. Who does not get there in {minutes:.0f} minutes of its own training, or in the recipe's steps, is "not reached",
and counts in the ratio with the time it had where the other side learned it sooner; where the side that is to be
sooner did not learn it, the ratio is 0. A seed that neither side learned is left out. "TRL, GRPO over this package,
GRPO" compares the same algorithm; the first ratio is also one of algorithms.
"""
