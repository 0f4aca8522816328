"""What an environment may answer: the kinds of values that `base.py` promises, looked at before anybody relies on them.

Whoever passes an answer on must look first: written as JSON and read again, `"no"` for `terminated` would be true, and
`True` for the reward would be 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from openmanus_rl.data.json_values import check_text, plain_number

INFO_KEYS = ("won", "task_type", "admissible_actions", "action_valid", "anchor")


def check_answer(answer: Any, length: int) -> None:
    """Raise TypeError or ValueError unless this is what `reset` (2 values) or `step` (5 values) answers."""
    if not isinstance(answer, tuple) or len(answer) != length:
        raise TypeError(f"{length} values are expected, got {type(answer).__name__}")
    if not isinstance(answer[0], str):
        raise TypeError(f"an observation is text, got {type(answer[0]).__name__}")
    check_text("the observation", answer[0])
    if length == 5:
        plain_number("the reward", answer[1])
        _check_flag("terminated", answer[2])
        _check_flag("truncated", answer[3])
    _check_info(answer[-1])


def _check_info(info: Any) -> None:
    if not isinstance(info, dict):
        raise TypeError(f"info is a dict, got {type(info).__name__}")
    missing = [key for key in INFO_KEYS if key not in info]
    if missing:
        raise TypeError(f"info has no {', '.join(missing)}")
    _check_flag("info['won']", info["won"])
    _check_flag("info['action_valid']", info["action_valid"])
    check_text("info['task_type']", info["task_type"])
    if info.get("score") is not None:
        plain_number("info['score']", info["score"])
    if isinstance(info.get("goal"), str):
        check_text("info['goal']", info["goal"])
    admissible = info["admissible_actions"]
    if admissible is None:
        return
    if not isinstance(admissible, list | tuple):
        raise TypeError(f"info['admissible_actions'] is a list or None, got {type(admissible).__name__}")
    for position, action in enumerate(admissible):
        check_text(f"info['admissible_actions'][{position}]", action)


def _check_flag(name: str, value: object) -> None:
    """Text or a number in its place would count as true."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} is true or false, got {value!r:.80}")
