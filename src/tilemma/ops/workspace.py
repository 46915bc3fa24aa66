"""The arrays that a plan needs besides the caller's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from tilemma.dtypes import s64
from tilemma.ops import launch_cache
from tilemma.ops.plan import Plan
from tilemma.ops.problem import Problem
from tilemma.ops.steps import Step, workspaces
from tilemma.runtime import cuda_device, zeroed
from tilemma.runtime.arrays import ArrayRef, empty_like_first, row_major, stream_source

# The workspace of counters, which are zero between calls.
COUNTERS = "words"


def allocate(problem: Problem, plan: Plan, like: ArrayRef) -> dict[str, Any]:
    """The arrays that ``plan`` needs, as `rooms`."""
    return rooms(workspaces(problem, plan), like)


def rooms(specs: Mapping[str, tuple[tuple[int, ...], str]], like: ArrayRef) -> dict[str, Any]:
    """Arrays of these shapes and types: those by the library of ``like``, and the counters of its device and
    current stream."""
    found: dict[str, Any] = {}
    for name, (shape, dtype) in specs.items():
        if name != COUNTERS:
            found[name] = empty_like_first(like, shape, dtype)
        elif like.device[0] == "cpu":
            found[name] = np.zeros(shape, np.int64)
        else:
            pointer = counters(like, shape)()
            found[name] = like._replace(
                pointer=pointer, shape=shape, strides=row_major(shape), dtype=s64, owner=None, writable=True
            )
    return found


def maker(source: str, like: ArrayRef, spec: tuple[tuple[int, ...], str]) -> launch_cache.Make:
    """The function that makes the array ``source`` of the shape and type ``spec`` for each call, for a first
    argument like ``like``."""
    if source != f"work.{COUNTERS}":
        return launch_cache.maker(like, *spec)
    address = counters(like, spec[0])
    return lambda _: (None, address())


def launch_template(
    steps: Iterable[Step],
    like: ArrayRef,
    needs: Mapping[str, tuple[tuple[int, ...], str]],
    names: Mapping[str, str],
) -> launch_cache.LaunchTemplate:
    """The launches of ``steps``, prepared for their arrays.

    ``like``: the call's first array.  ``needs``: shape and type of the arrays that each call makes, by source.
    ``names``: the caller's name for a source of the steps where it is another.
    """
    launches = []
    for step in steps:
        # Results of libraries with immutable arrays are written before the caller receives them.
        args = tuple(x._replace(writable=True) if isinstance(x, ArrayRef) else x for x in step.args)
        arrays = [p.buffer.name for p in step.kernel.build(**step.constants).arrays]
        places = {n: (names.get(s, s), offset) for n, (s, offset) in zip(arrays, step.sources, strict=True)}
        launches += [(launch, places) for launch in step.kernel.on("cuda").prepare(*args, **step.constants)]
    makes = [(source, maker(source, like, spec)) for source, spec in needs.items()]
    return launch_cache.LaunchTemplate(tuple(launches), tuple(makes), stream_source(like))


def counters(like: ArrayRef, shape: tuple[int, ...]) -> Callable[[], int]:
    """A function that gives the address of counters for a launch on the current stream of the library of
    ``like``."""
    device, stream, size = cuda_device(like.device[1]), stream_source(like), 8 * math.prod(shape)
    return lambda: zeroed(device, stream(), size)
