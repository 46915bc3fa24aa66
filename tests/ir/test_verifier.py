"""Each rule of the verifiers, broken once."""

from __future__ import annotations

import pytest

from tilemma.ir import types as ty
from tilemma.ir.lane_verifier import InvalidLaneIR, fits
from tilemma.ir.parser import parse_kernel, parse_lane
from tilemma.ir.verifier import InvalidIR, verify, verify_lane

TILE = """kernel f(global f16 a[M, K], global f32 c[M, M], n: s32, x: f32) {
  parallel (i: cdiv(M, 16)) : block {
    alloc shared f16 s[16, 16] copies 2
    alloc shared f16 t[16, 16]
    event e[2]
    event one
    fragment %mc
    fragment %many {copies = (2, 3)}
    var v: s32 = n + 1
    fill %mc, 0.0
    fill %many, 0.0
    for k: cdiv(K, 16) = 0 to cdiv(K, 16) step 1 {
      wait e[k % 2]
      wait e at (k)
      wait one
      copy.dma a[i * 16 +: 16, k * 16 +: 16] => s{k % 2} {asynchronous = true, future = f}
      wait_future (f)
      parallel (p: 1) : group-4 {
        mma.row.row %mc, s{k % 2}, t[0 +: 16, 0 +: 16]
        mma.row.row %many[0, 1], t, t
      }
      set v: s32 = v + k
      if v > 3 {
        break
      }
    }
    apply (r: 16, q: 16) in %mc {
      fragment_element %mc = %mc(r, q):f32 + x
    }
    parallel (p.1: 1) : group-4 {
      store %mc, c[i * 16 +: 16, 0 +: 16]
    }
    element c[i, 0] = c[i, 1] + 1.0
  }
}
"""


def test_a_good_kernel() -> None:
    verify(parse_kernel(TILE))


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("fragment %mc\n", "", "fragment `mc` is not declared"),
        (
            "alloc shared f16 t[16, 16]\n",
            "alloc shared f16 t[16, 16]\n    alloc shared f16 t[16, 16]\n",
            "declared twice",
        ),
        ("parallel (p: 1)", "parallel (k: 1)", "`k` is declared twice"),
        ("element c[i, 0]", "element c[i +: 1, 0]", "axes left"),
        ("c[i, 1] + 1.0", "c[i, 1 +: 2] + 1.0", "axes left"),
        ("=> s{k % 2}", "=> s", "without a slot"),
        ("=> s{k % 2}", "=> t{k % 2}", "with a slot"),
        ("=> s{k % 2}", "=> s{2}", "slot 2 of 2"),
        ("t[0 +: 16, 0 +: 16]", "t[0 +: 16, 1 +: 16]", "elements 1 to 16 of dimension 1 of `t`"),
        ("t[0 +: 16, 0 +: 16]", "t[0 +: 16]", "1 offset into 2 dimensions"),
        ("k * 16 +: 16]", "x +: 16]", "a part of a view is f32"),
        ("if v > 3", "if x", "a condition of f32"),
        ("to cdiv(K, 16) step", "to x step", "a stop of f32"),
        ("%many[0, 1]", "%many[0]", "1 subscripts of `%many`"),
        ("%many[0, 1]", "%many[0, x]", "a subscript is f32"),
        ("wait e[k % 2]", "wait e[x]", "a slot of an event is f32"),
        ("wait e at (k)", "wait e at (x)", "a slot of an event is f32"),
        ("= 0 to cdiv", "= x to cdiv", "a start of f32"),
        ("step 1", "step x", "a step of f32"),
        ("parallel (p: 1)", "parallel (p: x)", "an extent is f32"),
        ("for k: cdiv(K, 16)", "for k: x", "an extent is f32"),
        ("(r: 16, q: 16)", "(r: 16, q: x)", "an extent is f32"),
        ("store %mc,", "store %many,", "0 subscripts of `%many`"),
        ("wait one", "wait one[0]", "with 1 subscripts"),
        ("wait e at (k)", "wait e", "with 0 subscripts"),
        ("wait_future (f)", "wait_future (g)", "`g` is no future"),
        ("parallel (p: 1) : group-4", "parallel (p: 1) : block", "`block` inside `block`"),
        ("set v: s32", "set n: s32", "scalar `n` is not what was declared"),
        ("n + 1", "n & x", "`and` on s32 and f32"),
        ("n + 1", "s32(not(x))", "`not` on f32"),
        ("n + 1", "s32(%mc(0, 0):f32)", "outside `apply`"),
        (
            "    apply (r: 16, q: 16) in %mc {\n",
            "    fragment_element %mc = 0.0\n    apply (r: 16, q: 16) in %mc {\n",
            "an element of a fragment is set outside `apply`",
        ),
        ("n + 1", "n + dim(Q)", "dimension `Q` is in no parameter"),
        ("global f32 c[", "global f16 c[", None),
        ("        break\n      }\n    }\n", "      }\n    }\n    break\n", "no loop around it"),
        ("copy.dma a[i * 16 +: 16, k * 16 +: 16] =>", "copy.dma c[i * 16 +: 16, 0 +: 16] =>", "from f32 to f16"),
        (
            "{asynchronous = true, future = f}",
            "{asynchronous = true, future = f, transpose = (0, 0)}",
            "axes (0, 0)",
        ),
        (
            "{asynchronous = true, future = f}",
            "{asynchronous = true, future = f, after = (h)}",
            "`h` is no future",
        ),
    ],
)
def test_broken_kernels(old: str, new: str, what: str | None) -> None:
    assert old in TILE
    kernel = parse_kernel(TILE.replace(old, new, 1))
    if what is None:
        verify(kernel)
        return
    with pytest.raises(InvalidIR) as caught:
        verify(kernel)
    assert what in str(caught.value)
    assert caught.value.span is not None


LEVELS = (ty.CLUSTER, ty.BLOCK, ty.Level("group", 8), ty.WARPGROUP, ty.Level("group", 2), ty.GROUP, ty.THREAD)


def test_levels_go_inwards() -> None:
    """A level stands only inside outer ones, and `thread` also inside `thread`."""
    for a, outer in enumerate(LEVELS):
        for b, inner in enumerate(LEVELS):
            inside = f"    parallel (j: 1) : {inner} {{\n    }}\n"
            text = f"kernel f() {{\n  parallel (i: 1) : {outer} {{\n{inside}  }}\n}}\n"
            if a < b or outer == inner == ty.THREAD:
                verify(parse_kernel(text))
            else:
                with pytest.raises(InvalidIR, match=f"`{inner}` inside `{outer}`"):
                    verify(parse_kernel(text))


def test_names_go_out_of_scope() -> None:
    text = """kernel f(global f16 a[M]) {
  parallel (i: 1) : block {
    for k: 2 = 0 to 2 step 1 {
      var v: s32 = 0
    }
    element a[v] = f16(1.0)
  }
}
"""
    with pytest.raises(InvalidIR, match="scalar `v` is not declared"):
        verify(parse_kernel(text))


def test_statements_need_a_level() -> None:
    with pytest.raises(InvalidIR, match="no level around it"):
        verify(parse_kernel("kernel f() {\n  fragment %mc\n  fill %mc, 0.0\n}\n"))


LANE = """lane f(a: u64, n: s32) {arch = sm_80, threads = 32, shared = 64,
  locals = (LaneLocal(name = mine, bytes = 16))} {
  ld.param.u64 (%p:u64) <- ([@@a + 0])
  ld.param.s32 (%n:s32) <- ([@@n + 0])
  mov.u32 (%t:u32) <- (@tid.x)
  mul.wide.s32 (%o:s64) <- (%t, 4)
  add.s64 (%q:u64) <- (%p, %o)
  setp.lt.s32 (%c:pred) <- (%t, %n)
  mov.f32 (%x:f32) <- (0.0:f32)
  ld.global.f32 (%x) <- ([%q + 0]) {guard = %c}
  if %c {
    add.f32 (%x) <- (%x, 1.0:f32)
    mov.b32 (%then:b32) <- (1)
  } else {
    mov.b32 (%then) <- (2)
  }
  for %k:s32 = 0 to %n step 1 {
    add.s32 (%t2:s32) <- (%k, %then)
    break
  }
  cvt.rn.f16.f32 (%h:b16) <- (%x)
  mov.b32 (%two:b32) <- ({%h, %h})
  st.shared.b16 () <- ([@@shared + 2], %h)
  st.local.b32 () <- ([@@mine + 0], %two)
  shl.b64 (%w:b64) <- (%o, 2)
  selp.f32 (%y:f32) <- (%x, 0.0:f32, %c)
  atom SM80_16x8x16_F32F16F16F32_TN (%x, %x, %x, %x) <- (%two, %two, %two, %two), (%two, %two), (%x, %x, %x, %x)
  copy SM75_U32x2_LDSM_N [@@shared + 0] {registers = (%r0:b32, %r1:b32)}
  printf "%d" (%r0)
}
"""


def test_a_good_lane_kernel() -> None:
    verify_lane(parse_lane(LANE))


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("  mov.f32 (%x:f32) <- (0.0:f32)\n", "", None),
        ("  mov.b32 (%then:b32) <- (1)\n", "", "%then is read before it is written"),
        ("add.s32 (%t2:s32) <- (%k, %then)\n", "add.s32 (%t2:s32) <- (%t2, %then)\n", "%t2 is read before"),
        ('printf "%d" (%r0)', 'printf "%d" (%k)', "%k is read before"),
        ("add.f32 (%x) <- (%x, 1.0:f32)", "add.f32 (%x) <- (%x, %n)", "%n is s32 where `add.f32` takes f32"),
        ("add.s64 (%q:u64) <- (%p, %o)", "add.s64 (%q:u64) <- (%p, %t)", "%t is u32"),
        ("mul.wide.s32 (%o:s64)", "mul.wide.s32 (%o:s32)", "%o is s32 where"),
        ("setp.lt.s32 (%c:pred)", "setp.lt.s32 (%c:s32)", "%c is s32 where"),
        ("cvt.rn.f16.f32 (%h:b16) <- (%x)", "cvt.rn.f16.f32 (%h:b16) <- (%o)", "%o is s64"),
        ("mov.b32 (%two:b32) <- ({%h, %h})", "mov.b32 (%two:b32) <- ({%t, %h})", "%t is u32"),
        ("st.shared.b16 () <- ([@@shared + 2], %h)", "st.shared.b64 () <- ([@@shared + 2], %h)", "%h is b16"),
        ("@@mine", "@@yours", "symbol `yours` is unknown"),
        ("if %c {", "if %n {", "%n is s32"),
        ("{guard = %c}", "{guard = %n}", "%n is s32"),
        ("shl.b64 (%w:b64) <- (%o, 2)", "shl.b64 (%w:b64) <- (%o, %o)", "%o is s64 where `shl.b64` takes b32"),
        ("(%x, 0.0:f32, %c)", "(%x, 0.0:f32, %n)", "%n is s32"),
        ("F32_TN (%x, %x, %x, %x)", "F32_TN (%x, %x, %x)", "operand D has 3 registers"),
        ("(%two, %two, %two, %two), (%two", "(%two, %two, %two, %o), (%two", "%o is s64"),
        ("SM80_16x8x16_F32F16F16F32_TN", "SM80_nonsense", "no multiplying instruction"),
        ("SM75_U32x2_LDSM_N", "SM80_16x8x16_F32F16F16F32_TN", "no copying instruction"),
        ("    break\n  }\n", "  }\n  break\n", "no loop around it"),
        ("ld.global.f32 (%x)", "ld.global.f32 (%x:f64)", "%x is f32 elsewhere and f64 here"),
    ],
)
def test_broken_lane_kernels(old: str, new: str, what: str | None) -> None:
    assert old in LANE
    text = LANE.replace(old, new, 1)
    if what is None:
        text, what = text.replace("(%x) <- ([%q", "(%x:f32) <- ([%q").replace("{guard = %c}", ""), ""
        verify_lane(parse_lane(text))
        return
    if "%then:b32" in old:
        text = text.replace("mov.b32 (%then) <- (2)", "mov.b32 (%then:b32) <- (2)")
    with pytest.raises(InvalidLaneIR) as caught:
        verify_lane(parse_lane(text))
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("register", "instruction", "expected"),
    [
        ("s32", "u32", True),
        ("b32", "f32", True),
        ("f32", "b32", True),
        ("f32", "s32", False),
        ("f32", "f64", False),
        ("pred", "b32", False),
        ("b32", "f16x2", True),
        ("b16", "f16", True),
    ],
)
def test_operand_types(register: str, instruction: str, expected: bool) -> None:
    assert fits(register, instruction) is expected
