"""Instructions that other compilers and hand-written code use, against plain Python."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness import execute, ptx_for

from tilemma import machine

RANDOM = random.Random(7)
MASK = (1 << 32) - 1


def words(n: int = 32, bits: int = 32) -> Any:
    edges = [0, 1, (1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1, 0x55555555 & ((1 << bits) - 1)]
    values = [RANDOM.choice(edges) if RANDOM.random() < 0.3 else RANDOM.getrandbits(bits) for _ in range(n)]
    return np.array(values, np.uint64 if bits == 64 else np.uint32)


def both(high: Any, low: Any) -> list[int]:
    return [int(h) << 32 | int(x) for h, x in zip(high, low, strict=True)]


def test_add_with_carry_adds_64_bits() -> None:
    a, b, c, e = words(), words(), words(), words()
    low, high, carry = execute(
        "add.cc.u32 %o0, %i0, %i2; addc.cc.u32 %o1, %i1, %i3; addc.u32 %o2, 0, 0;", ["u32"] * 3,
        {"u32/a": a, "u32/b": b, "u32/c": c, "u32/d": e},
    )  # fmt: skip
    expected = [x + y for x, y in zip(both(b, a), both(e, c), strict=True)]
    assert both(high, low) == [x & ((1 << 64) - 1) for x in expected]
    assert carry.tolist() == [x >> 64 for x in expected]


def test_sub_with_borrow_subtracts_64_bits() -> None:
    a, b, c, e = words(), words(), words(), words()
    low, high, borrow = execute(
        "sub.cc.u32 %o0, %i0, %i2; subc.cc.u32 %o1, %i1, %i3; subc.u32 %o2, 0, 0;", ["u32"] * 3,
        {"u32/a": a, "u32/b": b, "u32/c": c, "u32/d": e},
    )  # fmt: skip
    expected = [x - y for x, y in zip(both(b, a), both(e, c), strict=True)]
    assert both(high, low) == [x & ((1 << 64) - 1) for x in expected]
    assert borrow.tolist() == [MASK if x < 0 else 0 for x in expected]


def test_the_flag_of_a_subtraction_is_set_where_nothing_is_borrowed() -> None:
    a, b = words(), words()
    kept, less = execute(
        "sub.cc.u32 %t0, %i0, %i1; addc.u32 %o0, 0, 0; add.cc.u32 %t0, %i0, %i1; subc.u32 %o1, %i0, %i1;",
        ["u32"] * 2, {"u32/a": a, "u32/b": b},
    )  # fmt: skip
    pairs = [(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    assert kept.tolist() == [int(x >= y) for x, y in pairs]
    assert less.tolist() == [(x - y - (x + y <= MASK)) & MASK for x, y in pairs]


def test_mad_with_carry_multiplies_64_by_32_bits() -> None:
    a, b, c = words(), words(), words()
    code = """mul.lo.u32 %o0, %i0, %i2; mul.hi.u32 %t0, %i0, %i2; mad.lo.cc.u32 %o1, %i1, %i2, %t0;
      madc.hi.u32 %o2, %i1, %i2, 0;"""
    low, middle, high = execute(code, ["u32"] * 3, {"u32/a": a, "u32/b": b, "u32/c": c})
    for i in range(32):
        assert int(high[i]) << 64 | int(middle[i]) << 32 | int(low[i]) == both(b, a)[i] * int(c[i])


def test_the_carry_flag_must_have_been_written() -> None:
    with pytest.raises(machine.HazardError, match=r"CC\.CF"):
        execute("addc.u32 %o0, %i0, 0;", ["u32"], {"u32/a": words()})


def signed(x: int, bits: int = 32) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


ONE: dict[str, tuple[str, Callable[[int, int, int], int]]] = {
    "prmt f4e": ("prmt.b32.f4e %o0, %i0, %i1, %i2;", lambda a, b, c: ((b << 32 | a) >> (8 * (c & 3))) & MASK),
    "prmt rc8": ("prmt.b32.rc8 %o0, %i0, %i1, %i2;", lambda a, b, c: (a >> 8 * (c & 3) & 0xFF) * 0x01010101),
    "prmt rc16": ("prmt.b32.rc16 %o0, %i0, %i1, %i2;", lambda a, b, c: (a >> 16 * (c & 1) & 0xFFFF) * 0x10001),
    "prmt b4e": ("prmt.b32.b4e %o0, %i0, %i1, %i2;", lambda a, b, c: _backwards(a, b, c)),
    "prmt ecl": ("prmt.b32.ecl %o0, %i0, %i1, %i2;", lambda a, b, c: _clamped(a, c, left=True)),
    "prmt ecr": ("prmt.b32.ecr %o0, %i0, %i1, %i2;", lambda a, b, c: _clamped(a, c, left=False)),
    "dp4a": (
        "dp4a.s32.u32 %o0, %i0, %i1, %i2;",
        lambda a, b, c: c + sum(signed(a >> s, 8) * (b >> s & 255) for s in (0, 8, 16, 24)),
    ),
    "dp2a lo": (
        "dp2a.lo.s32.u32 %o0, %i0, %i1, %i2;",
        lambda a, b, c: c + sum(signed(a >> 16 * i, 16) * (b >> 8 * i & 255) for i in (0, 1)),
    ),
    "dp2a hi": (
        "dp2a.hi.u32.u32 %o0, %i0, %i1, %i2;",
        lambda a, b, c: c + sum((a >> 16 * i & 0xFFFF) * (b >> 8 * i + 16 & 255) for i in (0, 1)),
    ),
    "szext s32": ("szext.wrap.s32 %o0, %i0, %i1;", lambda a, b, c: signed(a, b & 31) if b & 31 else 0),
    "szext u32": ("szext.clamp.u32 %o0, %i0, %i1;", lambda a, b, c: a & ((1 << min(b, 32)) - 1)),
    "lop3 or": (
        "setp.eq.u32 %q0, %i2, 0; lop3.or.b32 %t0|%q1, %i0, %i1, %i2, 0x80, %q0; selp.u32 %o0, 1, 0, %q1;",
        lambda a, b, c: int(a & b & c != 0 or c == 0),
    ),
    "vadd": (
        "vadd.u32.s32.s32.sat %o0, %i0, %i1;",
        lambda a, b, c: max(0, min(MASK, signed(a) + signed(b))),
    ),
    "vsub with parts": (
        "vsub.s32.u32.s32.add %o0, %i0.b2, %i1.h1, %i2;",
        lambda a, b, c: (a >> 16 & 255) - signed(b >> 16, 16) + c,
    ),
    "vabsdiff merged": (
        "vabsdiff.u32.u32.u32.sat %o0.b1, %i0.h0, %i1.h1, %i2;",
        lambda a, b, c: c & ~0xFF00 | min(255, abs((a & 0xFFFF) - (b >> 16))) << 8,
    ),
    "vshl": ("vshl.u32.u32.u32.wrap %o0, %i0, %i1;", lambda a, b, c: a << (b & 31)),
    "vshr": ("vshr.s32.s32.u32.clamp %o0, %i0, %i1;", lambda a, b, c: signed(a) >> min(b, 32)),
    "vset": ("vset.s32.s32.lt %o0, %i0, %i1;", lambda a, b, c: int(signed(a) < signed(b))),
    "vmin": ("vmin.s32.s32.s32 %o0, %i0, %i1;", lambda a, b, c: min(signed(a), signed(b))),
    "vmax": ("vmax.u32.u32.u32.min %o0, %i0, %i1, %i2;", lambda a, b, c: min(max(a, b), c)),
    "vmad": (
        "vmad.s32.s32.s32.shr7 %o0, %i0.h0, %i1.b3, %i2;",
        lambda a, b, c: signed(a, 16) * signed(b >> 24, 8) + signed(c) >> 7,
    ),
    "vadd2": (
        "vadd2.s32.s32.s32.sat %o0, %i0, %i1, %i2;",
        lambda a, b, c: sum(
            (max(-32768, min(32767, signed(a >> s, 16) + signed(b >> s, 16))) & 0xFFFF) << s for s in (0, 16)
        ),
    ),
    "vsub4": (
        "vsub4.u32.u32.u32 %o0, %i0, %i1, %i2;",
        lambda a, b, c: sum(((a >> s) - (b >> s) & 255) << s for s in (0, 8, 16, 24)),
    ),
    "vabsdiff4 added": (
        "vabsdiff4.u32.u32.u32.add %o0, %i0, %i1, %i2;",
        lambda a, b, c: c + sum(abs((a >> s & 255) - (b >> s & 255)) for s in (0, 8, 16, 24)),
    ),
    "vavrg2": (
        "vavrg2.u32.u32.u32 %o0, %i0, %i1, %i2;",
        lambda a, b, c: sum(((a >> s & 0xFFFF) + (b >> s & 0xFFFF) + 1 >> 1) << s for s in (0, 16)),
    ),
    "vmin4": (
        "vmin4.u32.u32.u32 %o0, %i0, %i1, %i2;",
        lambda a, b, c: sum(min(a >> s & 255, b >> s & 255) << s for s in (0, 8, 16, 24)),
    ),
    "vmax2": (
        "vmax2.s32.s32.s32 %o0, %i0, %i1, %i2;",
        lambda a, b, c: sum((max(signed(a >> s, 16), signed(b >> s, 16)) & 0xFFFF) << s for s in (0, 16)),
    ),
    "vset4": (
        "vset4.u32.u32.ge %o0, %i0, %i1, %i2;",
        lambda a, b, c: sum(int((a >> s & 255) >= (b >> s & 255)) << s for s in (0, 8, 16, 24)),
    ),
    "vmad negated": (
        "vmad.s32.s32.s32 %o0, %i0.h0, -%i1.b3, %i2;",
        lambda a, b, c: signed(c) - signed(a, 16) * signed(b >> 24, 8),
    ),
    "vmad negated and selected": (
        "vmad.s32.s32.u32.sat %o0, %i0, %i1.b0, -%i2.h1;",
        lambda a, b, c: max(-(2**31), min(2**31 - 1, signed(a) * (b & 255) - signed(c >> 16, 16))),
    ),
    "add u16x2": ("add.u16x2 %o0, %i0, %i1;", lambda a, b, c: halves(a, b, lambda x, y: x + y)),
    "min u16x2": ("min.u16x2 %o0, %i0, %i1;", lambda a, b, c: halves(a, b, min)),
    "max s16x2 relu": (
        "max.relu.s16x2 %o0, %i0, %i1;",
        lambda a, b, c: halves(a, b, lambda x, y: max(signed(x, 16), signed(y, 16), 0)),
    ),
    "min s32 relu": ("min.relu.s32 %o0, %i0, %i1;", lambda a, b, c: max(0, min(signed(a), signed(b)))),
    "max s32 relu, as the headers of CUDA write it": (
        "max.s32.relu %o0, %i0, %i1;",
        lambda a, b, c: max(0, signed(a), signed(b)),
    ),
    "mad hi sat": (
        "mad.hi.sat.s32 %o0, %i0, %i1, %i2;",
        lambda a, b, c: max(-(2**31), min(2**31 - 1, (signed(a) * signed(b) >> 32) + signed(c))),
    ),
    "constant expressions": (
        "mov.u32 %t0, (3 + 4) * 2 - 0x10 / 3 << 2 | 1; add.u32 %t0, %t0, (1 ? 5 : 6) + !0 + ~(.s64)-8;"
        " add.u32 %o0, %i0, %t0;",
        lambda a, b, c: a + ((14 - 5 << 2) | 1) + 5 + 1 + 7,
    ),
    "vector registers": (
        "{ .reg .v4 .b32 %v; mov.v4.u32 %v, {%i0, %i1, %i2, 7}; add.u32 %v.x, %v.y, %v.w;"
        " sub.u32 %o0, %v.x, %v.z; }",
        lambda a, b, c: b + 7 - c,
    ),
    "cvt.pack s16": (
        "cvt.pack.sat.s16.s32 %o0, %i0, %i1;",
        lambda a, b, c: (
            (max(-32768, min(32767, signed(a))) & 0xFFFF) << 16 | max(-32768, min(32767, signed(b))) & 0xFFFF
        ),
    ),
    "cvt.pack u4": (
        "cvt.pack.sat.u4.s32.b32 %o0, %i0, %i1, %i2;",
        lambda a, b, c: c << 8 | max(0, min(15, signed(a))) << 4 | max(0, min(15, signed(b))),
    ),
}


def halves(a: int, b: int, f: Callable[[int, int], int]) -> int:
    """``f`` of the low and of the high halves of two words."""
    return sum((f(a >> at & 0xFFFF, b >> at & 0xFFFF) & 0xFFFF) << at for at in (0, 16))


def _backwards(a: int, b: int, c: int) -> int:
    data = [(b << 32 | a) >> 8 * i & 255 for i in range(8)]
    return sum(data[(c & 3) - i & 7] << 8 * i for i in range(4))


def _clamped(a: int, c: int, *, left: bool) -> int:
    pick = max if left else min
    return sum((a >> 8 * pick(i, c & 3) & 255) << 8 * i for i in range(4))


@pytest.mark.parametrize("name", ONE)
def test_one_instruction(name: str) -> None:
    code, f = ONE[name]
    for _ in range(4):
        a, b, c = words(), words(), words()
        (got,) = execute(code, ["u32"], {"u32/a": a, "u32/b": b, "u32/c": c})
        rows = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
        assert got.tolist() == [f(*row) & MASK for row in rows]


SIMD = {
    "vadd": lambda a, b: a + b, "vsub": lambda a, b: a - b, "vavrg": lambda a, b: a + b + int(a + b >= 0) >> 1,
    "vabsdiff": lambda a, b: abs(a - b), "vmin": min, "vmax": max,
}  # fmt: skip
HALVES = ["vadd2", "vsub2", "vavrg2", "vabsdiff2", "vmin2", "vmax2"]
BYTES = ["vadd4", "vsub4", "vavrg4", "vabsdiff4", "vmin4", "vmax4"]


@pytest.mark.parametrize("name", [*HALVES, *BYTES])
@pytest.mark.parametrize("sign", ["u32", "s32"])
def test_the_same_operation_on_halves_or_bytes(name: str, sign: str) -> None:
    count, f = int(name[-1]), SIMD[name[:-1]]
    bits = 32 // count
    a, b, c = words(), words(), words()
    code = f"{name}.{sign}.{sign}.{sign} %o0, %i0, %i1, %i2;"
    (got,) = execute(code, ["u32"], {"u32/a": a, "u32/b": b, "u32/c": c})
    for x, y, g in zip(a.tolist(), b.tolist(), got.tolist(), strict=True):
        for i in range(count):
            left, right = ((v >> bits * i & (1 << bits) - 1) for v in (x, y))
            if sign == "s32":
                left, right = signed(left, bits), signed(right, bits)
            assert g >> bits * i & (1 << bits) - 1 == f(left, right) & (1 << bits) - 1


def test_comparisons_of_halves_into_a_mask() -> None:
    a, b, c = words(), words(), words()
    (got,) = execute("vset2.u32.u32.lt %o0.h1, %i0, %i1, %i2;", ["u32"], {"u32/a": a, "u32/b": b, "u32/c": c})
    assert got.tolist() == [int(x >> 16 < y >> 16) << 16 | z & 0xFFFF for x, y, z in zip(a, b, c, strict=True)]


def test_pending_count_of_a_state() -> None:
    code = """.shared .align 8 .b64 bar; mov.u32 %t0, bar; setp.eq.u32 %q0, %lane, 0; mov.u64 %d0, 0;
      @%q0 mbarrier.init.shared.b64 [%t0], 40; bar.sync 0; @%q0 mbarrier.arrive.shared.b64 %d0, [%t0], 3;
      @%q0 mbarrier.arrive.shared.b64 %d0, [%t0]; mbarrier.pending_count.b64 %o0, %d0;"""
    (got,) = execute(code, ["u32"], {"u32/a": words()})
    assert got[0] == 37


def test_fns_finds_the_nth_set_bit() -> None:
    mask, base = words(), np.array([RANDOM.randrange(32) for _ in range(32)], np.uint32)
    offset = np.array([RANDOM.randrange(-4, 5) for _ in range(32)], np.int32)
    (got,) = execute("fns.b32 %o0, %i0, %i1, %i2;", ["u32"], {"u32/a": mask, "u32/b": base, "s32/c": offset})
    for m, at, n, g in zip(mask.tolist(), base.tolist(), offset.tolist(), got.tolist(), strict=True):
        up = [i for i in range(at, 32) if m >> i & 1]
        down = [i for i in range(at, -1, -1) if m >> i & 1]
        expected = ([at] if m >> at & 1 else []) if n == 0 else up[n - 1 : n] if n > 0 else down[-n - 1 : -n]
        assert g == (expected[0] if expected else MASK)


def test_comparisons_of_pairs() -> None:
    a, b = (np.array([RANDOM.uniform(-2, 2) for _ in range(64)], np.float16) for _ in range(2))
    code = """setp.lt.f16x2 %q0|%q1, %i0, %i1; selp.u32 %o0, 1, 0, %q0; selp.u32 %o1, 1, 0, %q1;
      set.ge.f16x2.f16x2 %o2, %i0, %i1; set.lt.u32.f32 %o3, 0f3F800000, 0f40000000; set.gt.f32.s32 %o4, 1, 2;
      vset.u32.u32.eq %t0, %t1, %t1;""".replace("vset.u32.u32.eq %t0, %t1, %t1;", "")
    first, second, ge, true, false = execute(
        code, ["u32"] * 5, {"f16x2/a": a.view(np.uint32), "f16x2/b": b.view(np.uint32)}
    )
    assert first.tolist() == (a < b)[::2].astype(int).tolist()
    assert second.tolist() == (a < b)[1::2].astype(int).tolist()
    assert (ge.view(np.float16) == (a >= b)).all()
    assert (true == MASK).all() and (false == 0).all()


def test_minimum_of_magnitudes_with_the_sign_of_the_product() -> None:
    a, b = (np.array([RANDOM.uniform(-2, 2) for _ in range(32)], np.float32) for _ in range(2))
    (got,) = execute("min.xorsign.abs.f32 %o0, %i0, %i1;", ["f32"], {"f32/a": a, "f32/b": b})
    expected = np.minimum(abs(a), abs(b)) * np.sign(a) * np.sign(b)
    assert (got.view(np.float32) == expected).all()


WMMA = [
    ("m16n16k16", "f16", "f32"), ("m32n8k16", "f16", "f32"), ("m8n32k16", "f16", "f16"),
    ("m16n16k16", "bf16", "f32"), ("m16n16k8", "tf32", "f32"), ("m8n8k4", "f64", "f64"),
    ("m16n16k16", "s8", "s32"), ("m32n8k16", "u8", "s32"),
    ("m8n8k32", "s4", "s32"), ("m8n8k128", "b1", "s32"),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "name", "out"), WMMA, ids=[f"{s}-{a}-{d}" for s, a, d in WMMA])
def test_wmma_multiplies(shape: str, name: str, out: str, assembles: Callable[[str, str], None]) -> None:
    from tilemma.dtypes import dtype
    from tilemma.machine.exec.wmma import _REGISTERS

    m, n, k = (int(x) for x in shape.replace("m", " ").replace("n", " ").replace("k", " ").split())
    bits = 32 if name == "tf32" else dtype(name).bits
    na, nb = _REGISTERS[name][shape]
    nd = m * n * dtype(out).bits // 1024 // (2 if out == "f64" else 1)
    kind, kind_out = ("b64" if name == "f64" else "b32"), ("b64" if out == "f64" else "b32")
    lists = [
        "{" + ", ".join(f"%{x}{i}" for i in range(count)) + "}"
        for x, count in (("a", na), ("b", nb), ("c", nd), ("d", nd))
    ]
    types = f"{out}.{out}" if name == "f16" else f"{out}.{name}.{name}.{out}"
    operation = ".xor.popc" if name == "b1" else ""
    rounding = ".rn" if name == "f64" else ""
    ptx = f""".version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d) {{
  .reg .b64 %p<5>; .reg .{kind} %a<{na}>, %b<{nb}>; .reg .{kind_out} %c<{nd}>, %d<{nd}>;
  ld.param.u64 %p1, [a]; ld.param.u64 %p2, [b]; ld.param.u64 %p3, [c]; ld.param.u64 %p4, [d];
  cvta.to.global.u64 %p1, %p1; cvta.to.global.u64 %p2, %p2;
  wmma.load.a.sync.aligned.row.{shape}.global.{name} {lists[0]}, [%p1], {k};
  wmma.load.b.sync.aligned.col.{shape}.global.{name} {lists[1]}, [%p2], {k};
  wmma.load.c.sync.aligned.row.{shape}.{out} {lists[2]}, [%p3], {n};
  wmma.mma{operation}.sync.aligned.row.col.{shape}{rounding}.{types} {", ".join(lists[i] for i in (3, 0, 1, 2))};
  wmma.store.d.sync.aligned.row.{shape}.{out} [%p4], {lists[3]}, {n};
  ret;
}}
"""
    assembles(ptx, "sm_90a")
    rng = np.random.default_rng(3)
    low, high = {"u8": (0, 9), "s4": (-8, 8), "b1": (0, 2)}.get(name, (-4, 5))
    left, right = rng.integers(low, high, (m, k)), rng.integers(low, high, (n, k))
    acc = rng.integers(-4, 5, (m, n)).astype(dtype(out).numpy)

    def stored(x: Any) -> Any:
        if bits >= 8:
            return np.ascontiguousarray(x.astype(dtype("f32" if name == "tf32" else name).numpy))
        per = 8 // bits
        fields = (x & ((1 << bits) - 1)).reshape(-1, per)
        return (fields << (bits * np.arange(per))).sum(1).astype(np.uint8)

    d = np.zeros((m, n), acc.dtype)
    machine.run(ptx, {"grid": 1, "block": 32}, {"a": stored(left), "b": stored(right), "c": acc, "d": d})
    product = (left[:, None, :] != right[None, :, :]).sum(-1) if name == "b1" else left @ right.T
    assert (d.astype(np.float64) == product + acc.astype(np.float64)).all()


CLUSTER = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) .explicitcluster .reqnctapercluster 2, 1, 1 {
  .reg .b64 %d<4>; .reg .b32 %r<12>; .reg .pred %p<4>;
  .shared .align 16 .b8 data[512]; .shared .align 8 .b8 bar[8];
  ld.param.u64 %d0, [out]; mov.u32 %r0, %tid.x; mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, data; mov.u32 %r3, bar;
  setp.eq.u32 %p0, %r0, 0; shl.b32 %r5, %r0, 2; add.u32 %r6, %r2, %r5;
  INIT
  @%p0 mbarrier.init.shared.b64 [%r3], 1; @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 128;
  fence.mbarrier_init.release.cluster;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  xor.b32 %r4, %r1, 1; mapa.shared::cluster.u32 %r7, %r6, %r4; mapa.shared::cluster.u32 %r8, %r3, %r4;
  mad.lo.u32 %r9, %r1, 100, %r0;
  STORE
  W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r3], 0; @!%p1 bra W;
  ld.shared.u32 %r10, [%r6];
  mad.lo.u32 %r11, %r1, 32, %r0; mul.wide.u32 %d1, %r11, 4; add.s64 %d0, %d0, %d1; st.global.u32 [%d0], %r10;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; ret;
}
"""


COMPLETES = "shared::cluster.mbarrier::complete_tx::bytes"


@pytest.mark.parametrize(
    "store", [f"st.async.weak.{COMPLETES}.u32", f"red.async.relaxed.cluster.{COMPLETES}.add.u32"]
)
def test_stores_that_complete_on_a_remote_mbarrier(store: str, assembles: Callable[[str, str], None]) -> None:
    ptx = CLUSTER.replace("STORE", f"{store} [%r7], %r9, [%r8];").replace("INIT", "st.shared.u32 [%r6], 0;")
    assembles(ptx, "sm_90a")
    out = np.zeros(64, np.uint32)
    launch = {"grid": 2, "block": 32}
    verdict = machine.check(ptx, launch, {"out": out}, schedules=6)
    assert verdict.ok, verdict.render()
    assert out.tolist() == [100 + i for i in range(32)] + list(range(32))
    out[:] = 0
    late = ptx.replace("W: mbarrier", "bra SKIP; W: mbarrier").replace(
        "ld.shared.u32 %r10", "SKIP: ld.shared.u32 %r10"
    )
    assert not machine.check(late, launch, {"out": out}, schedules=6).ok
    apart = machine.check(ptx.replace("%r8, %r3, %r4;", "%r8, %r3, %r1;"), launch, {"out": out}, schedules=1)
    assert [h.code for h in apart.hazards] == ["mbarrier-elsewhere"]
    advice = machine.advise(ptx.replace("%r8, %r3, %r4;", "%r8, %r3, %r1;"), launch, {"out": out}, apart)
    assert advice is not None and "map the address" in advice.text


BULK_REDUCE = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) {
  .reg .b64 %d<4>; .reg .b32 %r<12>; .reg .pred %p<4>; .shared .align 16 .b8 data[128];
  ld.param.u64 %d0, [out]; mov.u32 %r0, %tid.x; mov.u32 %r2, data; shl.b32 %r5, %r0, 2; add.u32 %r6, %r2, %r5;
  setp.eq.u32 %p0, %r0, 0; add.u32 %r7, %r0, 1;
  st.shared.u32 [%r6], %r7; fence.proxy.async.shared::cta; bar.sync 0;
  @%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group.OP.u32 [%d0], [%r2], 128;
  @%p0 cp.async.bulk.commit_group; @%p0 cp.async.bulk.wait_group 0; ret;
}
"""


REDUCES = [("add", np.add), ("max", np.maximum), ("inc", lambda a, b: np.where(a >= b, 0, a + 1))]


@pytest.mark.parametrize(("operation", "f"), REDUCES, ids=[r[0] for r in REDUCES])
def test_bulk_copies_that_reduce(operation: str, f: Any, assembles: Callable[[str, str], None]) -> None:
    ptx = BULK_REDUCE.replace("OP", operation)
    assembles(ptx, "sm_90a")
    out = np.arange(32, dtype=np.uint32)[::-1].copy()
    before = out.copy()
    machine.run(ptx, {"grid": 1, "block": 32}, {"out": out})
    assert out.tolist() == f(before, np.arange(1, 33, dtype=np.uint32)).tolist()


def test_vectors_of_special_registers_and_of_floats(assembles: Callable[[str, str], None]) -> None:
    """`mov.v4` of `%tid`, `red` and `atom` of vectors (the type may stand before the operation), MMIO
    accesses and the fences with old names."""
    code = """mov.v4.u32 {%t0, %t1, %t2, %t3}, %tid; ld.param.u64 %p2, [o1];
    { .reg .f32 %f<4>; .reg .b16 %c<8>; mov.f32 %f0, 0f3F800000; mov.f32 %f1, 0f40000000; mov.f32 %f2, 0f00000000;
    red.global.v4.f32.add [%p2], {%f0, %f1, %f2, %f0};
    atom.global.v2.f32.add {%f0, %f1}, [%p2+16], {%f0, %f1};
    cvt.rzi.u32.f32 %o0, %f0;
    bar.warp.sync -1; fence.proxy.alias; membar.proxy.alias; setp.ne.u32 %q0, %t0, 0; @%q0 bra SKIP;
    ld.mmio.relaxed.sys.global.b32 %t4, [%p2+4]; st.mmio.relaxed.sys.global.b32 [%p2+40], %t4;
SKIP: }"""
    head = """.version 8.8
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 o0, .param .u64 o1) {
  .reg .b64 %p<4>; .reg .b32 %t<8>, %o0; .reg .pred %q<2>;
"""
    tail = "  ld.param.u64 %p0, [o0]; mad.wide.u32 %p1, %t0, 4, %p0; st.global.u32 [%p1], %o0; ret;\n}\n"
    ptx = head + code + tail
    assembles(ptx, "sm_90a")
    seen, cells = np.zeros(32, np.uint32), np.zeros(12, np.float32)
    verdict = machine.check(ptx, {"grid": 1, "block": 32}, {"o0": seen, "o1": cells}, schedules=3)
    assert verdict.ok, verdict.render()
    assert sorted(seen.tolist()) == list(range(32))
    assert cells[:6].tolist() == [32, 64, 0, 32, 32, 64] and cells[10] == 64


def test_arithmetic_of_sm_100(assembles: Callable[[str, str], None]) -> None:
    """Pairs of f32, sums of f16 into f32, and the extremum of three: each as in NumPy."""
    x, y, z = (np.random.default_rng(i).standard_normal(32).astype(np.float32) for i in range(3))
    h = x.astype(np.float16)
    code = """{ .reg .b64 %v<4>; .reg .b32 %f<2>; mov.b64 %v0, {%i0, %i1}; mov.b64 %v1, {%i2, %i0};
      fma.rn.f32x2 %v2, %v0, %v1, %v0; add.f32x2 %v2, %v2, %v1; mov.b64 {%o0, %o1}, %v2;
      fma.rn.f32.f16 %o2, %i3, %i3, %i1; add.f32.f16 %o3, %i3, %i1; max.f32 %o4, %i0, %i1, %i2;
      min.NaN.abs.f32 %o5, %i0, %i1, %i2; }"""
    kinds = ["f32", "f32", "f32", "f16"]
    assembles(ptx_for(code, ["f32"] * 6, kinds, "sm_100a", "8.8"), "sm_100a")
    inputs = {"f32/x": x, "f32/y": y, "f32/z": z, "f16/h": h}
    out = [o.view(np.float32) for o in execute(code, ["f32"] * 6, inputs, "sm_100a", "8.8")]
    wide = [v.astype(np.float64) for v in (x, y, z, h)]
    assert (out[0] == (wide[0] * wide[2] + wide[0]).astype(np.float32) + z).all()
    assert (out[1] == (wide[1] * wide[0] + wide[1]).astype(np.float32) + x).all()
    assert (out[2] == (wide[3] * wide[3] + wide[1]).astype(np.float32)).all() and (out[3] == h + y).all()
    assert (out[4] == np.maximum(np.maximum(x, y), z)).all()
    assert (out[5] == np.minimum(np.minimum(abs(x), abs(y)), abs(z))).all()
    with pytest.raises(machine.HazardError, match="sm_100"):
        execute(code, ["f32"] * 6, inputs)
