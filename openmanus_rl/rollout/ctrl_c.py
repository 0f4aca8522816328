"""Ctrl-C goes to every process of a terminal: what a run has started must not die of it before the run is ready."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def shielded_from_ctrl_c() -> Iterator[None]:
    """Processes that are started within the block do not hear Ctrl-C: the one that started them ends them."""
    resource_tracker.ensure_running()  # it starts with the first process, and lets signals through when it has
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
