"""Register tiles that no multiply uses: how the lanes of a level divide them, which no target does otherwise."""

from __future__ import annotations

from tilemma.dtypes import DType
from tilemma.errors import CompileError, spelled
from tilemma.ir.tile import Apply, Body, Kernel, Mma, Op, ScaleMma
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
    expected = "a tile of f32, f16 or bf16 whose rows are a multiple of 16 and columns of 8 for each warp"
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
        alone = used - {name for members in groups for name in members}
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
    """How the tiles ``names``, combined element by element and used by no multiply, are divided.

    Raises TileWithoutLayout.
    """
    op, level = _place(kernel, names)
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
    for down in (d for d in range(level.warps, 0, -1) if level.warps % d == 0):
        across = level.warps // down
        if shape[0] % (ROWS * down) == 0 and shape[1] % (COLUMNS * across) == 0:
            return ElementDivision(shape, (down, across), level, op)
    rows = -(-shape[0] // (ROWS * level.warps)) * ROWS * level.warps
    columns = -(-shape[1] // COLUMNS) * COLUMNS
    raise TileWithoutLayout(
        op.span,
        name=names[0],
        what=f"a tile of {shape[0]}x{shape[1]}",
        level=level,
        remedy=f"use a tile of {rows}x{columns}, or element work on a shared buffer",
    )


def combined(body: Body) -> list[tuple[tuple[str, ...], Op]]:
    """Groups of fragments used in one element operation, in order of appearance, with the first such operation."""
    groups: list[tuple[list[str], Op]] = []
    for op in walk(body):
        if not isinstance(op, Apply):
            continue
        names = [op.fragment.name]
        for inner in walk(op.body):
            names += [f.name for _, f in fragment_uses(inner)]
        touching = [g for g in groups if set(g[0]) & set(names)]
        groups = [g for g in groups if not set(g[0]) & set(names)]
        merged = [n for g in touching for n in g[0]] + names
        groups.append((list(dict.fromkeys(merged)), touching[0][1] if touching else op))
    return [(tuple(names), op) for names, op in groups]


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
    if declared is not None and len(declared) == 2:
        return declared[0], declared[1]
    views = [(x.src, False) for x in fragments.loads.get(name, ())]
    views += [(x.dst, x.transpose) for x in fragments.stores.get(name, ())]
    for view, transposed in views:
        shape = matrix(view).static_shape
        if shape is not None and len(shape) == 2:
            return (shape[1], shape[0]) if transposed else (shape[0], shape[1])
    return None
