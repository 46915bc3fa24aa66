"""Thread-value layouts of register tiles: the elements that each lane holds, and whether two tiles agree."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilemma.atoms import MmaAtom, catalogue
from tilemma.ir.plans import FragmentPlan

# A tile of more atoms does not fit in registers: ChooseAtoms refuses it.
_MOST_ATOMS = 1024


@lru_cache(maxsize=256)
def positions(plan: FragmentPlan) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(row, column) of each element in the part of one executing unit: arrays [lanes, elements], atom by atom.

    Of a vector: the rows of which a lane holds elements, each once, in column 0.
    """
    atom = catalogue[plan.atom]
    assert isinstance(atom, MmaAtom), plan.atom
    operand = atom.operands["C" if plan.role == "R" else plan.role]
    table = operand.coordinates_table
    rows, columns = table % operand.shape[0], table // operand.shape[0]
    if plan.role == "R":
        first = np.sort(np.unique(rows[0], return_index=True)[1])
        rows, columns = rows[:, first], np.zeros_like(rows[:, first])
    height, width = operand.shape
    down, across = plan.repeat
    parts = [(rows + i * height, columns + j * width) for i in range(down) for j in range(across)]
    return np.concatenate([r for r, _ in parts], axis=1), np.concatenate([c for _, c in parts], axis=1)


def agree(x: FragmentPlan, y: FragmentPlan) -> bool:
    """Whether each lane that holds an element of ``x`` holds that of ``y`` at the same place; of a vector ``y``,
    that of the same row."""
    if (x.level, x.grid) != (y.level, y.grid) or (x.role != y.role and "A" in (x.role, y.role) and x.grid[1] > 1):
        return False
    if max(prod(x.repeat), prod(y.repeat)) > _MOST_ATOMS:
        return True
    (xr, xc), (yr, yc) = positions(x), positions(y)
    if xr.shape[0] != yr.shape[0]:
        return False
    if y.role == "R":
        xc = np.zeros_like(xc)
    width = 1 + max(int(xc.max()), int(yc.max()))
    mine: NDArray[Any] = xr * width + xc
    its: NDArray[Any] = yr * width + yc
    place = {int(key): n for n, key in enumerate(its[0])}
    found = np.array([place.get(int(key), -1) for key in mine[0]])
    return bool((found >= 0).all()) and np.array_equal(mine, its[:, found])
