"""Register tiles and vectors that no multiply uses: how the lanes of a level divide them, which no target does
otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilemma.dtypes import DType
from tilemma.errors import CompileError, spelled
from tilemma.ir.tile import Apply, Body, DeclareFragment, Kernel, Mma, Op, Reduce, ScaleMma
from tilemma.ir.types import Level
from tilemma.ir.walk import walk
from tilemma.passes.contraction import Fragments, fragment_uses, matrix
from tilemma.passes.decision import Decision
from tilemma.passes.scope import sites
from tilemma.records import record

# Rows and columns that a warp's lanes share: those of the accumulator of a warp-wide multiply.
ROWS, COLUMNS = 16, 8
ELEMENT_TYPES = ("f32", "f16", "bf16")


class TileWithoutLayout(CompileError):
    code = "tile-without-layout"
    found = "`{name}`, {what}, which no multiply uses, cannot be divided among the lanes of `{level}`"
    expected = (
        "a tile of f32, f16 or bf16 whose rows are a multiple of 16 and columns of 8 for each warp; rows to be "
        "reduced belong to one warp"
    )
    fix = "{remedy}"


@record
class ElementDivision:
    """A tile of ``shape`` on a level whose warps form so many rows and columns; ``op`` uses it."""

    shape: tuple[int, int]
    warps: tuple[int, int]
    level: Level
    op: Op


@record(slots=False)
class CheckElementTiles:
    """Refuses register tiles that no multiply uses and that cannot be divided among the lanes of their level."""

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises TileWithoutLayout."""
        fragments = Fragments(kernel.body)
        if not fragments.declared:
            return kernel
        multiplied, used, held = set[str](), set[str](), held_by_groups(kernel)
        for op in walk(kernel.body):
            names = {ref.name for _, ref in fragment_uses(op)}
            used |= names
            if isinstance(op, (Mma, ScaleMma)):
                multiplied |= names
        groups = [members for members, _ in combined(kernel.body)]
        vectors = vector_groups(kernel.body)
        groups += [members for members, tiles, _ in vectors if not tiles]
        grouped = {name for members in groups for name in members}
        alone = used - grouped - {name for members, _, _ in vectors for name in members}
        for members in (*groups, *((name,) for name in fragments.declared if name in alone)):
            # A tile that is only filled, or used in no group, needs no registers, nor extents.
            moved = any(fragments.loads.get(name) or fragments.stores.get(name) for name in members)
            known = moved or any(_shape(fragments, name) for name in members)
            if known and held & set(members) and not multiplied & set(members):
                divided = element_division(kernel, fragments, members)
                for name in members:
                    _check_type(fragments, name, divided)
        return kernel


def _check_type(fragments: Fragments, name: str, divided: ElementDivision) -> None:
    dtype = fragments.declared[name].dtype
    if dtype is not None and dtype.name not in ELEMENT_TYPES:
        raise TileWithoutLayout(
            divided.op.span,
            name=name,
            what=f"a tile of {dtype}",
            level=divided.level,
            remedy="declare it with one of these types; `mma.store` converts",
        )


def element_division(kernel: Kernel, fragments: Fragments, names: tuple[str, ...]) -> ElementDivision:
    """The division of the tiles ``names``, which are combined element by element and used by no multiply.

    Raises TileWithoutLayout.
    """
    op, level = _place(kernel, names)
    reduced = {x.src.name for x in walk(kernel.body) if isinstance(x, Reduce)} & set(names)
    shape = next((s for n in names if (s := _shape(fragments, n)) is not None), None)
    if shape is None:
        raise TileWithoutLayout(
            op.span,
            name=names[0],
            what="a tile of no known extents",
            level=level,
            remedy=spelled(
                op.span,
                f"declare it with its extents, `frag f32[64, 64] {names[0]} {{0.0f}};`",
                f'declare it with its extents, `{names[0]} = mma.frag("f32", 64, 64, init=0.0)`',
            ),
        )
    vector = len(fragments.declared[names[0]].shape or ()) == 1
    for down in (d for d in range(level.warps, 0, -1) if level.warps % d == 0):
        if down < level.warps and (vector or reduced):
            break
        across = level.warps // down
        if shape[0] % (ROWS * down) == 0 and shape[1] % (COLUMNS * across) == 0:
            return ElementDivision(shape, (down, across), level, op)
    rows = -(-shape[0] // (ROWS * level.warps)) * ROWS * level.warps
    columns = -(-shape[1] // COLUMNS) * COLUMNS
    raise TileWithoutLayout(
        op.span,
        name=names[0],
        what=f"a vector of {shape[0]}" if vector else f"a tile of {shape[0]}x{shape[1]}",
        level=level,
        remedy=f"use {f'a vector of {rows}' if vector else f'a tile of {rows}x{columns}'}, or element work on a "
        "shared buffer",
    )


def combined(body: Body) -> list[tuple[tuple[str, ...], Op]]:
    """Groups of tiles used in one element operation, in order of appearance, with the first such operation."""
    vectors = vectors_of(body)
    uses = ((tuple(n for n in names if n not in vectors), op) for names, op in _element_work(body))
    return _joined((names, op) for names, op in uses if names and isinstance(op, Apply))


def linked(body: Body) -> list[set[str]]:
    """Groups of tiles and vectors that element work and reductions connect."""
    return [set(names) for names, _ in _joined(_element_work(body))]


def vector_groups(body: Body) -> list[tuple[tuple[str, ...], tuple[str, ...], Op]]:
    """For each group of connected vectors: the vectors, the tiles used with them, and the first such operation."""
    vectors = vectors_of(body)
    work = list(_element_work(body))
    found = []
    for names, op in _joined((tuple(n for n in names if n in vectors), op) for names, op in work):
        tiles = dict.fromkeys(n for other, _ in work if set(other) & set(names) for n in other if n not in vectors)
        found.append((names, tuple(tiles), op))
    return found


def vectors_of(body: Body) -> set[str]:
    """The fragments that have one value for each row."""
    declared = (op for op in walk(body) if isinstance(op, DeclareFragment))
    return {op.name for op in declared if op.shape is not None and len(op.shape) == 1}


def _element_work(body: Body) -> Iterator[tuple[tuple[str, ...], Op]]:
    """The fragments of each `Apply` and `Reduce`."""
    for op in walk(body):
        if isinstance(op, Reduce):
            yield (op.src.name, op.dst.name), op
        elif isinstance(op, Apply):
            inner = (f.name for x in walk(op.body) for _, f in fragment_uses(x))
            yield tuple(dict.fromkeys([op.fragment.name, *inner])), op


def _joined(uses: Iterable[tuple[tuple[str, ...], Op]]) -> list[tuple[tuple[str, ...], Op]]:
    """The connected groups of names, each with the first operation that uses one of them."""
    groups: list[tuple[tuple[str, ...], Op]] = []
    for names, op in uses:
        if names:
            touching = [g for g in groups if set(g[0]) & set(names)]
            groups = [g for g in groups if not set(g[0]) & set(names)]
            merged = [n for g in touching for n in g[0]] + list(names)
            groups.append((tuple(dict.fromkeys(merged)), touching[0][1] if touching else op))
    return groups


def fragment_dtype(fragments: Fragments, name: str) -> DType:
    """The element type of the fragment ``name``."""
    dtype = fragments.declared[name].dtype
    assert dtype is not None, name
    return dtype


def held_by_groups(kernel: Kernel) -> set[str]:
    """The tiles that an operation inside a group uses."""
    return {f.name for s in sites(kernel.body) if s.group is not None for _, f in fragment_uses(s.op)}


def _place(kernel: Kernel, names: tuple[str, ...]) -> tuple[Op, Level]:
    """An operation on one of the fragments, and the level that holds it."""
    for site in sites(kernel.body):
        if site.group is not None and any(f.name in names for _, f in fragment_uses(site.op)):
            assert site.group.level is not None
            return site.op, site.group.level
    raise AssertionError(f"{names} is used outside every group")


def _shape(fragments: Fragments, name: str) -> tuple[int, int] | None:
    declared = fragments.declared[name].shape
    if declared is not None:
        return declared[0], declared[1] if len(declared) == 2 else COLUMNS
    views = [(x.src, False) for x in fragments.loads.get(name, ())]
    views += [(x.dst, x.transpose) for x in fragments.stores.get(name, ())]
    for view, transposed in views:
        shape = matrix(view).static_shape
        if shape is not None and len(shape) == 2:
            return (shape[1], shape[0]) if transposed else (shape[0], shape[1])
    return None
