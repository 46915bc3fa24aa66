"""Whole PTX files: functions, calls, indexed branches, parameters of every kind, debugging directives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilemma import machine
from tilemma.errors import TilemmaError
from tilemma.machine.parser import parse

HEAD = ".version 8.6\n.target sm_90a\n.address_size 64\n"
STORE = "mul.wide.u32 %d1, %r0, 4; add.s64 %d0, %d0, %d1; st.global.u32 [%d0], %r1; ret;\n}\n"
REGISTERS = "  .reg .b32 %r<20>; .reg .b64 %d<20>; .reg .pred %p<8>; .reg .b128 %q<4>; .reg .b16 %h<4>;\n"


def kernel(body: str, *, functions: str = "", parameters: str = ".param .u64 out") -> str:
    """A kernel that stores %r1 of each thread to `out`."""
    return (
        f"{HEAD}{functions}\n.visible .entry k({parameters})\n{{\n{REGISTERS}"
        f"  ld.param.u64 %d0, [out]; mov.u32 %r0, %tid.x;\n{body}\n{STORE}"
    )


def values(ptx: str, *more: Any, **options: Any) -> Any:
    out = np.zeros(32, np.uint32)
    args = {"out": out, **{f"m{i}": m for i, m in enumerate(more)}}
    machine.run(ptx, {"grid": 1, "block": 32, "entry": "k"}, args, **options)
    return out


SQUARE = """.func (.param .b32 r) square(.param .b32 x)
{ .reg .b32 %r<4>; .reg .pred %p; ld.param.u32 %r0, [x]; setp.gt.u32 %p, %r0, 9;
  @%p bra BIG; mul.lo.u32 %r1, %r0, %r0; st.param.b32 [r], %r1; ret; BIG: st.param.b32 [r+0], 7; ret; }
"""
TWICE = """.func (.reg .u32 y) twice(.reg .u32 x) { add.u32 y, x, x; ret; }
"""
OUTER = """.func (.param .b32 r) outer(.param .b32 x)
{ .reg .b32 %r<4>; ld.param.u32 %r0, [x];
  { .param .b32 a; .param .b32 b; st.param.b32 [a], %r0; call.uni (b), square, (a); ld.param.b32 %r1, [b]; }
  { .param .b32 a; .param .b32 b; add.u32 %r0, %r0, 1; st.param.b32 [a], %r0; call.uni (b), square, (a);
    ld.param.b32 %r2, [b]; }
  add.u32 %r1, %r1, %r2; st.param.b32 [r], %r1; ret; }
"""
CALL = """{{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r0; call (b), {name}, (a);
  ld.param.b32 %r1, [b]; }}"""
LANES = np.arange(32, dtype=np.uint32)


def square(x: Any) -> Any:
    return np.where(x > 9, 7, x * x)


def test_a_call_computes_what_the_function_does() -> None:
    assert (values(kernel(CALL.format(name="square"), functions=SQUARE)) == square(LANES)).all()


def test_functions_call_functions_with_parameters_of_their_own() -> None:
    got = values(kernel(CALL.format(name="outer"), functions=SQUARE + OUTER))
    assert (got == square(LANES) + square(LANES + 1)).all()


def test_a_function_may_be_declared_first_and_defined_last() -> None:
    ptx = kernel(CALL.format(name="square"), functions=".func (.param .b32 r) square(.param .b32 x);\n")
    assert (values(ptx + SQUARE) == square(LANES)).all()


def test_parameters_in_registers() -> None:
    assert (values(kernel("call (%r1), twice, (%r0);", functions=TWICE)) == 2 * LANES).all()


def test_a_predicated_call_leaves_the_other_lanes_alone() -> None:
    body = "mov.u32 %r1, 5; setp.lt.u32 %p0, %r0, 4; @%p0 call (%r1), twice, (%r0);"
    assert (values(kernel(body, functions=TWICE)) == np.where(LANES < 4, 2 * LANES, 5)).all()


def test_an_indirect_call_by_prototype_reaches_each_function_of_a_table() -> None:
    table = ".global .align 8 .u64 table[2] = {square, other};\n"
    other = SQUARE.replace("square", "other").replace("mul.lo", "add")
    body = """and.b32 %r2, %r0, 1; mul.wide.u32 %d2, %r2, 8; mov.u64 %d3, table; add.s64 %d2, %d2, %d3;
      ld.global.u64 %d4, [%d2]; { .param .b32 a; .param .b32 b; st.param.b32 [a], %r0;
      proto: .callprototype (.param .b32 _) _ (.param .b32 _);
      call (b), %d4, (a), proto; ld.param.b32 %r1, [b]; }"""
    got = values(kernel(body, functions=SQUARE + other + table))
    assert (got == np.where(LANES % 2, np.where(LANES > 9, 7, 2 * LANES), square(LANES))).all()


def test_an_indirect_call_by_targets_and_one_to_no_function() -> None:
    body = """{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r0; mov.u64 %d4, square;
      list: .calltargets square; call (b), %d4, (a), list; ld.param.b32 %r1, [b]; }"""
    ptx = kernel(body, functions=SQUARE)
    assert (values(ptx) == square(LANES)).all()
    with pytest.raises(machine.HazardError, match="no function"):
        values(ptx.replace("mov.u64 %d4, square", "mov.u64 %d4, 64"))


def test_recursion_is_refused_by_name() -> None:
    again = """.func (.param .b32 r) square(.param .b32 x) { { .param .b32 a; .param .b32 b; st.param.b32 [a], 1;
      call (b), square, (a); } ret; }"""
    with pytest.raises(machine.UnsupportedInstruction, match="calls itself"):
        values(kernel(CALL.format(name="square"), functions=again))


def test_an_external_function_is_refused_by_name_where_it_is_called() -> None:
    extern = ".extern .func (.param .b32 r) square(.param .b32 x);\n"
    with pytest.raises(machine.UnsupportedInstruction, match="square"):
        values(kernel(CALL.format(name="square"), functions=extern))


def test_a_failed_assertion_says_what_it_asserts() -> None:
    text = "".join(f"{b}, " for b in b"x > 0\0")[:-2]
    functions = f""".global .align 1 .b8 text[6] = {{{text}}};
.extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 g, .param .b64 s) .noreturn;
"""
    body = """{ .param .b64 m; .param .b64 f; .param .b32 l; .param .b64 g; .param .b64 s; mov.u64 %d2, text;
      cvta.global.u64 %d2, %d2; st.param.b64 [m], %d2; st.param.b64 [f], %d2; st.param.b32 [l], 12;
      st.param.b64 [g], %d2; st.param.b64 [s], 1; call.uni __assertfail, (m, f, l, g, s); }"""
    with pytest.raises(machine.HazardError) as caught:
        values(kernel(body, functions=functions))
    assert caught.value.code == "trap" and "x > 0" in caught.value.render()


def test_brx_idx_goes_where_its_list_says() -> None:
    body = """rem.u32 %r2, %r0, 3; mov.u32 %r1, 100; list: .branchtargets A, B, C; brx.idx %r2, list;
      A: add.u32 %r1, %r1, 1; B: add.u32 %r1, %r1, 10; C: add.u32 %r1, %r1, 20;"""
    ptx = kernel(body)
    assert (values(ptx) == np.array([131, 130, 120], np.uint32)[LANES % 3]).all()
    with pytest.raises(machine.HazardError, match=r"brx\.idx"):
        values(ptx.replace("rem.u32 %r2, %r0, 3", "rem.u32 %r2, %r0, 4"))


def test_registers_of_128_bits_and_vectors() -> None:
    body = """mov.u64 %d2, 5; cvt.u64.u32 %d3, %r0; mov.b128 %q0, {%d2, %d3}; mov.b128 %q1, %q0;
      .shared .align 16 .b8 s[512]; mul.wide.u32 %d4, %r0, 16; mov.u64 %d5, s; add.s64 %d5, %d5, %d4;
      st.shared.b128 [%d5], %q1; ld.shared.b128 %q2, [%d5]; mov.b128 {%d6, %d7}, %q2; add.s64 %d6, %d6, %d7;
      .reg .v2 .u32 pair; mov.b64 pair, %d6; mov.u32 %r1, pair.x;"""
    assert (values(kernel(body)) == LANES + 5).all()


def test_parameters_by_address_in_32_and_64_bits() -> None:
    parameters = ".param .u64 out, .param .align 8 .b8 s[24]"
    body = """mov.b32 %r2, s; ld.param.u32 %r3, [%r2+4]; cvt.u64.u32 %d2, %r2; cvta.param.u64 %d2, %d2;
      ld.u32 %r4, [%d2+8]; mov.b64 %d3, s; ld.param.u32 %r5, [%d3+16]; add.u32 %r1, %r3, %r4;
      add.u32 %r1, %r1, %r5; add.u32 %r1, %r1, %r0;"""
    ptx = kernel(body, parameters=parameters)
    fields = machine.Struct({4: np.uint32(10), 8: np.uint32(200), 16: np.uint32(3000)})
    assert (values(ptx, fields) == LANES + 3210).all()
    raw = np.array([0, 10, 200, 0, 3000, 0], np.uint32)
    assert (values(ptx, raw) == LANES + 3210).all() and (values(ptx, raw.tobytes()) == LANES + 3210).all()
    with pytest.raises(machine.HazardError, match="parameter offset"):
        values(ptx.replace("[%d3+16]", "[%d3+32]"), raw)


def test_pointers_and_tensor_maps_inside_a_structure() -> None:
    parameters = ".param .u64 out, .param .align 64 .b8 s[256]"
    body = """ld.param.u64 %d2, [s+8]; mul.wide.u32 %d3, %r0, 4; add.s64 %d2, %d2, %d3; ld.global.u32 %r1, [%d2];
      .shared .align 128 .b8 tile[64]; .shared .align 8 .b8 full[8]; mov.u32 %r4, tile; mov.u32 %r5, full;
      setp.eq.u32 %p0, %r0, 0; mov.b64 %d4, s; cvta.param.u64 %d4, %d4; add.s64 %d4, %d4, 64;
      @%p0 mbarrier.init.shared.b64 [%r5], 1; @%p0 fence.mbarrier_init.release.cluster; bar.sync 0;
      @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r5], 64;
      @%p0 cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%d4, {0}], [%r5];
      W: mbarrier.try_wait.parity.shared.b64 %p1, [%r5], 0; @!%p1 bra W;
      and.b32 %r6, %r0, 15; shl.b32 %r6, %r6, 2; add.u32 %r6, %r6, %r4; ld.shared.u32 %r7, [%r6];
      add.u32 %r1, %r1, %r7;"""
    plain, mapped = np.arange(32, dtype=np.uint32), np.arange(100, 116, dtype=np.uint32)
    fields = machine.Struct({8: plain, 64: machine.TensorMap(mapped, (16,))})
    assert (values(kernel(body, parameters=parameters), fields) == LANES + 100 + LANES % 16).all()
    with pytest.raises(machine.BadMachineCall, match="fields inside"):
        values(kernel(body, parameters=parameters), machine.Struct({250: plain}))


def test_an_entry_that_is_not_supported_is_refused_when_it_is_launched() -> None:
    bad = ".visible .entry bad(.param .u64 x) { .reg .q32 %r; { ret; } }\n"
    ptx = kernel("mov.u32 %r1, 3;").replace(".visible .entry k", bad + ".visible .entry k")
    assert (values(ptx) == 3).all()
    with pytest.raises(TilemmaError, match="no PTX type") as caught:
        machine.run(ptx, {"grid": 1, "block": 1, "entry": "bad"}, {"x": 0})
    assert caught.value.span is not None and caught.value.span.line == 5


def test_an_instruction_that_is_not_modelled_elsewhere_does_not_matter() -> None:
    bad = ".visible .entry bad() { tcgen05.fence::before_thread_sync; ret; }\n"
    assert (values(kernel("mov.u32 %r1, 3;") + bad) == 3).all()


def test_inlined_places_are_chains_and_files_may_stand_last() -> None:
    ptx = kernel(
        """.loc 1 10 3
      add.u32 %r2, %r0, 1;
      .loc 2 40 5, function_name $L__info_string0, inlined_at 1 10 3
      add.u32 %r3, %r0, 1;
      .loc 2 50 7, function_name $L__info_string1+0, inlined_at 2 40 5
      ld.local.u32 %r1, [0];""",
    )
    ptx += """.file 1 "main.cu"\n.file 2 "/usr/include/library.h", 1700000000, 4242\n
.section .debug_str
{
$L__info_string0:
.b8 95,90,51,115,117,109,0
$L__info_string1:
.b8 105,110,110,101,114,0
}
"""
    ins = next(i for i in parse(ptx).entries["k"].instructions if i.opcode == "ld.local.u32")
    at = ins.location
    assert at is not None and (at.file, at.line, at.function) == ("/usr/include/library.h", 50, "inner")
    assert at.inlined_at is not None and (at.inlined_at.line, at.inlined_at.function) == (40, "_Z3sum")
    assert at.inlined_at.inlined_at is not None and at.inlined_at.inlined_at.file == "main.cu"
    with pytest.raises(machine.HazardError) as caught:
        values(ptx)
    text = caught.value.render()
    assert "inlined" in text and "main.cu:10" in text


DECLARATIONS = [
    ".global .texref tex;",
    ".tex .u32 old;",
    ".global .attribute(.managed) .align 4 .u32 managed;",
    ".extern .global .align 4 .u32 elsewhere[];",
    ".const .align 4 .f32 table[2] = {0f3F800000, 0f40000000};",
    ".global .align 8 .u64 where = generic(here) + 8; .global .align 8 .u64 here[2];",
    ".visible .entry later(.param .u64 x);",
    ".func first(.param .b32 x) .noinline { ret; } .alias second, first;",
    ".weak .func (.param .b32 r) weak(.param .b32 x) { ret; }",
    '.pragma "nounroll";',
    ".global .v4 .f32 vectors[3];",
    ".section .debug_abbrev { .b8 1 .b8 17 $L__x: .b32 .debug_abbrev }",
    ".common .global .u32 shared_by_files;",
]


@pytest.mark.parametrize("text", DECLARATIONS)
def test_every_declaration_loads(text: str) -> None:
    assert (values(kernel("mov.u32 %r1, 3;", functions=text)) == 3).all()


def test_special_registers_that_hold_nothing_here() -> None:
    assert (values(kernel("mov.u32 %r1, %envreg3; mov.u32 %r2, %pm0;")) == 0).all()


def test_the_workspace_of_a_cooperative_launch() -> None:
    """`grid.sync` counts in the second word of the memory at %envreg1 (high) and %envreg2 (low)."""
    count = """mov.u32 %r2, %envreg2; mov.u32 %r3, %envreg1; mov.b64 %d2, {%r2, %r3};
      atom.add.release.gpu.u32 %r1, [%d2+4], 1;"""
    assert set(values(kernel(count)).tolist()) == set(range(32))


def test_the_examples_still_parse_without_errors() -> None:
    for path in sorted(Path("examples/ptx").glob("*.ptx")):
        assert all(e.refused is None for e in parse(path.read_text(), path.name).entries.values())
