"""The builder's part for the registers of one lane: fragments as local buffers, their multiply, exchange of values
between lanes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from tilemma import dtypes
from tilemma.atoms import MmaAtom
from tilemma.errors import Span, spelled
from tilemma.ir import tile as t
from tilemma.ir.expr import Const, Expr, Var, const, value_of
from tilemma.ir.lane_work import ExchangeName
from tilemma.ir.named_atoms import fragment_atom, lane_multiply_atom
from tilemma.ir.refusals import WrongValue
from tilemma.ir.tiles import Scalarlike, Tile, describe, scalar, shape_text
from tilemma.ir.types import Axis, Contract, Space, View

if TYPE_CHECKING:
    from tilemma.ir.builder import Builder

Shape = tuple[int, int, int]
Letter = Literal["A", "B", "C", "E", "SFA", "SFB"]


def load_matrix(
    b: Builder,
    letter: Letter,
    name: str,
    shape: Shape,
    src: Tile,
    at: tuple[Scalarlike, Scalarlike],
    named: object = None,
) -> Tile:
    """The lane's values of operand ``letter`` of the instruction of ``shape``, whose tile starts at element ``at``
    of ``src``, in a new local buffer called ``name``."""
    what = f"load_matrix_{letter.lower()}"
    view = _matrix(b, src, what)
    atom = fragment_atom(letter, shape, view.dtype, named, what, b.span)
    operand = atom.operands[letter]
    if letter == "E":
        buffer = b.alloc(name, Space.LOCAL, dtypes.u32, [1])
        extents = _metadata_extents(b, atom, view)
    elif letter in ("SFA", "SFB"):
        if view.dtype is not dtypes.u8:
            raise WrongValue(
                b.span,
                what=f"`{what}`",
                got=f"scales of {view.dtype}",
                wanted=f"codes of {operand.dtype.ptx} as u8, {shape_text(operand.shape)} for {atom.name}",
                fix_text="pass the bytes of the scales, `x.view(np.uint8)`",
            )
        buffer = b.alloc(name, Space.LOCAL, dtypes.u32, [1])
        extents = operand.shape
    else:
        # Packed elements are put into their bytes one after another.
        first = 0 if operand.dtype.bits < 8 else None
        buffer = b.alloc(name, Space.LOCAL, operand.dtype, [operand.values], init=first)
        extents = operand.shape[::-1] if letter == "B" else operand.shape
    b.emit(t.LaneLoad(letter, buffer.whole(), _tile(b, view, at, extents, what), atom.name))
    return Tile.whole(buffer)


def _metadata_extents(b: Builder, atom: MmaAtom, view: View) -> tuple[int, int]:
    """Rows and elements of the metadata of one instruction; WrongValue."""
    assert atom.e is not None
    rows, fields = atom.e.shape
    per = view.dtype.bits // 4
    if view.dtype.name not in ("u8", "u16", "u32") or fields % per:
        raise WrongValue(
            b.span,
            what="`load_matrix_e`",
            got=f"metadata of {view.dtype}",
            wanted=f"u8, u16 or u32 of at most {fields} fields of 4 bits: so many has a row for K = "
            f"{atom.shape[2]} of {atom.name} (PTX ISA, 9.7.14.6)",
            fix_text="use a narrower type, or an instruction with a larger K",
        )
    return rows, fields // per


def store_matrix(
    b: Builder, shape: Shape, dst: Tile, values: Tile, at: tuple[Scalarlike, Scalarlike], named: object = None
) -> None:
    """The lane's values of D to the tile that starts at element ``at`` of ``dst``."""
    what = "store_matrix_d"
    view, held = _matrix(b, dst, what), lane_values(b, values, what)
    atom = fragment_atom("D", shape, held.dtype, named, what, b.span)
    have, want = value_of(held.shape[0]), atom.d.values
    if have != want:
        raise WrongValue(
            b.span,
            what=f"`{what}`",
            got=f"{have} values",
            wanted=f"the {want} values that a lane holds of D of {atom.name}",
            fix_text="pass the result of a multiply, or an accumulator of this instruction",
        )
    b.emit(t.LaneStore(held, _tile(b, view, at, atom.d.shape, what), atom.name))


def option_of_lane_multiply(what: str, span: Span | None) -> WrongValue:
    return WrongValue(
        span,
        what=f"`{what}` of one lane's registers",
        got="an option",
        wanted=spelled(span, "`[[atom(NAME)]]`, `.sp` and `.scale`", "`atom=NAME`, `.sp` and `.scale`"),
        fix_text="leave it out, or multiply register tiles at the level of the group",
    )


def multiply(
    b: Builder,
    contract: Contract,
    acc: Tile,
    a: Tile,
    bb: Tile,
    named: object = None,
    meta: Tile | None = None,
    scales: tuple[Tile, ...] = (),
) -> None:
    """``acc += a x b`` on the lane's values; ``meta``: the metadata of a sparse A, one u32; ``scales``: those of
    blocks of A and of B, a u32 each."""
    what = f"mma.{contract}"
    if contract.a_transposed:
        raise WrongValue(
            b.span,
            what=f"`{what}` of one lane's registers",
            got="an A stored [K, M]",
            wanted="`row.row` or `row.col`: the registers hold A by rows and B by columns, whatever memory held",
            fix_text="write `mma.row.col`, and load A from a tile [M, K]",
        )
    views = [lane_values(b, x, what) for x in (a, bb, acc)]
    counts = [value_of(v.shape[0]) or 0 for v in views]
    types = [v.dtype for v in views]
    e = None if meta is None else _word(b, meta, f"the metadata of `{what}.sp`", "load_matrix_e", what)
    sf = [
        _word(b, x, f"the scales of `{what}.scale`", f"load_matrix_{name}", what)
        for name, x in zip(("sfa", "sfb"), scales, strict=False)
    ]
    kinds, held = (types[0], types[1], types[2]), (counts[0], counts[1], counts[2])
    atom = lane_multiply_atom(named, kinds, held, b.span, e is not None, bool(sf))
    b.emit(t.LaneMma(views[2], views[0], views[1], views[2], atom.name, e, *sf))


def _word(b: Builder, x: Tile, subject: str, loaded: str, what: str) -> View:
    """The buffer of one u32 that ``x`` is; WrongValue."""
    view = lane_values(b, x, what)
    if view.dtype is dtypes.u32 and value_of(view.shape[0]) == 1:
        return view
    raise WrongValue(
        b.span,
        what=subject,
        got=_described(view),
        wanted="one u32 of each lane",
        fix_text=f"load it with `{loaded}`",
    )


def is_lane_values(x: Tile) -> bool:
    return x.view.base.space is Space.LOCAL


def lane_values(b: Builder, x: Tile, what: str) -> View:
    """The whole local buffer of one dimension that ``x`` is; WrongValue."""
    view = b.settle(x).view
    whole = len(view.axes) == 1 and view.shape == view.base.shape and value_of(view.offsets[0]) == 0
    if view.base.space is not Space.LOCAL or not whole or view.reshape is not None:
        raise WrongValue(
            b.span,
            what=f"`{what}`",
            got=_described(view),
            wanted="one lane's values: the result of `load_matrix_a` and its siblings, or a local buffer of one "
            "dimension",
            fix_text="load it with `load_matrix_a`, `load_matrix_b`, `load_matrix_c` or `load_matrix_e`",
        )
    return view


def exchange(b: Builder, name: ExchangeName, value: Expr, lane: Expr | None = None) -> Var:
    """The value of another lane of the warp, or (``ballot``) the lanes for which ``value`` holds."""
    if lane is not None:
        number = value_of(lane)
        if not lane.type.is_integer or (number is not None and not 0 <= number < 32):
            raise WrongValue(
                b.span,
                what=f"`{name}`",
                got=describe(lane) if number is not None else f"a lane of {lane.type}",
                wanted="an integer from 0 to 31: a warp has 32 lanes",
                fix_text="use a number below 32",
            )
        lane = b.converted(lane, dtypes.s32)
    dtype = dtypes.u32 if name == "ballot" else value.type
    result = Var(b.fresh("other" if name != "ballot" else "lanes"), dtype)
    b.fixed.add(result.name)
    b.emit(t.Declare(result, Const(0.0 if dtype.is_float else 0, dtype)))
    b.emit(t.Exchange(name, result, value, lane))
    return result


def _matrix(b: Builder, x: Tile, what: str) -> View:
    """``x`` as a view of two dimensions; WrongValue."""
    view = b.settle(x).view
    if len(view.axes) != 2 or view.base.space is Space.LOCAL:
        raise WrongValue(
            b.span,
            what=f"`{what}`",
            got=_described(view),
            wanted="a matrix [rows, columns] in global or shared memory",
            fix_text="cut it with `subspan(h, w).at(i, j)`, or drop dimensions of extent 1 with `sqz()`",
        )
    return view


def _described(view: View) -> str:
    return f"`{view.base.name}`, a tile of {shape_text(view.shape)} in {view.base.space} memory"


def _tile(b: Builder, view: View, at: tuple[Scalarlike, Scalarlike], extents: tuple[int, ...], what: str) -> View:
    """The part of ``view`` with these extents from element ``at`` on.

    WrongValue where it leaves a tile that is cut from an array or buffer; an array's own edge may be crossed.
    """
    names = ("row", "column")
    for axis, (start, n) in enumerate(zip(at, extents, strict=True)):
        first, have = value_of(scalar(start)), value_of(view.axes[axis].extent)
        if first is not None and (first < 0 or (have is not None and first + n > have and not view.is_whole)):
            raise WrongValue(
                b.span,
                what=f"`{what}`",
                got=f"{names[axis]} {first} of `{view.base.name}`, which has {have} here",
                wanted=f"{n} {names[axis]}s inside the tile: the instruction takes as many",
                fix_text="start at an element of the tile, or pass the array itself",
            )
    for axis, start in enumerate(at):
        view = view.shift(axis, scalar(start))
    axes = tuple(Axis(a.dim, const(n), a.step) for a, n in zip(view.axes, extents, strict=True))
    return replace(view, axes=axes)
