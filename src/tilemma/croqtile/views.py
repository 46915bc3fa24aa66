"""Members and subscripts: views of tiles, elements, shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilemma.croqtile import ast, values
from tilemma.croqtile.arithmetic import checked
from tilemma.croqtile.events import event_member
from tilemma.croqtile.lanes import lane_element
from tilemma.croqtile.operands import as_tile, constant, first_tile, indices_of, integer, scalars_of
from tilemma.croqtile.reader import Reader, reads
from tilemma.croqtile.registers import fragment_member
from tilemma.croqtile.shapes import derived, dimension
from tilemma.ir.checks import checked_element, checked_subscript
from tilemma.ir.expr import Const, Element, Expr, add, const, mul, value_of
from tilemma.ir.lane_registers import is_lane_values
from tilemma.ir.refusals import NotBuiltYet, WrongArity, WrongMember, WrongValue, wrong_member
from tilemma.ir.tiles import Bounded, FragmentValue, FutureValue, Tile, scalar

TILE_MEMBERS = (
    "at", "chunk", "chunkat", "data", "modspan", "span", "span_as", "sqz", "subspan", "view", "zfill",
)  # fmt: skip
_CUTS = ("chunk", "subspan", "modspan", "view")
# The indices of `x.subspan(h, w)` without `.at`: the tile at the origin.
_OF_FIRST_TILE = ("data", "span", "span_as", "sqz", "zfill")
_UNBUILT = ("mdata", "mask", "map", "remap", "multicast")


@reads(ast.Member)
def member(r: Reader, node: ast.Member) -> values.Value:
    base = r.value(node.base)
    if isinstance(base, values.Cut):
        if base.method not in ("subspan", "modspan") or node.name not in _OF_FIRST_TILE:
            return _place(r, base, node)
        base = first_tile(base, node.span)
    if isinstance(base, values.Events):
        return event_member(r, base, node)
    if isinstance(base, FragmentValue):
        return fragment_member(r, base, node)
    if isinstance(base, (Tile, FutureValue)):
        return _of_tile(r, base, node)
    if isinstance(base, values.Operation):
        raise _wrong(node, "the future of an `mma`", ())
    if isinstance(base, values.SpanValue) and node.name == "span":
        return _dims(r, base, node)
    if isinstance(base, values.TileArray) and node.name == "span":
        return _dims(r, values.SpanValue(base.buffer.shape), node)
    if isinstance(base, values.TileArray):
        as_tile(r, base, node.base, f"`.{node.name}`")
    raise _wrong(node, values.kind(base), ())


def _wrong(node: ast.Member, what: str, known: Sequence[str]) -> WrongMember:
    return wrong_member(node.name_span or node.span, what, node.name, known)


def _of_tile(r: Reader, base: Tile | FutureValue, node: ast.Member) -> values.Value:
    name = node.name
    if name in _UNBUILT:
        raise NotBuiltYet(node.name_span or node.span, what=f"`.{name}`", fix_text="use a plain view")
    if isinstance(base, FutureValue):
        if name == "data":
            return base.data
        base = base.data
    if base.chunks is not None and name not in ("data", "zfill"):
        # A chunk that is cut further is settled here, with the check that it divides.
        base = r.b.settle(base)
    table: dict[str, Callable[[Reader, Tile, ast.Member], values.Value]] = {
        "at": _element,
        "chunkat": _chunkat,
        "span": lambda r, t, n: _dims(r, values.SpanValue(t.shape), n),
        "span_as": _span_as,
        "sqz": lambda r, t, n: t.sqz(),
        "zfill": lambda r, t, n: values.Filled(t),
        "data": lambda r, t, n: t,
    }
    if name in _CUTS:
        return _cut(r, base, node)
    if name not in table:
        raise _wrong(node, "a tile", TILE_MEMBERS)
    needs = name in ("at", "chunkat", "span_as")
    if needs and not node.args:
        form = {"span_as": "span_as([r, c])"}.get(name, f"{name}(i, j)")
        raise WrongArity(node.span, what=f".{name}", got=0, want="one for each dimension", form=form)
    if name in ("sqz", "zfill", "data") and node.args:
        raise WrongArity(node.span, what=f".{name}", got=len(node.args), want="none", form=f".{name}")
    return table[name](r, base, node)


def _element(r: Reader, base: Tile, node: ast.Member) -> values.Value:
    indices = scalars_of(r, node.args or (), "`.at`")
    if not r.b.unreachable:
        checked_element(base, indices, node.span)
    e = Element(base.element(indices, node.span))
    return checked(r, e, node.span)


def _chunkat(r: Reader, base: Tile, node: ast.Member) -> values.Value:
    found = indices_of(r, node.args or (), "`.chunkat`")
    # The tile number 0 of one: `chunkat(_, 0)` keeps the dimension whole.
    indices = [0 if isinstance(i, Const) and value_of(i) == 0 else i for i in found]
    return _sized(r, base.chunkat(indices, node.span), node)


def _span_as(r: Reader, base: Tile, node: ast.Member) -> values.Value:
    shape = scalars_of(r, node.args or (), "`.span_as`")
    return _sized(r, r.b.span_as(base, shape, node.span), node)


def _dims(r: Reader, span: values.SpanValue, node: ast.Member) -> values.Value:
    if not node.args:
        return span
    return dimension(r, span.dims, node.args, node)


def _cut(r: Reader, base: Tile, node: ast.Member) -> values.Value:
    if not node.args:
        raise WrongArity(
            node.span, what=f".{node.name}", got=0, want="an extent for each dimension", form=f"{node.name}(h, w)"
        )
    extents = indices_of(r, node.args, f"`.{node.name}`")
    strides = tuple(scalar(s) for s in scalars_of(r, node.strides, f"`.{node.name}`"))
    if strides and node.name not in ("subspan", "view"):
        raise WrongValue(
            node.span,
            what=f"`.{node.name}`",
            got="strides",
            wanted="strides only in `subspan` and `view`",
            fix_text="remove what follows `:`",
        )
    if strides and len(strides) != len(extents):
        raise WrongArity(
            node.span, what="strides", got=len(strides), want=f"{len(extents)}, as extents", form="(h, w : s, t)"
        )
    if len(extents) != base.rank:
        base.chunkat([None] * len(extents), node.span)  # raises WrongRank
    return values.Cut(base, node.name, tuple(extents), strides)


def _place(r: Reader, cut: values.Cut, node: ast.Member) -> values.Value:
    # `.stride` is the older name of `.step`.
    if node.name in ("step", "stride") and cut.method in ("subspan", "modspan") and cut.step is None:
        steps = tuple(scalar(s) for s in scalars_of(r, node.args or (), "`.step`"))
        if len(steps) != len(cut.extents):
            raise WrongArity(
                node.span, what=".step", got=len(steps), want=f"{len(cut.extents)}, as extents", form="step(p, q)"
            )
        return values.Cut(cut.tile, cut.method, cut.extents, cut.strides, steps)
    wanted = cut.place
    if node.name != wanted:
        known = (wanted, "step") if cut.method in ("subspan", "modspan") and cut.step is None else (wanted,)
        raise _wrong(node, f"`.{cut.method}(...)`", known)
    at = indices_of(r, node.args or (), f"`.{node.name}`")
    tile, span = cut.tile, node.span
    if cut.method == "view":
        origin = scalars_of(r, node.args or (), "`.from`")
        made = tile.window(cut.extents, origin, strides=cut.strides or None, span=span)
    elif cut.method == "chunk":
        if len(at) != len(cut.extents):
            tile.chunkat(at, span)  # raises WrongRank
        pairs = [
            None if c is None or i is None else Bounded(scalar(i), scalar(c))
            for i, c in zip(at, cut.extents, strict=True)
        ]
        made = tile.chunkat(pairs, span)
    else:
        made = tile.subspan(
            cut.extents,
            at,
            step=cut.step,
            strides=cut.strides or None,
            remainder=cut.method == "modspan",
            name=cut.method,
            span=span,
        )
    return _sized(r, made, node)


def _sized(r: Reader, tile: Tile, node: ast.Expr) -> Tile:
    """``tile`` when its offsets and extents are not too large as expressions."""
    for e in tile.view.expressions():
        checked(r, e, node.span)
    return tile


@reads(ast.Subscript)
def subscript(r: Reader, node: ast.Subscript) -> values.Value:
    base = r.value(node.base)
    if isinstance(base, values.SpanValue):
        return values.SpanValue(tuple(scalar(x) for x in derived(r, base.dims, node.indices, "a shape")))
    if isinstance(base, values.TupleValue):
        return values.TupleValue(derived(r, base.items, node.indices, "a tuple"))
    if len(node.indices) != 1 and isinstance(base, Tile) and not is_lane_values(base):
        raise _subscripted(node, base)
    if len(node.indices) != 1:
        raise WrongArity(node.span, what="[]", got=len(node.indices), want="one", form="x[i]")
    if isinstance(base, Tile) and (element := lane_element(r, base, node)) is not None:
        return element
    i = integer(r, node.indices[0], "a subscript")
    if isinstance(base, values.TileArray):
        _within(r, i, base.sizes[len(base.index)], base.buffer.name, node.indices[0])
        index = (*base.index, i)
        if len(index) < len(base.sizes):
            return values.TileArray(base.buffer, base.sizes, index)
        slot: Expr = const(0)
        for x, n in zip(index, base.sizes, strict=True):
            slot = add(mul(slot, n), x)
        return Tile.whole(base.buffer, slot)
    if isinstance(base, values.Events) and base.slot is None and base.order is None:
        if not base.event.slots:
            raise WrongValue(
                node.span,
                what="a subscript",
                got=f"the single event `{base.event.name}`",
                wanted="an array of events",
                fix_text="declare it with a size, `event e[2]`, or remove the subscript",
            )
        _within(r, i, base.event.slots, base.event.name, node.indices[0])
        return values.Events(base.event, slot=i)
    if isinstance(base, FragmentValue) and len(base.index) < len(base.copies):
        _within(r, i, base.copies[len(base.index)], base.name, node.indices[0])
        return base[i]
    raise _subscripted(node, base)


def _subscripted(node: ast.Subscript, base: values.Value) -> WrongValue:
    """The error for ``x[i]`` of an object without parts: elements are ``x.at(i)``."""
    array = node.base.text if isinstance(base, Tile) and isinstance(node.base, ast.Name) else ""
    indices = ", ".join("ijkl"[: base.rank]) if isinstance(base, Tile) and base.rank < 5 else "i, j"
    return WrongValue(
        node.span,
        what="a subscript `[i]`",
        got=values.kind(base),
        wanted="an array of tiles, register tiles or events",
        fix_text=f"take elements with `{array}.at({indices})`",
    )


def _within(r: Reader, i: Expr, size: int, name: str, node: ast.Expr) -> None:
    if not r.b.unreachable:
        checked_subscript(i, size, name, node.span)


def access(r: Reader, node: ast.Call) -> values.Value:
    """``x(i)``: an element of a shape or tuple, or the last value of an index (``k(-1)``)."""
    base = r.value(node.function)
    if isinstance(base, values.SpanValue):
        return dimension(r, base.dims, node.args, node)
    if isinstance(base, values.TupleValue):
        return dimension(r, base.items, node.args, node)
    if isinstance(base, Bounded) and len(node.args) == 1:
        i = constant(r, node.args[0], "the number of an element")
        if i == -1:
            return base.last
        if i == 0:
            return base
        raise WrongValue(
            node.args[0].span,
            what="an access to an index",
            got=str(i),
            wanted="-1 (its last value), or 0",
            fix_text="write `k(-1)` for the last value",
        )
    got = values.kind(base.var if isinstance(base, values.Mutable) else base)
    raise WrongValue(
        node.span,
        what="a call",
        got=got,
        wanted="a built-in function, a shape or a tuple before `(`",
        fix_text="take elements of tiles with `.at(i, j)`",
    )
