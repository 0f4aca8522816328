"""The settings that other sides are measured with can be changed, and what they are is told."""

from benchmarks.bench_rollout_peers import sides_of
from benchmarks.comparison_page import page
from benchmarks.peers.work import Work


def test_vllm_can_be_compiled_in_both_ways_of_asking() -> None:
    for compiled in (False, True):
        sides = sides_of(compiled)
        assert sides["vLLM, LLM.generate in lockstep"][2] == ("compiled" if compiled else "eager")
        _, _, _, *words = sides["vLLM, through our agent"]
        assert Work("init:nano").config(*words).actor_rollout_ref.rollout.enforce_eager is not compiled


def test_trls_passes_are_on_the_page_once_they_are_measured() -> None:
    row = {"what": "TRL, 8 episodes a pass", "trained_a_second": 500.0, "lowest": 400.0, "highest": 600.0}
    record = {"benchmark": "trl_micro_batch", "when": "2026-11-16", "machine": "a CPU", "rows": [row]}
    assert "| TRL, 8 episodes a pass | 500 | 400 | 600 |" in page({"trl_micro_batch": record})
    assert "TRL, 8 episodes a pass" not in page({})
