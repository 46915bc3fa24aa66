"""Views of random programs: where the elements of a tile are in its array."""

from __future__ import annotations

from typing import Any

import numpy as np

from dev.fuzz.programs import Cut


def cut(places: Any, c: Cut, at: tuple[int, ...]) -> Any:
    """The places of the tile that ``c`` takes of a view's ``places``, -1 where it lies beyond them."""
    shape = places.shape
    match c.kind:
        case "sqz":
            return places.reshape([n for n in shape if n != 1])
        case "span_as":
            return places.reshape(c.extents)
        case "chunk":
            extents = [n // count for n, count in zip(shape, c.extents, strict=True)]
        case _:
            extents = list(c.extents)
    steps = c.step or ([1] * len(at) if c.kind == "view" else extents)
    origin = [i * n for i, n in zip(at, steps, strict=True)]
    if c.kind == "modspan":
        extents = [max(0, min(n, m - o)) for n, m, o in zip(extents, shape, origin, strict=True)]
    strides = c.strides or [1] * len(extents)
    for axis, (o, n, s) in enumerate(zip(origin, extents, strides, strict=True)):
        wanted = o + np.arange(n) * s
        inside = (wanted >= 0) & (wanted < places.shape[axis])
        if not places.shape[axis]:
            return np.full(extents, -1)
        found = places.take(np.where(inside, wanted, 0), axis)
        mask = inside.reshape([-1 if d == axis else 1 for d in range(found.ndim)])
        places = np.where(mask, found, -1)
    return places
