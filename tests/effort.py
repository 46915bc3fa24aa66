"""The work of a call as a count of instructions: equal on every machine, under any load."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class TooMuch(AssertionError):
    pass


def calls(run: Callable[[], Any], most: int) -> int:
    """The calls of functions, Python's and C's, that ``run`` makes in this thread; TooMuch beyond ``most``."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        if event in ("call", "c_call"):
            count += 1
            if count > most:
                sys.setprofile(None)
                raise TooMuch(f"more than {most} calls")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count
