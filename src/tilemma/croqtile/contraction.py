"""`mma`: fill, load, multiply, store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilemma import dtypes
from tilemma.arithmetic.sparsity import ORDERS
from tilemma.croqtile import ast, operands
from tilemma.croqtile.copies import swizzle_of
from tilemma.croqtile.reader import Reader, reads
from tilemma.croqtile.values import Cut, Mutable, Operation, SpanValue, TileArray, TupleValue, Value
from tilemma.ir import tile as t
from tilemma.ir.checks import checked_index
from tilemma.ir.constructs import OPERANDS
from tilemma.ir.expr import Expr
from tilemma.ir.lane_registers import is_lane_values, multiply, option_of_lane_multiply
from tilemma.ir.refusals import WrongArity, WrongValue, multiply_into_buffer, wrong_member
from tilemma.ir.tiles import Bounded, FragmentValue, FutureValue, Tile
from tilemma.ir.types import Contract

FIRST = ("fill", "load", "row", "col", "store", "scale", "commit", "wait")


@reads(ast.Mma, inside="an `mma` operation")
def mma(r: Reader, node: ast.Mma, name: str | None = None) -> Value | None:
    """Emit the operation; its result, for those that have one."""
    first, rest = node.suffixes[0], node.suffixes[1:]
    if first.name not in FIRST:
        raise wrong_member(first.span, "`mma`", first.name, FIRST)
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
            return _fill(r, node, rest, name)
        case "load":
            return _load(r, node, rest, name)
        case "row" | "col":
            return _multiply(r, node, name)
        case "store":
            _store(r, node, rest)
        case "scale":
            _scale(r, node)
        case "commit":
            _arguments(node, 0, "mma.commit")
            r.b.emit(t.Commit())
        case "wait":
            r.b.emit(t.MmaWait(_pending(r, node, first)))
    if name is not None:
        raise WrongValue(
            node.span,
            what=f"`{name} =`",
            got=f"`mma.{first.name}`, which has no result",
            wanted="`mma.fill`, `mma.load` or an asynchronous multiplication",
            fix_text=f"remove `{name} =`",
        )
    return None


def _repeated(s: ast.Suffix, got: str, wanted: str) -> WrongValue:
    return WrongValue(s.span, what="an `mma` operation", got=got, wanted=wanted, fix_text="leave one out")


def _once(suffixes: Sequence[ast.Suffix]) -> None:
    """WrongValue for a repeated suffix."""
    said: set[str] = set()
    for s in suffixes:
        name = {"swizzle": "swiz"}.get(s.name, s.name)
        if name in said:
            raise _repeated(s, f"`.{name}` twice", "each suffix once")
        said.add(name)


def _pending(r: Reader, node: ast.Mma, first: ast.Suffix) -> int:
    """The N of ``mma.wait<N>``."""
    _arguments(node, 0, "mma.wait<N>")
    if len(first.args) != 1:
        raise OPERANDS["pending"].refused(f"{len(first.args)} numbers", first.span)
    pending = operands.constant(r, first.args[0], "`mma.wait`")
    return OPERANDS["pending"].checked(pending, first.span)


def _arguments(node: ast.Mma, want: int, form: str) -> tuple[ast.Expr, ...]:
    if len(node.args) != want:
        what = "mma." + ".".join(s.name for s in node.suffixes)
        raise WrongArity(node.span, what=what, got=len(node.args), want=str(want), form=form)
    return node.args


def _fill(r: Reader, node: ast.Mma, rest: Sequence[ast.Suffix], name: str | None) -> Value | None:
    _once(rest)
    fast = any(s.name == "fast" for s in rest)
    types = [s for s in rest if s.name != "fast"]
    if len(types) > 1:
        raise _repeated(types[1], f"`.{types[0].name}` and `.{types[1].name}`", "one element type")
    dtype = operands.known_type(types[0].name, types[0].span) if types else None
    if name is None:
        target_node, value_node = _arguments(node, 2, "mma.fill mc, 0.0f")
        target: FragmentValue | str = operands.fragment_of(r, target_node, "`mma.fill`", whole=True)
    else:
        (value_node,) = _arguments(node, 1, f"{name} = mma.fill 0.0f")
        target = _target(r, name)
    given = r.value(value_node)
    if isinstance(given, (Tile, FutureValue, TileArray, Cut)):
        value: Any = operands.as_tile(r, given, value_node, "`mma.fill`")
    else:
        value = operands.fill_value(r, value_node, "`mma.fill`")
    return r.b.fill(target, value, dtype, fast)


def _target(r: Reader, name: str) -> FragmentValue | str:
    """The register tile that ``name`` is already, or the name for a new one."""
    binding = r.scopes.find(name)
    if binding is not None and isinstance(binding.value, FragmentValue) and not binding.value.copies:
        return binding.value
    return name


def _load(r: Reader, node: ast.Mma, rest: Sequence[ast.Suffix], name: str | None) -> Value:
    swizzle = dtype = order = None
    _once(rest)
    for s in rest:
        if s.name in ("swiz", "swizzle"):
            swizzle = swizzle_of(r, s)
        elif s.name in dtypes.names() and dtype is None:
            dtype = operands.known_type(s.name, s.span)
        elif s.name in ORDERS and order is None:
            order = s.name
        elif s.name not in ("frag", "async"):
            raise wrong_member(s.span, "`mma`", s.name, ("swiz", "frag", "async", *ORDERS))
    if name is None:
        src_node, target_node = _arguments(node, 2, "mma.load src, fragment")
        target: FragmentValue | str = operands.fragment_of(r, target_node, "`mma.load`")
    else:
        (src_node,) = _arguments(node, 1, f"{name} = mma.load src")
        target = _target(r, name)
    src = operands.tile_of(r, src_node, "`mma.load`")
    return r.b.load(target, src, swizzle, dtype, order)


def _multiply(r: Reader, node: ast.Mma, name: str | None) -> Value | None:
    if len(node.suffixes) < 2 or node.suffixes[1].name not in ("row", "col"):
        at = node.suffixes[1] if len(node.suffixes) > 1 else node.suffixes[0]
        raise wrong_member(at.span, "`mma`", at.name, ("row", "col"))
    contract = Contract(f"{node.suffixes[0].name}.{node.suffixes[1].name}")
    options: dict[str, Any] = {}
    variants: set[str] = set()
    for s in node.suffixes[2:]:
        if s.name not in ("sp", "scale", "async", "order"):
            raise wrong_member(s.span, "`mma`", s.name, ("sp", "scale", "async"))
        if s.name in variants:
            raise _repeated(s, f"`.{s.name}` twice", "each suffix once")
        variants.add(s.name)
        if s.name == "order":
            options["k_order"] = tuple(operands.constant(r, a, "`.order`") for a in s.args)
    for attribute in node.attributes:
        name_of, value = _attribute(r, attribute)
        if name_of in options:
            raise WrongValue(
                attribute.span,
                what="`[[...]]` before a multiplication",
                got="the same attribute twice",
                wanted="each attribute once",
                fix_text="leave one out",
            )
        options[name_of] = value
    sparse, scaled = "sp" in variants, "scale" in variants
    text = "mma." + ".".join(s.name for s in node.suffixes)
    form = f"{text} mc, a, b" + ", meta" * sparse + ", sa, sb" * scaled
    args = _arguments(node, 3 + sparse + 2 * scaled, form)
    acc_value = r.value(args[0])
    if isinstance(acc_value, Tile) and is_lane_values(acc_value):
        _of_lane(r, contract, acc_value, args, options, text)
        return None
    if isinstance(acc_value, (Tile, TileArray, FutureValue)):
        raise multiply_into_buffer(args[0].span)
    acc = operands.fragment_of(r, args[0], f"`{text}`")
    (a, left), (b, right) = _operand(r, args[1], text), _operand(r, args[2], text)
    options["negated"] = left != right
    if sparse:
        options["meta"] = operands.fragment_of(r, args[3], f"`{text}`").ref
    if scaled:
        options |= _scales(r, args[-2:], f"`{text}`")
    result = None
    if "async" in variants:
        future = r.b.fresh(f"{name or 'mma'}.future")
        options["future"] = future
        result = Operation(future)
    r.b.mma(contract, acc, a, b, **options)
    if name is not None and result is None:
        raise WrongValue(
            node.span,
            what=f"`{name} =`",
            got=f"`{text}`, which has no result",
            wanted=f"`{text}.async`, whose result is a future",
            fix_text=f"remove `{name} =`: the product is accumulated into the first operand",
        )
    return result


def _of_lane(
    r: Reader, contract: Contract, acc: Tile, args: Sequence[ast.Expr], options: dict[str, Any], text: str
) -> None:
    """The multiply of one lane's registers."""
    named = options.pop("wanted", None)
    words = text.split(".")
    sparse, scaled = "sp" in words, "scale" in words
    if options or len(args) != 3 + sparse + 2 * scaled or "async" in words:
        raise option_of_lane_multiply(text, args[0].span)
    a, b, *more = (operands.tile_of(r, x, f"`{text}`") for x in args[1:])
    multiply(r.b, contract, acc, a, b, named, more[0] if sparse else None, tuple(more[sparse:]))


def _attribute(r: Reader, node: ast.Expr) -> tuple[str, Any]:
    """``schedule(k_tiles(3, 2, 1, 0))`` or ``atom(NAME)``: the field of `Mma`, and its value."""
    match node:
        case ast.Call(function=ast.Name(text="schedule"), args=(ast.Call() as inner,)):
            if isinstance(inner.function, ast.Name) and inner.function.text == "k_tiles":
                return "k_order", tuple(operands.constant(r, a, "`k_tiles`") for a in inner.args)
        case ast.Call(function=ast.Name(text="atom"), args=(ast.Name(text=name),)):
            return "wanted", name
    raise WrongValue(
        node.span,
        what="`[[...]]` before a multiplication",
        got="another attribute",
        wanted="`schedule(k_tiles(...))`, or `atom(NAME)`",
        fix_text="write `[[schedule(k_tiles(3, 2, 1, 0))]] mma.row.row ...`, or the name of an instruction",
    )


def _operand(r: Reader, node: ast.Expr, text: str) -> tuple[FragmentValue | Tile, bool]:
    """The operand, and whether it is taken with its sign reversed: ``-ma``."""
    match node:
        case ast.Unary(op="-", operand=ast.Name() | ast.Subscript() as x) if isinstance(r.value(x), FragmentValue):
            operand, negative = _operand(r, x, text)
            return operand, not negative
    value = r.value(node)
    if isinstance(value, FragmentValue):
        return operands.fragment_of(r, node, f"`{text}`"), False
    return operands.as_tile(r, value, node, f"`{text}`", "operand"), False


def _store(r: Reader, node: ast.Mma, rest: Sequence[ast.Suffix]) -> None:
    options: dict[str, Any] = {}
    masked = False
    _once(rest)
    for s in rest:
        if s.name == "transp":
            options["transpose"] = True
        elif s.name == "mask":
            masked = True
        elif s.name != "async":
            raise wrong_member(s.span, "`mma`", s.name, ("transp", "mask", "async"))
    if masked and len(node.args) in (3, 4):
        what = "`mma.store.mask`"
        limits = [checked_index(operands.integer(r, a, what), what, a.span) for a in node.args[2:]]
        options["rows"] = limits[0]
        options["columns"] = limits[1] if len(limits) > 1 else None
    elif masked:
        _arguments(node, 3, "mma.store.mask mc, dst, rows, columns")
    else:
        _arguments(node, 2, "mma.store mc, dst")
    source = operands.fragment_of(r, node.args[0], "`mma.store`")
    r.b.store(source, operands.tile_of(r, node.args[1], "`mma.store`"), **options)


def _scale(r: Reader, node: ast.Mma) -> None:
    acc, *scales = _arguments(node, 3, "mma.scale mc, sa, sb")
    options = _scales(r, scales, "`mma.scale`")
    r.b.emit(t.ScaleMma(operands.fragment_of(r, acc, "`mma.scale`").ref, **options))


def _scales(r: Reader, nodes: Sequence[ast.Expr], what: str) -> dict[str, Any]:
    """The fields for the two scales of a multiply, each a tile or one number."""
    found = []
    for node in nodes:
        value = r.value(node)
        number = isinstance(value, (Mutable, Bounded, Expr, TupleValue, SpanValue))
        found.append(operands.plain(r, node, what) if number else operands.as_tile(r, value, node, what, "scale"))
    a, b = found
    return r.b.scales(a, b)


@reads(ast.DeclareFragment)
def declare_fragment(r: Reader, node: ast.DeclareFragment) -> None:
    """``frag f32[64, 128] p {0.0};``, ``frag mc[2][3] {0.0};``"""
    dtype = operands.known_type(node.dtype, node.span) if node.dtype else None
    shape = operands.table_operands(r, "fragment-extent", node.dims or ()) or None
    if shape is not None and len(shape) > 2:
        raise OPERANDS["fragment-extent"].refused(f"{len(shape)} extents", node.span, "rows, or rows and columns")
    for item in node.items:
        r.b.span = item.span
        copies = operands.table_operands(r, "tiles", item.sizes)
        made = r.b.fragment(item.name, copies, dtype, shape)
        if isinstance(item.value, ast.Expr):
            value = operands.fill_value(r, item.value, "an initialiser")
            r.b.fill(made, value, dtype)
        elif item.value is not None:
            raise WrongValue(
                item.span,
                what="the initialiser of a register tile",
                got="an operation",
                wanted="a number in braces",
                fix_text="write `frag f32[64, 64] p {0.0f};`",
            )
        r.scopes.define(item.name, made, item.span)
