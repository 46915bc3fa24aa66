"""Where a `random.Random` keeps its state, so that the native library draws the same numbers from it."""

from __future__ import annotations

import ctypes
import random
from functools import cache

_WORDS = 624
# The base of `random.Random` has its index and its words behind what every object has.
_OFFSET = object.__basicsize__


class _State(ctypes.Structure):
    _fields_ = (("index", ctypes.c_uint32), ("words", ctypes.c_uint32 * _WORDS))


def _matches(generator: random.Random) -> bool:
    state = _State.from_address(id(generator) + _OFFSET)
    return bool((*state.words, state.index) == generator.getstate()[1])


@cache
def available() -> bool:
    """Whether this Python keeps the state where it is looked for."""
    if random.Random.__basicsize__ < _OFFSET + ctypes.sizeof(_State):
        return False
    generator = random.Random(20)
    first = _matches(generator)
    generator.random()
    return first and _matches(generator)


def state_of(generator: random.Random) -> int:
    """The address of the state: the index, then the words."""
    return id(generator) + _OFFSET
