"""Operands of constructs: one function for each kind of operand."""

from __future__ import annotations

from collections.abc import Sequence

from tilemma.croqtile import ast, values
from tilemma.croqtile.arithmetic import like
from tilemma.croqtile.reader import Reader
from tilemma.croqtile.words import FOREIGN_TYPES
from tilemma.dtypes import DType
from tilemma.errors import Note, Span, source_line
from tilemma.ir.builder import element_type
from tilemma.ir.checks import checked_index
from tilemma.ir.constructs import KINDS, LIMITS, OPERANDS
from tilemma.ir.element_work import Known
from tilemma.ir.expr import Const, Element, Expr, FragmentElement, binary, const, value_of
from tilemma.ir.refusals import NotBuiltYet, NotConstant, WrongArity, WrongValue
from tilemma.ir.tiles import Bounded, FragmentValue, FutureValue, Tile, describe, scalar
from tilemma.ir.types import EventRef


def table_operand(r: Reader, name: str, node: ast.Expr) -> int:
    """The value of an operand of the table in `ir.constructs`."""
    about = OPERANDS[name]
    return about.checked(constant(r, node, f"`{about.croqtile}`"), node.span)


def table_operands(r: Reader, name: str, nodes: Sequence[ast.Expr]) -> tuple[int, ...]:
    """The values of an operand that may be given several times."""
    found = [table_operand(r, name, n) for n in nodes]
    return OPERANDS[name].checked_all(found, nodes[0].span) if nodes else ()


def fill_value(r: Reader, node: ast.Expr, what: str, dtype: DType | None = None) -> Expr:
    """The value of a fill: a float without suffix has no type; the type of the fill decides."""
    e = plain(r, node, what)
    if isinstance(e, Const) and e.dtype.name == "f64":
        return const(float(e.value), dtype if dtype is not None and dtype.is_float else None)
    return e


def event_ref(value: values.Events, node: ast.Expr) -> EventRef:
    if value.event.slots and value.slot is None and value.order is None:
        raise WrongValue(
            node.span,
            what=f"the event array `{value.event.name}`",
            got="no subscript",
            wanted="one event of it",
            fix_text=f"write `{value.event.name}[s]` or `{value.event.name}.at(order)`",
        )
    return EventRef(value.event, value.slot, value.order)


def source_text(node: ast.Expr) -> str:
    """The source text of an expression on one line."""
    line = source_line(node.span.file, node.span.line)
    if line is None or node.span.end_line != node.span.line:
        return "the condition"
    return line[node.span.column - 1 : node.span.end_column - 1]


def scalar_of(r: Reader, node: ast.Expr, what: str = "an operation") -> values.Scalar:
    """An index or expression; WrongValue for other values."""
    return scalar_value(r, r.value(node), node, what)


def scalar_value(r: Reader, value: values.Value, node: ast.Expr, what: str) -> values.Scalar:
    """As `scalar_of`, of the value of ``node``."""
    value = element_of(r, value, node)
    if isinstance(value, values.Mutable):
        return value.var
    if isinstance(value, (Bounded, Expr)):
        return value
    if isinstance(value, (values.TupleValue, values.SpanValue)):
        items = value.items if isinstance(value, values.TupleValue) else value.dims
        if len(items) == 1:
            return items[0]
    fix = None
    if isinstance(value, FragmentValue) and r.whole is None:
        fix = "assign to a declared tile, `frag f32[16, 64] d; d = a * b;`, or visit elements: `apply`"
    raise KINDS["scalar"].refused(what, values.kind(value), node.span, fix)


def plain(r: Reader, node: ast.Expr, what: str = "an operation") -> Expr:
    return scalar(scalar_of(r, node, what))


def integer(r: Reader, node: ast.Expr, what: str) -> Expr:
    e = plain(r, node, what)
    if not e.type.is_integer:
        raise KINDS["integer"].refused(what, f"a value of type {e.type.name}", node.span)
    return e


def constant(r: Reader, node: ast.Expr, what: str) -> int:
    """An integer constant; NotConstant."""
    e = integer(r, node, what)
    v = value_of(e)
    if v is None:
        raise NotConstant(node.span, what=what, text=describe(e))
    return v


def condition_of(r: Reader, node: ast.Expr, what: str) -> Expr:
    """A truth value: numbers count as true when they are not 0."""
    value = element_of(r, r.value(node), node)
    if not isinstance(value, (values.Mutable, Bounded, Expr)):
        raise KINDS["condition"].refused(what, values.kind(value), node.span)
    e = scalar(scalar_value(r, value, node, what))
    return e if e.type.kind == "bool" else binary("ne", e, like(Const(0, literal=True), e, node.span))


def arguments(node: ast.Call, name: str, count: int, form: str) -> Sequence[ast.Expr]:
    if len(node.args) != count:
        raise WrongArity(node.span, what=name, got=len(node.args), want=str(count), form=form)
    return node.args


def known_type(name: str, span: Span) -> DType:
    if name in FOREIGN_TYPES:
        raise NotBuiltYet(span, what=f"the element type `{name}`", fix_text="use one of 4, 8, 16, 32 or 64 bits")
    return element_type(name, span)


def tile_of(r: Reader, node: ast.Expr, what: str) -> Tile:
    """A tile; the future of a copy denotes the written tile.  NotATile for other values."""
    return as_tile(r, r.value(node), node, what)


def as_tile(r: Reader, value: values.Value, node: ast.Expr, what: str, wanted: str = "tile") -> Tile:
    if isinstance(value, Tile):
        return value
    if isinstance(value, FutureValue):
        return value.data
    if isinstance(value, values.Cut) and value.method in ("subspan", "modspan"):
        return first_tile(value, node.span)
    fix = None
    if isinstance(value, values.TileArray):
        fix = "subscript it: " + "".join("[i]" for _ in value.sizes)
    elif isinstance(value, FragmentValue):
        fix = "store it to a buffer first (`mma.store`)"
    elif isinstance(value, values.Cut):
        fix = f"say which one: `.{value.place}(...)` after `.{value.method}(...)`"
    elif isinstance(value, values.Filled):
        fix = "use `.zfill` only on the source of a copy"
    binding = r.scopes.find(node.text) if isinstance(node, ast.Name) else None
    notes = [Note("defined here", binding.span)] if binding is not None else []
    raise KINDS[wanted].refused(what, values.kind(value), node.span, fix, notes)


def first_tile(cut: values.Cut, span: Span) -> Tile:
    """``x.subspan(h, w)`` without `.at`: the tile that starts at the origin."""
    return cut.tile.subspan(
        cut.extents,
        [None if e is None else const(0) for e in cut.extents],
        step=cut.step,
        strides=cut.strides or None,
        remainder=cut.method == "modspan",
        name=cut.method,
        span=span,
    )


def indices_of(r: Reader, nodes: Sequence[ast.Expr], what: str) -> list[values.Scalar | None]:
    """Arguments of a view: integers, indices, ``_``, and tuples of them, flattened."""
    out: list[values.Scalar | None] = []
    for node in nodes:
        if isinstance(node, ast.Whole):
            out.append(None)
            continue
        value = r.value(node)
        if isinstance(value, values.TupleValue):
            out.extend(value.items)
        elif isinstance(value, values.SpanValue):
            out.extend(value.dims)
        elif isinstance(value, Bounded):
            out.append(value)
        else:
            out.append(integer(r, node, what) if not isinstance(value, Expr) else value)
            e = checked_index(scalar(out[-1]), what, node.span)  # type: ignore[arg-type]
            if not e.type.is_integer:
                integer(r, node, what)
        LIMITS["rank"].checked(len(out), what, node.span)
    return out


def scalars_of(r: Reader, nodes: Sequence[ast.Expr], what: str) -> list[values.Scalar]:
    """As `indices`, without ``_``."""
    found = indices_of(r, nodes, what)
    out = [x for x in found if x is not None]
    if len(out) != len(found):
        whole = next(n for n in nodes if isinstance(n, ast.Whole))
        raise WrongValue(
            whole.span,
            what=what,
            got="`_`",
            wanted="a number for each dimension",
            fix_text="`_` keeps a dimension whole in `chunkat`, `subspan` and `view`; write an index here",
        )
    return out


def fragment_of(r: Reader, node: ast.Expr, what: str, whole: bool = False) -> FragmentValue:
    """A register tile; ``whole``: an array of them will do."""
    value = r.value(node)
    if not isinstance(value, FragmentValue):
        raise KINDS["register tile"].refused(what, values.kind(value), node.span)
    if not whole:
        chosen(value, node, what)
    return value


def event_of(r: Reader, node: ast.Expr, what: str, span: Span | None = None) -> EventRef:
    value = r.value(node)
    if not isinstance(value, values.Events):
        raise KINDS["event"].refused(what, values.kind(value), span or node.span)
    return event_ref(value, node)


def future_of(r: Reader, node: ast.Expr, what: str = "`after`") -> str:
    """The name of the asynchronous copy's future in an `after`."""
    value = r.value(node)
    if not isinstance(value, FutureValue) or not value.name:
        raise KINDS["future"].refused(what, values.kind(value), node.span)
    return value.name


def index_of(r: Reader, node: ast.Expr, what: str) -> Bounded:
    """An index with its upper bound."""
    value = scalar_of(r, node, what)
    if not isinstance(value, Bounded):
        raise KINDS["index"].refused(what, f"`{describe(value)}`, which has no upper bound", node.span)
    return value


def chosen(value: FragmentValue, node: ast.Expr, what: str) -> None:
    """WrongValue for an array of register tiles none of which is chosen."""
    if len(value.index) != len(value.copies):
        raise WrongValue(
            node.span,
            what=what,
            got="a whole array of register tiles",
            wanted="one of them",
            fix_text="subscript it: " + "".join("[i]" for _ in value.copies),
        )


def element_of(r: Reader, value: values.Value, node: ast.Expr) -> values.Value:
    """In arithmetic on whole register tiles: the element that a tile gives for the one being computed."""
    if r.whole is None or not isinstance(value, (FragmentValue, FutureValue, Tile)):
        return value
    indices, shape = r.whole
    if isinstance(value, FragmentValue):
        chosen(value, node, "arithmetic on a register tile")
        known = r.b.known.get(value.name, Known())
        if known.shape not in (shape, shape[:1]) or known.dtype is None:
            raise _wrong_shape(node, value.name, known.shape, shape)
        return FragmentElement(value.name, indices[: len(known.shape or ())], known.dtype, value.index)
    i, j = indices if len(indices) == 2 else (indices[0], indices[0])
    rows, columns = shape if len(shape) == 2 else (0, shape[0])
    tile = r.b.settle(as_tile(r, value, node, "arithmetic on a register tile"))
    extents = tile.view.static_shape
    choices: dict[tuple[int, ...], tuple[Expr, ...]] = {
        (columns,): (j,),
        (1, columns): (const(0), j),
        (rows, 1): (i, const(0)),
        (rows, columns): (i, j),
    }
    if len(shape) == 1:
        choices = {shape: indices}
    if extents not in choices:
        raise _wrong_shape(node, source_text(node), extents, shape)
    return Element(tile.element(choices[extents], node.span))


def _wrong_shape(node: ast.Expr, text: str, got: tuple[int, ...] | None, shape: tuple[int, ...]) -> WrongValue:
    have = "of unknown shape" if got is None else f"of {list(got)}"
    if len(shape) == 1:
        return WrongValue(
            node.span,
            what="arithmetic on a vector of a register tile's rows",
            got=f"`{text}` {have}",
            wanted=f"[{shape[0]}]",
            fix_text=f"cut it: `x.subspan({shape[0]}).at(...)`",
        )
    rows, columns = shape
    return WrongValue(
        node.span,
        what="arithmetic on a register tile",
        got=f"`{text}` {have}",
        wanted=f"[{columns}] or [1, {columns}] (a row), [{rows}, 1] (a column), or [{rows}, {columns}]",
        fix_text=f"cut it to one of these: `x.subspan({columns}).at(...)`",
    )
