"""Declared types of registers, and constants, against ptxas: both accept and refuse the same operands."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from test_form_tables import decode, refused_by_ptxas

from tilemma.errors import TilemmaError

REGISTERS = (
    "b8", "u8", "b16", "u16", "s16", "f16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64",
)  # fmt: skip
_DECLARED = "".join(f".reg .{kind} %{kind}_<10>;\n" for kind in REGISTERS)
# `#kind` is a register: of this type, then of each other.
STATEMENTS = (
    *(f"add.{k} #{k}, #{k}, #{k};" for k in ("u16", "s32", "u64")),
    *(f"fma.rn.{k} #{k}, #{k}, #{k}, #{k};" for k in ("f16", "f32", "f64")),
    "fma.rn.bf16 #b16, #b16, #b16, #b16;", "fma.rn.f16x2 #b32, #b32, #b32, #b32;",
    *(f"mov.{k} #{k}, #{k};" for k in REGISTERS[2:] if k != "f16"),
    "mul.wide.u16 #u32, #u16, #u16;", "mad.wide.s32 #s64, #s32, #s32, #s64;",
    "mad.hi.cc.u32 #u32, #u32, #u32, #u32;",
    "and.b32 #b32, #b32, #b32;", "shl.b64 #b64, #b64, #u32;", "prmt.b32 #b32, #b32, #b32, #b32;",
    "bfe.u64 #u64, #u64, #u32, #u32;", "popc.b64 #u32, #b64;", "bmsk.clamp.b32 #u32, #u32, #u32;",
    "setp.lt.s32 %p0, #s32, #s32;", "setp.lt.f32 %p0, #f32, #f32;", "selp.f32 #f32, #f32, #f32, %p1;",
    "slct.f32.s32 #f32, #f32, #f32, #s32;", "min.f32 #f32, #f32, #f32;", "rcp.approx.f32 #f32, #f32;",
    "cvt.u64.u32 #u64, #u32;", "cvt.s32.s16 #s32, #s16;", "cvt.rn.f32.s32 #f32, #s32;",
    "cvt.rn.f16.f32 #f16, #f32;",
    "cvt.rn.bf16x2.f32 #b32, #f32, #f32;", "cvt.rn.satfinite.e4m3x2.f32 #b16, #f32, #f32;",
    *(f"ld.global.{k} #{k}, [%d39];" for k in REGISTERS if k != "f16"),
    *(f"st.global.{k} [%d39], #{k};" for k in REGISTERS if k != "f16"),
    "atom.global.add.f32 #f32, [%d39], #f32;", "atom.global.cas.b32 #b32, [%d39], #b32, #b32;",
    "red.global.add.u64 [%d39], #u64;", "ld.shared.u32 #u32, [%r38];", "bar.sync #u32, #u32;",
    "shfl.sync.idx.b32 #b32, #b32, 1, 31, #u32;", "redux.sync.add.s32 #s32, #s32, #u32;",
    "match.any.sync.b64 #u32, #b64, #u32;", "mbarrier.init.shared.b64 [%r38], #u32;",
    "mbarrier.arrive.shared.b64 #b64, [%r38];", "isspacep.shared %p0, #u64;", "mapa.u64 #u64, #u64, #u32;",
    "cp.async.cg.shared.global [%r38], [%d39], 16, #u32;", "createpolicy.fractional.L2::evict_last.b64 #b64, 0.5;",
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {#f32, #f32, %f32_4, %f32_5}, #u64, #u64, 1, 1, 1, 0, 0;",
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {#f32, %f32_4, %f32_5, %f32_6}, {#b32, %r1, %r2, %r3}, "
    "{%r4, %r5}, {#f32, %f32_4, %f32_5, %f32_6};",
    "ld.global.v2.f32 {#f32, #f32}, [%d39];", "st.global.v2.u32 [%d39], {#u32, #u32};",
)  # fmt: skip
# `#` is a constant.
WITH_CONSTANTS = (
    *(f"mov.{k} %{k}_0, #;" for k in ("b16", "u32", "s32", "b32", "f32", "b64", "u64", "f64")), "mov.pred %p0, #;",
    *(f"st.global.{k} [%d39], #;" for k in ("b8", "u16", "b32", "f32", "b64", "f64")),
    "add.s32 %s32_0, %s32_1, #;", "add.f32 %f32_0, %f32_1, #;", "add.f16 %f16_0, %f16_1, #;",
    "fma.rn.bf16x2 %b32_0, %b32_1, #, %b32_2;", "max.f16x2 %b32_0, %b32_1, #;", "setp.lt.f64 %p0, %f64_0, #;",
    "selp.b32 %b32_0, %b32_1, #, %p1;", "cvt.rn.f32.s32 %f32_0, #;", "and.pred %p0, %p1, #;",
    "shl.b32 %b32_0, %b32_1, #;", "atom.global.add.f32 %f32_0, [%d39], #;", "ld.shared.u32 %u32_0, [#];",
    "ld.local.u32 %u32_0, [#];", "prmt.b32 %b32_0, %b32_1, %b32_2, #;",
)  # fmt: skip
CONSTANTS = ("1", "-1", "0x3f800000", "70000", "5U", "1.0", "-0.5", "0f3F800000", "0d3FF0000000000000", "1.5e400")


def mutated(statement: str) -> Iterator[str]:
    """The statement, and with each register of each other type."""
    kinds, parts = re.findall(r"#(\w+)", statement), re.split(r"#\w+", statement)
    for position, other in itertools.product(range(len(kinds)), REGISTERS):
        names = [*kinds[:position], other, *kinds[position + 1 :]]
        yield parts[0] + "".join(f"%{k}_{n}{p}" for n, (k, p) in enumerate(zip(names, parts[1:], strict=True)))


@cache
def statements() -> tuple[str, ...]:
    typed = [text for statement in STATEMENTS for text in mutated(statement)]
    constants = [s.replace("#", c) for s in WITH_CONSTANTS for c in CONSTANTS if not (c == "-1" and "[#]" in s)]
    return tuple(dict.fromkeys([*typed, *constants]))


def compare(texts: list[str], folder: Path) -> None:
    refused = refused_by_ptxas([_DECLARED.replace("\n", " "), *texts], "sm_90a", folder)
    wrong = []
    for i, text in enumerate(texts, 1):
        try:
            decode(_DECLARED + text, "sm_90a")
            wrong += [("taken", text)] * (i in refused)
        except TilemmaError as error:
            wrong += [(str(error).splitlines()[0], text)] * (i not in refused)
    assert not wrong, wrong[:20]


def test_ptxas_agrees_on_some_operands(tmp_path: Path) -> None:
    compare(random.Random(7).sample(statements(), 200), tmp_path)


@pytest.mark.slow
def test_ptxas_agrees_on_all_operands(tmp_path: Path) -> None:
    compare(list(statements()), tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("add.s32 %f32_0, %s32_1, %s32_2;", "%f32_0 is declared .f32, which does not go with .s32"),
        ("add.f32 %f32_0, %f32_1, 1;", "an integer where .f32 is read"),
        ("add.s32 %s32_0, %s32_1, 1.0;", "a floating-point constant where .s32 is read"),
        ("ld.global.v2.u32 {%f32_0, %f32_1}, [%d39];", "registers declared .f32 do not go with .u32"),
    ],
)
def test_the_refusal_names_the_types(text: str, words: str) -> None:
    with pytest.raises(TilemmaError) as caught:
        decode(_DECLARED + text, "sm_90a")
    assert caught.value.code == "ptx-operand" and words in str(caught.value)


@pytest.mark.parametrize("kind", ["bf16", "bf16x2", "tf32", "e4m3x2"])
def test_no_register_has_a_type_of_instructions_only(kind: str) -> None:
    with pytest.raises(TilemmaError, match=f"no register has the type `.{kind}`"):
        decode(f".reg .{kind} %x; ", "sm_90a")
