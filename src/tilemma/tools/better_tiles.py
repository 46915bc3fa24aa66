"""Other sizes of tiles for a problem whose last round of blocks is nearly empty.

The kernel's integer constants on which the number of its tiles depends are scaled, each alone or with another that
divides it (a block's tile and that of a warpgroup).  What is proposed has been tried: it compiles, needs fewer
rounds for its size, multiplies by instructions of the same kind, spills no registers, and computes the same on the
CPU reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import ceil
from time import monotonic
from typing import Any

import numpy as np

from tilemma.atoms import MmaAtom, catalogue
from tilemma.compiler import Compiled
from tilemma.errors import TilemmaError, ToolError
from tilemma.ir import tile as t
from tilemma.ir.walk import walk
from tilemma.kernels import Kernel
from tilemma.launch import better_variant
from tilemma.records import record
from tilemma.tools.problem import dimensions, make_problem, parse_scalars, parse_shape
from tilemma.tools.rounds import Rounds, number_of_tiles, rounds

# A launch that uses more of its blocks' time needs no other tiles; and the least gain that is worth naming.
_FULL, _WORTH = 0.95, 1.03
_FACTORS = tuple(Fraction(n, 8) for n in (4, 5, 6, 7, 8, 9, 10, 12, 14, 16))
# Sizes of tiles relative to the kernel's: much smaller ones copy more for each product, larger ones have no room.
_SMALLEST, _LARGEST = Fraction(3, 4), Fraction(4, 3)
# Constants that are no extents of tiles are smaller, or a count of blocks; extents stay multiples of 16, the rows
# of an instruction.
_LEAST, _UNIT = 16, 16
# Kernels that are compiled, and proposals.
_TRIED, _MOST = 12, 2
# Seconds after which no other proposal is looked for.
_LONGEST = 20.0
# The extents at which results are compared: several tiles, with rests.
_SMALL = 300

Constants = dict[str, int]


@record
class Proposal:
    """Compile-time values with which a launch has ``rounds``; ``gain``: the former time by the new one, as far as
    rounds and the elements of a tile decide it."""

    constants: Mapping[str, int]
    rounds: Rounds
    gain: float

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value}" for name, value in self.constants.items())
        found = self.rounds
        return (
            f"with {given} {found.tiles} tiles, rounds: {found.rounds}, the last: {found.last} of {found.at_once}"
        )

    def to_json(self) -> dict[str, Any]:
        return {"constants": dict(self.constants), "rounds": self.rounds.to_json(), "text": str(self)}


@record
class FullRounds:
    """How full the rounds of each launch are, and proposals; ``wanted``: the option that is missing."""

    launches: tuple[Rounds, ...]
    proposals: tuple[Proposal, ...]
    wanted: str = ""

    def lines(self) -> list[str]:
        if self.wanted:
            return [f"rounds: {self.wanted} says how full the last round of blocks is"]
        return [f"rounds: {x}" for x in self.launches] + [f"  {x}" for x in self.proposals]

    def to_json(self) -> dict[str, Any]:
        found = ("rounds", self.launches), ("better_tiles", self.proposals)
        return {name: [x.to_json() for x in values] for name, values in found}


def full_rounds(
    kernel: Kernel, constants: Mapping[str, Any], compiled: Compiled, shape: str | None, args: Sequence[str]
) -> FullRounds:
    """The rounds of ``compiled`` for ``--shape`` and ``--arg``; BadShape or another error of theirs."""
    traced = kernel.traced(**constants)
    needed = dimensions(traced)
    if shape is None and needed:
        if args:
            parse_scalars(traced, args)
        return FullRounds((), (), f"`--shape {','.join(f'{d}=...' for d in needed)}`")
    dims, scalars = parse_shape(traced, shape), parse_scalars(traced, args)
    names = {**dims, **{k: v for k, v in scalars.items() if isinstance(v, int)}}
    variant = better_variant(compiled.launches, names)
    if variant:
        compiled = kernel.compile(compiled.arch, variant=variant, **constants)
    found = better_tiles(kernel, constants, compiled.arch, dims, scalars)
    return FullRounds(tuple(rounds(compiled, names)), tuple(found))


def better_tiles(
    kernel: Kernel, constants: Mapping[str, Any], arch: str, dims: Mapping[str, int], scalars: Mapping[str, Any]
) -> list[Proposal]:
    """Proposals, the best first, for the kernel's first launch; none where its rounds are full, or not known."""
    search = _Search(kernel, constants, arch, dims, scalars)
    try:
        return list(search.proposals())
    except (TilemmaError, MemoryError):
        return []  # a kernel that the reference does not run on random inputs


class _Search:
    def __init__(
        self,
        kernel: Kernel,
        constants: Mapping[str, Any],
        arch: str,
        dims: Mapping[str, int],
        scalars: Mapping[str, Any],
    ) -> None:
        self.kernel, self.constants, self.arch, self.dims, self.scalars = kernel, constants, arch, dims, scalars
        self.end = monotonic() + _LONGEST
        self.names = {**dims, **{k: v for k, v in scalars.items() if isinstance(v, int)}}
        known = {**kernel.source.constants, **constants}
        self.extents = {k: v for k, v in known.items() if type(v) is int and v >= _LEAST and v % _UNIT == 0}

    def proposals(self) -> Iterator[Proposal]:
        first = next(iter(self._rounds({})), None)
        self.multipliers = _multipliers(self._compiled({}))
        written = self._count({}, self.names)
        # In one round no other tiles take less time by this measure.
        if first is None or first.rounds == 1 or first.used >= _FULL or not written:
            return
        scaled = [names for name in self._tiled() if (names := self._scaled_together(name)) is not None]
        ranked = []
        for factors in product(_FACTORS, repeat=len(scaled)):
            chosen = self._chosen(scaled, factors)
            if chosen is None:
                continue
            area = self._area(chosen)
            count = self._count(chosen, self.names)
            if area is None or not count or not _SMALLEST <= area <= _LARGEST:
                continue
            # Clusters count as one where the program has them.
            tiles = ceil(Fraction(first.tiles * count, written))
            gain = first.rounds / float(-(-tiles // first.at_once) * area)
            ranked.append((-gain, abs(area - 1), len(chosen), tuple(chosen.items())))
        found = 0
        for _, _, _, changed in sorted(ranked)[:_TRIED]:
            if monotonic() > self.end:
                return
            proposal = self._tried(dict(changed), first)
            if proposal is not None:
                yield proposal
                found += 1
                if found == _MOST:
                    return

    def _rounds(self, changed: Constants) -> list[Rounds]:
        return rounds(self._compiled(changed), self.names)

    def _compiled(self, changed: Constants) -> Compiled:
        """The variant that a call with these sizes launches."""
        constants = {**self.constants, **changed}
        compiled = self.kernel.compile(self.arch, **constants)
        variant = better_variant(compiled.launches, self.names)
        return self.kernel.compile(self.arch, variant=variant, **constants) if variant else compiled

    def _tiled(self) -> list[str]:
        """The constants on which the number of tiles depends."""
        return [n for n in self.extents if self._area({n: 2 * self.extents[n]}) not in (None, 1)]

    def _area(self, changed: Constants) -> Fraction | None:
        """The elements of a tile relative to those of the kernel's: of a problem in which edges do not count."""
        large = {k: v << 8 if k in self.dims else v for k, v in self.names.items()}
        old, new = (self._count(x, large) for x in ({}, changed))
        return Fraction(old, new).limit_denominator(64) if old and new else None

    def _count(self, changed: Constants, names: Mapping[str, int]) -> int | None:
        """The tiles of the kernel with ``changed``, as it is written."""
        try:
            return number_of_tiles(self.kernel.traced(**{**self.constants, **changed}), names)
        except TilemmaError:
            return None

    def _scaled_together(self, name: str) -> tuple[str, ...] | None:
        """``name``, alone or with another constant that divides it, of which twice the values compute the same."""
        value = self.extents[name]
        others = [n for n, v in self.extents.items() if n != name and value % v == 0]
        for names in ((name,), *((name, n) for n in others)):
            if monotonic() > self.end:
                return None
            if self._same({n: 2 * self.extents[n] for n in names}) or self._same(
                {n: self.extents[n] // 2 for n in names}
            ):
                return names
        return None

    def _chosen(self, scaled: list[tuple[str, ...]], factors: tuple[Fraction, ...]) -> Constants | None:
        """The constants that change; None where one would be no whole extent, or none changes."""
        chosen: Constants = {}
        for names, factor in zip(scaled, factors, strict=True):
            for name in names if factor != 1 else ():
                value = self.extents[name] * factor
                if value.denominator != 1 or value % _UNIT or name in chosen:
                    return None
                chosen[name] = int(value)
        return chosen or None

    def _tried(self, changed: Constants, first: Rounds) -> Proposal | None:
        """``changed`` as a proposal, if it compiles, gains, spills nothing and computes the same."""
        try:
            found = next(iter(self._rounds(changed)), None)
            area = self._area(changed)
            if found is None or area is None:
                return None
            # Blocks that share a multiprocessor take as much longer.
            time, former = found.rounds * found.at_once * area, first.rounds * first.at_once
            gain = float(former / time)
            compiled = self._compiled(changed)
            same = _multipliers(compiled) == self.multipliers and found.persistent == first.persistent
            if gain < _WORTH or not same or _spills(compiled) or not self._same(changed):
                return None
        except TilemmaError:
            return None
        return Proposal(changed, found, gain)

    def _same(self, changed: Constants) -> bool:
        """Whether the CPU reference computes the same with ``changed``."""
        small = {name: min(n, _SMALL) for name, n in self.dims.items()}
        try:
            results = []
            for constants in ({**self.constants}, {**self.constants, **changed}):
                problem = make_problem(self.kernel.build(sizes=small, **constants), small, self.scalars, seed=0)
                returned = self.kernel(*problem.arguments(), **constants)
                results.append([*problem.arrays.values(), returned])
        except TilemmaError:
            return False
        return all(_close(a, b) for a, b in zip(*results, strict=True))


def _close(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    x, y = np.asarray(a).astype(np.float64), np.asarray(b).astype(np.float64)
    return x.shape == y.shape and np.allclose(x, y, rtol=1e-2, atol=1e-2, equal_nan=True)


def _multipliers(compiled: Compiled) -> tuple[set[int], int]:
    """The threads of the instructions that multiply, a warp's or a warpgroup's; and for how many products they
    compute the transpose, as no instruction divides the rows."""
    atoms = [catalogue[op.atom] for op in walk(compiled.kernel.body) if isinstance(op, t.Mma) and op.atom]
    exchanged = sum("its transpose is computed" in d.text for d in compiled.decisions)
    return {x.threads for x in atoms if isinstance(x, MmaAtom)}, exchanged


def _spills(compiled: Compiled) -> bool:
    try:
        return bool(compiled.assembled().spills)
    except ToolError:
        return False
