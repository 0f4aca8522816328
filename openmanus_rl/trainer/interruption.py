"""Ctrl-C and SIGTERM: the first is a wish, the second an order."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def interruptible(asked: Callable[[str], None]) -> Iterator[None]:
    """Within the block, the first signal is told to `asked` by its name; a second one stops at once."""
    signals: list[int] = []

    def stop(number: int, frame: Any) -> None:
        del frame
        signals.append(number)
        if len(signals) > 1:
            raise KeyboardInterrupt
        asked(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
