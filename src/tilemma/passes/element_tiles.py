"""Register tiles of element work: what no multiply lays out gets the layout of what it is combined with."""

from __future__ import annotations

from dataclasses import replace

from tilemma.atoms import MmaAtom, catalogue
from tilemma.dtypes import DType, bf16, f16
from tilemma.errors import CompileError, Note, Span
from tilemma.ir.expr import FragmentElement
from tilemma.ir.expr import walk as parts
from tilemma.ir.plans import FragmentPlan
from tilemma.ir.tile import Apply, Body, Kernel, Op
from tilemma.ir.types import Level
from tilemma.ir.walk import expressions, walk
from tilemma.passes.contraction import Fragments, fragment_uses, matrix
from tilemma.passes.scope import sites

# The accumulator of every warp-wide instruction of 16 x 8 lies in the registers as this one's does.
_PLAIN = "SM80_16x8x16_F32F16F16F32_TN"


class ElementTiles(CompileError):
    code = "element-tiles"
    found = "element work on `{name}` and `{other}`, whose registers lie differently: {first}, and {second}"
    expected = "accumulators of multiplies of one shape, or tiles that no multiply uses"
    fix = "store one of them to shared memory, and read its elements there"


class TileWithoutLayout(CompileError):
    code = "tile-without-layout"
    found = "`{name}`, {what}, which no multiply uses, cannot be divided among the lanes of `{level}`"
    expected = "an accumulator of f32, f16, bf16 or s32 whose rows are a multiple of 16 and columns of 8 a warp"
    fix = "{remedy}"


def element_plans(kernel: Kernel, plans: dict[str, FragmentPlan]) -> dict[str, FragmentPlan]:
    """``plans`` and those of the other fragments.  ElementTiles, TileWithoutLayout."""
    found = dict(plans)
    fragments = Fragments(kernel.body)
    for members, op in _combined(kernel.body):
        known = [n for n in members if n in found]
        for name in members:
            model = found[known[0]] if known else _default(kernel, fragments, members)
            plan = like(model, _dtype(fragments, name), name, op.span)
            if name not in found:
                found[name] = plan
            elif replace(found[name], atom="") != replace(plan, atom="") or not _same_layout(found[name], plan):
                raise ElementTiles(
                    op.span,
                    name=known[0],
                    other=name,
                    first=_text(found[known[0]]),
                    second=_text(found[name]),
                    notes=[Note("a fragment has one layout for its whole life")],
                )
    for name in fragments.declared:
        if name not in found and any(r.name == name for o in walk(kernel.body) for _, r in fragment_uses(o)):
            found[name] = _default(kernel, fragments, (name,))
    return found


def _combined(body: Body) -> list[tuple[tuple[str, ...], Op]]:
    """Groups of fragments whose elements meet, in order of appearance, with the operation where they first do."""
    groups: list[tuple[list[str], Op]] = []
    for op in walk(body):
        if not isinstance(op, Apply):
            continue
        names = [op.fragment.name]
        for inner in walk(op.body):
            names += [f.name for _, f in fragment_uses(inner)]
            names += [x.fragment for e in expressions(inner) for x in parts(e) if isinstance(x, FragmentElement)]
        touching = [g for g in groups if set(g[0]) & set(names)]
        groups = [g for g in groups if not set(g[0]) & set(names)]
        merged = [n for g in touching for n in g[0]] + names
        groups.append((list(dict.fromkeys(merged)), touching[0][1] if touching else op))
    return [(tuple(names), op) for names, op in groups]


def _dtype(fragments: Fragments, name: str) -> DType:
    dtype = fragments.declared[name].dtype
    assert dtype is not None, name
    return dtype


def like(plan: FragmentPlan, dtype: DType, name: str, span: Span | None) -> FragmentPlan:
    """``plan`` for elements of ``dtype``: of a record whose accumulator of that type lies alike."""
    if plan.role != "C" or plan.dtype is dtype:
        return plan
    model = catalogue[plan.atom]
    assert isinstance(model, MmaAtom)
    # Records of another kind lie otherwise.
    # No multiply adds up in bf16, whose values lie two to a register as those of f16 do.
    for stands_in in (dtype, *((f16,) if dtype is bf16 else ())):
        for atom in catalogue.mma(model.kind, d=stands_in):
            c = atom.operands["C"]
            if c.dtype is stands_in and atom.threads == model.threads and c.layout == model.operands["C"].layout:
                return replace(plan, dtype=dtype, atom=atom.name)
    raise TileWithoutLayout(
        span,
        name=name,
        what=f"a tile of {dtype}",
        level=plan.level,
        remedy=f"convert its elements to {plan.dtype}, the type of the tile it is combined with",
    )


def _same_layout(a: FragmentPlan, b: FragmentPlan) -> bool:
    x, y = catalogue[a.atom], catalogue[b.atom]
    assert isinstance(x, MmaAtom) and isinstance(y, MmaAtom)
    return x.operands[a.role].layout == y.operands[b.role].layout


def _text(plan: FragmentPlan) -> str:
    rows, columns = plan.shape
    return f"{'an accumulator' if plan.role == 'C' else f'operand {plan.role}'} of {rows}x{columns} ({plan.atom})"


def _default(kernel: Kernel, fragments: Fragments, names: tuple[str, ...]) -> FragmentPlan:
    """The layout of an accumulator of `mma.sync` for tiles that no multiply uses."""
    name = names[0]
    op, level = _place(kernel, names)
    shape = next((s for n in names if (s := _shape(fragments, n)) is not None), None)
    dtype = _dtype(fragments, name)
    if shape is None:
        raise TileWithoutLayout(
            op.span,
            name=name,
            what="a tile of no known extents",
            level=level,
            remedy="declare it with its extents",
        )
    record = catalogue[_PLAIN]
    assert isinstance(record, MmaAtom)
    for down in (d for d in range(level.warps, 0, -1) if level.warps % d == 0):
        across = level.warps // down
        if shape[0] % (16 * down) == 0 and shape[1] % (8 * across) == 0:
            repeat = (shape[0] // (16 * down), shape[1] // (8 * across))
            plan = FragmentPlan(
                "C",
                record.operands["C"].dtype,
                shape,
                level,
                "registers",
                _PLAIN,
                repeat,
                (down, across),
            )
            return like(plan, dtype, name, op.span)
    raise TileWithoutLayout(
        op.span,
        name=name,
        what=f"a tile of {shape[0]}x{shape[1]}",
        level=level,
        remedy="use multiples of these, or element work on a shared buffer",
    )


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
