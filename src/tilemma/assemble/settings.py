"""Environment variables that hold a number."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import TypeVar

from ..errors import visible

N = TypeVar("N", int, float)

_warned: set[tuple[str, str]] = set()


class IgnoredSetting(RuntimeWarning):
    """An environment variable does not hold what it must, and is ignored."""


def number_setting(name: str, expected: str, kind: Callable[[str], N]) -> N | None:
    """The number above 0 in the environment variable ``name``, read by ``kind``; None if it is unset or empty,
    and, with one warning for each value, if it holds anything else."""
    text = os.environ.get(name, "")
    if not text.strip():
        return None
    try:
        if len(text) <= 20 and (number := kind(text)) > 0:
            return number
    except ValueError:
        pass
    if (name, text) not in _warned:
        _warned.add((name, text))
        said = visible(f"{name}={text[:40]} is ignored: expected {expected}")
        warnings.warn(said, IgnoredSetting, stacklevel=3)
    return None
