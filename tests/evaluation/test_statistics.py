"""Rates with their intervals, and what a set of episodes says."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmanus_rl.data.rate import Rate
from openmanus_rl.data.trajectory import StopReason, Trajectory, Turn
from openmanus_rl.evaluation.statistics import Difference, summarise


@pytest.mark.parametrize(
    ("count", "total", "low", "high"),
    [
        # 8 of 10 by hand: centre (0.8 + 3.8415/20) / 1.38415 = 0.71674, half 1.95996 * 0.160012 / 1.38415 = 0.22658
        (8, 10, 0.49016, 0.94332),
        # 0 of n and n of n have closed forms: z^2 / (n + z^2) = 3.84146 / 13.84146, and 1 - that.
        (0, 10, 0.0, 0.27753),
        (10, 10, 0.72247, 1.0),
        # 81 of 263, from Newcombe (1998), table I: 0.2553 to 0.3662.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
    ],
)
def test_wilson_intervals(count: int, total: int, low: float, high: float) -> None:
    assert Rate(count, total).interval == pytest.approx((low, high), abs=6e-5)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_an_interval_holds_its_rate(numbers: tuple[int, int]) -> None:
    rate = Rate(*numbers)
    low, high = rate.interval
    assert 0 <= low <= rate.value + 1e-12
    assert rate.value - 1e-12 <= high <= 1


def test_a_rate_of_nothing_is_unknown() -> None:
    assert math.isnan(Rate(0, 0).value)
    assert Rate(0, 0).interval == (0.0, 1.0)
    with pytest.raises(ValueError, match="3 of 2 is not a rate"):
        Rate(3, 2)


def turn(reward: float = 0.0, valid: bool = True, **info: float | bool) -> Turn:
    action = None if "notes" in info else "do"
    return Turn("seen", "said", action=action, reward=reward, action_valid=valid, info=info)


def episode(name: str, stop: StopReason, turns: list[Turn], kind: str = "a", **more: object) -> Trajectory:
    return Trajectory("t", name, name, tuple(turns), stop, task_type=kind, **more)  # type: ignore[arg-type]


def test_a_summary_worked_out_by_hand() -> None:
    summary = summarise(
        [
            episode("1", StopReason.WON, [turn(), turn(reward=10.0, score=1.0)], score=9.0),
            episode("2", StopReason.STEP_LIMIT, [turn(valid=False), turn(notes=True), turn(score=0.25)], score=-1.0),
            episode("3", StopReason.WON, [turn(reward=1.0)], kind="b", score=1.0),
            episode("4", StopReason.ENV_ERROR, [turn(valid=False)], error="hung"),
        ]
    )
    assert (summary.episodes, summary.failed, summary.success) == (4, 1, Rate(2, 3))
    assert summary.by_task_type == {"a": Rate(1, 2), "b": Rate(1, 1)}
    assert summary.stop_reasons == {StopReason.WON: 2, StopReason.STEP_LIMIT: 1, StopReason.ENV_ERROR: 1}
    assert summary.score == pytest.approx((1.0 + 0.25 + 1.0) / 3)
    assert summary.env_return == pytest.approx(11 / 3)
    assert summary.reward == pytest.approx(9 / 3)
    assert summary.steps == pytest.approx((2 + 2 + 1) / 3)  # notes are no step
    assert summary.invalid_actions == Rate(1, 5)
    assert summary.first_error == "hung"


def test_a_summary_of_nothing_or_only_failures_has_no_means() -> None:
    for played in ([], [episode("1", StopReason.ENGINE_ERROR, [], error="down")]):
        summary = summarise(played)
        assert summary.success == Rate(0, 0)
        assert math.isnan(summary.score)
        assert math.isnan(summary.steps)


def test_without_a_score_a_won_task_scores_1() -> None:
    assert summarise([episode("1", StopReason.WON, [turn()])]).score == 1.0
    assert summarise([episode("1", StopReason.LOST, [turn(score=True)])]).score == 0.0


@pytest.mark.parametrize(
    ("first", "second", "low", "high"),
    [
        # Newcombe (1998), Statistics in Medicine 17:873, table II, method 10.
        (Rate(56, 70), Rate(48, 80), 0.0524, 0.3339),
        (Rate(9, 10), Rate(3, 10), 0.1705, 0.8090),
        (Rate(10, 10), Rate(0, 20), 0.6791, 1.0),
    ],
)
def test_intervals_of_differences(first: Rate, second: Rate, low: float, high: float) -> None:
    assert Difference(first, second).interval == pytest.approx((low, high), abs=6e-5)
    assert Difference(second, first).interval == pytest.approx((-high, -low), abs=6e-5)


def test_a_difference_to_nothing_is_unknown() -> None:
    unknown = Difference(Rate(1, 2), Rate(0, 0))
    assert math.isnan(unknown.value)
    assert unknown.interval == (-1.0, 1.0)
