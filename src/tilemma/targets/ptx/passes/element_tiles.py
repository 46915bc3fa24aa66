"""Register layouts of fragments that no multiply uses: that of the fragments they are combined with element by
element, or that of an accumulator."""

from __future__ import annotations

from dataclasses import replace

from tilemma.atoms import MmaAtom, catalogue
from tilemma.dtypes import DType, bf16, f16
from tilemma.errors import CompileError, Note, Span
from tilemma.ir.plans import FragmentPlan
from tilemma.ir.tile import Kernel
from tilemma.ir.walk import walk
from tilemma.passes import check_element_tiles
from tilemma.passes.contraction import Fragments, fragment_uses
from tilemma.targets.ptx.thread_values import agree

# The accumulators of all warp-wide instructions of 16 x 8 have the register layout of this one.
_PLAIN = "SM80_16x8x16_F32F16F16F32_TN"


class ElementTiles(CompileError):
    code = "element-tiles"
    found = "element work on `{name}` and `{other}`, whose register layouts differ: {first}, and {second}"
    expected = "accumulators of multiplies of one shape, or tiles that no multiply uses"
    fix = "{remedy}"


def element_plans(kernel: Kernel, plans: dict[str, FragmentPlan]) -> dict[str, FragmentPlan]:
    """``plans`` and those of the other fragments.  ElementTiles, TileWithoutLayout."""
    found = dict(plans)
    fragments = Fragments(kernel.body)
    for members, op in check_element_tiles.combined(kernel.body):
        known = [n for n in members if n in found]
        model = _model(found, known) or _default(kernel, fragments, members)
        for name in members:
            if name not in found:
                found[name] = like(model, check_element_tiles.fragment_dtype(fragments, name), name, op.span)
            elif not agree(model, found[name]):
                raise _differ(op.span, (known[0], model), (name, found[name]))
    for members, tiles, op in check_element_tiles.vector_groups(kernel.body):
        for tile in tiles:
            if tile not in found:
                # Neither multiplied nor in an `apply`: it is only reduced.
                found[tile] = _default(kernel, fragments, (tile,))
        for name in members:
            found[name] = _vector(kernel, fragments, found, (name, members, tiles))
        for tile in tiles:
            if not agree(found[tile], found[members[0]]):
                raise _differ(op.span, (members[0], found[members[0]]), (tile, found[tile]))
    vectors = check_element_tiles.vectors_of(kernel.body)
    for name in fragments.declared:
        if name not in found and any(r.name == name for o in walk(kernel.body) for _, r in fragment_uses(o)):
            alone = (name, (name,), ())
            one = name in vectors
            found[name] = _vector(kernel, fragments, found, alone) if one else _default(kernel, fragments, (name,))
    return found


def _model(found: dict[str, FragmentPlan], known: list[str]) -> FragmentPlan | None:
    """The plan that tiles combined with those of ``known`` take: an accumulator's."""
    plans = [found[n] for n in known]
    return next((p for p in plans if p.role == "C"), plans[0] if plans else None)


def _vector(
    kernel: Kernel,
    fragments: Fragments,
    found: dict[str, FragmentPlan],
    group: tuple[str, tuple[str, ...], tuple[str, ...]],
) -> FragmentPlan:
    """The plan of a vector: its values are in the lanes that hold elements of their rows."""
    name, members, tiles = group
    model = _model(found, list(tiles)) or _default(kernel, fragments, members)
    dtype, rows = check_element_tiles.fragment_dtype(fragments, name), model.shape[0]
    return replace(model, role="R", dtype=dtype, shape=(rows, 1), repeat=(model.repeat[0], 1))


def _differ(span: Span | None, one: tuple[str, FragmentPlan], other: tuple[str, FragmentPlan]) -> ElementTiles:
    operand = next((name for name, plan in (other, one) if plan.role not in ("C", "R")), None)
    remedy = f"store `{other[0]}` to a shared buffer with `mma.store`, and use the buffer's elements in its place"
    if operand is not None:
        remedy = f"in place of `{operand}`, use the elements of the memory that it was loaded from"
    return ElementTiles(
        span,
        remedy=remedy,
        name=one[0],
        other=other[0],
        first=_text(one[1]),
        second=_text(other[1]),
        notes=[Note("a fragment has one layout for its whole life")],
    )


def like(plan: FragmentPlan, dtype: DType, name: str, span: Span | None) -> FragmentPlan:
    """``plan`` for elements of ``dtype``: an atom whose accumulator of that type has the same register layout."""
    if plan.role != "C" or plan.dtype is dtype:
        return plan
    model = catalogue[plan.atom]
    assert isinstance(model, MmaAtom)
    # Atoms of another kind have other layouts.
    # No atom accumulates in bf16; a register holds two bf16 values as it holds two f16 values.
    for stands_in in (dtype, *((f16,) if dtype is bf16 else ())):
        for atom in catalogue.mma(model.kind, width=model.shape[1], d=stands_in):
            c = atom.operands["C"]
            if c.dtype is stands_in and atom.threads == model.threads and c.layout == model.operands["C"].layout:
                return replace(plan, dtype=dtype, atom=atom.name)
    if dtype.bits == model.c.dtype.bits == 32:
        return replace(plan, dtype=dtype)
    raise check_element_tiles.TileWithoutLayout(
        span,
        name=name,
        what=f"a tile of {dtype}",
        level=plan.level,
        remedy=f"convert its elements to {plan.dtype}, the type of the tile it is combined with",
    )


def _text(plan: FragmentPlan) -> str:
    rows, columns = plan.shape
    what = {"C": "an accumulator", "R": "a vector"}.get(plan.role, f"operand {plan.role}")
    return f"{what} of {rows if plan.role == 'R' else f'{rows}x{columns}'} ({plan.atom})"


def _default(kernel: Kernel, fragments: Fragments, names: tuple[str, ...]) -> FragmentPlan:
    """The layout of an accumulator of `mma.sync` for tiles that no multiply uses."""
    divided = check_element_tiles.element_division(kernel, fragments, names)
    record = catalogue[_PLAIN]
    assert isinstance(record, MmaAtom)
    (rows, columns), (down, across) = divided.shape, divided.warps
    repeat = (rows // (check_element_tiles.ROWS * down), columns // (check_element_tiles.COLUMNS * across))
    dtype = record.operands["C"].dtype
    plan = FragmentPlan("C", dtype, divided.shape, divided.level, "registers", _PLAIN, repeat, divided.warps)
    if names[0] in check_element_tiles.vectors_of(kernel.body):
        return plan
    return like(plan, check_element_tiles.fragment_dtype(fragments, names[0]), names[0], divided.op.span)
