"""Collecting episodes: this package, TRL (`GRPOTrainer` with `environment_factory`), and vLLM turn by turn.

The default recipe's environment, tasks and groups (16 tasks, 8 episodes each, at most 20 turns of at most 8 tokens),
its warm-started model in the size `tiny` (4 M parameters), float32, one thread for everybody. Sides take turns; a round
is all episodes of a training step. $BENCH_ROUNDS sets how many rounds count (3). vLLM runs eagerly, and compiled, its
own default, where there is a C++ compiler; $BENCH_VLLM_COMPILED=0 leaves that out, which saves minutes of compiling.
"""

import os
import shutil
from contextlib import ExitStack

from benchmarks.harness import Report, spread
from benchmarks.peers.sides import MissingPeerError, Side, peer_versions
from benchmarks.peers.turns import ratios, report_rates, take_turns
from benchmarks.peers.work import Work, base_model

OURS = "this package"
VLLM = ("actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.kv_cache_gb=2")
PEERS = {"peers": "TRL", "vllm": "vLLM"}


def sides_of(compiled: bool) -> dict[str, tuple[str, ...]]:
    """The environment, the module and the words of each side."""
    sides = {
        OURS: ("own", "benchmarks.peers.ours", "rollout"),
        "TRL": ("peers", "benchmarks.peers.trl_side", "rollout"),
    }
    eagerly = {"vLLM": True} | ({"vLLM compiled": False} if compiled else {})
    for name, eager in eagerly.items():
        way = "eager" if eager else "compiled"
        setting = f"actor_rollout_ref.rollout.enforce_eager={str(eager).lower()}"
        sides |= {
            f"{name}, LLM.generate in lockstep": ("vllm", "benchmarks.peers.vllm_side", way),
            f"{name}, through our agent": ("vllm", "benchmarks.peers.ours", "rollout", *VLLM, setting),
        }
    return sides


def run(report: Report) -> None:
    """Steps and tokens a second of each side, and ratios round by round."""
    # Without a KL and with one update a batch TRL computes nothing but the episodes.
    work = Work(base_model("tiny"), kl=0.0)
    compiled = os.environ.get("BENCH_VLLM_COMPILED", "1") not in ("", "0") and shutil.which("g++") is not None
    with ExitStack() as open_sides:
        sides = {}
        for name, (venv, module, *words) in sides_of(compiled).items():
            try:
                sides[name] = open_sides.enter_context(Side(name, venv, module, work, *words))
            except MissingPeerError as error:
                print(f"  {name} is left out, and its goals are not measured: {error}")
                continue
            if venv != "own":
                report.peers[PEERS[venv]] = peer_versions(venv)
            if venv == "vllm":
                report.peers["vLLM"]["execution"] = "eager, and compiled" if compiled else "eager"
        found = take_turns(sides, int(os.environ.get("BENCH_ROUNDS", "3")))
    report_rates(report, found, ("steps", "generated"))
    for name in found:
        if name != OURS:
            report.row(f"{OURS} over {name}", **spread(ratios(found[OURS], found[name], "steps")))
