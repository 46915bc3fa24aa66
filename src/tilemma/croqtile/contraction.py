"""`mma` operations, register tiles, and element work on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilemma.croqtile import ast
from tilemma.croqtile.refusals import NotBuiltYet, WrongArity, WrongMember, WrongValue, one_of
from tilemma.croqtile.values import Operation, SpanValue, Value, kind
from tilemma.errors import nearest
from tilemma.ir import tile as t
from tilemma.ir.builder import Known
from tilemma.ir.constructs import OPERANDS, checked_index
from tilemma.ir.expr import Element, Expr, FragmentElement, Index, const
from tilemma.ir.tiles import Bounded, FragmentValue, FutureValue, Tile, scalar
from tilemma.ir.types import Contract

if TYPE_CHECKING:
    from tilemma.croqtile.build import Reader

FIRST = ("fill", "load", "row", "col", "store", "scale", "commit", "wait")


class Contraction:
    """The part of a `Reader` that knows register tiles."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        # Inside `apply`: the indices being visited, and the shape over which.
        self.visiting: tuple[tuple[Index, ...], tuple[int, ...]] | None = None
        # Inside `mc = mc + x`: the indices of the element that whole tiles stand for, and the shape.
        self.whole: tuple[tuple[Index, ...], tuple[int, ...]] | None = None

    # ---- dispatch ----------------------------------------------------------------------------------------

    def mma(self, node: ast.Mma, name: str | None) -> Value | None:
        """Emit the operation; its result, for those that have one."""
        first, rest = node.suffixes[0], node.suffixes[1:]
        if first.name not in FIRST:
            raise self._unknown(first, FIRST)
        if node.attributes and first.name not in ("row", "col"):
            raise WrongValue(
                node.span,
                what="`[[...]]`",
                got=f"`mma.{first.name}`",
                wanted="a multiplication, `mma.row.row` and the like",
                fix_text="remove the attribute",
            )
        match first.name:
            case "fill":
                return self._fill(node, rest, name)
            case "load":
                return self._load(node, rest, name)
            case "row" | "col":
                return self._multiply(node, name)
            case "store":
                self._store(node, rest)
            case "scale":
                self._scale(node)
            case "commit":
                self._count(node, 0, "mma.commit")
                self.reader.b.emit(t.Commit())
            case "wait":
                self.reader.b.emit(t.MmaWait(self._pending(node, first)))
        if name is not None:
            raise WrongValue(
                node.span,
                what=f"`{name} =`",
                got=f"`mma.{first.name}`, which has no result",
                wanted="`mma.fill`, `mma.load` or an asynchronous multiplication",
                fix_text=f"remove `{name} =`",
            )
        return None

    def _unknown(self, s: ast.Suffix, known: Sequence[str]) -> WrongMember:
        near = nearest(s.name, known)
        return WrongMember(
            s.span,
            kind="`mma`",
            name=s.name,
            known=one_of(known),
            suggestion=f"did you mean `.{near}`?" if near else "remove it",
        )

    @staticmethod
    def _repeated(s: ast.Suffix, wanted: str) -> WrongValue:
        return WrongValue(s.span, what=f"`.{s.name}`", got="said before", wanted=wanted, fix_text="leave one out")

    def _once(self, suffixes: Sequence[ast.Suffix]) -> None:
        """WrongValue for a suffix that is said twice."""
        said: set[str] = set()
        for s in suffixes:
            name = {"swizzle": "swiz"}.get(s.name, s.name)
            if name in said:
                raise self._repeated(s, "each suffix of an `mma` operation once")
            said.add(name)

    def _pending(self, node: ast.Mma, first: ast.Suffix) -> int:
        """The N of ``mma.wait<N>``."""
        self._count(node, 0, "mma.wait<N>")
        if len(first.args) != 1:
            raise OPERANDS["pending"].refused(f"{len(first.args)} numbers", first.span)
        pending = self.reader.expressions.constant(first.args[0], "`mma.wait`")
        return OPERANDS["pending"].checked(pending, first.span)

    def _count(self, node: ast.Mma, want: int, form: str) -> tuple[ast.Expr, ...]:
        if len(node.args) != want:
            what = "mma." + ".".join(s.name for s in node.suffixes)
            raise WrongArity(node.span, what=what, got=len(node.args), want=str(want), form=form)
        return node.args

    def fragment(self, node: ast.Expr, what: str) -> FragmentValue:
        value = self.reader.value(node)
        if not isinstance(value, FragmentValue):
            raise WrongValue(
                node.span,
                what=what,
                got=kind(value),
                wanted="a register tile (the result of `mma.fill` or `mma.load`, or declared with `frag`)",
                fix_text="name one",
            )
        self._chosen(value, node, what)
        return value

    @staticmethod
    def _chosen(value: FragmentValue, node: ast.Expr, what: str) -> None:
        """WrongValue for an array of register tiles none of which is chosen."""
        if len(value.index) != len(value.copies):
            raise WrongValue(
                node.span,
                what=what,
                got="a whole array of register tiles",
                wanted="one of them",
                fix_text="subscript it: " + "".join("[i]" for _ in value.copies),
            )

    # ---- the four steps ----------------------------------------------------------------------------------

    def _fill(self, node: ast.Mma, rest: Sequence[ast.Suffix], name: str | None) -> Value | None:
        if len(rest) > 1:
            raise self._repeated(rest[1], "one element type")
        dtype = self.reader.expressions.element_type(rest[0].name, rest[0].span) if rest else None
        if name is None:
            target_node, value_node = self._count(node, 2, "mma.fill mc, 0.0f")
            target: FragmentValue | str = self.fragment(target_node, "`mma.fill`")
        else:
            (value_node,) = self._count(node, 1, f"{name} = mma.fill 0.0f")
            target = self._target(name)
        value = self.reader.fill_value(value_node, "`mma.fill`")
        return self.reader.b.fill(target, value, dtype)

    def _target(self, name: str) -> FragmentValue | str:
        """The register tile that ``name`` is already, or the name for a new one."""
        binding = self.reader.scopes.find(name)
        if binding is not None and isinstance(binding.value, FragmentValue) and not binding.value.copies:
            return binding.value
        return name

    def _load(self, node: ast.Mma, rest: Sequence[ast.Suffix], name: str | None) -> Value:
        swizzle = None
        self._once(rest)
        for s in rest:
            if s.name in ("swiz", "swizzle"):
                swizzle = self.reader.copies.swizzle(s)
            elif s.name not in ("frag", "async"):
                raise self._unknown(s, ("swiz", "frag", "async"))
        if name is None:
            src_node, target_node = self._count(node, 2, "mma.load src, fragment")
            target: FragmentValue | str = self.fragment(target_node, "`mma.load`")
        else:
            (src_node,) = self._count(node, 1, f"{name} = mma.load src")
            target = self._target(name)
        src = self.reader.views.tile(src_node, "`mma.load`")
        return self.reader.b.load(target, src, swizzle)

    def _multiply(self, node: ast.Mma, name: str | None) -> Value | None:
        if len(node.suffixes) < 2 or node.suffixes[1].name not in ("row", "col"):
            at = node.suffixes[1] if len(node.suffixes) > 1 else node.suffixes[0]
            raise self._unknown(at, ("row", "col"))
        contract = Contract(f"{node.suffixes[0].name}.{node.suffixes[1].name}")
        options: dict[str, Any] = {}
        variants: set[str] = set()
        for s in node.suffixes[2:]:
            if s.name not in ("sp", "scale", "async", "order") or s.name in variants:
                raise self._unknown(s, ("sp", "scale", "async"))
            variants.add(s.name)
            if s.name == "order":
                options["k_order"] = tuple(self.reader.expressions.constant(a, "`.order`") for a in s.args)
        for attribute in node.attributes:
            options["k_order"] = self._schedule(attribute)
        sparse, scaled = "sp" in variants, "scale" in variants
        text = "mma." + ".".join(s.name for s in node.suffixes)
        form = f"{text} mc, a, b" + ", meta" * sparse + ", sa, sb" * scaled
        args = self._count(node, 3 + sparse + 2 * scaled, form)
        acc_value = self.reader.value(args[0])
        if isinstance(acc_value, (Tile, FutureValue)):
            raise NotBuiltYet(
                args[0].span,
                what="a multiplication straight into a buffer",
                fix_text="accumulate in registers (`mc = mma.fill.f32 0.0f`) and `mma.store mc, buffer`",
            )
        acc = self.fragment(args[0], f"`{text}`")
        a, b = self._operand(args[1], text), self._operand(args[2], text)
        if sparse:
            options["meta"] = self.fragment(args[3], f"`{text}`").ref
        if scaled:
            options["scale_a"] = self.reader.b.settle(self.reader.views.tile(args[-2], f"`{text}`")).view
            options["scale_b"] = self.reader.expressions.plain(args[-1], f"`{text}`")
        result = None
        if "async" in variants:
            future = self.reader.b.fresh(f"{name or 'mma'}.future")
            options["future"] = future
            result = Operation(future)
        self.reader.b.mma(contract, acc, a, b, **options)
        if name is not None and result is None:
            raise WrongValue(
                node.span,
                what=f"`{name} =`",
                got=f"`{text}`, which has no result",
                wanted=f"`{text}.async`, whose result is a future",
                fix_text=f"remove `{name} =`: the product is accumulated into the first operand",
            )
        return result

    def _schedule(self, node: ast.Expr) -> tuple[int, ...]:
        """``schedule(k_tiles(3, 2, 1, 0))``."""
        inner = node.args[0] if isinstance(node, ast.Call) and len(node.args) == 1 else None
        outer = node.function if isinstance(node, ast.Call) else None
        if (
            not isinstance(outer, ast.Name)
            or outer.text != "schedule"
            or not isinstance(inner, ast.Call)
            or not isinstance(inner.function, ast.Name)
            or inner.function.text != "k_tiles"
        ):
            raise WrongValue(
                node.span,
                what="`[[...]]` before a multiplication",
                got="another attribute",
                wanted="`schedule(k_tiles(...))`",
                fix_text="write `[[schedule(k_tiles(3, 2, 1, 0))]] mma.row.row ...`",
            )
        return tuple(self.reader.expressions.constant(a, "`k_tiles`") for a in inner.args)

    def _operand(self, node: ast.Expr, text: str) -> FragmentValue | Tile:
        value = self.reader.value(node)
        if isinstance(value, FragmentValue):
            return self.fragment(node, f"`{text}`")
        return self.reader.views.as_tile(value, node, f"`{text}`")

    def _store(self, node: ast.Mma, rest: Sequence[ast.Suffix]) -> None:
        options: dict[str, Any] = {}
        masked = False
        self._once(rest)
        for s in rest:
            if s.name == "transp":
                options["transpose"] = True
            elif s.name == "mask":
                masked = True
            elif s.name != "async":
                raise self._unknown(s, ("transp", "mask", "async"))
        if masked and len(node.args) in (3, 4):
            what = "`mma.store.mask`"
            limits = [checked_index(self.reader.expressions.integer(a, what), what, a.span) for a in node.args[2:]]
            options["rows"] = limits[0]
            options["columns"] = limits[1] if len(limits) > 1 else None
        elif masked:
            self._count(node, 3, "mma.store.mask mc, dst, rows, columns")
        else:
            self._count(node, 2, "mma.store mc, dst")
        source = self.fragment(node.args[0], "`mma.store`")
        self.reader.b.store(source, self.reader.views.tile(node.args[1], "`mma.store`"), **options)

    def _scale(self, node: ast.Mma) -> None:
        acc, sa, sb = self._count(node, 3, "mma.scale mc, sa, sb")
        view = self.reader.b.settle(self.reader.views.tile(sa, "`mma.scale`")).view
        factor = self.reader.expressions.plain(sb, "`mma.scale`")
        self.reader.b.emit(t.ScaleMma(self.fragment(acc, "`mma.scale`").ref, view, factor))

    # ---- declared register tiles -------------------------------------------------------------------------

    def declare(self, node: ast.DeclareFragment) -> None:
        """``frag f32[64, 128] p {0.0};``, ``frag mc[2][3] {0.0};``"""
        r = self.reader
        dtype = r.expressions.element_type(node.dtype, node.span) if node.dtype else None
        shape = r.operands("fragment-extent", node.dims or ()) or None
        if shape is not None and len(shape) != 2:
            raise OPERANDS["fragment-extent"].refused(f"{len(shape)} extents", node.span, "rows and columns")
        for item in node.items:
            r.b.span = item.span
            copies = r.operands("tiles", item.sizes)
            made = r.b.fragment(item.name, copies, dtype, shape)
            if isinstance(item.value, ast.Expr):
                value = r.fill_value(item.value, "an initialiser")
                for index in _indices(copies):
                    r.b.fill(FragmentValue(made.name, copies, tuple(const(i) for i in index)), value, dtype)
            elif item.value is not None:
                raise WrongValue(
                    item.span,
                    what="the initialiser of a register tile",
                    got="an operation",
                    wanted="a number in braces",
                    fix_text="write `frag f32[64, 64] p {0.0f};`",
                )
            r.scopes.define(item.name, made, item.span)

    # ---- element work ------------------------------------------------------------------------------------

    def fragment_member(self, base: FragmentValue, node: ast.Member) -> Value:
        shape = self.reader.b.known.get(base.name, Known()).shape
        if node.name == "span":
            if shape is None:
                raise self._shape_unknown(node, base)
            dims = tuple(const(n) for n in shape)
            return self.reader.views.dimension(dims, node.args, node) if node.args else SpanValue(dims)
        if node.name != "at":
            known = ("at", "span")
            near = nearest(node.name, known)
            raise WrongMember(
                node.name_span or node.span,
                kind="a register tile",
                name=node.name,
                known=one_of(known),
                suggestion=f"did you mean `.{near}`?" if near else "store it to a buffer (`mma.store`) first",
            )
        indices = self.visited(base, node)
        dtype = self.reader.b.known.get(base.name, Known()).dtype
        assert dtype is not None
        return FragmentElement(base.name, indices, dtype, base.index)

    def visited(self, base: FragmentValue, node: ast.Member) -> tuple[Expr, ...]:
        """The indices of ``base.at(i, j)``, which must be those that `apply` visits."""
        if self.visiting is None:
            raise WrongValue(
                node.span,
                what="`.at` of a register tile",
                got="a place outside `apply`",
                wanted="`apply {i, j} in tile.span { ... }` around it: a thread holds only its own elements",
                fix_text="use `apply`, or store the tile to a buffer",
            )
        indices, shape = self.visiting
        known = self.reader.b.known.get(base.name, Known())
        found = tuple(scalar(x) for x in self.reader.views.scalars(node.args or (), "`.at`"))
        whole = len(base.index) == len(base.copies)
        if not whole or known.dtype is None or known.shape != shape or found != indices:
            raise NotBuiltYet(
                node.span,
                what="an element of a register tile other than the one `apply` visits",
                fix_text="use tiles of one shape and the indices of `apply`, in their order",
            )
        return indices

    def apply(self, node: ast.Apply) -> None:
        """``apply {i, j} in mc.span { mc.at(i, j) = ...; }``"""
        r = self.reader
        over = node.over
        base = r.value(over.base) if isinstance(over, ast.Member) and over.name == "span" else None
        if not isinstance(base, FragmentValue):
            raise WrongValue(
                over.span,
                what="`apply`",
                got="something else",
                wanted="the shape of a register tile, `mc.span`",
                fix_text="write `apply {i, j} in mc.span { ... }`; use `foreach` for buffers",
            )
        shape = self.reader.b.known.get(base.name, Known()).shape
        if shape is None:
            raise self._shape_unknown(over, base)
        names = [n.text for n in node.names.parts] or [node.names.whole or "i"]
        if len(names) != len(shape):
            raise WrongArity(
                node.names.span, what="apply", got=len(names), want=str(len(shape)), form="apply {i, j}"
            )
        with r.b.apply(base, names, shape, node.span) as indices, r.scopes.block():
            for n, i in zip(names, indices, strict=True):
                r.scopes.define(n, Bounded.of(i), node.names.span)
            outer, self.visiting = self.visiting, (indices, shape)
            r.statements.body(node.body)
            self.visiting = outer

    def assign_whole(self, base: FragmentValue, node: ast.Assign) -> None:
        """``mc = mc * 2.0 + bias``: every element, rows and columns of numbers repeated."""
        r = self.reader
        assert isinstance(node.value, ast.Expr)
        self._chosen(base, node.target, "arithmetic on a register tile")
        known = r.b.known.get(base.name, Known())
        if known.shape is None or known.dtype is None or len(known.shape) != 2:
            raise self._shape_unknown(node.target, base)
        with r.b.apply(base, ("i", "j"), known.shape, node.span) as indices, r.without_effects("tile arithmetic"):
            self.whole = (indices, known.shape)
            value = r.expressions.plain(node.value, "arithmetic on a register tile")
            if node.op:
                old = FragmentElement(base.name, indices, known.dtype, base.index)
                value = r.expressions.arithmetic(node.op, old, value, node.span)
            self.whole = None
            r.b.emit(t.SetFragmentElement(base.ref, r.expressions.converted(value, known.dtype, node.span)))

    def element_of(self, value: Value, node: ast.Expr) -> Value:
        """In arithmetic on whole register tiles: the element that a tile gives for the one being computed."""
        if self.whole is None or not isinstance(value, (FragmentValue, FutureValue, Tile)):
            return value
        (i, j), shape = self.whole
        rows, columns = shape
        if isinstance(value, FragmentValue):
            self._chosen(value, node, "arithmetic on a register tile")
            known = self.reader.b.known.get(value.name, Known())
            if known.shape != shape or known.dtype is None:
                raise self._wrong_shape(node, value.name, known.shape, shape)
            return FragmentElement(value.name, (i, j), known.dtype, value.index)
        tile = self.reader.b.settle(self.reader.views.as_tile(value, node, "arithmetic on a register tile"))
        extents = tile.view.static_shape
        choices: dict[tuple[int, ...], tuple[Expr, ...]] = {
            (columns,): (j,),
            (1, columns): (const(0), j),
            (rows, 1): (i, const(0)),
            (rows, columns): (i, j),
        }
        if extents not in choices:
            raise self._wrong_shape(node, self.reader.text(node), extents, shape)
        return Element(tile.element(choices[extents], node.span))

    def _wrong_shape(
        self, node: ast.Expr, text: str, got: tuple[int, ...] | None, shape: tuple[int, ...]
    ) -> WrongValue:
        rows, columns = shape
        have = "of unknown shape" if got is None else f"of {list(got)}"
        return WrongValue(
            node.span,
            what="arithmetic on a register tile",
            got=f"`{text}` {have}",
            wanted=f"[{columns}] or [1, {columns}] (a row), [{rows}, 1] (a column), or [{rows}, {columns}]",
            fix_text=f"cut it to one of these: `x.subspan({columns}).at(...)`",
        )

    def assign_element(self, base: FragmentValue, node: ast.Member, value: Expr) -> None:
        self.visited(base, node)
        self.reader.b.emit(t.SetFragmentElement(base.ref, value))

    def _shape_unknown(self, node: ast.Expr, base: FragmentValue) -> NotBuiltYet:
        return NotBuiltYet(
            node.span,
            what=f"element work on `{base.name}` before the program has said its shape",
            fix_text=f"declare it with its shape, `frag f32[64, 128] {base.name};`, or multiply into it first",
        )


def _indices(copies: Sequence[int]) -> list[tuple[int, ...]]:
    out: list[tuple[int, ...]] = [()]
    for n in copies:
        out = [(*x, i) for x in out for i in range(n)]
    return out
