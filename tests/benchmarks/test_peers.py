"""The settings that other sides are measured with can be changed, and what they are is told."""

from benchmarks.bench_rollout_peers import sides_of
from benchmarks.comparison_page import page
from benchmarks.peers.work import Work


def test_vllm_can_be_compiled_in_both_ways_of_asking() -> None:
    for name, eager in (("vLLM", True), ("vLLM compiled", False)):
        sides = sides_of(compiled=True)
        assert sides[f"{name}, LLM.generate in lockstep"][2] == ("eager" if eager else "compiled")
        _, _, _, *words = sides[f"{name}, through our agent"]
        assert Work("init:nano").config(*words).actor_rollout_ref.rollout.enforce_eager is eager
    assert not any("compiled" in name for name in sides_of(compiled=False))


def test_trls_settings_are_on_the_page_once_they_are_measured() -> None:
    ends = {"lowest": 400.0, "highest": 600.0}
    rows = [
        {"what": "TRL, 8 episodes a pass", "trained_a_second": 500.0, "steps_a_second": 9.0, **ends},
        {"what": "TRL, continuous batching", "steps_a_second": 450.0, **ends},
    ]
    record = {"benchmark": "trl_settings", "when": "2026-11-16", "machine": "a CPU", "rows": rows}
    told = page({"trl_settings": record})
    assert "| TRL, 8 episodes a pass | 500 | 400 | 600 |" in told
    assert "| TRL, continuous batching | 450 | 400 | 600 |" in told
    assert "TRL, 8 episodes a pass" not in page({})
