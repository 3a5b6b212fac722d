"""Ctrl-C and SIGTERM: noted at once, acted on where nothing can be torn.

The first signal sets a flag; `check` (called between updates and from the engines' progress callbacks, when
members are in working copies and the center is whole) raises `Interrupted`. A second Ctrl-C does not wait.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Self

from broaden.errors import Interrupted


class Interrupts:
    """Context manager that turns SIGINT and SIGTERM into `Interrupted` at safe points."""

    def __init__(self, fix: str = "") -> None:
        self.fix = fix
        self.asked = False
        self._old: dict[int, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._old = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True

    def check(self) -> None:
        """Raise `Interrupted` if a signal came."""
        if self.asked:
            raise Interrupted("interrupted; everything up to the last update is saved", self.fix)

    def progress(self, completions: int, tokens: int) -> None:
        """`check` in the form of an engine's progress callback."""
        self.check()
