"""Matrix operations of the reference executor: fill, load, multiply, scale and store of register tiles."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilemma import dtypes
from tilemma.arithmetic import sparsity
from tilemma.arithmetic.convert import Array, carrier, load, rounded, store
from tilemma.arithmetic.issues import tiled
from tilemma.arithmetic.packing import unpack
from tilemma.atoms import DECLARED, MmaAtom, catalogue
from tilemma.dtypes import DType
from tilemma.ir import walk
from tilemma.ir.checks import SCALE_BLOCK, checked_metadata, checked_scale
from tilemma.ir.expr import value_of
from tilemma.ir.tile import DeclareFragment, Fill, FragmentRef, Load, Mma, ScaleMma, Store
from tilemma.ir.types import Contract, View
from tilemma.passes.contraction import matrix
from tilemma.targets.cpu.expressions import INSTANCE, Frame
from tilemma.targets.cpu.faults import BrokenPattern, FragmentUnset, TileMismatch
from tilemma.targets.cpu.registers import Registers, Tile, accumulate, operand, product
from tilemma.targets.cpu.steps import Compiler, Scope, Step

Find = Callable[[Frame], tuple[Registers, tuple[int, ...]]]


def accumulator_types(c: Compiler) -> dict[str, DType]:
    """The type of each accumulator: declared, given by a fill, or inferred from the operands."""
    ops = list(walk.walk(c.kernel.body))
    loaded = {x.fragment.name: x.element for x in ops if isinstance(x, Load)}
    declared = {x.name: x.dtype for x in ops if isinstance(x, DeclareFragment) and x.dtype is not None}
    declared |= {
        x.name: x.plan.dtype
        for x in ops
        if isinstance(x, DeclareFragment) and x.plan and x.plan.role in ("C", "R")
    }
    given = {x.fragment.name: x.dtype for x in ops if isinstance(x, Fill) and x.dtype is not None}
    inferred: dict[str, DType] = {}
    for x in ops:
        if isinstance(x, Mma):
            source = x.a.dtype if isinstance(x.a, View) else loaded.get(x.a.name)
            legal = source.accumulators if source is not None else ()
            own = loaded.get(x.acc.name)
            if own is not None and (own.name in legal or own in (dtypes.f32, dtypes.s32)):
                inferred[x.acc.name] = own
            elif legal:
                inferred.setdefault(x.acc.name, dtypes.dtype(legal[0]))
            else:
                inferred.setdefault(x.acc.name, source or dtypes.f32)
    for x in ops:
        if isinstance(x, Fill):
            inferred.setdefault(x.fragment.name, x.value.type if x.value.type.is_float else dtypes.f32)
    return inferred | given | declared


def types_of(c: Compiler) -> dict[str, DType]:
    cached: dict[str, DType] | None = c.__dict__.get("_accumulators")
    if cached is None:
        cached = c.__dict__["_accumulators"] = accumulator_types(c)
    return cached


def find(c: Compiler, ref: FragmentRef) -> Find:
    slot = c.slot("fragment", ref.name)
    if not ref.index:

        def single(f: Frame) -> tuple[Registers, tuple[int, ...]]:
            registers = f[slot]
            if registers is None:
                raise FragmentUnset(name=ref.name)
            return registers, ()

        return single
    index = [c.value(i) for i in ref.index]

    def indexed(f: Frame) -> tuple[Registers, tuple[int, ...]]:
        registers = f[slot]
        if registers is None:
            raise FragmentUnset(name=ref.name)
        return registers, tuple(i(f) for i in index)

    return indexed


def declare_fragment(c: Compiler, op: DeclareFragment, scope: Scope) -> Step:
    slot, name = c.slot("fragment", op.name), op.name

    def run(f: Frame) -> None:
        f[slot] = Registers(name)

    return Step(run)


def fill(c: Compiler, op: Fill, scope: Scope) -> Step:
    t = types_of(c)[op.fragment.name]
    where = find(c, op.fragment)
    value = c.expressions.stored(op.value, t)
    every = _indices(c, op.fragment)
    shape = _extents(c, op.fragment.name)

    def run(f: Frame) -> None:
        registers, index = where(f)
        v, threads = value(f), f[INSTANCE].threads
        for i in every or (index,):
            registers.write(i, threads, Tile(t, None if shape is None else np.full(shape, v, carrier(t)), v))

    return Step(run)


def _extents(c: Compiler, name: str) -> tuple[int, ...] | None:
    """The extents that the declaration of a tile gives."""
    declared = (op for op in walk.walk(c.kernel.body) if isinstance(op, DeclareFragment) and op.name == name)
    return next((op.shape for op in declared if op.shape is not None), None)


def _indices(c: Compiler, ref: FragmentRef) -> tuple[tuple[int, ...], ...]:
    """All subscripts of an array of tiles that is named as a whole."""
    for op in walk.walk(c.kernel.body):
        if isinstance(op, DeclareFragment) and op.name == ref.name and op.copies and not ref.index:
            return tuple(np.ndindex(*op.copies))
    return ()


def load_(c: Compiler, op: Load, scope: Scope) -> Step:
    """A snapshot: values, converted where the tile is an accumulator of another type."""
    where, access, source = find(c, op.fragment), c.access(matrix(op.src)), op.src.dtype
    target = types_of(c).get(op.fragment.name, op.element)

    def run(f: Frame) -> None:
        registers, index = where(f)
        if op.stored != source:
            narrow = load(unpack(access.read(f), op.stored), op.stored)
            registers.write(index, f[INSTANCE].threads, Tile(target, rounded(narrow, op.stored, target)))
            return
        values = np.array(load(access.read(f), source))
        if op.order is not None:
            values = sparsity.unprepacked(values, op.order)
        registers.write(index, f[INSTANCE].threads, Tile(target, rounded(values, source, target)))

    return Step(run)


def _operand(c: Compiler, x: FragmentRef | View) -> Callable[[Frame], tuple[Array, DType]]:
    """Values [rows, columns] of a multiplier's operand, as stored."""
    if isinstance(x, View):
        access, t = c.access(matrix(x)), x.dtype
        return lambda f: (operand(load(access.read(f), t), t), t)
    where = find(c, x)
    name = x.name

    def read(f: Frame) -> tuple[Array, DType]:
        registers, index = where(f)
        tile = registers.readable(index, f[INSTANCE].threads)
        if tile.data is None:
            raise FragmentUnset(name=name)
        return operand(tile.data, tile.dtype), tile.dtype

    return read


def _instruction(op: Mma) -> MmaAtom | None:
    """The record to execute issue by issue: one that the program declares, or that has a function of its own."""
    name = op.atom or op.wanted
    atom = None if name is None else catalogue[name]
    if not isinstance(atom, MmaAtom) or (atom.kind != DECLARED and atom.meaning is None):
        return None
    return atom


def mma(c: Compiler, op: Mma, scope: Scope) -> Step:
    acc, a, b = find(c, op.acc), _operand(c, op.a), _operand(c, op.b)
    spread = None if op.meta is None else _spread(c, op.meta, op.contract)
    t, name = types_of(c)[op.acc.name], op.acc.name
    a_turned, b_turned = op.contract.a_transposed, op.contract.b_transposed
    scale = _scale(c, op, t)
    future = None if op.future is None else c.slot("future", op.future)
    keeps = None if op.accumulate is None else c.value(op.accumulate)
    hides = any(isinstance(x, ScaleMma) and x.acc.name == name for x in walk.walk(c.kernel.body))
    perturbation = c.perturbation
    issued, negated = _instruction(op), op.negated

    def part(x: Array, y: Array) -> Array:
        """The product over some columns of K."""
        if issued is None:
            return product(x, y, t)
        return tiled(issued.meaning, issued.shape, x, y.T, np.zeros((x.shape[0], y.shape[1]), carrier(t)), t)

    def run(f: Frame) -> None:
        (x, kind), (y, _) = a(f), b(f)
        for which, values in (("A", x), ("B", y)):
            if values.ndim != 2:
                raise TileMismatch(
                    what=f"operand {which} of `mma.{op.contract.value}` of extents {list(values.shape)}",
                    rule="two dimensions",
                )
        if negated:
            x = -x
        if a_turned:
            x = x.T
        if not b_turned:
            y = y.T
        if spread is not None:
            half, columns = x, spread(f, x, kind)
            x = sparsity.expand(half, columns)
        if x.shape[1] != y.shape[0]:
            raise TileMismatch(
                what=f"`mma.{op.contract.value}` of A [M, K] = {list(x.shape)} and B [K, N] = {list(y.shape)}",
                rule="the same K on both sides",
            )
        if issued is not None and scale is None and not hides:
            extents = x.shape[0], y.shape[1]
            registers, index = acc(f)
            if keeps is not None and not keeps(f):
                registers.write(index, f[INSTANCE].threads, Tile(t, np.zeros(extents, carrier(t))))
            tile = registers.update(index, f[INSTANCE].threads)
            tile.data = tiled(issued.meaning, issued.shape, x, y.T, tile.values(extents), t, op.k_order)
            if future is not None:
                tile.pending = op.future
                f[future] = tile
            return
        summed = False
        if spread is not None and not np.isfinite(y).all():
            # An element of B whose column has no stored element is not used.
            p = np.einsum("mj,mjn->mn", half, y[columns])
        elif issued is not None:
            # Into the sum that waits for its scale, or into one of its own that is scaled at once.
            starts = scale is not None or (keeps is not None and not keeps(f))
            registers, index = acc(f)
            held = None if starts else registers.update(index, f[INSTANCE].threads).hidden
            start = np.zeros((x.shape[0], y.shape[1]), carrier(t)) if held is None else held.astype(carrier(t))
            p, summed = tiled(issued.meaning, issued.shape, x, y.T, start, t, op.k_order), not starts
        else:
            p = product(x, y, t)
        factors = None
        if scale is not None:
            scales = scale(f, p.shape, x.shape[1])
            if len(scales) == 1:
                p = _times(p, scales[0], t)
            else:
                cuts = [slice(at, at + SCALE_BLOCK) for at in range(0, x.shape[1], SCALE_BLOCK)]
                p = sum(_times(part(x[:, q], y[q]), s, t) for q, s in zip(cuts, scales, strict=True))
            factors = np.abs(scales).max(0)
        registers, index = acc(f)
        if keeps is not None and not keeps(f):
            registers.write(index, f[INSTANCE].threads, Tile(t, np.zeros(p.shape, carrier(t))))
        tile = registers.update(index, f[INSTANCE].threads)
        before = tile.values(p.shape)
        if before.shape != p.shape:
            raise TileMismatch(
                what=f"`mma` makes a tile of {list(p.shape)}, accumulator `{name}` has {list(before.shape)}",
                rule="the accumulator's extents to be M x N",
            )
        if perturbation is not None and issued is None:
            around = before if tile.hidden is None else tile.hidden
            p = perturbation.contraction(p, around, x, y, factors, t, kind)
        if hides:
            tile.data = before
            tile.hidden = p if summed or tile.hidden is None else tile.hidden + p
        else:
            tile.data = accumulate(before, p, t)
        if future is not None:
            tile.pending = op.future
            f[future] = tile

    return Step(run)


def _spread(c: Compiler, meta: FragmentRef, contract: Contract) -> Callable[[Frame, Array, DType], Array]:
    """The column in the whole A [M, K] of each element of its stored half [M, K/2], from ``meta``."""
    where, name = find(c, meta), meta.name

    def spread(f: Frame, values: Array, t: DType) -> Array:
        """Raises SparseMetadata, BrokenPattern."""
        registers, index = where(f)
        tile = registers.readable(index, f[INSTANCE].threads)
        if tile.data is None:
            raise FragmentUnset(name=name)
        m, half = values.shape
        checked_metadata(contract, t, (m, 2 * half), tile.dtype, tile.data.shape, None)
        fields = sparsity.fields_of(tile.data, tile.dtype.bits)
        wrong = sparsity.broken(fields, values, t)
        if wrong is not None:
            row, chunk = wrong
            raise BrokenPattern(
                name=name, row=row, chunk=chunk, bits=int(fields[row, chunk]), rule=sparsity.rule_of(t)
            )
        return sparsity.columns_of(fields, t)

    return spread


def _scale(c: Compiler, op: Mma | ScaleMma, acc: DType) -> Callable[[Frame, tuple[int, ...], int], Array] | None:
    """The factor of each element of a product [M, N] over ``k`` columns, for each block of K where a scale has
    several: [blocks or 1, M or 1, N or 1].  Scales are multiplied in f64 for an accumulator of f64, for others in
    f32."""
    views = [(x, v) for x, v in (("A", op.scale_a), ("B", op.scale_b)) if v is not None]
    if not views and op.factor is None:
        return None
    accesses = [(letter, v.dtype, c.access(v)) for letter, v in views]
    t = acc if acc is dtypes.f64 else dtypes.f32
    value = None if op.factor is None else c.expressions.operand(op.factor, t)
    numbers_of = carrier(t)

    def scale(f: Frame, shape: tuple[int, ...], k: int) -> Array:
        """Raises ScaleShape."""
        # One block for scales of the whole of K: an integer sum is rounded once.
        found: Array = np.full((1, 1, 1), 1 if value is None else value(f), numbers_of)
        for letter, kind, access in accesses:
            given = load(access.read(f), kind).astype(numbers_of)
            extent = shape[0] if letter == "A" else shape[1]
            axes = checked_scale(letter, given.shape, extent, k, None)
            numbers = given.reshape([n for n in given.shape if n != 1 or len(axes) == given.ndim])
            if "block" in axes:
                numbers = np.repeat(numbers, SCALE_BLOCK, axes.index("block"))
                numbers = np.take(numbers, range(extent), axes.index("block"))
            if letter == "A":
                found = found * (numbers.T[:, :, None] if "k" in axes else numbers.reshape(1, -1, 1))
            else:
                found = found * (numbers[:, None, :] if "k" in axes else numbers.reshape(1, 1, -1))
        return found

    return scale


def _times(p: Array, scale: Array, t: DType) -> Array:
    """A sum of products times its scale; of integers in f32, rounded to the nearest integer within their range."""
    if t.is_float:
        return p * scale
    scaled = p.astype(carrier(t)).astype(np.float32) * scale
    return rounded(scaled, dtypes.f32, t).astype(np.int64)


def scale_mma(c: Compiler, op: ScaleMma, scope: Scope) -> Step:
    where, t = find(c, op.acc), types_of(c)[op.acc.name]
    scale, perturbation = _scale(c, op, t), c.perturbation

    def run(f: Frame) -> None:
        registers, index = where(f)
        tile = registers.update(index, f[INSTANCE].threads)
        if tile.hidden is None or tile.data is None:
            return  # Nothing was multiplied: a loop over K = 0.
        scaled = tile.hidden if scale is None else _times(tile.hidden, scale(f, tile.data.shape, 1)[0], t)
        if perturbation is not None:
            scaled = perturbation.scaling(scaled, tile.data, t)
        tile.data = accumulate(tile.data, scaled, t)
        tile.hidden = None

    return Step(run)


def settled(tile: Tile, shape: tuple[int, ...]) -> Array:
    """The values of an accumulator, including the part that retroactive scaling has not reached."""
    values = tile.values(shape)
    return values if tile.hidden is None else accumulate(values.copy(), tile.hidden, tile.dtype)


def store_(c: Compiler, op: Store, scope: Scope) -> Step:
    where, access, target = find(c, op.fragment), c.access(matrix(op.dst)), op.dst.dtype
    rows = None if op.rows is None else c.value(op.rows)
    columns = None if op.columns is None else c.value(op.columns)
    known = all(value_of(e) is not None for e in op.dst.shape)
    perturbation = c.perturbation

    def run(f: Frame) -> None:
        registers, index = where(f)
        tile = registers.readable(index, f[INSTANCE].threads)
        q = access.place(f)
        want = access.nominal(q)
        if op.part is None:
            values = settled(tile, want[::-1] if op.transpose else want)
        else:
            first, count = op.part
            values = settled(tile, (want[0], first + count))[:, first : first + count]
        if op.transpose:
            values = values.T
        if values.shape != want:
            squeezed = values.reshape(want) if values.size == int(np.prod(want)) and len(want) != 2 else None
            if squeezed is None and (
                known or len(want) != 2 or any(n > v for n, v in zip(want, values.shape, strict=True))
            ):
                raise TileMismatch(
                    what=f"tile `{op.fragment.name}` of {list(values.shape)} is stored to a view of {list(want)}",
                    rule="a view of the tile's extents",
                )
            values = values[tuple(map(slice, want))] if squeezed is None else squeezed
        elements = store(values, tile.dtype, target)
        if perturbation is not None and tile.dtype != target:
            changed = perturbation.conversion(values, load(elements, target), tile.dtype, target)
            elements = store(changed, target, target)
        if rows is not None or columns is not None:
            given = (rows, columns)[:: -1 if op.transpose else 1]
            limit = [n if x is None else max(0, x(f)) for n, x in zip(values.shape, given, strict=True)]
            kept = access.fetch(q).copy()
            kept[: limit[0], : limit[1]] = elements[: limit[0], : limit[1]]
            elements = kept
        access.put(q, elements)

    return Step(run)


TABLE = {DeclareFragment: declare_fragment, Fill: fill, Load: load_, Mma: mma, ScaleMma: scale_mma, Store: store_}
