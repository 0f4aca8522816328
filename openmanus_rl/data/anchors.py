"""Anchors: the state keys by which steps are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable


_PLAIN = frozenset((str, int, float, bool, type(None)))
_LISTS = frozenset((list, tuple))


def anchor_key(anchor: Any) -> Hashable:
    """Something hashable that is equal exactly where two anchors are.

    Anchors are text, numbers, None, arrays, tensors, lists and dicts, nested as you like; a list and a tuple of the
    same items are equal, and so are dicts in any order.

    >>> anchor_key({"room": [1, 2], "door": "open"}) == anchor_key({"door": "open", "room": (1, 2)})
    True
    """
    kind = type(anchor)
    if kind in _PLAIN:
        return anchor  # type: ignore[no-any-return]
    if kind in _LISTS and _PLAIN.issuperset(map(type, anchor)):  # most states: one look at each item, no call
        return ("list", tuple(anchor))
    if isinstance(anchor, str | int | float):
        return anchor
    if hasattr(anchor, "detach"):  # a torch tensor, without importing torch
        anchor = np.asarray(anchor.detach().cpu().tolist())
    if isinstance(anchor, np.generic):
        return anchor_key(anchor.item())
    if isinstance(anchor, np.ndarray):
        return ("array", anchor.shape, tuple(anchor_key(item) for item in anchor.ravel().tolist()))
    if isinstance(anchor, list | tuple):
        return ("list", tuple(anchor_key(item) for item in anchor))
    if isinstance(anchor, dict):
        return ("dict", frozenset((key, anchor_key(value)) for key, value in anchor.items()))
    raise TypeError(f"an anchor must be text, a number, an array, a list or a dict, got {type(anchor).__name__}")
