"""Lane IR as PTX: directives, operands, structured control, source positions."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tilemma.assemble import NoPtxas, assemble, find_tool
from tilemma.errors import Span
from tilemma.ir.lane import (
    AtomInstr,
    Comment,
    CopyInstr,
    Imm,
    Instr,
    LaneBreak,
    LaneContinue,
    LaneExit,
    LaneFor,
    LaneIf,
    LaneKernel,
    LaneLocal,
    LaneParam,
    LanePrint,
    LaneWhile,
    Mem,
    Reg,
    Special,
    Vec,
)
from tilemma.launch import ArrayParam, Launch, PointerArgument
from tilemma.machine import run
from tilemma.targets.ptx import print_kernel, print_module, ptx_version
from tilemma.targets.ptx.printer import immediate, operand

A, B, P, Q = Reg("a", "s32"), Reg("b", "s32"), Reg("p", "pred"), Reg("q", "pred")


def kernel(*body, **fields) -> LaneKernel:
    return LaneKernel(
        **{"name": "k", "arch": "sm_80", "params": (), "threads": 32, "shared": 0, "body": body, **fields}
    )


def code(*body, **fields) -> list[str]:
    """The instructions and labels, without directives."""
    text = print_kernel(kernel(*body, **fields))
    inside = text[text.index("{") + 1 : text.rindex("}")]
    lines = (line.strip() for line in inside.split("\n"))
    return [line for line in lines if line and not line.startswith((".reg", ".local"))]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (Imm(1.0, "f32"), "0f3F800000"),
        (Imm(float("-inf"), "f64"), "0dFFF0000000000000"),
        (Imm(-1, "b32"), "-1"),
        (Imm(0x70000, "b32"), "0x70000"),
        (Imm(1023, "b32"), "1023"),
        (Imm(1024, "b32"), "0x400"),
        (Imm(-15, "b64"), "-15"),
        (Imm(-16, "b64"), "0xFFFFFFFFFFFFFFF0"),
        (Imm(-16, "b32"), "0xFFFFFFF0"),
        (Imm(2**40, "u64"), "0x10000000000"),
        (Imm(1024, "s64"), "1024"),
        (Imm(-4096), "-4096"),
        (Special("shared"), "shared"),
        (Mem(A, 0), "[%a]"),
        (Mem(Special("shared"), 16), "[shared+16]"),
        (Mem(A, -16), "[%a+-16]"),
        (Vec((A, Imm(0))), "{%a, 0}"),
    ],
)
def test_operands(given: object, text: str) -> None:
    assert operand(given) == text


def test_not_a_number_keeps_its_bits() -> None:
    assert immediate(Imm(float("nan"), "f32")) == "0f7FC00000"


def test_instruction_with_a_guard() -> None:
    op = Instr("st.shared.b32", (), (Mem(A, 4), B), guard=P, negate=True)
    assert code(op) == ["@!%p st.shared.b32 [%a+4], %b;", "ret;"]


def test_the_option_of_ptxas_is_the_first_line_if_all_entries_agree() -> None:
    fast, other = kernel(name="a", option="-Ofc=min"), kernel(name="b")
    assert print_kernel(fast).split("\n")[:2] == ["// ptxas -Ofc=min", ".version 7.0"]
    assert print_module([fast, fast]).startswith("// ptxas -Ofc=min\n")
    assert print_module([fast, other]).startswith(".version 7.0\n") and "ptxas" not in print_kernel(other)


def test_directives() -> None:
    text = print_kernel(
        kernel(
            params=(LaneParam("x", "u64"), LaneParam("t", "tensormap")),
            threads=384,
            shared=1024,
            min_blocks=1,
            max_registers=168,
            cluster=(2, 1, 1),
            arch="sm_90a",
            locals=(LaneLocal("mine", 64),),
        )
    )
    for line in (
        ".version 8.0",
        ".target sm_90a",
        ".extern .shared .align 1024 .b8 shared[];",
        ".visible .entry k(",
        ".param .u64 x,",
        ".param .align 128 .b8 t[128]",
        ".maxntid 384, 1, 1",
        ".minnctapersm 1",
        ".maxnreg 168",
        ".reqnctapercluster 2, 1, 1",
        ".explicitcluster",
        ".local .align 16 .b8 mine[64];",
    ):
        assert line in (x.strip() for x in text.split("\n"))


@pytest.mark.parametrize(
    ("op", "arch", "version"),
    [
        (Comment("nothing"), "sm_80", (7, 0)),
        (Comment("nothing"), "sm_86", (7, 1)),
        (Comment("nothing"), "sm_89", (7, 8)),
        (Instr("fence.proxy.async.shared::cta"), "sm_90", (8, 0)),
        (
            Instr("cvt.rn.satfinite.e4m3x2.f32", (Reg("h", "b16"),), (Reg("f", "f32"), Reg("f", "f32"))),
            "sm_89",
            (8, 1),
        ),
        (CopyInstr("SM90_U32x4_STSM_N", Mem(A), (A, B, A, B)), "sm_90", (7, 8)),
    ],
)
def test_the_lowest_version_that_has_everything(op: Instr, arch: str, version: tuple[int, int]) -> None:
    assert ptx_version(kernel(op, arch=arch)) == version
    nested = kernel(LaneIf(P, (LaneFor(A, Imm(0), B, Imm(1), (op,)),)), arch=arch)
    assert ptx_version(nested) == version


def test_loops_test_once_before_and_then_at_the_end() -> None:
    lines = code(LaneFor(A, Imm(0), B, Imm(2), (Instr("bar.sync", (), (Imm(0),)),), unroll=1))
    top, done = (next(x for x in lines if x.startswith(f"$k_{n}")).rstrip(":") for n in ("loop", "done"))
    test = re.search(r"setp.ge.s32 (%\S+), %a, %b;", "\n".join(lines))
    assert test is not None
    p = test[1]
    assert lines == [
        "mov.b32 %a, 0;",
        f"setp.ge.s32 {p}, %a, %b;",
        f"@{p} bra {done};",
        f"{top}:",
        '.pragma "nounroll";',
        "bar.sync 0;",
        "add.s32 %a, %a, 2;",
        f"setp.lt.s32 {p}, %a, %b;",
        f"@{p} bra {top};",
        f"{done}:",
        "ret;",
    ]


def test_a_loop_of_known_length_is_entered_without_a_test() -> None:
    lines = code(LaneFor(A, Imm(0), Imm(4), Imm(1), (Instr("bar.sync", (), (Imm(0),)),)))
    assert sum(x.startswith("setp") for x in lines) == 1
    assert '.pragma "nounroll";' not in lines


def test_short_branches_become_guards() -> None:
    assert code(LaneIf(P, (Instr("mov.b32", (A,), (Imm(1),)), LaneExit()))) == [
        "@%p mov.b32 %a, 1;", "@%p exit;", "ret;",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        (Instr("mov.pred", (P,), (Q,)), Instr("mov.b32", (A,), (Imm(1),))),
        (Instr("mov.b32", (A,), (B,), guard=Q),),
        (Instr("shfl.sync.idx.b32", (A,), (A, Imm(0), Imm(31), Imm(-1))),),
        (LaneIf(Q, (LaneExit(),)),),
        tuple(Instr("mov.b32", (A,), (Imm(i),)) for i in range(9)),
    ],
    ids=["own predicate", "guarded", "collective", "nested", "long"],
)
def test_other_branches_jump(body) -> None:
    lines = code(LaneIf(P, body))
    assert lines[0].startswith("@!%p bra $k_endif")


def execute(*body, n: int = 32) -> np.ndarray:
    """Run ``body`` with %out at this lane's element of x, an array of s32."""
    lane, out, wide = Reg("lane", "s32"), Reg("out", "u64"), Reg("base", "u64")
    head = (
        Instr("mov.u32", (lane,), (Special("%tid.x"),)),
        Instr("ld.param.u64", (wide,), (Mem(Special("x")),)),
        Instr("cvta.to.global.u64", (wide,), (wide,)),
        Instr("mad.wide.s32", (out,), (lane, Imm(4), wide)),
    )
    ptx = print_kernel(kernel(*head, *body, params=(LaneParam("x", "u64"),)))
    x = np.zeros(n, np.int32)
    plan = Launch(
        "k", "sm_80", (ArrayParam("x", "s32", (n,), True),), (), (PointerArgument("x"),), (1, 1, 1), (32, 1, 1)
    )
    assert run(ptx, plan, {"x": x}).ok
    return x


LANE, OUT = Reg("lane", "s32"), Reg("out", "u64")


def put(value) -> Instr:
    return Instr("st.global.b32", (), (Mem(OUT), value))


def test_for_break_and_continue_run_as_written() -> None:
    """Each lane sums 0, 1, 2, ... below its number, without 3, and stops at 9."""
    total, i = Reg("total", "s32"), Reg("i", "s32")
    is_3, is_9 = Reg("is_3", "pred"), Reg("is_9", "pred")
    loop = LaneFor(
        i,
        Imm(0),
        LANE,
        Imm(1),
        (
            Instr("setp.eq.s32", (is_3,), (i, Imm(3))),
            LaneIf(is_3, (LaneContinue(),)),
            Instr("setp.eq.s32", (is_9,), (i, Imm(9))),
            LaneIf(is_9, (LaneBreak(),)),
            Instr("add.s32", (total,), (total, i)),
        ),
    )
    x = execute(Instr("mov.b32", (total,), (Imm(0),)), loop, put(total))
    assert x.tolist() == [sum(i for i in range(min(lane, 9)) if i != 3) for lane in range(32)]


def test_while_and_both_sides_of_a_branch_run_as_written() -> None:
    n, more, odd = Reg("n", "s32"), Reg("more", "pred"), Reg("odd", "pred")
    bit = Reg("bit", "s32")
    loop = LaneWhile((Instr("setp.lt.s32", (more,), (n, Imm(20))),), more, (Instr("add.s32", (n,), (n, Imm(7))),))
    test = (Instr("and.b32", (bit,), (LANE, Imm(1))), Instr("setp.ne.s32", (odd,), (bit, Imm(0))))
    far = tuple(Instr("add.s32", (n,), (n, Imm(100))) for _ in range(5))
    near = (Instr("neg.s32", (n,), (n,)),)
    x = execute(Instr("mov.b32", (n,), (LANE,)), loop, *test, LaneIf(odd, far, near), put(n))
    expected = []
    for lane in range(32):
        n_ = lane
        while n_ < 20:
            n_ += 7
        expected.append(n_ + 500 if lane % 2 else -n_)
    assert x.tolist() == expected


def test_positions_follow_the_source() -> None:
    here, there = Span("a.co", 3, 5, 3, 9), Span('dir "x"/b.py', 7, 1, 7, 2)
    text = print_kernel(
        kernel(
            Instr("bar.sync", (), (Imm(0),), span=here),
            Instr("bar.sync", (), (Imm(0),), span=here),
            Instr("bar.sync", (), (Imm(0),), span=there),
        )
    )
    assert '.file 1 "a.co"' in text and '.file 2 "dir \\"x\\"/b.py"' in text
    assert re.findall(r"\.loc \d+ \d+ \d+", text) == [".loc 1 3 5", ".loc 2 7 1"]


def test_several_kernels_share_a_module() -> None:
    say = LanePrint("%d\n", (A,))
    text = print_module((kernel(say), kernel(say, name="other")))
    assert text.count(".version") == 1 and text.count(".entry") == 2
    assert text.count(".extern .func") == 1 and text.count(".global .align 1 .b8") == 1


def test_everything_assembles() -> None:
    try:
        find_tool("ptxas")
    except NoPtxas:
        pytest.skip("no ptxas")
    x, i = Reg("x", "f64"), Reg("i", "s32")
    body = (
        Instr("mov.b32", (A,), (Imm(1),)),
        Instr("setp.eq.s32", (P,), (A, Imm(1))),
        Instr("mov.f64", (x,), (Imm(0.5, "f64"),)),
        LanePrint("%d %g %d\n", (A, x, A)),
        LanePrint("only text"),
        LaneFor(i, Imm(0), A, Imm(1), (LaneIf(P, (LaneBreak(),), (LaneContinue(),)), LanePrint("%d", (i,)))),
        LaneIf(P, (Instr("trap"),)),
    )
    where = Span("f.co", 1, 1, 1, 2)
    cubin = assemble(print_kernel(kernel(*(replace(op, span=where) for op in body))), "sm_80")
    assert cubin.problems == ()


def test_records_print_themselves() -> None:
    f = tuple(Reg(f"f{i}", "f32") for i in range(4))
    h = tuple(Reg(f"h{i}", "b32") for i in range(6))
    lines = code(AtomInstr("SM80_16x8x16_F32F16F16F32_TN", f, h[:4], h[4:], f))
    assert lines[0] == (
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%h0, %h1, %h2, %h3}, "
        "{%h4, %h5}, {%f0, %f1, %f2, %f3};"
    )
    copy = CopyInstr(
        "SM80_CP_ASYNC_CACHEGLOBAL_16B", Mem(A, 16), source=Mem(Reg("g", "u64")), source_size=B, guard=P
    )
    assert code(copy)[0] == "@%p cp.async.cg.shared.global [%a+16], [%g], 16, %b;"
