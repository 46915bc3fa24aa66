"""CuTe's view of an instruction: a TiledMMA, its partitions, fragments and descriptor iterators.

    mma = TiledMMA(catalogue["SM90_64x64x16_F16F16F16_SS"])
    sA = tile_to_shape(canonical_atom(16, "MN", 128), (128, 64, 3))
    tCsA = mma.thr_slice(0).partition_A(sA)      # ((_64,(_8,_2)),_2,_4,_3):((_1,(_64,_1024)),_512,_2048,_8192)
    tCrA = mma.thr_slice(0).fragment_A(tCsA)     # (_1,_2,_4,_3):(_0,_64,_256,_1024), in units of 16 bytes

Layouts are of element offsets.  A partition's modes are (values of one instruction, repetitions along the
first dimension, along the second, then any further modes, such as pipeline stages).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensor_layouts import ComposedLayout, Layout, compose, mode, size, zipped_divide

from tilemma.atoms import MmaAtom, Operand
from tilemma.checked import Condition, checked, instance, integer, integers, one_of, optional
from tilemma.errors import CompileError, Refusal
from tilemma.layouts import (
    Descriptor,
    InstructionMisfit,
    Major,
    SwizzleAtomMisfit,
    TileMisfit,
    canonical_atom,
    cute_str,
)
from tilemma.layouts.algebra import LARGEST, LAYOUT, LayoutLike, join, split
from tilemma.layouts.shared import MAJOR, SWIZZLES, check_operand, descriptor_of

_AXES = {"A": "MK", "B": "NK", "C": "MN"}
_ATOM = instance("a multiplying instruction of `tilemma.atoms`", MmaAtom)
_LETTER = one_of(*_AXES)
_TILE = integers(0, LARGEST, 3)
# A tile with a coordinate table of all elements.
_LISTED = integers(1, 1 << 10, 3)
_TENSOR = Condition(
    f"{LAYOUT.wanted}, of two modes or more",
    lambda v: LAYOUT.has_type(v),
    lambda v: isinstance(split(v)[1].shape, tuple) and len(split(v)[1].shape) > 1,
)
_PART = Condition(
    "a partition, as `partition_A` returns it",
    lambda v: isinstance(v, Layout) or (isinstance(v, ComposedLayout) and isinstance(v.inner, Layout)),
)
_SHARED = Condition(
    "a pair of majorness (K or MN) and swizzle (0, 32, 64 or 128)",
    lambda v: isinstance(v, (tuple, list)) and len(v) == 2,
    lambda v: isinstance(v[0], str) and v[0] in ("K", "MN") and v[1] in SWIZZLES,
)


class NoDescriptors(CompileError, ValueError):
    code = "no-descriptors"
    found = "there are no descriptors of {tensor}: {reason}"
    expected = "an operand that the instruction reads from shared memory, in whole units of 16 bytes"
    fix = "{remedy}"


@dataclass(frozen=True)
class TiledMMA:
    """An instruction repeated over ``atom_layout`` = (M, N, K) executing units side by side.

    Unit number u has its own warp or warpgroup, threads u * atom.threads and on; units count along M first,
    then N, then K, as CuTe's default layout does.
    """

    atom: MmaAtom
    atom_layout: tuple[int, int, int] = (1, 1, 1)

    def __post_init__(self) -> None:
        _ATOM.check("TiledMMA", "atom", self.atom)
        integers(1, 1024, 3).check("TiledMMA", "atom_layout", self.atom_layout)

    @property
    def size(self) -> int:
        """Threads that execute it together."""
        return self.atom.threads * int(np.prod(self.atom_layout))

    @property
    def tile_shape(self) -> tuple[int, int, int]:
        """(M, N, K) that all units cover in one go."""
        m, n, k = (a * b for a, b in zip(self.atom.shape, self.atom_layout, strict=True))
        return m, n, k

    def thr_slice(self, thread: int) -> ThrMMA:
        """The view of thread ``thread``, from 0 to `size` - 1."""
        integer(0, self.size - 1).check("thr_slice", "thread", thread)
        return ThrMMA(self, thread)

    @checked(tile=_TILE)
    def repetitions(self, tile: tuple[int, int, int]) -> tuple[int, int, int]:
        """(MMA_M, MMA_N, MMA_K): how often each unit issues the instruction for a block tile (M, N, K).

        Raises InstructionMisfit where the units' shape does not divide the tile.
        """
        counts = []
        for axis, extent, step in zip("MNK", tile, self.tile_shape, strict=True):
            if extent < 1 or extent % step:
                raise InstructionMisfit(
                    tile=f"a {'x'.join(map(str, tile))} tile",
                    reason=f"{axis} = {extent} is no multiple of {step}",
                    rule=f"{self.atom.name} on {self.atom_layout} units covers {self.tile_shape} at a time",
                    remedy=f"make {axis} a multiple of {step}",
                )
            counts.append(extent // step)
        return counts[0], counts[1], counts[2]

    def issues(self, tile: tuple[int, int, int]) -> int:
        """Instructions that one unit issues for a block tile (M, N, K)."""
        return int(np.prod(self.repetitions(tile)))

    @checked(letter=_LETTER, tile=_LISTED)
    def owners(self, letter: str, tile: tuple[int, int, int]) -> NDArray[np.int64]:
        """For each element of the operand's block tile the first (thread, value) that holds it: (rows, cols, 2).

        Values count through the instruction's fragment first, then its repetitions along the operand's first
        dimension, then along its second.
        """
        self.repetitions(tile)
        rows, cols = (tile["MNK".index(axis)] for axis in _AXES[letter])
        found = np.full((rows * cols, 2), -1, dtype=np.int64)
        for thread in reversed(range(self.size)):
            part = self.thr_slice(thread).partition(letter, Layout((rows, cols)))
            affine = _affine(part)
            base = part.offset if isinstance(part, ComposedLayout) else 0
            for value in range(size(affine)):
                found[base + affine(value)] = thread, value
        return found.reshape(cols, rows, 2).transpose(1, 0, 2)


@dataclass(frozen=True)
class ThrMMA:
    """One thread's view of a TiledMMA."""

    mma: TiledMMA
    thread: int

    def partition_A(self, tensor: LayoutLike) -> LayoutLike:
        """This thread's part of A, a layout over (M, K, ...)."""
        return self.partition("A", tensor)

    def partition_B(self, tensor: LayoutLike) -> LayoutLike:
        """This thread's part of B, a layout over (N, K, ...)."""
        return self.partition("B", tensor)

    def partition_C(self, tensor: LayoutLike) -> LayoutLike:
        """This thread's part of C, a layout over (M, N, ...)."""
        return self.partition("C", tensor)

    @checked(letter=_LETTER, tensor=_TENSOR)
    def partition(self, letter: str, tensor: LayoutLike) -> LayoutLike:
        """As `partition_A`, `partition_B`, `partition_C`.

        An operand read from shared memory is the same view for every thread.  Raises InstructionMisfit where
        the units' shape does not divide the tensor.
        """
        atom = self.mma.atom
        operand = atom.operands[letter]
        axes = ["MNK".index(axis) for axis in _AXES[letter]]
        swizzle, affine = split(tensor)
        first, second = mode(affine, 0), mode(affine, 1)
        extents = [size(first), size(second)]
        for axis, extent in zip(axes, extents, strict=True):
            if extent % self.mma.tile_shape[axis]:
                raise InstructionMisfit(
                    tile=f"{letter} of {extents[0]}x{extents[1]}",
                    reason=f"{'MNK'[axis]} = {extent} is no multiple of {self.mma.tile_shape[axis]}",
                    rule=f"{atom.name} on {self.mma.atom_layout} units covers {self.mma.tile_shape} at a time",
                    remedy=f"make {'MNK'[axis]} a multiple of {self.mma.tile_shape[axis]}",
                )
        divided = zipped_divide(Layout(first, second), tuple(Layout(e) for e in operand.shape))
        values = compose(mode(divided, 0), thread_value(atom, operand))
        units = tuple(Layout(self.mma.atom_layout[axis]) for axis in axes)
        repeated = zipped_divide(mode(divided, 1), units)
        lane, unit = self.thread % atom.threads, self._unit()
        offset = mode(values, 0)(lane) + mode(repeated, 0)(tuple(unit[axis] for axis in axes))
        rest = [mode(mode(repeated, 1), i) for i in (0, 1)]
        extra = [mode(affine, i) for i in range(2, len(affine.shape))]
        view = Layout(mode(values, 1), *rest, *extra)
        if offset == 0:
            return join(swizzle, view)
        return ComposedLayout(
            swizzle if swizzle is not None else Layout(_cosize(view, offset)), view, offset=offset
        )

    def _unit(self) -> tuple[int, int, int]:
        unit = self.thread // self.mma.atom.threads
        m, n, _ = self.mma.atom_layout
        return unit % m, unit // m % n, unit // (m * n)

    @checked(part=_PART)
    def fragment_C(self, part: LayoutLike) -> Any:
        """The place of the accumulators of ``part`` in this thread's registers, counted in elements."""
        return Layout(_affine(part).shape)

    @checked(part=_PART)
    def fragment_A(self, part: LayoutLike) -> Any:
        """As `fragment_C`; for an operand in shared memory the layout of its descriptors instead, (1, ...)
        in units of 16 bytes, CuTe's descriptor iterator."""
        return self._fragment(self.mma.atom.a, part)

    @checked(part=_PART)
    def fragment_B(self, part: LayoutLike) -> Any:
        """As `fragment_A`."""
        return self._fragment(self.mma.atom.b, part)

    def _fragment(self, operand: Operand, part: LayoutLike) -> Any:
        affine = _affine(part)
        if operand.in_registers:
            return Layout(affine.shape)
        if not isinstance(affine.shape, tuple):
            raise NoDescriptors(
                tensor=str(part), reason="it has one mode", remedy="pass what `partition_A` returns"
            )
        unit = 128 // operand.dtype.bits
        outer = [mode(affine, i) for i in range(1, len(affine.shape))]
        strides = [_map(m.stride, lambda d: _exact(d, unit)) for m in outer]
        return Layout((1, *(m.shape for m in outer)), (0, *strides))

    @checked(letter=one_of("A", "B"), tensor=_TENSOR, major=MAJOR)
    def descriptors(
        self, letter: str, tensor: LayoutLike, major: Major
    ) -> Iterator[tuple[tuple[int, ...], Descriptor]]:
        """((repetition, repetition, stage...), descriptor) for each instruction that reads ``tensor`` as A or B.

        Start addresses are relative to the tensor.  Raises SwizzleAtomMisfit where an operand has none,
        and NoDescriptors for an operand in registers.
        """
        operand = self.mma.atom.operands[letter]
        if operand.in_registers:
            raise NoDescriptors(
                tensor=letter,
                reason=f"{self.mma.atom.name} has it in registers",
                remedy=f"use `fragment_{letter}`",
            )
        rows, k = operand.shape
        swizzle, affine = split(tensor)
        stages = [mode(affine, i) for i in range(2, len(affine.shape))]
        plane = join(swizzle, Layout(mode(affine, 0), mode(affine, 1)))
        step = [self.mma.atom_layout["MNK".index(axis)] for axis in _AXES[letter]]
        unit = [self._unit()["MNK".index(axis)] for axis in _AXES[letter]]
        counts = [size(mode(affine, i)) // (e * s) for i, (e, s) in enumerate(zip((rows, k), step, strict=True))]
        for index in itertools.product(*(range(c) for c in counts), *(range(size(s)) for s in stages)):
            row0 = (index[0] * step[0] + unit[0]) * rows
            k0 = (index[1] * step[1] + unit[1]) * k
            found = descriptor_of(plane, operand.dtype.bits, major, row0, k0, rows, k)
            if isinstance(found, str):
                raise SwizzleAtomMisfit(
                    tile=f"{letter} at ({row0}, {k0}) of {cute_str(tensor, operand.dtype.bits)}",
                    reason=found,
                    rule="core matrices lie as the descriptor's swizzle mode says (PTX ISA, 9.7.15.5.1)",
                    remedy="build the tile from a canonical atom with tile_to_shape",
                )
            stage = sum(s(i) for s, i in zip(stages, index[2:], strict=True)) * operand.dtype.bits // 8
            yield index, found.at(found.start + stage)


@checked(atom=_ATOM, operand=instance("an operand of the instruction", Operand))
def thread_value(atom: MmaAtom, operand: Operand) -> Any:
    """CuTe's (thread, value) layout; for operands in shared memory every thread sees all elements."""
    if operand.layout is not None:
        return operand.layout
    rows, cols = operand.shape
    return Layout((atom.threads, (rows, cols)), (0, (1, rows)))


@checked(atom=_ATOM, tile=_TILE, a=optional(_SHARED), b=optional(_SHARED))
def tile_refusals(
    atom: MmaAtom,
    tile: tuple[int, int, int],
    a: tuple[Major, int] | None = None,
    b: tuple[Major, int] | None = None,
) -> tuple[TileMisfit, ...]:
    """Every constraint that a block tile (M, N, K) breaks, each as the error that names it; empty when it fits.

    ``a`` and ``b`` are (majorness, swizzle bytes) of the operands in shared memory.  The instruction's
    constraint and the shared-memory atom's are independent and checked independently: a tile can satisfy
    either one alone.
    """
    found: list[TileMisfit] = []
    for axis, extent, step in zip("MNK", tile, atom.shape, strict=True):
        if extent < 1 or extent % step:
            found.append(
                InstructionMisfit(
                    tile=f"a {'x'.join(map(str, tile))} tile",
                    reason=f"{axis} = {extent} is no multiple of {step}",
                    rule=f"{atom.name} computes {step} along {axis}",
                    remedy=f"make {axis} a multiple of {step}",
                )
            )
    for operand, rows, how in ((atom.a, tile[0], a), (atom.b, tile[1], b)):
        if how is None or operand.in_registers:
            continue
        major, swizzle = how
        name = f"{operand.name} ({operand.dtype}, {major}-major) of a {'x'.join(map(str, tile))} tile"
        try:
            check_operand(operand.dtype, major, operand.shape[0], operand.shape[1], name)
        except InstructionMisfit as refused:
            found.append(refused)
        shape = canonical_atom(operand.dtype.bits, major, swizzle).shape
        mn = operand.name.replace("A", "M").replace("B", "N")
        for axis, extent, step in zip((mn, "K"), (rows, tile[2]), shape, strict=True):
            if extent < 1 or extent % step:
                found.append(
                    SwizzleAtomMisfit(
                        tile=name,
                        reason=f"{axis} = {extent} is no multiple of {step}",
                        rule=f"the {major}-major {f'SW{swizzle}' if swizzle else 'unswizzled'} atom is "
                        f"{shape[0]}x{shape[1]} elements and divides the tile",
                        remedy=f"make {axis} a multiple of {step} or take a narrower swizzle",
                    )
                )
    return tuple(found)


def check_tile(
    atom: MmaAtom,
    tile: tuple[int, int, int],
    a: tuple[Major, int] | None = None,
    b: tuple[Major, int] | None = None,
) -> None:
    """Raise the first of `tile_refusals`, the others listed with it."""
    found = tile_refusals(atom, tile, a, b)
    if found:
        first = found[0]
        table = [Refusal(e.code, e.message, e.expectation) for e in found]
        raise type(first)(refusals=table, **first.facts)


def _affine(part: LayoutLike) -> Any:
    return part.inner if isinstance(part, ComposedLayout) else part


def _cosize(view: Any, offset: int) -> int:
    return int(offset + max(view(i) for i in (0, size(view) - 1)) + 1)


def _map(x: Any, f: Any) -> Any:
    return tuple(_map(e, f) for e in x) if isinstance(x, tuple) else f(x)


def _exact(stride: int, unit: int) -> int:
    if stride % unit:
        raise NoDescriptors(
            tensor=f"a partition with a stride of {stride} elements",
            reason=f"{unit} elements are 16 bytes",
            remedy="build the tile from a canonical atom with tile_to_shape",
        )
    return stride // unit
