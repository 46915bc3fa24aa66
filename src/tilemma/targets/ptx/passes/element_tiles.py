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
from tilemma.passes.check_element_tiles import (
    COLUMNS,
    ROWS,
    TileWithoutLayout,
    combined,
    element_division,
    fragment_dtype,
)
from tilemma.passes.contraction import Fragments, fragment_uses

# The accumulators of all warp-wide instructions of 16 x 8 have the register layout of this one.
_PLAIN = "SM80_16x8x16_F32F16F16F32_TN"


class ElementTiles(CompileError):
    code = "element-tiles"
    found = "element work on `{name}` and `{other}`, whose register layouts differ: {first}, and {second}"
    expected = "accumulators of multiplies of one shape, or tiles that no multiply uses"
    fix = "store one of them to shared memory, and read its elements there"


def element_plans(kernel: Kernel, plans: dict[str, FragmentPlan]) -> dict[str, FragmentPlan]:
    """``plans`` and those of the other fragments.  ElementTiles, TileWithoutLayout."""
    found = dict(plans)
    fragments = Fragments(kernel.body)
    for members, op in combined(kernel.body):
        known = [n for n in members if n in found]
        for name in members:
            model = found[known[0]] if known else _default(kernel, fragments, members)
            plan = like(model, fragment_dtype(fragments, name), name, op.span)
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


def like(plan: FragmentPlan, dtype: DType, name: str, span: Span | None) -> FragmentPlan:
    """``plan`` for elements of ``dtype``: an atom whose accumulator of that type has the same register layout."""
    if plan.role != "C" or plan.dtype is dtype:
        return plan
    model = catalogue[plan.atom]
    assert isinstance(model, MmaAtom)
    # Atoms of another kind have other layouts.
    # No atom accumulates in bf16; a register holds two bf16 values as it holds two f16 values.
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
    divided = element_division(kernel, fragments, names)
    record = catalogue[_PLAIN]
    assert isinstance(record, MmaAtom)
    (rows, columns), (down, across) = divided.shape, divided.warps
    repeat = (rows // (ROWS * down), columns // (COLUMNS * across))
    dtype = record.operands["C"].dtype
    plan = FragmentPlan("C", dtype, divided.shape, divided.level, "registers", _PLAIN, repeat, divided.warps)
    return like(plan, fragment_dtype(fragments, names[0]), names[0], divided.op.span)
