"""When a run first got how far, from the lines of its metrics file."""

import pytest

from openmanus_rl.evaluation.convergence import Validation, first_reached, validation_curve


def line(step: int, seen: float | None = None, unseen: float | None = None, /, **times: float) -> dict[str, object]:
    found: dict[str, object] = {"step": step, **{f"time/{name}": seconds for name, seconds in times.items()}}
    if seen is not None:
        found |= {"val/valid_seen/success": seen, "val/valid_unseen/success": unseen}
    return found


LINES = [
    line(0, 0.2, 0.0, validate=6.0),
    line(1, collect=30.0, update_actor=20.0),
    line(2, 0.8, 0.4, collect=40.0, validate=24.0, step=41.0),  # `step` is all of its stages
    line(3, 0.4, 0.2, collect=60.0),
    line(4, 0.9, 0.9, collect=60.0),
]


def test_the_curve_is_over_both_splits_and_counts_all_stages() -> None:
    curve = validation_curve(LINES)
    assert [point.step for point in curve] == [0, 2, 3, 4]
    assert [point.success for point in curve] == pytest.approx([0.1, 0.6, 0.3, 0.9])
    assert [point.minutes for point in curve] == pytest.approx([0.1, 2.0, 3.0, 4.0])


def test_the_first_point_counts_whatever_came_after_it() -> None:
    reached = first_reached(validation_curve(LINES), [0.9, 0.5, 0.05, 0.95, 0.5])
    assert [r.threshold for r in reached] == [0.05, 0.5, 0.9, 0.95]
    assert [r.at.step if r.at else None for r in reached] == [0, 2, 4, None]


def test_without_times_there_are_no_minutes_and_half_a_validation_is_none() -> None:
    lines = [line(0, 0.5, 0.5), line(1, 1.0, None), line(2)]
    assert validation_curve(lines) == [Validation(0, 0.5)]
    assert validation_curve([]) == []


def test_an_environment_may_have_one_validation_split() -> None:
    lines: list[dict[str, object]] = [
        {"step": 0, "val/valid_seen/success": 0.25},
        {"step": 1, "val/valid_seen/success": 0.5, "val/valid_unseen/stop/env_error": 1.0},
    ]
    assert validation_curve(lines) == [Validation(0, 0.25)]
