"""Constant expressions (PTX ISA, "Constant Expressions"): integers of 64 bits, with the operators of C."""

from __future__ import annotations

from collections.abc import Callable

from tilemma.machine.cursor import Cursor

# Operators by precedence, from the loosest to the tightest.
_LEVELS: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a) or bool(b))},
    {"&&": lambda a, b: int(bool(a) and bool(b))},
    {"|": lambda a, b: a | b},
    {"^": lambda a, b: a ^ b},
    {"&": lambda a, b: a & b},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {
        "<=": lambda a, b: int(a <= b), ">=": lambda a, b: int(a >= b), "<": lambda a, b: int(a < b),
        ">": lambda a, b: int(a > b),
    },
    {"<<": lambda a, b: a << (b & 63), ">>": lambda a, b: a >> (b & 63)},
    {"+": lambda a, b: a + b, "-": lambda a, b: a - b},
    {"*": lambda a, b: a * b, "/": lambda a, b: _quotient(a, b), "%": lambda a, b: a - b * _quotient(a, b)},
)  # fmt: skip
_DOUBLED = ("||", "&&", "==", "!=", "<=", ">=", "<<", ">>")
_UNARY: dict[str, Callable[[int], int]] = {
    "-": lambda a: -a,
    "+": lambda a: a,
    "~": lambda a: ~a,
    "!": lambda a: int(not a),
}
_CASTS = {".s64": True, ".u64": False}
MAX_DEPTH = 50


def _quotient(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def is_float(c: Cursor) -> bool:
    """Whether a floating-point literal, with or without a sign, comes next."""
    return c.tokens[min(c.position + (c.token.text == "-"), len(c.tokens) - 1)].kind == "float"


def expression(c: Cursor, depth: int = 0) -> int:
    """The value of the expression that comes next; PtxSyntax where there is none."""
    if depth > MAX_DEPTH:
        raise c.error(f"more than {MAX_DEPTH} parentheses and operators in one another")
    value = _binary(c, 0, depth)
    if not c.accept("?"):
        return value
    first = expression(c, depth + 1)
    c.expect(":")
    second = expression(c, depth + 1)
    return first if value else second


def _operator(c: Cursor) -> str:
    """The operator that comes next, of one or two characters; empty for none."""
    token, after = c.token, c.tokens[min(c.position + 1, len(c.tokens) - 1)]
    if token.kind == "punct":
        both = token.text + after.text
        return both if both in _DOUBLED and token.end == after.start else token.text
    # `%` alone would begin a name; as an operator it ends up as a word.
    return "%" if token.text == "%" else ""


def _binary(c: Cursor, level: int, depth: int) -> int:
    if level == len(_LEVELS):
        return _unary(c, depth)
    value = _binary(c, level + 1, depth)
    while (operator := _operator(c)) in _LEVELS[level]:
        at = c.token
        for _ in operator:
            c.advance()
        right = _binary(c, level + 1, depth)
        if operator in "/%" and right == 0:
            raise c.error("a division by zero", at)
        value = _LEVELS[level][operator](value, right)
    return value


def _unary(c: Cursor, depth: int) -> int:
    token = c.token
    if token.text in _UNARY and token.kind == "punct":
        c.advance()
        if depth > MAX_DEPTH:
            raise c.error(f"more than {MAX_DEPTH} parentheses and operators in one another")
        return _UNARY[token.text](_unary(c, depth + 1))
    if not c.accept("("):
        return c.integer()
    if c.token.text in _CASTS:
        signed = _CASTS[c.advance().text]
        c.expect(")")
        value = _unary(c, depth + 1) & (1 << 64) - 1
        return value - (1 << 64) if signed and value >> 63 else value
    value = expression(c, depth + 1)
    c.expect(")")
    return value
