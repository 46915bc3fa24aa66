"""Macros, conditional sections, and the positions of their tokens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilemma.croqtile.condition import BadCondition, evaluate
from tilemma.croqtile.extract import extract
from tilemma.croqtile.preprocess import Preprocessor
from tilemma.croqtile.tokens import Token, tokens
from tilemma.errors import CompileError


def body(text: str, **defines: Any) -> list[Token]:
    """The expanded tokens inside the braces of a kernel around ``text``."""
    found = extract(f"__co__ void f() {{\n{text}\n}}", "t.co", defines)
    return list(found.kernels[0][6:-1])


def texts(text: str, **defines: Any) -> str:
    return " ".join(t.text for t in body(text, **defines))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("#define A 3\nA B A", "3 B 3"),
        ("#define ADD(a, b) (a + b)\nADD(1, 2)", "( 1 + 2 )"),
        (
            "#define ADD(a, b) (a + b)\n#define N(a, b) ADD(ADD(a, b), b)\nN(x.at(i), 1)",
            "( ( x . at ( i ) + 1 ) + 1 )",
        ),
        ("#define ADD(a, b) (a + b)\nADD", "ADD"),
        ("#define ADD(a, b) (a + b)\nADD(f(1, 2),\n 3)", "( f ( 1 , 2 ) + 3 )"),
        ("#define NONE() 7\nNONE()", "7"),
        ("#define F G\n#define G(x) <x>\nF(1)", "< 1 >"),
        ("#define A 1\n#undef A\nA", "A"),
        ("#define A 1\n#define A 2\nA", "2"),
        ("#define LONG 1 + \\\n  2\nLONG", "1 + 2"),
        ("#define A A\nA", "A"),
        ("#if 0\nA\n#else\nB\n#endif", "B"),
        ("#if 1\nA\n#elif 1\nB\n#else\nC\n#endif", "A"),
        ("#if 0\n#if 1\nA\n#endif\nB\n#elif 1\nC\n#endif", "C"),
        ("#ifdef X\nA\n#endif\n#ifndef X\nB\n#endif", "B"),
        ("#define X\n#ifdef X\nA\n#endif", "A"),
        ("#define N 4\n#if defined(N) && N * 2 == 8 && !defined M\nA\n#endif", "A"),
        ("#if UNKNOWN || FUNCTION(1, (2))\nA\n#else\nB\n#endif", "B"),
        ("#if !2 == 0\nA\n#else\nB\n#endif", "A"),
        ("#if !(2 == 0) && 0 == 0\nA\n#else\nB\n#endif", "A"),
        ("#if 0\n#error no\n#define Q (\n#if\n#endif\n#endif\nA", "A"),
        ("a /* b */ c // d\ne", "a c e"),
        ("#pragma croq intrinsic prefix hw_\nA", "A"),
        ("x = p\n# q;", "x = p # q ;"),
    ],
)
def test_expansion(source: str, expected: str) -> None:
    assert texts(source) == expected


def test_definitions_from_outside() -> None:
    assert texts("#define T 16\nT", T=32) == "32"
    assert texts("#ifndef T\n#define T 16\n#endif\nT", T=True) == "1"
    assert texts("#undef T\nT", T="bf16") == "bf16"


def test_tokens_of_a_macro_stand_where_it_is_used() -> None:
    found = body("#define ADD(a, b) (a + b)\n  y = ADD(xx, 3);")
    places = {t.text: (t.span.line, t.span.column, t.span.end_column) for t in found}
    assert places["xx"] == (3, 11, 13)
    assert places["3"] == (3, 15, 16)
    assert places["+"] == (3, 7, 17)
    assert next(t for t in found if t.text == "+").hidden == {"ADD"}


def test_host_code_is_skipped_with_one_note() -> None:
    text = (
        "#include <x>\n#define A 1\nint g() { return 'x' + \"__co__ {\"; }\n__co__ void f() { A }\nint main() {}\n"
    )
    found = extract(text, "t.co", {})
    assert [" ".join(t.text for t in k) for k in found.kernels] == ["__co__ void f ( ) { 1 }"]
    assert [(n.text, n.span and n.span.line) for n in found.notes] == [("2 lines of host code are skipped", 3)]
    assert found.constants == {"A": 1}


@pytest.mark.parametrize(
    ("source", "code", "line", "column"),
    [
        ("#define A B\n#define B A\nA", "macro-recursion", 4, 1),
        ("#define F(a) a\nx F(1, 2)", "macro-arguments", 3, 3),
        ("#define F(a) a\nF(1", "macro-arguments", 3, 1),
        ("#define\n", "bad-directive", 2, 2),
        ("#define F(a, a) a\n", "bad-directive", 2, 10),
        ("#define F(a b) a\n", "bad-directive", 2, 10),
        ("#define 3 4\n", "bad-directive", 2, 2),
        ("#undef\n", "bad-directive", 2, 2),
        ("#if\n#endif\n", "bad-directive", 2, 2),
        ("#ifdef 3\n#endif\n", "bad-directive", 2, 2),
        ("#if 1 +\n#endif\n", "bad-condition", 2, 7),
        ("#if 1 2\n#endif\n", "bad-condition", 2, 7),
        ("#if 1 / 0\n#endif\n", "bad-condition", 2, 9),
        ("#if (1\n#endif\n", "bad-condition", 2, 6),
        ("#if defined\n#endif\n", "bad-condition", 2, 5),
        ("#if 1.0\n#endif\n", "bad-condition", 2, 5),
        ("#if 010\n#endif\n", "bad-condition", 2, 5),
        ("#if 8 == 010\n#endif\n", "bad-condition", 2, 10),
        ("#if 0 && 07u\n#endif\n", "bad-condition", 2, 10),
        ("#if 1\n", "unbalanced-conditional", 2, 1),
        ("#endif\n", "unbalanced-conditional", 2, 1),
        ("#else\n", "unbalanced-conditional", 2, 1),
        ("#if 1\n#else\n#elif 1\n#endif", "unbalanced-conditional", 4, 1),
        ("#if 1\n#error tile too large\n#endif\n", "error-directive", 3, 1),
        ("#defin A 3\n", "unknown-directive", 2, 1),
        ("/* never closed", "unterminated-comment", 2, 1),
    ],
)
def test_errors(source: str, code: str, line: int, column: int) -> None:
    with pytest.raises(CompileError) as e:
        body(source)
    assert e.value.span is not None
    assert (e.value.code, e.value.span.line, e.value.span.column) == (code, line, column)
    e.value.render()


def test_an_unknown_definition_from_outside() -> None:
    with pytest.raises(CompileError) as e:
        texts("#define TILE_K 16\nTILE_K", TILE_KK=32)
    assert e.value.code == "unknown-define" and "TILE_K" in e.value.remedy


def holds(text: str) -> bool:
    return evaluate(list(tokens(text, "t.co")), Preprocessor("t.co"))


def in_c(op: str, a: int, b: int) -> int:
    """``a op b`` in C, of small numbers."""
    whole = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0
    return int({"&&": bool(a and b), "||": bool(a or b), "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b,
                "==": a == b, "!=": a != b, "+": a + b, "-": a - b, "*": a * b, "/": whole, "%": a - b * whole,
                "&": a & b, "|": a | b, "^": a ^ b, "<<": a << b, ">>": a >> b}[op])  # fmt: skip


OPERATIONS = ("+", "-", "*", "/", "%", "<", "<=", ">", ">=", "==", "!=", "&&", "||", "&", "|", "^", "<<", ">>")


@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 9)), max_size=12))
def test_conditions_agree_with_c(parts: list[tuple[str, int]]) -> None:
    """Each operation in parentheses; results that leave 64 bits are left out."""
    text, value = "7", 7
    for op, operand in parts:
        if (operand == 0 and op in "/%") or abs(in_c(op, value, operand)) >= 2**62:
            continue
        text, value = f"({text} {op} {operand})", in_c(op, value, operand)
    assert holds(f"{text} == {value}" if value >= 0 else f"{text} == 0 - {-value}")


@pytest.mark.parametrize("op", OPERATIONS)
def test_each_operation_agrees_with_c(op: str) -> None:
    for a in (-9, -4, -1, 0, 1, 4, 9):
        for b in (0, 1, 2, 3, 9):
            if b or op not in "/%":
                assert holds(f"({a} {op} {b}) - ({in_c(op, a, b)}) == 0"), (a, b)


def test_precedence_and_short_circuit() -> None:
    assert holds("1 + 2 * 3 == 7 && (1 | 2 ^ 2 & 3) == 1 + 0")
    assert holds("1 || 1 / 0") and not holds("0 && 1 / 0")
    assert holds("1 ? 2 : 1 / 0") and holds("-7 / 2 == -3") and holds("~0 == -1") and holds("0x10 == 16")
    assert holds("1 << 63 != 0") and holds("1 << 63 >> 63 == -1")
    for shift in ("1 << 64", "1 >> 64", "1 << -1", "1 >> -1"):
        with pytest.raises(BadCondition):
            holds(shift)


def test_a_lone_sign_and_the_operator_are_no_directives() -> None:
    assert texts("a\n#\nb") == "a # b"
    assert texts("a\n# p") == "a # p"


def test_a_definition_from_outside_is_told() -> None:
    found = extract("#define TILE 4\n__co__ void f() {\nTILE\n}", "t.co", {"TILE": 8})
    assert any("`TILE` is 8 from outside" in n.text for n in found.notes)


def test_a_misspelled_directive_is_refused_with_the_nearest_one() -> None:
    for text in ("#defin A 3", "#endi f"):
        with pytest.raises(CompileError, match="did you mean"):
            body(text)
