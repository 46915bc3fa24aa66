"""Hostile input: bounded time, an error of the family, no file read, no code run; and a sample of mutated
kernels."""

from __future__ import annotations

import builtins
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.effort import calls
from tilemma import croqtile
from tilemma.errors import CompileError
from tilemma.kernels import Kernel

# Calls of functions for the largest of these texts, about.
CALLS = 30_000_000


def outcome(run: Callable[[], None], most: int) -> str | None:
    """The code of the error for users that ``run`` ends with, None without one; its work is bounded."""

    def attempt() -> None:
        try:
            run()
        except CompileError as e:
            found.append(e.code)
            e.render()
            e.json()

    found: list[str] = []
    calls(attempt, most)
    return found[0] if found else None


def kernel(body: str, before: str = "") -> str:
    return f"{before}\n__co__ void f(f32 [64] a, int n) {{\nparallel p by 2 : block {{\n{body}\n}}\n}}\n"


def doubling(step: str, count: int = 100) -> str:
    return "x0 = n;\n" + "\n".join(f"x{i + 1} = {step.replace('X', f'x{i}')};" for i in range(count))


LAUGHS = "#define L0 1\n" + "\n".join(f"#define L{i + 1} L{i} + L{i}" for i in range(30))

CASES = {
    "nested parentheses": (kernel("a.at(0) = " + "(" * 5000 + "1" + ")" * 5000 + ";"), "too-complex"),
    "nested blocks": (kernel("{" * 3000 + "}" * 3000), "too-complex"),
    "a long sum": (kernel("a.at(0) = " + " + ".join(["n"] * 5000) + ";"), "nested-too-deep"),
    "many signs": (kernel("a.at(0) = " + "-" * 5000 + "n;"), "nested-too-deep"),
    "many members": (kernel("x = a" + ".sqz()" * 5000 + ";"), "nested-too-deep"),
    "else if without end": (kernel("if (n) {} else " * 3000 + "{}"), "nested-too-deep"),
    "loops in loops": (kernel("foreach i in [2] " * 1000 + "{}"), "nested-too-deep"),
    "doubling": (kernel(doubling("X + X")), "expression-too-large"),
    "squaring": (kernel(doubling("X * X").replace("x0 = n", "x0 = 99999")), "constant-overflow"),
    "views of views": (
        kernel(doubling("X.subspan(64).at(p)", 2000).replace("x0 = n", "x0 = a")),
        "expression-too-large",
    ),
    "tuples of tuples": (kernel(doubling("{X, X}").replace("x0 = n", "x0 = {1, 2}")), "wrong-value"),
    "a long number": (kernel("a.at(" + "9" * 100_000 + ") = 1;"), "literal-too-large"),
    "a long hexadecimal number": (kernel("a.at(0x" + "f" * 100_000 + ") = 1;"), "literal-too-large"),
    "a huge float": (kernel("a.at(0) = " + "9" * 400 + ".0;"), "literal-too-large"),
    "macros that double": (kernel("a.at(0) = L30;", LAUGHS), "macro-explosion"),
    "macro calls that double": (
        kernel("a.at(0) = " + "D(" * 40 + "1" + ")" * 40 + ";", "#define D(x) x + x"),
        "macro-explosion",
    ),
    "macro calls nested": (
        kernel("a.at(0) = " + "D(" * 3000 + "1" + ")" * 3000 + ";", "#define D(x) x"),
        "macro-explosion",
    ),
    "macros in a circle": (kernel("a.at(0) = A;", "#define A B\n#define B A"), "macro-recursion"),
    "a condition that doubles": (LAUGHS + "\n#if L30\n#endif\n" + kernel(""), "macro-explosion"),
    "a deep condition": ("#if " + "(" * 5000 + "1" + ")" * 5000 + "\n#endif\n" + kernel(""), "bad-condition"),
    "a condition of conditions": ("#if " + "1 ? " * 5000 + "1\n#endif\n" + kernel(""), "bad-condition"),
    "sections in sections": ("#if 1\n" * 20_000 + "#endif\n" * 20_000 + kernel(""), None),
    "a comment without end": ("/*" + "*" * 300_000, "unterminated-comment"),
    "quotes": ('"' * 100_000, "no-kernel"),
    "raw strings": ('R"(x' * 50_000, "unterminated-string"),
    "a large file": ("x " * 600_000, "file-too-large"),
    "zeros": ("\0" * 1000 + kernel(""), None),
    "many dimensions": (f"__co__ void f(f32 [{','.join(['M'] * 1000)}] a) {{}}", "bad-parameter"),
    "many parameters": (f"__co__ void f({','.join(f'int a{i}' for i in range(1000))}) {{}}", "wrong-value"),
    "many buffers": (kernel("shared f32 [4] x[1000000000];"), "wrong-value"),
    "many register tiles": (kernel("frag m[4000][4000] {0.0};"), "wrong-value"),
    "a long loop": (kernel("foreach i in [2000000000] : unroll(4000) { a.at(i) = 1; }"), None),
    "an include": ('#include "/etc/passwd"\n#include <x>\n' + kernel(""), None),
    "inline C++": (kernel('__cpp__("system(\\"x\\")");'), "not-built-yet"),
    "inline assembly": (kernel('__asm__ volatile("nop");'), "not-built-yet"),
    "infinity as an integer": (kernel("mutable int i = 0; i = inf;"), "wrong-value"),
}


@pytest.mark.parametrize("name", CASES)
def test_hostile_input(name: str) -> None:
    text, code = CASES[name]

    def read() -> None:
        module = croqtile.load(text, "hostile.co")
        for k in module.kernels:
            module.kernels[k]

    assert outcome(read, CALLS) == code


WARP = "parallel g by 1 : group "
# (statements of a block, the error's code or None): compiled to PTX, for each architecture.
COMPILED = {
    "unrolled without bound": ("foreach i in 1000000000 : unroll { a.at(0) = i; }", None),
    "unrolled inside unrolled": ("foreach {i, j, k} in [256, 256, 256] : unroll { a.at(0) = i; }", None),
    "more loops than are followed": ("foreach i in [2] " * 11 + "a.at(0) = 1.0f;", "loops-too-deep"),
    "as many loops as are followed": ("foreach i in [2] " * 10 + "a.at(0) = 1.0f;", None),
    "the largest loop": ("foreach i in 2147483647 { foreach j in 2147483647 { a.at(0) = j; } }", None),
    "a huge buffer": (
        "shared f16 [100000, 100000] s; s.at(0, 0) = 1.0f; a.at(0) = s.at(0, n);",
        "shared-memory-limit",
    ),
    "a buffer beyond 2^64": (
        "shared f16 [2000000000, 2000000000, 2000000000] s; s.at(0, 0, 0) = 1.0f; a.at(0) = s.at(0, 0, n);",
        "shared-memory-limit",
    ),
    "huge padding": (
        "dma.pad<{2147483647, 2147483647}, {2147483647, 2147483647}, {2147483647, 0}, 0.0f> h => shared;",
        "shared-memory-limit",
    ),
    "a huge register tile": (
        WARP + "{ frag f32[65536, 65536] m {0.0f}; mma.store m, h.subspan(65536, 65536).at(0, 0); }",
        "tile-too-large",
    ),
    "work on a huge register tile": (
        WARP + "{ frag f32[1024, 1024] m {0.0f}; apply {i, j} in m.span { m.at(i, j) = i; } }",
        "tile-too-large",
    ),
    "huge operands": (
        WARP + "{ mc = mma.fill.f32 0.0f; x = h.subspan(1024, 1024).at(0, 0); ma = mma.load x; mb = mma.load x;"
        " mma.row.row mc, ma, mb; mma.store mc, h.subspan(1024, 1024).at(0, 0); }",
        "tile-too-large",
    ),
    "a huge view": (
        "shared f16 [64, 64] s; dma.copy h.view(2147483647, 2147483647).from(0, 0) => s;",
        "copy-extents",
    ),
    "too many threads": ("parallel t by 2147483647 : thread { a.at(0) = 1.0f; }", "too-many-threads"),
    "a huge group": ("parallel g by 1 : group-999999999 { a.at(0) = 1.0f; }", "too-many-threads"),
    "many statements": ("".join(f"a.at({i % 64}) = a.at({i % 63}) + {i};" for i in range(300)), None),
    "many branches": ("".join(f"if (n == {i}) a.at(0) = {i};" for i in range(200)), None),
    "many copies": ("shared f16 [64, 64] s;" + "dma.copy h => s; dma.copy s => h;" * 40, None),
    "many multiplies": (
        "shared f16 [64, 64] s; dma.copy h => s; parallel g by 1 : group-4 { mc = mma.fill.f32 0.0f;"
        + "mma.row.row mc, s, s;" * 60
        + "mma.store mc, h; }",
        None,
    ),
    "a loop without end": ("while (true) { a.at(0) = 1.0f; }", None),
    "an index that overflows": ("a.at(2147483647 - n * 2147483647) = 1.0f;", None),
    "formats": ('print("' + "%s%n" * 1000 + '", n);', None),
}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", COMPILED)
def test_hostile_kernels_compiled(name: str, arch: str) -> None:
    """The compiler ends soon, whatever the program's numbers: with code, or an error for users."""
    body, code = COMPILED[name]
    header = "__co__ void f(global f16 [64, 64] h, global f32 [64] a, int n) { parallel p by 2 : block {"
    text = f"{header}\n{body}\n}} }}"

    def compile_now() -> None:
        assert Kernel(croqtile.load(text, "hostile.co").sources["f"]).compile(arch).ptx

    assert outcome(compile_now, 2 * CALLS) == code


def test_nothing_is_opened_or_run(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '#include "other.co"\n#pragma once\n' + kernel('print("$(id)", "{n.__class__}"); a.at(0) = 1;')
    croqtile.load(kernel(""), "warm.co").kernels["f"]  # the grammar is read once

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the front end must not do this")

    for owner, name in ((builtins, "open"), (builtins, "exec"), (builtins, "eval"), (os, "system"), (os, "open")):
        monkeypatch.setattr(owner, name, refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert croqtile.load(text, "/no/such/file.co").kernels["f"].name == "f"
