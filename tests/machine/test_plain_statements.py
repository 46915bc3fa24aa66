"""An instruction that the lexer takes as one token is the same as by its tokens."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tilemma.errors import CompileError
from tilemma.machine import lexer
from tilemma.machine.lexer import tokenize
from tilemma.machine.parser import parse

CORPUS = Path(__file__).parent / "corpus" / "ptx"
FILES = sorted(CORPUS.glob("*.ptx"), key=lambda p: p.stat().st_size)

HEADER = ".version 8.4\n.target sm_90a\n.address_size 64\n"
# Statements of every kind of operand, and wrong ones: alone on a line, and two on it.
STATEMENTS = [
    "ret;", "@%p1 bra $L;", "@!%p1 add.s32 %r1, %r2, -5;", "mov.b32 %r1, 0f3F800000;", "mov.b32 %r1, 010;",
    "ld.shared.v2.b32 {%r1, %r2}, [%r3+-4];", "ld.shared.b32 %r1, [%r2 + 8];", "mov.u32 %r1, %tid.x;",
    "mov.u32 %r1, WARP_SZ;", "setp.eq.s32 %p1|%p2, %r1, 0x10U;", "mov.b32 {_, %r2}, %rd1;", "mov.u32 %r1, s;",
    "ld.shared.b32 %r1, [s+4];", "mov.b32 %r1, v.x;", "mov.b64 %rd1, v;", "add.s32 %r1, %r2, 1", "bra nowhere;",
    "add.s32 %r1,, %r2;", "add.s32 %r1, %r2,;", "add.s32 %r1 %r2;", "add.s32 %r9, %r2, 1;", "@%r1 ret;",
    "add.s32 %r1, {%r2, %r9}, 1;", "ld.b32 %r1, [%r9];", "add.s32 %r1, (1+2)*3, /* c */ 4;", "mov.b32 %r1, -%r2;",
    "add.s32 %r1, %r2, 1 + 2;", "$L: ret;", "add.s32 %r1, é, 1;", "add.s32 %r1, 1.2.3;", "mov.b32 %r1, 1'2;",
    f"mov.b32 %r1, {'1' * 401};", "add.s32 %r1,\n %r2,\n 1;", ".loc 1 2 3\nadd.s32 %r1, %r2, 1;",
    "{ .reg .b32 %r1; add.s32 %r1, %r2, %r1; }", ".section x { add.s32 %r1, %r2; }", ".pragma \"x\"\nret;",
]  # fmt: skip


def program(statement: str, times: int) -> str:
    body = " ".join([statement] * times)
    declared = ".reg .pred %p<3>;\n.reg .b32 %r<4>;\n.reg .b64 %rd<3>;\n.reg .v2 .b32 v;\n.shared .b32 s[4];\n"
    return f"{HEADER}.entry f() {{\n{declared}{body}\n$L:\n\tret;\n}}\n.entry g() {{\n{body} ret; }}\n"


def outcome(text: str, only: str | None = None) -> str:
    try:
        return repr(parse(text, "k.ptx", only=only))
    except CompileError as error:
        return f"{error.span}: {error}"


@pytest.mark.parametrize("times", [1, 2])
def test_statements_are_read_as_by_their_tokens(monkeypatch, times):
    texts = [program(x, times) for x in STATEMENTS] + [f"{HEADER}; add.s32 %r1, %r2, 1;"]
    fast = [[outcome(text, only) for only in (None, "f")] for text in texts]
    kinds = [token.kind for token in tokenize(program("add.s32 %r1, %r2, 1;", 1), "k.ptx")]
    assert kinds.count("statement") == 4
    monkeypatch.setattr(lexer, "_STATEMENT", re.compile("(?!)"))
    for text, found in zip(texts, fast, strict=True):
        assert found == [outcome(text, only) for only in (None, "f")], text


def test_kernels_of_other_compilers_are_read_as_by_their_tokens(monkeypatch):
    texts = [path.read_text() for path in FILES[::12]]
    fast = [outcome(text) for text in texts]
    monkeypatch.setattr(lexer, "_STATEMENT", re.compile("(?!)"))
    assert fast == [outcome(text) for text in texts]


def test_bodies_of_other_entries_are_read_only_for_indirect_calls():
    function = ".func (.reg .b32 %o) h(.reg .b32 %i) { mov.b32 %o, %i; ret; }\n"
    other = ".entry g() { .reg .b64 %rd<2>; mov.u64 %rd1, h; ret; }\n"
    direct = ".entry f() { .reg .b32 %r<2>; call (%r1), h, (%r1); ret; }\n"
    module = parse(HEADER + function + direct + other, only="f")
    assert not module.entries["g"].instructions
    indirect = (
        ".entry f() { .reg .b32 %r<2>; .reg .b64 %rd<2>; P: .callprototype (.reg .b32 _) _ (.reg .b32 _);\n"
        "call (%r1), %rd1, (%r1), P; ret; }\n"
    )
    module = parse(HEADER + function + indirect + other, only="f")
    assert [i.opcode for i in module.entries["g"].instructions] == ["mov.u64", "ret"]


def test_a_nul_may_end_the_text() -> None:
    """NVRTC's text has one, which programs often write to files; elsewhere it is refused."""
    text = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() { ret; }\n"
    assert [e.name for e in parse(text + "\0", "k").entries.values()] == ["k"]
    with pytest.raises(CompileError, match="starts no PTX token"):
        parse(text.replace("ret", "\0ret"), "k")


def test_constants_as_ptxas_takes_them() -> None:
    """Expressions in addresses, and floats that begin with their point."""
    text = """.version 8.0
    .target sm_90
    .address_size 64
    .visible .entry k(.param .u64 p) {
      .reg .u64 d<1>; .reg .u32 r<4>; .reg .f32 f<2>;
      ld.global.u32 r0, [d0 + 4 * 2 + 4];
      ld.global.u32 r1, [d0+(3-1)*8];
      ld.global.u32 r2, [d0+-4*2];
      ld.global.u32 r3, [d0 + 0x10];
      mov.f32 f0, .5; mov.f32 f1, .25e1;
      ret;
    }
    """
    *loads, first, second, _ = parse(text, "k").entries["k"].body.instructions
    assert [x.operands[1].offset for x in loads] == [12, 16, -8, 16]
    bits = [x.operands[1].value for x in (first, second)]
    assert np.array(bits, np.uint64).view(np.float64).tolist() == [0.5, 2.5]


def test_an_attribute_may_stand_before_the_state_space() -> None:
    text = (
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .attribute(.managed) .global .align 4 .u32 c;\n"
    )
    module = parse(text + ".visible .entry k() { ret; }\n", "k")
    assert [(v.name, v.space) for v in module.variables] == [("c", "global")]
