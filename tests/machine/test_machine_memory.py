"""Arrays in the machine: strides, holes, alignment, every access width, atomics, local and constant memory."""

# ruff: noqa: E501
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import execute
from kernels import header

from tilemma import machine

pytestmark = pytest.mark.usefixtures("engine")

COPY = """.visible .entry copy(.param .u64 x, .param .u64 y, .param .u32 sx, .param .u32 sy)
{
  .reg .b32 %r<4>; .reg .b64 %d<4>;
  mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x;
  ld.param.u64 %d0, [x]; ld.param.u64 %d1, [y]; ld.param.u32 %r2, [sx]; ld.param.u32 %r3, [sy];
  mul.wide.u32 %d2, %r1, %r2; add.s64 %d0, %d0, %d2; mul.wide.u32 %d2, %r1, %r3; add.s64 %d1, %d1, %d2;
  mul.wide.u32 %d2, %r0, 4; add.s64 %d0, %d0, %d2; add.s64 %d1, %d1, %d2;
  ld.global.b32 %r2, [%d0]; st.global.b32 [%d1], %r2;
  ret;
}
"""


def copy(x: Any, y: Any) -> machine.Report:
    args = {"x": x, "y": y, "sx": x.strides[0], "sy": y.strides[0]}
    return machine.run(header("7.0", "sm_80") + COPY, {"grid": x.shape[0], "block": x.shape[1]}, args)


def test_strided_arrays_keep_their_strides() -> None:
    x = np.arange(8 * 64, dtype=np.uint32).reshape(8, 64)[:, :32]
    y = np.zeros((8, 48), np.uint32)
    assert copy(x, y[:, 5:37]).ok
    assert (y[:, 5:37] == x).all()
    assert (y[:, :5] == 0).all() and (y[:, 37:] == 0).all()


def test_writing_between_the_rows_is_out_of_bounds() -> None:
    x = np.zeros((4, 40), np.uint32)
    y = np.zeros((4, 64), np.uint32)[:, :32]
    with pytest.raises(machine.HazardError) as caught:
        copy(x, y)
    assert caught.value.code == "out-of-bounds"
    assert "no element" in caught.value.message


def test_two_arrays_that_are_one() -> None:
    x = np.arange(64, dtype=np.uint32).reshape(2, 32)
    assert copy(x, x).ok
    assert (x == np.arange(64).reshape(2, 32)).all()


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("space", ["shared", "local"])
def test_widths(width: int, space: str) -> None:
    """Store and load back each width, in its own place for each lane."""
    bits = 8 * width
    register = {1: "%h0", 2: "%h0", 4: "%t4", 8: "%d0"}[width]
    back = {1: "%h1", 2: "%h1", 4: "%t5", 8: "%d1"}[width]
    offset = f"mul.lo.u32 %t1, %lane, {width};" if space == "shared" else "mov.u32 %t1, 0;"
    base = "mov.u32 %t0, s; add.u32 %t1, %t1, %t0;" if space == "shared" else ""
    code = f"""{{ .{space} .align 8 .b8 s[256]; {base if space == "local" else ""} {offset} {base if space == "shared" else ""}
    cvt.u64.u32 %d0, %i0; cvt.u16.u32 %h0, %i0; mov.u32 %t4, %i0;
    st.{space}.b{bits} [%t1], {register}; ld.{space}.b{bits} {back}, [%t1];
    mov.u32 %o0, 0; {"cvt.u32.u16 %o0, %h1;" if width <= 2 else "mov.u32 %o0, %t5;" if width == 4 else "cvt.u32.u64 %o0, %d1;"} }}"""
    values = np.arange(32, dtype=np.uint32) * 0x01010101
    (out,) = execute(code, ["b32"], {"b32/x": values})
    assert out.tolist() == [int(v) & ((1 << min(bits, 32)) - 1) for v in values]


def test_signed_bytes_are_extended() -> None:
    code = """{ .shared .align 4 .b8 s[128]; mov.u32 %t0, s; shl.b32 %t1, %lane, 2; add.u32 %t0, %t0, %t1;
    st.shared.b32 [%t0], %i0; ld.shared.s8 %o0, [%t0]; ld.shared.u8 %o1, [%t0]; ld.shared.s16 %o2, [%t0]; }"""
    signed, unsigned, halves = execute(code, ["b32"] * 3, {"b32/x": np.full(32, 0x1234FFFE, np.uint32)})
    assert set(signed.tolist()) == {0xFFFFFFFE}
    assert set(unsigned.tolist()) == {0xFE}
    assert set(halves.tolist()) == {0xFFFFFFFE}


ATOMICS = {
    "add.u32": (lambda x: sum(x), 0),
    "max.s32": (max, 0),
    "min.u32": (min, 1000),
    "or.b32": (lambda x: int(np.bitwise_or.reduce(x)), 0),
    "xor.b32": (lambda x: int(np.bitwise_xor.reduce(x)), 0),
}


@pytest.mark.parametrize("op", ATOMICS)
@pytest.mark.parametrize("form", ["atom", "red"])
def test_atomics_from_all_threads(op: str, form: str) -> None:
    combine, start = ATOMICS[op]
    to = "%r1, " if form == "atom" else ""
    ptx = (
        header("7.0", "sm_80")
        + f""".visible .entry k(.param .u64 x) {{ .reg .b32 %r<4>; .reg .b64 %d; mov.u32 %r0, %tid.x; mov.u32 %r2, %ctaid.x;
  mad.lo.u32 %r0, %r2, 64, %r0; add.u32 %r0, %r0, 3; ld.param.u64 %d, [x]; {form}.global.{op} {to}[%d], %r0; ret; }}"""
    )
    x = np.full(1, start, np.uint32)
    assert machine.check(ptx, {"grid": 3, "block": 64}, {"x": x}, schedules=4).ok
    assert x[0] == combine([start, *range(3, 3 + 192)])


def test_atomic_old_values_are_a_permutation() -> None:
    ptx = (
        header("7.0", "sm_80")
        + """.visible .entry k(.param .u64 x, .param .u64 y) { .reg .b32 %r<4>; .reg .b64 %d<3>; mov.u32 %r0, %tid.x;
  ld.param.u64 %d0, [x]; ld.param.u64 %d1, [y]; atom.global.add.u32 %r1, [%d0], 1; mad.wide.u32 %d1, %r0, 4, %d1;
  st.global.b32 [%d1], %r1; ret; }"""
    )
    y = np.zeros(96, np.uint32)
    machine.run(ptx, {"grid": 1, "block": 96}, {"x": np.zeros(1, np.uint32), "y": y})
    assert sorted(y.tolist()) == list(range(96))


def test_constant_memory() -> None:
    ptx = (
        header("7.0", "sm_80")
        + """.const .align 4 .u32 table[4] = {10, 20, 30, 40};
.visible .entry k(.param .u64 y) { .reg .b32 %r<4>; .reg .b64 %d<4>; mov.u32 %r0, %tid.x; ld.param.u64 %d0, [y];
  and.b32 %r1, %r0, 3; mov.u64 %d1, table; mad.wide.u32 %d1, %r1, 4, %d1; ld.const.u32 %r2, [%d1];
  mad.wide.u32 %d0, %r0, 4, %d0; st.global.b32 [%d0], %r2; ret; }"""
    )
    y = np.zeros(32, np.uint32)
    machine.run(ptx, {"grid": 1, "block": 32}, {"y": y})
    assert y.tolist() == [10, 20, 30, 40] * 8


def test_performance_notes() -> None:
    ptx = (
        header("7.0", "sm_80")
        + """.visible .entry k(.param .u64 x) { .reg .b32 %r<4>; .reg .b64 %d; .shared .align 4 .b8 s[8192];
  mov.u32 %r0, %tid.x; mov.u32 %r1, s; mad.lo.u32 %r1, %r0, 128, %r1; st.shared.b32 [%r1], %r0;
  ld.param.u64 %d, [x]; mad.wide.u32 %d, %r0, 64, %d; st.global.b32 [%d], %r0; ret; }"""
    )
    report = machine.run(ptx, {"grid": 1, "block": 64}, {"x": np.zeros(1024, np.uint32)})
    conflict, scattered = report.notes
    assert (conflict.kind, conflict.count, conflict.executions) == ("bank-conflict", 62, 2)
    # 32 lanes of 4 bytes fill 4 sectors; 32 are touched.
    assert (scattered.kind, scattered.count, scattered.executions) == ("uncoalesced", 56, 2)


def test_printf(capsys: pytest.CaptureFixture[str]) -> None:
    text = b"lane %d: %5.2f and %llu, 100%%\n\0"
    ptx = (
        header("7.0", "sm_80")
        + f""".extern .func (.param .b32 status) vprintf (.param .b64 format, .param .b64 arguments);
.global .align 1 .b8 text[{len(text)}] = {{{", ".join(map(str, text))}}};
.visible .entry k(.param .u64 y) {{ .reg .b32 %r<4>; .reg .b64 %d<4>; .reg .pred %p; .reg .f64 %f; .local .align 8 .b8 block[24];
  mov.u32 %r0, %tid.x; setp.gt.u32 %p, %r0, 1; @%p exit;
  st.local.b32 [block], %r0; cvt.rn.f64.u32 %f, %r0; st.local.f64 [block+8], %f; mov.u64 %d1, 12345678901; st.local.b64 [block+16], %d1;
  mov.u64 %d2, text; cvta.global.u64 %d2, %d2; mov.u64 %d3, block; cvta.local.u64 %d3, %d3;
  {{ .param .b64 format; .param .b64 arguments; .param .b32 status;
  st.param.b64 [format], %d2; st.param.b64 [arguments], %d3; call.uni (status), vprintf, (format, arguments);
  ld.param.b32 %r1, [status]; }}
  ret; }}"""
    )
    report = machine.run(ptx, {"grid": 1, "block": 32}, {"y": np.zeros(1, np.uint32)})
    assert report.printed == "".join(f"lane {i}: {float(i):5.2f} and 12345678901, 100%\n" for i in range(2))
    assert capsys.readouterr().out == report.printed
