"""Credit as lines: what is written is read, and what does not fit together is refused."""

from pathlib import Path

import numpy as np
import pytest

from openmanus_rl.data.credit import Credit, dumps, loads, read_credits, write_credits


def credit(**more: object) -> Credit:
    given: dict[str, object] = {
        "columns": {"old_logprobs": [-0.5, -1.25, -2.0], "advantages": [0.5, 0.5, -0.25]},
        "estimators": {"grpo": [1.0, 1.0, 1.0]}, "turns": [0, 2], "step_returns": [0.9, 1.0], "step_groups": [4, 7],
        "step_group_sizes": [3, 1],
    }  # fmt: skip
    return Credit("g", "g-0", "gigpo", **{**given, **more})  # type: ignore[arg-type]


def test_a_line_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_credits(tmp_path / "c.jsonl", [credit(), credit(estimators={})])
    first, second = read_credits(tmp_path / "c.jsonl")
    assert first.columns.keys() == {"old_logprobs", "advantages"}
    np.testing.assert_array_equal(first.columns["advantages"], np.float32([0.5, 0.5, -0.25]))
    np.testing.assert_array_equal(first.estimators["grpo"], np.ones(3, np.float32))
    assert (first.turns.tolist(), first.step_groups.tolist(), first.step_group_sizes.tolist()) == (
        [0, 2],
        [4, 7],
        [3, 1],
    )
    assert first.n_tokens == 3
    assert second.estimators == {}


def test_numbers_are_rounded_to_what_can_be_read() -> None:
    line = dumps(credit(columns={"advantages": np.float32([1 / 3, 0.1, 1e-9])}, estimators={}))
    assert b"[0.333333,0.1,0.0]" in line


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": {"guess": [1.0]}}, "guess is not a column"),
        ({"estimators": {"grpo": [1.0]}}, "different lengths"),
        ({"columns": {"advantages": [float("nan")] * 3}}, "finite"),
        ({"step_groups": [1]}, "step_groups has 1 entries for 2 turns"),
        ({"turns": [-1, 0]}, "turns must lie between"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        credit(**change)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "is not JSON"),
        (b"[]", "an object with `columns`"),
        (b'{"columns": {}, "version": 9}', "format version 9"),
        (b'{"columns": {}, "version": 1}', "is not an episode's credit"),
        (b'{"columns": {}, "version": 1, "group_id": 1, "traj_id": "a", "estimator": "b"}', "group_id must be text"),
    ],
)
def test_a_line_that_is_none_says_why(line: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        loads(line)
    (tmp_path / "c.jsonl").write_bytes(dumps(credit()) + b"\n" + line)
    with pytest.raises(ValueError, match=r"c\.jsonl:2: "):
        list(read_credits(tmp_path / "c.jsonl"))
