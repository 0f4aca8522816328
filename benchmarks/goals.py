"""What was to be reached, and whether it was: the first table of docs/benchmarks.md."""

from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]
Row = dict[str, Any]


def one_run(row: Row) -> bool:
    """Whether a row with a lowest and a highest is of one round, so that they are no range.

    Results of before rounds were counted have equal ends then.

    >>> one_run({"lowest": 2.0, "highest": 2.0}), one_run({"lowest": 1.0, "highest": 2.0, "rounds": 3})
    (True, False)
    """
    return bool(row.get("rounds", 1 if row["lowest"] == row["highest"] else 2) == 1)


def why_repeat(record: Record) -> str:
    """Why its numbers are not of the code that there is, or of code that nobody can get; nothing where they are.

    >>> why_repeat({"commit": "beccb0a"}), why_repeat({})
    ('', 'its commit was not written down.')
    >>> why_repeat({"commit": "beccb0a, changed"})
    'the code was changed after that commit.'
    """
    if "since_then" in record:
        return str(record["since_then"])
    commit = record.get("commit", "unknown")
    if commit == "unknown":
        return "its commit was not written down."
    return "the code was changed after that commit." if commit.endswith(", changed") else ""


@dataclass(frozen=True)
class Goal:
    """Something that was to be reached: in which benchmark, by which row and number, and what it must be."""

    text: str
    benchmark: str
    row: str
    number: str
    limit: float
    at_least: bool = True
    form: str = "{:.1f} x"

    def line(self, records: dict[str, Record]) -> str:
        """A line of the table: what was measured, and whether that is enough."""
        record = records.get(self.benchmark, {"rows": []})
        row = next((row for row in record["rows"] if row["what"] == self.row and self.number in row), None)
        if row is None:
            return f"| {self.text} | not measured | unknown |"
        met = self._met(row) + ("; to be repeated" if why_repeat(record) else "")
        return f"| {self.text} | {self.form.format(row[self.number])}{self._range(row)} | {met} |"

    def _has_range(self, row: Row) -> bool:
        return self.number == "median" and {"lowest", "highest"} <= row.keys()

    def _range(self, row: Row) -> str:
        if not self._has_range(row):
            return ""
        if one_run(row):
            return " (one run)"
        return f" ({self.form.format(row['lowest'])} to {self.form.format(row['highest'])})"

    def _met(self, row: Row) -> str:
        if not self._enough(row[self.number]):
            return "**no**"
        worst = row["lowest" if self.at_least else "highest"] if self._has_range(row) else row[self.number]
        return "yes" if self._enough(worst) else "yes, in the median"

    def _enough(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit


ESTIMATORS = {"gigpo": "GiGPO", "gae": "GAE", "grpo": "GRPO"}
GOALS = (
    Goal("rollout: 5 x as many steps a second as TRL", "rollout_peers", "this package over TRL", "median", 5.0),
    Goal(
        "rollout: not slower than vLLM in lockstep, 4 M parameters", "rollout_peers",
        "this package over vLLM, LLM.generate in lockstep", "median", 1.0,
    ),
    *(
        Goal(f"the same, {name} {text}", "rollout_peers", f"this package over {name}, {way}", "median", 1.0)
        for name, text, way in (
            ("vLLM", "through our agent", "through our agent"),
            ("vLLM compiled", "in lockstep", "LLM.generate in lockstep"),
            ("vLLM compiled", "through our agent", "through our agent"),
        )
    ),
    Goal("training step: 4 x as many tokens a second as TRL", "training_step", "this package over TRL", "median", 4.0),
    Goal(
        "update: 85 % of a bare loop's tokens a second", "update", "this package over bare loop, equal lengths",
        "median", 0.85, form="{:.0%}",
    ),
    Goal(
        "the same, bare loop in micro-batches as large as ours", "update",
        "this package over bare loop in micro-batches, equal lengths", "median", 0.85, form="{:.0%}",
    ),
    *(
        Goal(
            f"update: at most 1.1 x the bare loop's memory, vocabulary of {vocabulary}", "update",
            f"memory, this package over bare loop, vocabulary of {vocabulary}", "ratio", 1.1, at_least=False,
            form="{:.2f} x",
        )
        for vocabulary in ("4,096", "32,768", "151,936")
    ),
    Goal(
        "update: memory besides weights flat from 4 k to 150 k tokens", "update", "memory growth, this package",
        "ratio", 1.1, at_least=False, form="{:.2f} x",
    ),
    *(
        Goal(
            f"{name}: below 0.1 % of a training step", "advantages", f"{key}, in a training step", "median", 0.1,
            at_least=False, form="{:.2f} %",
        )
        for key, name in ESTIMATORS.items()
    ),
    *(
        Goal(
            f"{name}: time a row flat from {size} to 262 k rows", "advantages", f"{key}, growth", number, 1.1,
            at_least=False, form="{:.2f} x",
        )
        for key, name in ESTIMATORS.items()
        for size, number in (("16 k", "over_16k"), ("1 k", "over_1k"))
    ),
    Goal(
        "80 % held-out success: 3 x sooner than TRL (ours GiGPO, TRL's GRPO)", "time_to_skill",
        "TRL, GRPO over this package, default recipe, seconds", "median", 3.0,
    ),
    Goal(
        "the same, both with GRPO", "time_to_skill", "TRL, GRPO over this package, GRPO, seconds", "median", 3.0
    ),
)  # fmt: skip
