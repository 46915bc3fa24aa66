"""One lane's registers: fragments of an instruction, and exchange of values between the lanes of a warp."""

from __future__ import annotations

from tilemma.croqtile import ast
from tilemma.croqtile.operands import arguments, condition_of, constant, integer, plain, tile_of
from tilemma.croqtile.reader import Reader, defines, reads
from tilemma.ir.expr import Element, Expr
from tilemma.ir.lane_registers import Letter, exchange, is_lane_values, load_matrix, store_matrix
from tilemma.ir.lane_work import ExchangeName
from tilemma.ir.refusals import SideEffect, WrongArity, WrongValue
from tilemma.ir.tiles import Tile

_EXCHANGES: dict[str, ExchangeName] = {
    "__shfl_xor": "shfl_xor",
    "__shfl_up": "shfl_up",
    "__shfl_down": "shfl_down",
    "__shfl_idx": "shfl_idx",
}
_LETTERS: dict[str, Letter] = {
    "load_matrix_a": "A",
    "load_matrix_b": "B",
    "load_matrix_c": "C",
    "load_matrix_e": "E",
    "load_matrix_sfa": "SFA",
    "load_matrix_sfb": "SFB",
}


@reads(ast.LaneMatrix)
def lane_matrix(r: Reader, node: ast.LaneMatrix, name: str = "") -> Tile:
    """``a = load_matrix_a<16, 8, 16>(x, row, col)``: one lane's values, in a new local buffer called ``name``."""
    if node.name not in _LETTERS:
        raise SideEffect(node.span, what=f"`{node.name}`", where="a value")
    shape, args, atom = _parts(r, node, 3, f"{node.name}<16, 8, 16>(x, row, col)")
    letter = _LETTERS[node.name]
    src, what = tile_of(r, args[0], f"`{node.name}`"), f"`{node.name}`"
    at = integer(r, args[1], what), integer(r, args[2], what)
    return load_matrix(r.b, letter, name or letter.lower(), shape, src, at, atom)


def lane_store(r: Reader, node: ast.LaneMatrix) -> None:
    """``store_matrix_d<16, 8, 16>(x, d, row, col);``"""
    shape, args, atom = _parts(r, node, 4, "store_matrix_d<16, 8, 16>(x, d, row, col)")
    what = f"`{node.name}`"
    dst, values = tile_of(r, args[0], what), tile_of(r, args[1], what)
    store_matrix(r.b, shape, dst, values, (integer(r, args[2], what), integer(r, args[3], what)), atom)


def _parts(
    r: Reader, node: ast.LaneMatrix, count: int, form: str
) -> tuple[tuple[int, int, int], list[ast.Expr], str | None]:
    """The instruction's shape, the operands, and the instruction's name where there is one."""
    r.effect(node.span, f"`{node.name}`")
    r.b.span = node.span
    named = [a for a in node.args if isinstance(a, ast.NamedArgument)]
    args = [a for a in node.args if not isinstance(a, ast.NamedArgument)]
    if len(node.shape) != 3 or len(args) != count:
        got = len(args) if len(node.shape) == 3 else len(node.shape)
        want = str(count) if len(node.shape) == 3 else "M, N and K in angle brackets"
        what = node.name if len(node.shape) == 3 else f"{node.name}<...>"
        raise WrongArity(node.span, what=what, got=got, want=want, form=form)
    if any(a.name != "atom" or not isinstance(a.value, ast.Name) for a in named) or len(named) > 1:
        raise WrongValue(
            named[0].span,
            what=f"`{node.name}`",
            got=f"the named operand `{named[-1].name}`",
            wanted="`atom = NAME`, the name of an instruction, once",
            fix_text=f"write `{form}`",
        )
    m, n, k = (constant(r, x, f"`{node.name}`") for x in node.shape)
    atom = named[0].value.text if named and isinstance(named[0].value, ast.Name) else None
    return (m, n, k), args, atom


def lane_element(r: Reader, tile: Tile, node: ast.Subscript) -> Element | None:
    """``d[i]`` of one lane's values; None for other tiles."""
    if not is_lane_values(tile) or tile.rank != 1 or len(node.indices) != 1:
        return None
    index = integer(r, node.indices[0], "a subscript")
    return r.b.element(tile, [index], node.span)


@defines(*_EXCHANGES)
def shuffle(r: Reader, node: ast.Call, name: str) -> Expr:
    """``__shfl_xor(v, mask)`` and its siblings."""
    value, lane = arguments(node, name, 2, f"{name}(value, lane)")
    _effect(r, node, name)
    given = plain(r, value, f"`{name}`")
    return exchange(r.b, _EXCHANGES[name], given, integer(r, lane, f"`{name}`"))


@defines("__ballot")
def ballot(r: Reader, node: ast.Call, name: str) -> Expr:
    """``__ballot(c)``: a bit for each lane."""
    (cond,) = arguments(node, name, 1, f"{name}(condition)")
    _effect(r, node, name)
    return exchange(r.b, "ballot", condition_of(r, cond, f"`{name}`"))


def _effect(r: Reader, node: ast.Call, name: str) -> None:
    r.b.span = node.span
    r.effect(node.span, f"`{name}`")
