"""Members: views of tiles, elements, shapes of things."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tilemma.croqtile import ast
from tilemma.croqtile.expressions import MAX_TUPLE
from tilemma.croqtile.refusals import NotATile, NotBuiltYet, WrongArity, WrongMember, WrongValue, one_of
from tilemma.croqtile.values import (
    Cut,
    Events,
    Filled,
    Mutable,
    Operation,
    Scalar,
    SpanValue,
    TileArray,
    TupleValue,
    Value,
    kind,
)
from tilemma.errors import Note, nearest
from tilemma.ir.constructs import checked_element, checked_index, checked_subscript
from tilemma.ir.expr import Const, Element, Expr, add, const, mul, value_of
from tilemma.ir.tiles import Bounded, FragmentValue, FutureValue, Tile, scalar

if TYPE_CHECKING:
    from tilemma.croqtile.build import Reader

TILE_MEMBERS = (
    "at", "chunk", "chunkat", "data", "modspan", "span", "span_as", "sqz", "subspan", "view", "zfill",
)  # fmt: skip
_CUTS = {"chunk": "at", "subspan": "at", "modspan": "at", "view": "from"}
_UNBUILT = ("mdata", "mask", "map", "remap", "multicast")


class Views:
    """The part of a `Reader` that knows members."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    # ---- tiles -------------------------------------------------------------------------------------------

    def tile(self, node: ast.Expr, what: str) -> Tile:
        """A tile; futures of copies stand for the tile they write.  NotATile for anything else."""
        return self.as_tile(self.reader.value(node), node, what)

    def as_tile(self, value: Value, node: ast.Expr, what: str) -> Tile:
        if isinstance(value, Tile):
            return value
        if isinstance(value, FutureValue):
            return value.data
        fix = "name a parameter, a buffer or a view"
        if isinstance(value, TileArray):
            fix = "subscript it: " + "".join("[i]" for _ in value.sizes)
        elif isinstance(value, FragmentValue):
            fix = "store it to a buffer first (`mma.store`)"
        elif isinstance(value, Cut):
            fix = f"say which one: `.{_CUTS[value.method]}(...)` after `.{value.method}(...)`"
        elif isinstance(value, Filled):
            fix = "use `.zfill` only on the source of a copy"
        binding = self.reader.scopes.find(node.text) if isinstance(node, ast.Name) else None
        notes = [Note("defined here", binding.span)] if binding is not None else []
        raise NotATile(node.span, what=what, got=kind(value), fix_text=fix, notes=notes)

    def indices(self, nodes: Sequence[ast.Expr], what: str) -> list[Scalar | None]:
        """Arguments of a view: integers, indices, ``_``, and tuples of them, flattened."""
        out: list[Scalar | None] = []
        for node in nodes:
            if isinstance(node, ast.Whole):
                out.append(None)
                continue
            value = self.reader.value(node)
            if isinstance(value, TupleValue):
                out.extend(value.items)
            elif isinstance(value, SpanValue):
                out.extend(value.dims)
            elif isinstance(value, Bounded):
                out.append(value)
            else:
                out.append(self.reader.expressions.integer(node, what) if not isinstance(value, Expr) else value)
                e = checked_index(scalar(out[-1]), what, node.span)  # type: ignore[arg-type]
                if not e.type.is_integer:
                    self.reader.expressions.integer(node, what)
            if len(out) > MAX_TUPLE:
                raise WrongValue(
                    node.span,
                    what=what,
                    got=f"more than {MAX_TUPLE} values",
                    wanted=f"at most {MAX_TUPLE}",
                    fix_text="use fewer dimensions",
                )
        return out

    def scalars(self, nodes: Sequence[ast.Expr], what: str) -> list[Scalar]:
        """As `indices`, without ``_``."""
        found = self.indices(nodes, what)
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

    # ---- members -----------------------------------------------------------------------------------------

    def member(self, node: ast.Member) -> Value:
        base = self.reader.value(node.base)
        if isinstance(base, Cut):
            return self._place(base, node)
        if isinstance(base, Events):
            return self._event(base, node)
        if isinstance(base, FragmentValue):
            return self.reader.contraction.fragment_member(base, node)
        if isinstance(base, (Tile, FutureValue)):
            return self._of_tile(base, node)
        if isinstance(base, Operation):
            raise self._wrong(node, "the future of an `mma`", ())
        if isinstance(base, SpanValue) and node.name == "span":
            return self._dims(base, node)
        if isinstance(base, TileArray) and node.name == "span":
            return self._dims(SpanValue(base.buffer.shape), node)
        if isinstance(base, TileArray):
            self.as_tile(base, node.base, f"`.{node.name}`")
        raise self._wrong(node, kind(base), ())

    def _wrong(self, node: ast.Member, what: str, known: Sequence[str]) -> WrongMember:
        near = nearest(node.name, known)
        return WrongMember(
            node.name_span or node.span,
            kind=what,
            name=node.name,
            known=one_of(known),
            suggestion=f"did you mean `.{near}`?" if near else "remove it",
        )

    def _of_tile(self, base: Tile | FutureValue, node: ast.Member) -> Value:
        name = node.name
        if name in _UNBUILT:
            raise NotBuiltYet(node.name_span or node.span, what=f"`.{name}`", fix_text="use a plain view")
        if isinstance(base, FutureValue):
            if name == "data":
                return base.data
            base = base.data
        if base.chunks is not None and name not in ("data", "zfill"):
            # A chunk that is cut further is settled here, with the check that it divides.
            base = self.reader.b.settle(base)
        table: dict[str, Callable[[Tile, ast.Member], Value]] = {
            "at": self._element,
            "chunkat": self._chunkat,
            "span": lambda t, n: self._dims(SpanValue(t.shape), n),
            "span_as": self._span_as,
            "sqz": lambda t, n: t.sqz(),
            "zfill": lambda t, n: Filled(t),
            "data": lambda t, n: t,
        }
        if name in _CUTS:
            return self._cut(base, node)
        if name not in table:
            raise self._wrong(node, "a tile", TILE_MEMBERS)
        needs = name in ("at", "chunkat", "span_as")
        if needs and not node.args:
            form = {"span_as": "span_as([r, c])"}.get(name, f"{name}(i, j)")
            raise WrongArity(node.span, what=f".{name}", got=0, want="one for each dimension", form=form)
        if name in ("sqz", "zfill", "data") and node.args:
            raise WrongArity(node.span, what=f".{name}", got=len(node.args), want="none", form=f".{name}")
        return table[name](base, node)

    def _element(self, base: Tile, node: ast.Member) -> Value:
        indices = self.scalars(node.args or (), "`.at`")
        if not self.reader.b.unreachable:
            checked_element(base, indices, node.span)
        e = Element(base.element(indices, node.span))
        return self.reader.expressions.checked(e, node.span)

    def _chunkat(self, base: Tile, node: ast.Member) -> Value:
        found = self.indices(node.args or (), "`.chunkat`")
        # The tile number 0 of one: `chunkat(_, 0)` keeps the dimension whole.
        indices = [0 if isinstance(i, Const) and value_of(i) == 0 else i for i in found]
        return self._sized(base.chunkat(indices, node.span), node)

    def _span_as(self, base: Tile, node: ast.Member) -> Value:
        shape = self.scalars(node.args or (), "`.span_as`")
        return self._sized(self.reader.b.span_as(base, shape, node.span), node)

    def _dims(self, span: SpanValue, node: ast.Member) -> Value:
        if not node.args:
            return span
        return self.dimension(span.dims, node.args, node)

    def dimension(self, items: Sequence[Scalar], args: Sequence[ast.Expr], node: ast.Expr) -> Scalar:
        """``s(i)``: element number i of a shape or tuple."""
        if len(args) != 1:
            raise WrongArity(node.span, what="an element of a shape", got=len(args), want="one", form="s(0)")
        i = self.reader.expressions.constant(args[0], "the number of a dimension")
        if not -len(items) <= i < len(items) or (i < 0 and len(items) != 1):
            raise WrongValue(
                args[0].span,
                what="the number of a dimension",
                got=str(i),
                wanted=f"0 to {len(items) - 1}",
                fix_text="dimensions are counted from 0",
            )
        return items[i]

    # ---- subspan, modspan, view, chunk -------------------------------------------------------------------

    def _cut(self, base: Tile, node: ast.Member) -> Value:
        if not node.args:
            raise WrongArity(
                node.span,
                what=f".{node.name}",
                got=0,
                want="an extent for each dimension",
                form=f"{node.name}(h, w)",
            )
        extents = self.indices(node.args, f"`.{node.name}`")
        strides = tuple(scalar(s) for s in self.scalars(node.strides, f"`.{node.name}`"))
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
                node.span,
                what="strides",
                got=len(strides),
                want=f"{len(extents)}, as extents",
                form="(h, w : s, t)",
            )
        if len(extents) != base.rank:
            base.chunkat([None] * len(extents), node.span)  # raises WrongRank
        return Cut(base, node.name, tuple(extents), strides)

    def _place(self, cut: Cut, node: ast.Member) -> Value:
        if node.name == "step" and cut.method in ("subspan", "modspan") and cut.step is None:
            steps = tuple(scalar(s) for s in self.scalars(node.args or (), "`.step`"))
            if len(steps) != len(cut.extents):
                raise WrongArity(
                    node.span,
                    what=".step",
                    got=len(steps),
                    want=f"{len(cut.extents)}, as extents",
                    form="step(p, q)",
                )
            return Cut(cut.tile, cut.method, cut.extents, cut.strides, steps)
        wanted = _CUTS[cut.method]
        if node.name != wanted:
            known = (wanted, "step") if cut.method in ("subspan", "modspan") and cut.step is None else (wanted,)
            raise self._wrong(node, f"`.{cut.method}(...)`", known)
        at = self.indices(node.args or (), f"`.{node.name}`")
        tile, span = cut.tile, node.span
        if cut.method == "view":
            origin = self.scalars(node.args or (), "`.from`")
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
        return self._sized(made, node)

    def _sized(self, tile: Tile, node: ast.Expr) -> Tile:
        """``tile`` when its offsets and extents are not too large as expressions."""
        for e in tile.view.expressions():
            self.reader.expressions.checked(e, node.span)
        return tile

    # ---- subscripts and accesses -------------------------------------------------------------------------

    def subscript(self, node: ast.Subscript) -> Value:
        base = self.reader.value(node.base)
        if isinstance(base, SpanValue):
            return SpanValue(tuple(scalar(x) for x in self.derived(base.dims, node.indices, "a shape")))
        if isinstance(base, TupleValue):
            return TupleValue(self.derived(base.items, node.indices, "a tuple"))
        if len(node.indices) != 1:
            raise WrongArity(node.span, what="[]", got=len(node.indices), want="one", form="x[i]")
        i = self.reader.expressions.integer(node.indices[0], "a subscript")
        if isinstance(base, TileArray):
            self._within(i, base.sizes[len(base.index)], base.buffer.name, node.indices[0])
            index = (*base.index, i)
            if len(index) < len(base.sizes):
                return TileArray(base.buffer, base.sizes, index)
            slot: Expr = const(0)
            for x, n in zip(index, base.sizes, strict=True):
                slot = add(mul(slot, n), x)
            return Tile.whole(base.buffer, slot)
        if isinstance(base, Events) and base.slot is None and base.order is None:
            if not base.event.slots:
                raise WrongValue(
                    node.span,
                    what="a subscript",
                    got=f"the single event `{base.event.name}`",
                    wanted="an array of events",
                    fix_text="declare it with a size, `event e[2]`, or remove the subscript",
                )
            self._within(i, base.event.slots, base.event.name, node.indices[0])
            return Events(base.event, slot=i)
        if isinstance(base, FragmentValue) and len(base.index) < len(base.copies):
            self._within(i, base.copies[len(base.index)], base.name, node.indices[0])
            return base[i]
        raise WrongValue(
            node.span,
            what="a subscript `[i]`",
            got=kind(base),
            wanted="an array of tiles, register tiles or events",
            fix_text="take elements with `.at(i, j)`",
        )

    def _within(self, i: Expr, size: int, name: str, node: ast.Expr) -> None:
        if not self.reader.b.unreachable:
            checked_subscript(i, size, name, node.span)

    def derived(self, base: Sequence[Scalar], items: Sequence[ast.Expr], what: str) -> tuple[Scalar, ...]:
        """``s [(0)/2, 4]``: a number in parentheses stands for that element of ``base``."""
        reader = self.reader
        with reader.derivation(tuple(base)):
            return tuple(reader.expressions.scalar(i, what) for i in items)

    def access(self, node: ast.Call) -> Value:
        """``x(i)``: an element of a shape or tuple, or the last value of an index (``k(-1)``)."""
        base = self.reader.value(node.function)
        if isinstance(base, SpanValue):
            return self.dimension(base.dims, node.args, node)
        if isinstance(base, TupleValue):
            return self.dimension(base.items, node.args, node)
        if isinstance(base, Bounded) and len(node.args) == 1:
            i = self.reader.expressions.constant(node.args[0], "the number of an element")
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
        got = kind(base.var if isinstance(base, Mutable) else base)
        raise WrongValue(
            node.span,
            what="a call",
            got=got,
            wanted="a built-in function, a shape or a tuple before `(`",
            fix_text="take elements of tiles with `.at(i, j)`",
        )

    def _event(self, base: Events, node: ast.Member) -> Value:
        if node.name != "at" or base.slot is not None or base.order is not None:
            raise self._wrong(node, "an event", ("at",))
        if not base.event.slots:
            raise WrongValue(
                node.span,
                what="`.at`",
                got=f"the single event `{base.event.name}`",
                wanted="an array of events",
                fix_text="declare it with a size, `event e[2]`",
            )
        args = node.args or ()
        if len(args) != 1:
            raise WrongArity(node.span, what=".at", got=len(args), want="one", form="e.at(order)")
        order = self.reader.expressions.integer(args[0], "`.at`")
        return Events(base.event, order=checked_index(order, "`.at`", args[0].span))
