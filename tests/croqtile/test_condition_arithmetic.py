"""The integer expressions of `#if`, compared with a direct computation of what C defines."""

from __future__ import annotations

from collections.abc import Callable

import edited
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling import examples
from tilemma.croqtile.condition import BadCondition

# A text and the function that computes it; None: a division by zero, which C does not define.
Case = tuple[str, Callable[[], "int | None"]]


def signed(x: int) -> int:
    return (x + 2**63) % 2**64 - 2**63


def divided(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


TWO: dict[str, Callable[[int, int], int | None]] = {
    "+": lambda a, b: signed(a + b), "-": lambda a, b: signed(a - b), "*": lambda a, b: signed(a * b),
    "/": lambda a, b: signed(divided(a, b)) if b else None,
    "%": lambda a, b: a - b * divided(a, b) if b else None,
    "<": lambda a, b: int(a < b), ">": lambda a, b: int(a > b), "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b), "==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b),
    "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b,
}  # fmt: skip
ONE: dict[str, Callable[[int], int]] = {"-": lambda a: signed(-a), "!": lambda a: int(not a), "~": lambda a: ~a}


def binary(op: str, a: Case, b: Case) -> Case:
    def compute() -> int | None:
        x = a[1]()
        if x is None or (op == "&&" and x == 0) or (op == "||" and x != 0):
            return x if x is None else int(op == "||")
        y = b[1]()
        return y if y is None else int(y != 0) if op in ("&&", "||") else TWO[op](x, y)

    return f"({a[0]} {op} {b[0]})", compute


def unary(op: str, a: Case) -> Case:
    def compute() -> int | None:
        x = a[1]()
        return x if x is None else ONE[op](x)

    return f"{op} {a[0]}", compute


def ternary(c: Case, a: Case, b: Case) -> Case:
    def compute() -> int | None:
        x = c[1]()
        return x if x is None else a[1]() if x else b[1]()

    return f"({c[0]} ? {a[0]} : {b[0]})", compute


def number(n: int) -> Case:
    return str(n), lambda: n


CASES = st.recursive(
    st.sampled_from([0, 0, 1, 1, 2, 3, 7, 2**31, 2**63 - 1]).map(number),
    lambda x: st.one_of(
        st.builds(binary, st.sampled_from([*TWO, "&&", "||"]), x, x),
        st.builds(unary, st.sampled_from(list(ONE)), x),
        st.builds(ternary, x, x, x),
    ),
    max_leaves=8,
)


def chosen(condition: str) -> str:
    """The name of the kernel that a file has with the condition."""
    text = f"#if {condition}\n__co__ void yes() {{ }}\n#else\n__co__ void no() {{ }}\n#endif\n"
    (kernel,) = edited.read("co", text)
    return kernel.name


@settings(deadline=None, max_examples=examples(900))
@given(CASES)
def test_expressions(case: Case) -> None:
    """A part that C does not evaluate may divide by zero."""
    text, compute = case
    value = compute()
    if value is None:
        with pytest.raises(BadCondition, match="division by zero"):
            chosen(text)
    else:
        assert chosen(text) == ("yes" if value else "no")
        assert chosen(f"{text} == {value}" if value >= 0 else f"{text} + {-value - 1} == - 1") == "yes"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2 + 3 * 4", 14), ("20 - 3 - 2", 15), ("64 / 4 / 2", 8), ("1 << 2 + 1", 8), ("64 >> 1 << 2", 128),
        ("7 & 3 == 3", 1), ("1 | 2 ^ 3 & 2", 1), ("0 || 1 && 0", 0), ("1 ? 2 : 0 ? 3 : 4", 2), ("- 3 % 2", -1),
        ("0 ? 2 : 0 ? 3 : 4", 4), ("! 1 + 1", 1), ("1 < 2 == 1", 1), ("5 > 4 > 3", 0), ("0x10 + 10u", 26),
    ],
)  # fmt: skip
def test_operators_bind_as_in_c(text: str, value: int) -> None:
    assert chosen(f"({text}) == ({value})") == "yes"
    assert chosen(f"({text}) == ({value + 1})") == "no"
