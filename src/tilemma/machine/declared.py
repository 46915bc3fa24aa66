"""Instructions that a program declares: the machine executes the declared function where it has no rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

Matrix = np.ndarray[Any, Any]


@dataclass(frozen=True)
class DeclaredOperand:
    """Type and extents of one operand; ``table`` [lanes, values] has row + rows * column of each element, and
    ``position`` is that of the operand in the statement."""

    dtype: str
    rows: int
    cols: int
    table: Matrix
    position: int


@dataclass(frozen=True)
class Declared:
    """A warp's instruction: its operands by letter, and its function of matrices of values, A [M, K], B [N, K] and
    C [M, N]; the operand C is missing where D is updated in place.  ``is_current``: whether the declaration still
    stands."""

    name: str
    opcode: str
    operands: Mapping[str, DeclaredOperand]
    function: Callable[[Matrix, Matrix, Matrix], Matrix]
    is_current: Callable[[], bool]


_declared: dict[str, Declared] = {}
# One for each declaration of this process, so that what is decoded with an earlier one is not taken again.
_numbers: dict[str, int] = {}
_next = count()


def declare(instruction: Declared) -> None:
    """Execute ``instruction`` for its opcode; one declared for the same opcode before is replaced."""
    _declared[instruction.opcode] = instruction
    _numbers[instruction.opcode] = next(_next)


def find(opcode: str) -> Declared | None:
    """The instruction declared for ``opcode``, or None."""
    found = _declared.get(opcode)
    return found if found is not None and found.is_current() else None


def state() -> tuple[tuple[str, int], ...]:
    """The declarations in force, as a key: another value after one is made, replaced or withdrawn."""
    return tuple((opcode, _numbers[opcode]) for opcode, x in _declared.items() if x.is_current())
