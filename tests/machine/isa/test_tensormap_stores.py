"""Places where a box cannot start, and tensor stores, which write whole 16-byte units."""

from __future__ import annotations

import pytest

from tilemma.machine.isa.tensormap import STORE_UNIT, TensorMapImage, corner_problems, store_problems


@pytest.mark.parametrize("columns", range(1, 80))
@pytest.mark.parametrize("corner", [0, 32, 64])
def test_partial_units(columns: int, corner: int) -> None:
    image = TensorMapImage("f16", (columns, 8), (256,), (32, 8), (1, 1))
    reaches_the_end = corner < columns < corner + 32
    assert bool(store_problems(image, [corner, 0])) == (reaches_the_end and 2 * columns % STORE_UNIT != 0)


@pytest.mark.parametrize("corner", range(-40, 41))
def test_boxes_start_at_whole_units(corner: int) -> None:
    """Elsewhere an H200 raised an illegal instruction."""
    image = TensorMapImage("f32", (64, 8), (256,), (32, 8), (1, 1))
    assert bool(corner_problems(image, [corner, 3])) == (4 * corner % 16 != 0)
