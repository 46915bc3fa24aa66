"""The launch cache of `ops`: finds prepared launches for the arguments of a repeated call.

Checks and plans depend on shapes, strides, types, devices and numbers only; a call that agrees in these needs at
most new addresses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilemma.bounded import Bounded
from tilemma.forking import ForkSafeLock
from tilemma.runtime import PreparedLaunch, call_key
from tilemma.runtime.arrays import ArrayRef, describe, empty_like_first
from tilemma.runtime.binding import OverlappingArrays
from tilemma.runtime.overlap import overlap

# Calls kept by their addresses, kinds of calls kept by all but those, and places of one call's allocations: an
# allocator gives the same few again and again.
CAPACITY, KINDS, PLACES = 4096, 1024, 16

# From a call's first array: a new array and its address.
Make = Callable[[Any], tuple[Any, int]]


@dataclass(slots=True)
class LaunchTemplate:
    """The launches of one kind of call.

    ``launches``: each with the array parameter -> (source, byte offset) that its addresses are computed from;
    sources are the caller's arrays (`NAMES`) and "work.*".  ``makes``: by source, the
    function that allocates an array for each call.  ``stream`` returns the caller's current stream.
    """

    launches: tuple[tuple[PreparedLaunch, dict[str, tuple[str, int]]], ...]
    makes: tuple[tuple[str, Make], ...]
    stream: Callable[[], int]

    def at(self, pointers: Mapping[str, int]) -> tuple[PreparedLaunch, ...]:
        """The launches for arrays at other addresses.  Raises OverlappingArrays, TensorMapRefused."""
        return tuple(
            launch.moved({name: pointers[source] + offset for name, (source, offset) in places.items()})
            for launch, places in self.launches
        )

    def check_result(self, function: str, arrays: tuple[Any, ...]) -> None:
        """Raises OverlappingArrays where the result shares memory with another of the caller's ``arrays``.

        `at` compares the arrays of each launch: that suffices for a single one.
        """
        given = {name: x for name, x in zip(NAMES, arrays, strict=True) if x is not None}
        if "out" not in given or len(self.launches) == 1:
            return
        result = describe(given.pop("out"))
        for name in {source for _, places in self.launches for source, _ in places.values()} & given.keys():
            if overlap(result, describe(given[name])):
                raise OverlappingArrays(kernel=function, name="out", other=name)


@dataclass(slots=True)
class Entry:
    """A recipe for a call's own arrays, and the launches for each place its allocations have been at."""

    recipe: LaunchTemplate
    pointers: dict[str, int]
    kept: Bounded[tuple[int, ...], tuple[PreparedLaunch, ...]] = field(default_factory=lambda: Bounded(PLACES))

    def run(self, first: Any, out: Any) -> Any:
        """Allocate what the call needs like ``first``, start its launches, and return the result."""
        made = self.start(first)
        return made.get("out", out)

    def start(self, first: Any) -> dict[str, Any]:
        """Allocate what the call needs like ``first``, start its launches, and return what was allocated."""
        made = {source: make(first) for source, make in self.recipe.makes}
        places = tuple([pointer for _, pointer in made.values()])
        launches = self.kept.get(places)
        if launches is None:
            pointers = self.pointers | dict(zip(made, places, strict=True))
            launches = self.recipe.at(pointers)
            self.kept[places] = launches
        stream = self.recipe.stream()
        for launch in launches:
            launch.start(stream)
        return {source: x for source, (x, _) in made.items()}


def maker(like: ArrayRef, shape: tuple[int, ...], dtype: str) -> Make:
    """A function that allocates such an array by the library of ``like``, for a first argument of that library."""
    if like.library == "torch":
        torch = sys.modules["torch"]
        # One element in the place of all: torch parses a tensor faster than a shape, a type and a device.
        sample, new = empty_like_first(like, (), dtype).expand(shape), torch.empty_like
        rows = torch.contiguous_format

        def tensor(_: Any) -> tuple[Any, int]:
            made = new(sample, memory_format=rows)
            return made, made.data_ptr()

        return tensor

    def array(first: Any) -> tuple[Any, int]:
        made = empty_like_first(describe(first), shape, dtype)
        return made, describe(made).pointer

    return array


# A number is no array, and has no address.
_PROBES: dict[type, Callable[[Any], Hashable] | None] = {type(None): lambda _: 0}
NAMES = ("a", "b", "c", "bias", "out", "scale_a", "scale_b", "offsets")


class WarmCalls:
    """Entries by all inputs of a call, and launch templates by all but addresses; thread-safe."""

    def __init__(self) -> None:
        self._entries: Bounded[Hashable, Entry] = Bounded(CAPACITY)
        self._recipes: Bounded[Hashable, LaunchTemplate] = Bounded(KINDS)
        self._lock = ForkSafeLock()

    def find(self, key: Any, function: str = "", arrays: tuple[Any, ...] = ()) -> Entry | None:
        """The entry for a call of `key_of`, made from one that differs in addresses only where there is one.

        ``arrays``: those of the key, if a result may be among them.  Raises OverlappingArrays.
        """
        entry = self._entries.get(key)
        if entry is not None:
            return entry
        recipe = self._recipes.get(_without_addresses(key))
        if recipe is None:
            return None
        if arrays:
            recipe.check_result(function, arrays)
        return self._keep(key, recipe)

    def put(self, key: Any, recipe: LaunchTemplate) -> Entry:
        """Remember the recipe of a call."""
        self._recipes[_without_addresses(key)] = recipe
        return self._keep(key, recipe)

    def _keep(self, key: Any, recipe: LaunchTemplate) -> Entry:
        entry = Entry(recipe, {n: k[0] for n, k in zip(NAMES, key[0], strict=True) if k != 0})
        with self._lock:
            self._entries[key] = entry
        return entry

    def clear(self) -> None:
        """Drop all entries."""
        self._entries.clear()
        self._recipes.clear()


def key_of(arrays: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
    """The inputs that a launch depends on, as a dictionary key; None if an array must be described at each call.

    ``arrays`` are those of `NAMES`, None for an absent one.  ``options`` that are equal have to mean the same:
    see `exact`.
    """
    probe = call_key(arrays, _PROBES)
    if probe is None:
        return None
    try:
        hash(options)
    except TypeError:
        return None
    return probe, options


def exact(options: tuple[Any, ...]) -> tuple[Hashable, ...]:
    """``options`` so that none is equal to another that is refused or has other results: 1 == 1.0 == True and
    0.0 == -0.0."""
    return tuple([_exact(x) for x in options])


def _exact(x: Any) -> Hashable:
    if type(x) is tuple:
        return exact(x)
    return type(x), x.hex() if type(x) is float else x


def _without_addresses(key: Any) -> Hashable:
    """``key`` with addresses replaced by their alignment, and whether the result is `c` itself."""
    probe, options = key
    places = tuple([k if k == 0 else (k[0] & 127, *k[1:]) for k in probe])
    in_place = probe[2] != 0 and probe[4] != 0 and probe[2][0] == probe[4][0]
    return places, in_place, options
