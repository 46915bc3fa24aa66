"""A tensor store writes whole 16-byte units: the machine reports rows that end inside one."""

from __future__ import annotations

import pytest

from tilemma.machine.isa.tensormap import STORE_UNIT, TensorMapImage, store_problems


@pytest.mark.parametrize("columns", range(1, 80))
@pytest.mark.parametrize("corner", [0, 32, 64])
def test_partial_units(columns: int, corner: int) -> None:
    image = TensorMapImage("f16", (columns, 8), (256,), (32, 8), (1, 1))
    reaches_the_end = corner < columns < corner + 32
    assert bool(store_problems(image, [corner, 0])) == (reaches_the_end and 2 * columns % STORE_UNIT != 0)
