"""The conditions of `#if`: C's integer expressions, names that are no macros counting as 0."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from tilemma.croqtile.tokens import Token
from tilemma.errors import CompileError
from tilemma.records import record

MAX_DEPTH = 60

_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"),
    ("*", "/", "%"),
)  # fmt: skip


class BadCondition(CompileError):
    code = "bad-condition"
    found = "{problem} in the condition of `#if`"
    expected = "an integer expression over macros, `defined(NAME)` and C's operators"
    fix = "{remedy}"


class Macros(Protocol):
    """The interface to the preprocessor that conditions need."""

    @property
    def known(self) -> Mapping[str, Any]: ...

    def expand(self, source: Iterable[Token]) -> list[Token]: ...


def evaluate(row: Sequence[Token], macros: Macros) -> bool:
    """Whether the condition in ``row`` holds; BadCondition."""
    known = macros.known
    plain: list[Token] = []
    i = 0
    while i < len(row):
        if row[i].text != "defined":
            plain.append(row[i])
            i += 1
            continue
        parens = i + 1 < len(row) and row[i + 1].text == "("
        at = i + 2 if parens else i + 1
        closed = not parens or (at + 1 < len(row) and row[at + 1].text == ")")
        if at >= len(row) or row[at].kind != "name" or not closed:
            raise BadCondition(row[i].span, problem="`defined` without a name", remedy="write `defined(NAME)`")
        one = Token("int", "1" if row[at].text in known else "0", row[i].span, row[i].row)
        plain.append(one)
        i = at + (2 if parens else 1)
    expanded = macros.expand(plain)
    reader = _Reader(expanded, row[-1])
    value = reader.ternary(True)
    if reader.at < len(expanded):
        raise reader.problem("an operand too many", "join the parts with an operator, or remove this one")
    return value != 0


@record(frozen=False, eq=False)
class _Reader:
    tokens: list[Token]
    last: Token
    at: int = 0
    depth: int = 0

    def problem(self, problem: str, remedy: str) -> BadCondition:
        span = self.tokens[self.at].span if self.at < len(self.tokens) else self.last.span
        return BadCondition(span, problem=problem, remedy=remedy)

    def accept(self, *texts: str) -> str | None:
        if self.at < len(self.tokens) and self.tokens[self.at].text in texts:
            self.at += 1
            return self.tokens[self.at - 1].text
        return None

    def ternary(self, live: bool) -> int:
        """``live`` False: parsed but not evaluated (the other side of ``&&``, ``||``, ``?:``)."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.problem(f"more than {MAX_DEPTH} nested operations", "name parts of it with macros")
        cond = self.binary(0, live)
        if self.accept("?"):
            a = self.ternary(live and cond != 0)
            if not self.accept(":"):
                raise self.problem("`?` without `:`", "write `a ? b : c`")
            b = self.ternary(live and cond == 0)
            cond = a if cond else b
        self.depth -= 1
        return cond

    def binary(self, level: int, live: bool) -> int:
        if level == len(_LEVELS):
            return self.unary(live)
        a = self.binary(level + 1, live)
        while op := self.accept(*_LEVELS[level]):
            needed = live and not (op == "&&" and a == 0) and not (op == "||" and a != 0)
            b = self.binary(level + 1, needed)
            a = self.compute(op, a, b) if needed else int(op == "||")
        return a

    def compute(self, op: str, a: int, b: int) -> int:
        if op in ("/", "%"):
            if b == 0:
                self.at -= 1
                raise self.problem("a division by zero", "make the divisor something else")
            q = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            return _wrap(q if op == "/" else a - b * q)
        if op in ("<<", ">>"):
            if not 0 <= b < 64:
                raise self.problem(f"a shift by {b}", "shift by 0 to 63")
            return _wrap(a << b if op == "<<" else a >> b)
        table: dict[str, Callable[[], int]] = {
            "||": lambda: a or b, "&&": lambda: a and b, "|": lambda: a | b, "^": lambda: a ^ b,
            "&": lambda: a & b, "==": lambda: a == b, "!=": lambda: a != b, "<": lambda: a < b,
            ">": lambda: a > b, "<=": lambda: a <= b, ">=": lambda: a >= b, "+": lambda: a + b,
            "-": lambda: a - b, "*": lambda: a * b,
        }  # fmt: skip
        result = table[op]()
        return int(bool(result)) if op in ("||", "&&") else _wrap(int(result))

    def unary(self, live: bool) -> int:
        signs: list[str] = []
        while op := self.accept("!", "~", "-", "+"):
            signs.append(op)
        value = self.primary(live)
        for op in reversed(signs):
            value = {"!": int(value == 0), "~": ~value, "-": _wrap(-value), "+": value}[op]
        return value

    def primary(self, live: bool) -> int:
        if self.at >= len(self.tokens):
            raise self.problem("an operand missing", "complete the condition")
        token = self.tokens[self.at]
        self.at += 1
        if token.kind == "int" and len(token.text) <= 24:
            if token.text.rstrip("uUlL").isdigit() and token.text[0] == "0" and token.text[1:2].isdigit():
                raise self.problem(f"the octal number `{token.text}`", "write it in decimal or hexadecimal")
            return _wrap(int(token.text.rstrip("uUlL"), 0 if token.text[:2] in ("0x", "0X") else 10))
        if token.kind == "name":
            # A macro of a header, which is not read: unknown names, and calls of them, count as 0.
            if self.at < len(self.tokens) and self.tokens[self.at].text == "(":
                self._skip_call()
            return {"true": 1}.get(token.text, 0)
        if token.text == "(":
            value = self.ternary(live)
            if not self.accept(")"):
                raise self.problem("`(` without `)`", "close the parenthesis")
            return value
        self.at -= 1
        raise self.problem(f"`{token.text}`", "use integers, macros and operators")

    def _skip_call(self) -> None:
        depth = 0
        while self.at < len(self.tokens):
            depth += {"(": 1, ")": -1}.get(self.tokens[self.at].text, 0)
            self.at += 1
            if depth == 0:
                return
        raise self.problem("`(` without `)`", "close the parenthesis")


def _wrap(value: int) -> int:
    """As a 64-bit signed integer."""
    return (value + 2**63) % 2**64 - 2**63
