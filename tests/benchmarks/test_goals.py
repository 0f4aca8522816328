"""The first table of docs/benchmarks.md: nothing that was not measured goes missing, and no range is made up."""

import pytest

from benchmarks.comparison_page import kept, page, table
from benchmarks.derived_rows import completed, growth, skill_ratios
from benchmarks.goals import GOALS, Goal, Record

FASTER = Goal("4 x", "bench", "ours over theirs", "median", 4.0)
SMALLER = Goal("at most 4 x", "bench", "ours over theirs", "median", 4.0, at_least=False)


def record(median: float, lowest: float, highest: float, **more: float) -> dict[str, Record]:
    row = {"what": "ours over theirs", "median": median, "lowest": lowest, "highest": highest, **more}
    return {"bench": {"benchmark": "bench", "commit": "beccb0a", "rows": [row]}}


@pytest.mark.parametrize(
    ("goal", "median", "lowest", "highest", "met"),
    [
        (FASTER, 5.0, 4.5, 6.0, "yes"),
        (FASTER, 4.02, 3.5, 4.2, "yes, in the median"),
        (FASTER, 3.9, 3.5, 4.2, "**no**"),
        (SMALLER, 3.0, 2.0, 4.0, "yes"),
        (SMALLER, 3.0, 2.0, 4.1, "yes, in the median"),
        (SMALLER, 4.1, 2.0, 5.0, "**no**"),
    ],
)
def test_a_goal_that_only_the_median_meets_says_so(
    goal: Goal, median: float, lowest: float, highest: float, met: str
) -> None:
    line = goal.line(record(median, lowest, highest))
    assert line == f"| {goal.text} | {median:.1f} x ({lowest:.1f} x to {highest:.1f} x) | {met} |"


def test_one_run_is_no_range() -> None:
    assert FASTER.line(record(5.0, 5.0, 5.0)) == "| 4 x | 5.0 x (one run) | yes |"
    assert "one run" in FASTER.line(record(5.0, 5.0, 5.0, rounds=1))
    assert "5.0 x to 5.0 x" in FASTER.line(record(5.0, 5.0, 5.0, rounds=3))
    rows = record(5.0, 5.0, 5.0)["bench"]["rows"]
    assert table({"median": "ratio", "lowest": "l", "highest": "h"}, rows).endswith("| 5 | one run |  |")


@pytest.mark.parametrize("records", [{}, {"bench": {"rows": []}}, {"bench": {"rows": [{"what": "ours over theirs"}]}}])
def test_a_goal_without_a_measurement_is_a_row(records: dict[str, Record]) -> None:
    assert FASTER.line(records) == "| 4 x | not measured | unknown |"


def test_a_goal_that_was_measured_with_other_code_is_to_be_repeated() -> None:
    records = record(5.0, 4.5, 6.0)
    records["bench"]["since_then"] = "made with half of it."
    assert FASTER.line(records).endswith("| yes; to be repeated |")


@pytest.mark.parametrize("commit", [None, "unknown", "beccb0a, changed"])
def test_so_is_one_that_was_measured_with_code_that_nobody_can_get(commit: str | None) -> None:
    records = record(5.0, 4.5, 6.0)
    assert FASTER.line(records).endswith("| yes |")
    records["bench"] |= {"commit": commit}
    if commit is None:
        del records["bench"]["commit"]
    assert FASTER.line(records).endswith("| yes; to be repeated |")


def test_the_page_has_no_goal_met_by_numbers_that_cannot_be_had_again() -> None:
    records = kept()
    lines = page(records).splitlines()
    for goal in GOALS:
        [line] = [line for line in lines if line.startswith(f"| {goal.text} |")]
        commit = records.get(goal.benchmark, {}).get("commit", "unknown")
        if commit == "unknown" or "changed" in commit:
            assert line.endswith(("; to be repeated |", "| unknown |"))


def test_a_page_without_any_numbers_has_all_goals() -> None:
    assert page({}).count("| not measured |") == len(GOALS)


def test_growth_is_the_time_of_a_row_in_the_largest_batch_over_that_in_smaller_ones() -> None:
    times = {"1,024": 2.0, "16,384": 4.0, "262,144": 5.0}
    rows = [{"what": f"gae, {size} rows of 32 tokens", "us_a_row": time} for size, time in times.items()]
    assert growth(rows) == [{"what": "gae, growth", "over_16k": 1.25, "over_1k": 2.5}]
    assert growth(rows[:2]) == []


def run(side: str, seed: int, seconds: float, reached: bool = True) -> Record:
    return {"side": side, "seed": seed, "seconds": seconds, "reached": {"seconds": seconds} if reached else None}


def test_the_same_algorithm_is_compared_too() -> None:
    runs = [
        run("this package, default recipe", 0, 100.0),
        run("TRL, GRPO", 0, 700.0),
        run("this package, GRPO", 0, 200.0),
        run("this package, default recipe", 1, 100.0, reached=False),
        run("TRL, GRPO", 1, 900.0, reached=False),
        run("this package, GRPO", 1, 300.0),
    ]
    found = {row["what"]: row for row in skill_ratios(runs)}
    # Seed 1: neither TRL nor the recipe learned it, which says nothing of them; GRPO did, so the recipe was not sooner.
    assert found["this package, GRPO over this package, default recipe, seconds"] == {
        "what": "this package, GRPO over this package, default recipe, seconds",
        "median": 1.0, "lowest": 0.0, "highest": 2.0, "rounds": 2, "finished": 2, "base_finished": 1,
    }  # fmt: skip
    assert found["TRL, GRPO over this package, default recipe, seconds"]["median"] == 7.0
    same = found["TRL, GRPO over this package, GRPO, seconds"]
    assert same == {
        "what": "TRL, GRPO over this package, GRPO, seconds",
        "median": 3.25, "lowest": 3.0, "highest": 3.5, "rounds": 2, "finished": 1, "base_finished": 2,
    }  # fmt: skip


def test_a_side_that_did_not_learn_the_task_was_not_sooner() -> None:
    goal = next(goal for goal in GOALS if "both with GRPO" in goal.text)
    runs = []
    for seed in range(3):
        runs += [run("TRL, GRPO", seed, 720.0), run("this package, GRPO", seed, 200.0, reached=False)]
    record = {"benchmark": "time_to_skill", "commit": "beccb0a", "rows": skill_ratios(runs)}
    assert "| 0.0 x (0.0 x to 0.0 x) | **no** |" in goal.line({"time_to_skill": record})


def test_rows_that_are_there_are_not_computed_again() -> None:
    kept = {"what": "TRL, GRPO over this package, default recipe, seconds", "median": 5.0}
    runs = [
        run("this package, default recipe", 0, 100.0),
        run("TRL, GRPO", 0, 700.0),
        run("this package, GRPO", 0, 1.0),
    ]
    rows = completed({"benchmark": "time_to_skill", "rows": [kept], "raw": {"runs": runs}})["rows"]
    assert [row["median"] for row in rows] == [5.0, 0.01, 700.0]
