"""Built-in functions: `cdiv`, `select` and `?:`, and operators on the bounds of indices; calls, and `return`."""

from __future__ import annotations

from tilemma.croqtile import ast
from tilemma.croqtile.arithmetic import as_cpp, checked, combine, like
from tilemma.croqtile.operands import arguments, condition_of, index_of, integer, known_type, plain, scalar_of
from tilemma.croqtile.reader import FUNCTIONS, WARP_NAMES, Reader, defines, reads
from tilemma.croqtile.storage import returned
from tilemma.croqtile.values import TileArray, TupleValue, Value, kind
from tilemma.croqtile.views import access
from tilemma.dtypes import boolean
from tilemma.errors import Span
from tilemma.ir.checks import checked_division
from tilemma.ir.constructs import KINDS
from tilemma.ir.expr import Const, Expr, Select, binary, const
from tilemma.ir.refusals import NotBuiltYet, WrongValue, select_of_tiles
from tilemma.ir.spellings import formula
from tilemma.ir.tiles import Bounded, FutureValue, Tile


@reads(ast.Bound)
def bound(r: Reader, node: ast.Bound) -> Value:
    value = r.value(node.operand)
    if isinstance(value, Bounded):
        return value.extent
    if isinstance(value, TupleValue) and all(isinstance(i, Bounded) for i in value.items):
        return TupleValue(tuple(i.extent for i in value.items if isinstance(i, Bounded)))
    raise KINDS["index"].refused("`#`", f"{kind(value)} without an upper bound", node.span)


@reads(ast.SizeOf)
def size_of(r: Reader, node: ast.SizeOf) -> Expr:
    dtype = known_type(node.dtype, node.span)
    if dtype.bits % 8:
        raise WrongValue(
            node.span,
            what="`|...|`",
            got=f"{dtype}, of {dtype.bits} bits",
            wanted="a type of whole bytes",
            fix_text="count bits instead",
        )
    return const(dtype.bytes)


@reads(ast.Call)
def call(r: Reader, node: ast.Call) -> Value:
    """A call of a built-in function, or an access ``x(i)``, depending on the meaning of the name before ``(``."""
    name = node.function.text if isinstance(node.function, ast.Name) else ""
    if not name or name in WARP_NAMES or r.scopes.find(name) is not None:
        return access(r, node)
    if name in r.device_functions:
        from tilemma.croqtile.inlining import inlined  # most files have none

        value = inlined(r, name, node.args, node.span)
        if value is None:
            raise KINDS["scalar"].refused("an operation", f"`{name}`, which has no result", node.span)
        return value
    if name in FUNCTIONS:
        return FUNCTIONS[name](r, node, name)
    if name.startswith("__lib_") or ("::" in name and not formula(name, croqtile=True)):
        raise NotBuiltYet(node.span, what=f"`{name}`", fix_text="use events, `sync` or the language's own forms")
    raise r.scopes.unknown(name, node.function.span, tuple(FUNCTIONS), called=True)


def compose(r: Reader, node: ast.Binary) -> Value:
    made = index_of(r, node.a, "`#`").compose(index_of(r, node.b, "`#`"))
    checked(r, made.value, node.span)
    checked(r, made.extent, node.span)
    return made


def on_bound(r: Reader, node: ast.Binary) -> Value:
    index = index_of(r, node.a, f"`{node.op}`")
    amount = integer(r, node.b, f"`{node.op}`")
    return Bounded(index.value, combine(r, node.op[1], index.extent, amount, node.span))


@reads(ast.Ternary)
def ternary(r: Reader, node: ast.Ternary) -> Value:
    return _choice(r, node.cond, node.a, node.b, node.span)


def _choice(r: Reader, cond: ast.Expr, a: ast.Expr, b: ast.Expr, span: Span) -> Value:
    c = condition_of(r, cond, "a condition")
    if isinstance(c, Const):
        return scalar_of(r, a if c.value else b, "`?:`")
    with r.without_effects("a branch of `?:`"):
        x, y = plain(r, a, "`?:`"), plain(r, b, "`?:`")
    return checked(r, Select(c, like(x, y, span), like(y, x, span)), span)


@defines("cdiv")
def cdiv(r: Reader, node: ast.Call, name: str) -> Value:
    a, b = (integer(r, x, "`cdiv`") for x in arguments(node, name, 2, "cdiv(a, b)"))
    checked_division("cdiv", a, b, node.span)
    return checked(r, binary("cdiv", a, b), node.span)


@defines("select")
def select(r: Reader, node: ast.Call, name: str) -> Value:
    cond, a, b = arguments(node, name, 3, "select(cond, a, b)")
    c = condition_of(r, cond, "`select`")
    if isinstance(c, Const):
        # Both are read, as arguments of a call are: only `?:` leaves one out.
        return (r.value(a), r.value(b))[not c.value]
    if r.whole is None and any(isinstance(r.value(x), (Tile, TileArray, FutureValue)) for x in (a, b)):
        raise select_of_tiles(node.span)
    return _choice(r, cond, a, b, node.span)


@reads(ast.Return)
def return_(r: Reader, node: ast.Return) -> None:
    """The end of a kernel, or of an inlined function."""
    if not r.calls:
        returned(r, node)
        return
    call = r.calls[-1]
    if call.result is not None and node.value is not None:
        value = plain(r, node.value, "`return`")
        r.b.assign(call.result, as_cpp(r, value, call.result.dtype, node.span))
    elif (call.result is None) != (node.value is None):
        raise NotBuiltYet(
            node.span,
            what="a `return` that does not fit the function's type",
            fix_text="return a value of its type",
        )
    if call.done is not None:
        r.b.assign(call.done, Const(True, boolean))
