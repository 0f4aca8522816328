"""Files of JSON lines with a format version: what those of trajectories and of credit have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from openmanus_rl.data.json_values import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

T = TypeVar("T")


def parse_line(line: bytes | str, version: int, what: str, field: str, kind: type) -> dict[str, Any]:
    """The object of a line, without its version; ValueError if it is not `what`, which has a `field` of this kind."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(record, dict) or not isinstance(record.get(field), kind):
        raise ValueError(f"is not {what}: an object with `{field}` is expected")
    found = record.pop("version", None)
    if found != version:
        raise ValueError(f"has format version {shown(found)}, but this program reads {version}")
    return record


def read_lines(path: Path, loads: Callable[[bytes], T]) -> Iterator[T]:
    """What `loads` makes of each line that is not empty, one by one; an error names the file and the line."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    yield loads(line)
                except ValueError as error:
                    raise ValueError(f"{path}:{number}: {error}") from None
