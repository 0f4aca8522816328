"""Read-only numpy columns for the data classes, and equality of classes that hold them."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

MAX_TOKEN_ID = np.iinfo(np.int32).max


def token_column(name: str, values: Iterable[int] | NDArray[Any]) -> NDArray[np.int32]:
    """Token ids or indices: whole numbers, not negative."""
    array = _one_dimensional(name, values, np.int64)
    if array.size == 0:
        array = array.astype(np.int32)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be whole numbers, got {array.dtype}")
    if array.size and (array.min() < 0 or array.max() > MAX_TOKEN_ID):
        raise ValueError(f"{name} must lie between 0 and {MAX_TOKEN_ID}, got {array.min()} to {array.max()}")
    return _frozen(array, np.int32)


def float_column(name: str, values: Iterable[float] | NDArray[Any]) -> NDArray[np.float32]:
    """Finite numbers in single precision, which is what engines and trainers compute in."""
    array = _numbers(name, values)
    return _frozen(_single(name, array), np.float32)


def reward_column(name: str, values: Iterable[float] | NDArray[Any]) -> NDArray[np.float64]:
    """Finite numbers in double precision: a score that is spread over tokens has to add up to itself.

    In single precision equal scores would differ a little after it, by how many tokens an episode has, and dividing by
    that spread makes advantages out of rounding. They must fit into single precision all the same.
    """
    array = _numbers(name, values)
    _single(name, array)
    return _frozen(array, np.float64)


def _numbers(name: str, values: Iterable[float] | NDArray[Any]) -> NDArray[Any]:
    array = _one_dimensional(name, values, np.float64)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name} must be numbers, got {array.dtype}")
    return array


def _single(name: str, array: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        array = array.astype(np.float32, copy=False)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, but position {int(np.argmin(np.isfinite(array)))} is not")
    return array


def bool_column(name: str, values: Iterable[bool] | NDArray[Any]) -> NDArray[np.bool_]:
    """Truth values; 0 and 1 are accepted, other numbers are not."""
    array = _one_dimensional(name, values, np.int64)
    if array.dtype.kind != "b" and not np.isin(array, (0, 1)).all():
        raise ValueError(f"{name} must be true or false everywhere")
    return _frozen(array, np.bool_)


def _one_dimensional(name: str, values: Any, empty_dtype: type) -> NDArray[Any]:
    array = values if isinstance(values, np.ndarray) else np.array(list(values))
    if array.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got shape {array.shape}")
    return array if array.size else array.astype(empty_dtype)


def _frozen(array: NDArray[Any], dtype: type) -> NDArray[Any]:
    """A read-only array of this type; copied only where the caller could still change it."""
    converted: NDArray[Any] = array.astype(dtype, copy=_is_changeable(array))
    converted.flags.writeable = False
    return converted


def _is_changeable(array: NDArray[Any]) -> bool:
    """Whether someone may hold a writable view of this array's memory."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return True
        owner = owner.base
    return owner is not None


def same_fields(left: object, right: object) -> bool:
    """Whether two instances of one dataclass hold the same values, arrays compared element by element."""
    if type(left) is not type(right):
        return False
    return all(_same(getattr(left, f.name), getattr(right, f.name)) for f in fields(left))  # type: ignore[arg-type]


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return isinstance(left, np.ndarray) and isinstance(right, np.ndarray) and np.array_equal(left, right)
    return bool(left == right)
