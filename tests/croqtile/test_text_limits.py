"""Limits of programs in Croqtile: the last legal value passes, and the next one is refused by its code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tilemma import croqtile
from tilemma.croqtile import arithmetic, inlining, parse, preprocess, tokens
from tilemma.errors import CompileError
from tilemma.ir import structure
from tilemma.ir.constructs import LIMITS
from tilemma.kernels import Kernel


def kernel(body: str, parameters: str = "f32 [64] a, int n", before: str = "") -> str:
    return f"{before}\n__co__ void f({parameters}) {{ parallel p by 2 : block {{ {body} }} }}"


def nested_calls(n: int) -> str:
    inner = "__device__ int g0(int x) { int y = x; return y; }\n"
    others = (f"__device__ int g{i}(int x) {{ int y = x; return g{i - 1}(y); }}\n" for i in range(1, n))
    return kernel(f"a.at(0) = g{n - 1}(n);", before=inner + "".join(others))


def nested_expressions(n: int) -> str:
    steps = (f"x{k + 1} = x{k} ^ n;" for k in range(n - 1))
    return kernel(f"x0 = n; {' '.join(steps)} a.at(x{n - 1}) = 1.0f;")


def levels(n: int) -> str:
    names = [f"i{k}" for k in range(n)]
    head = f"parallel {{{', '.join(names)}}} by [{', '.join(['1'] * n)}] : block"
    return f"__co__ void f(f32 [64] a) {{ {head} {{ }} }}"


@dataclass(frozen=True)
class Limited:
    """``text(n)``: a program with ``n`` of what ``limit`` is about."""

    text: Callable[[int], str]
    limit: int
    code: str


LIMITED = {
    "characters": Limited(
        lambda n: kernel("") + " " * (n - len(kernel(""))), tokens.MAX_CHARACTERS, "file-too-large"
    ),
    # Two brackets stand around the body.
    "brackets": Limited(
        lambda n: kernel(f"a.at(0) = {'(' * (n - 2)}1{')' * (n - 2)};"), parse.MAX_NESTING, "too-complex"
    ),
    "loops": Limited(
        lambda n: kernel("".join(f"foreach i{k} in 2 {{ " for k in range(n)) + "}" * n),
        structure.MAX_LOOPS,
        "loops-too-deep",
    ),
    "calls in calls": Limited(nested_calls, inlining.MAX_DEPTH, "not-built-yet"),
    # An operand is one level, and each operation one more.
    "expressions in expressions": Limited(nested_expressions,
        arithmetic.MAX_EXPRESSION_DEPTH,
        "expression-too-large",
    ),
    "macro calls in macro calls": Limited(
        lambda n: kernel(f"a.at(0) = {'D(' * n}1{')' * n};", before="#define D(x) x"),
        preprocess.MAX_ARGUMENT_DEPTH,
        "macro-explosion",
    ),
    "parameters": Limited(
        lambda n: kernel("", ", ".join(f"int n{k}" for k in range(n))), LIMITS["parameters"].most, "wrong-value"
    ),
    "indices": Limited(levels, LIMITS["indices"].most, "wrong-arity"),
    "rank": Limited(
        lambda n: kernel("", f"f32 [{', '.join(['2'] * n)}] a"), LIMITS["rank"].most, "bad-parameter"
    ),
}  # fmt: skip


def code(text: str) -> str | None:
    try:
        for source in croqtile.load(text, "limits.co", {}).sources.values():
            Kernel(source).build()
    except CompileError as e:
        assert e.remedy
        return e.code
    return None


@pytest.mark.parametrize("name", LIMITED)
def test_the_last_legal_value_passes_and_the_next_one_is_refused(name: str) -> None:
    x = LIMITED[name]
    assert code(x.text(x.limit)) is None
    assert code(x.text(x.limit + 1)) == x.code


def test_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit that costs less than the real one."""
    count = len(["__co__", "void", "f", "(", ")", "{", "return", ";", "}"])
    for limit, wanted in ((count, None), (count - 1, "too-complex")):
        monkeypatch.setattr(parse, "MAX_TOKENS", limit)
        assert code("__co__ void f() { return; }") == wanted
