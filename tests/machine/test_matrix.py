"""Every form of mma.sync and wgmma against float64 or integer products; ldmatrix, stmatrix, movmatrix round trips."""

# ruff: noqa: E501
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness import execute

from tilemma import machine
from tilemma.dtypes import dtype
from tilemma.machine.isa import forms, fragments, sparse

PTX_NAME = {"f8_e4m3": "e4m3", "f8_e5m2": "e5m2"}


def short(name: str) -> str:
    return PTX_NAME.get(name, name)


def values(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> Any:
    """Small exact values of a type."""
    t = dtype(name)
    if name == "b1":
        return rng.integers(0, 2, shape)
    if t.is_integer:
        low = -4 if t.kind == "int" else 0
        return rng.integers(low, 5, shape)
    return rng.integers(-4, 5, shape).astype(np.float32).astype(t.numpy)


def registers(tile: Any, at: Any, name: str) -> Any:
    """[lanes, registers] of a fragment of ``tile``."""
    return fragments.pack(np.ascontiguousarray(tile[at]), name)


def run_mma(opcode: str, operands: list[tuple[Any, str]], out: int, wide: bool, tail: str = "") -> Any:
    """Run an mma whose operands A, B, C are register arrays [32, r]; D's registers [32, out]."""
    inputs: dict[str, Any] = {}
    text, serial = [], 0
    for regs, _ in operands:
        kind = "b64" if regs.dtype.itemsize == 8 else "b32"
        names = []
        for j in range(regs.shape[1]):
            inputs[f"{kind}/{serial}"] = regs[:, j]
            names.append(f"%i{serial}")
            serial += 1
        text.append("{" + ", ".join(names) + "}" if len(names) > 1 or tail == "" else "{" + names[0] + "}")
    d = "{" + ", ".join(f"%o{j}" for j in range(out)) + "}"
    results = execute(
        f"{opcode} {d}, {', '.join(text)}{tail};", ["b64" if wide else "b32"] * out, inputs, arch="sm_90a"
    )
    return np.stack(results, axis=1)


MMA_FORMS = [f for f in forms.forms(forms.MMA) if not (f.shape == (8, 8, 4) and f.a == "f16")]


def identify(f: Any) -> str:
    return f"m{f.shape[0]}n{f.shape[1]}k{f.shape[2]}.{f.d}.{f.a}.{f.b}.{f.c}"


@pytest.mark.parametrize("form", MMA_FORMS, ids=identify)
def test_mma(form: Any) -> None:
    m, n, k = form.shape
    rng = np.random.default_rng(5)
    a, b, c = values(rng, (m, k), form.a), values(rng, (k, n), form.b), values(rng, (m, n), form.c)
    at = {
        x: fragments.mma_fragment(form.shape, x, t)
        for x, t in (("A", form.a), ("B", form.b), ("C", form.c), ("D", form.d))
    }
    bitop = ".and.popc" if form.a == "b1" else ""
    opcode = f"mma.sync.aligned.m{m}n{n}k{k}.row.col.{short(form.d)}.{short(form.a)}.{short(form.b)}.{short(form.c)}{bitop}"
    regs = [registers(a, at["A"], form.a), registers(b, at["B"], form.b), registers(c, at["C"], form.c)]
    count = at["D"][0].shape[1] // fragments.elements_per_register(form.d)
    got = fragments.unpack(run_mma(opcode, [(r, "") for r in regs], count, form.d == "f64"), form.d)
    want = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
    assert (got.astype(np.float64) == want[at["D"]]).all()


@pytest.mark.parametrize("name", ["mma.sp::ordered_metadata.sync", "mma.sp.sync"])
@pytest.mark.parametrize("form", [f for f in forms.forms(forms.MMA_SPARSE) if f.a == f.b], ids=identify)
def test_sparse_mma(form: Any, name: str) -> None:
    m, n, k = form.shape
    rng = np.random.default_rng(6)
    pattern = sparse.pattern(form.a)
    dense = values(rng, (m, k), form.a)
    # Keep the first runs of each chunk.
    keep = np.arange(k) % pattern.width < pattern.stored
    dense = np.where(keep, dense, np.zeros_like(dense))
    stored, metadata = sparse.compress(dense, form.a, 0)
    b, c = values(rng, (k, n), form.b), values(rng, (m, n), form.c)
    half = (m, n, k // 2)
    at = {"A": fragments.mma_fragment(half, "A", form.a), "B": fragments.mma_fragment(form.shape, "B", form.b)}
    at |= {x: fragments.mma_fragment(form.shape, x, t) for x, t in (("C", form.c), ("D", form.d))}
    opcode = f"{name}.aligned.m{m}n{n}k{k}.row.col.{short(form.d)}.{short(form.a)}.{short(form.b)}.{short(form.c)}"
    regs = [registers(stored, at["A"], form.a), registers(b, at["B"], form.b), registers(c, at["C"], form.c)]
    count = at["D"][0].shape[1] // fragments.elements_per_register(form.d)
    inputs = [(r, "") for r in regs]
    serial = sum(r.shape[1] for r in regs)
    inputs.append((np.ascontiguousarray(metadata, dtype=np.uint32)[:, None], ""))
    text = run_mma_with_metadata(opcode, inputs, count, serial)
    want = dense.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
    assert (fragments.unpack(text, form.d).astype(np.float64) == want[at["D"]]).all()


def run_mma_with_metadata(opcode: str, operands: list[tuple[Any, str]], out: int, serial: int) -> Any:
    inputs: dict[str, Any] = {}
    groups, number = [], 0
    for regs, _ in operands:
        names = []
        for j in range(regs.shape[1]):
            inputs[f"b32/{number}"] = regs[:, j]
            names.append(f"%i{number}")
            number += 1
        groups.append("{" + ", ".join(names) + "}")
    d = "{" + ", ".join(f"%o{j}" for j in range(out)) + "}"
    code = f"{opcode} {d}, {groups[0]}, {groups[1]}, {groups[2]}, %i{serial}, 0;"
    return np.stack(execute(code, ["b32"] * out, inputs, arch="sm_90a"), axis=1)


@pytest.mark.parametrize("num", [1, 2, 4])
@pytest.mark.parametrize("trans", [False, True])
def test_ldmatrix_and_stmatrix(num: int, trans: bool) -> None:
    """What stmatrix writes, ldmatrix of the same form reads back; without .trans it is the plain layout."""
    t = ".trans" if trans else ""
    regs = [f"%i{j}" for j in range(num)]
    outs = [f"%o{j}" for j in range(num)]
    code = f"""{{ .shared .align 16 .b8 s[512]; mov.u32 %t0, s; shl.b32 %t1, %lane, 4; add.s32 %t0, %t0, %t1;
    stmatrix.sync.aligned.m8n8.x{num}{t}.shared.b16 [%t0], {{{", ".join(regs)}}}; bar.warp.sync 0xffffffff;
    {{ .reg .b64 %g; cvt.u64.u32 %g, %t0; cvta.shared.u64 %g, %g;
    ldmatrix.sync.aligned.m8n8.x{num}.b16 {{{", ".join(outs)}}}, [%g]; }} }}"""
    rng = np.random.default_rng(7)
    given = rng.integers(0, 2**32, (num, 32), dtype=np.uint32)
    got = np.stack(execute(code, ["b32"] * num, {f"b32/{j}": given[j] for j in range(num)}))
    halves = given.view(np.uint16).reshape(num, 32, 2)
    if trans:
        # Lane 4r + c holds (r, 2c), (r, 2c + 1): transposed, those of the other matrix.
        tile = np.empty((num, 8, 8), np.uint16)
        for lane in range(32):
            for h in range(2):
                tile[:, 2 * (lane % 4) + h, lane // 4] = halves[:, lane, h]
        want = np.stack([tile[:, i // 4, 2 * (i % 4) : 2 * (i % 4) + 2] for i in range(32)], axis=1)
        assert (got.view(np.uint16).reshape(num, 32, 2) == want).all()
    else:
        assert (got == given).all()


WG_TYPES = [
    ("f16", "f32"),
    ("f16", "f16"),
    ("bf16", "f32"),
    ("tf32", "f32"),
    ("f8_e4m3", "f32"),
    ("f8_e5m2", "f16"),
    ("s8", "s32"),
    ("u8", "s32"),
    ("b1", "s32"),
]


def wgmma_ptx(n: int, a: str, d: str, count: int, *, in_registers: bool, trans_b: bool = False) -> str:
    """One wgmma on operands laid out as core matrices without swizzle; A [64, k], B [n, k] or [k, n]."""
    t = dtype(a)
    k = 256 // t.bits
    b_bytes = n * 32
    opcode = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{short(d)}.{short(a)}.{short(a)}"
    opcode += ".and.popc" if a == "b1" else ""
    scales = ", 1, 1" if t.is_float else ""
    trans = (
        (", " if t.bits == 16 else "") + (f"{int(trans_b)}" if in_registers else f"0, {int(trans_b)}")
        if t.bits == 16
        else ""
    )
    # K-major: LBO (to the next 16 bytes of K) 128, SBO (to the next 8 rows) 256.
    fields = 128 >> 4 << 16 | (256 >> 4) << 32
    # MN-major B of n columns: SBO (to the next 16 bytes of N) 128, LBO (to the next 8 of K) n / 8 * 128.
    fields_b = (n * 16) >> 4 << 16 | (128 >> 4) << 32 if trans_b else fields
    regs = ", ".join(f"%acc{i}" for i in range(count))
    a_operand = "{%a0, %a1, %a2, %a3}" if in_registers else "%da"
    loads = "\n".join(f"  ld.global.b32 %a{i}, [%A+{4 * i}];" for i in range(4))
    return f""".version 8.4
.target sm_90a
.address_size 64
.extern .shared .align 128 .b8 smem[];
.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pd, .param .u64 pra)
{{
  .reg .b32 %t, %s, %r<8>, %a<4>, %acc<{count}>; .reg .b64 %A, %B, %D, %da, %db, %x; .reg .pred %p;
  mov.u32 %t, %tid.x; mov.u32 %s, smem;
  ld.param.u64 %A, [pra]; mad.wide.u32 %A, %t, 16, %A;
{loads}
  ld.param.u64 %B, [pa]; mad.wide.u32 %B, %t, 16, %B; ld.global.v4.b32 {{%r0, %r1, %r2, %r3}}, [%B];
  shl.b32 %r4, %t, 4; add.s32 %r4, %r4, %s; st.shared.v4.b32 [%r4], {{%r0, %r1, %r2, %r3}};
  ld.param.u64 %B, [pb]; mov.u32 %r5, %t;
COPY:
  setp.ge.u32 %p, %r5, {b_bytes // 16}; @%p bra COPIED;
  mad.wide.u32 %x, %r5, 16, %B; ld.global.v4.b32 {{%r0, %r1, %r2, %r3}}, [%x];
  shl.b32 %r4, %r5, 4; add.s32 %r4, %r4, %s; st.shared.v4.b32 [%r4+2048], {{%r0, %r1, %r2, %r3}};
  add.u32 %r5, %r5, 128; bra COPY;
COPIED:
  fence.proxy.async.shared::cta; bar.sync 0;
  shr.u32 %r6, %s, 4; cvt.u64.u32 %x, %r6; or.b64 %da, %x, {fields:#x}; add.s64 %x, %x, 128; or.b64 %db, %x, {fields_b:#x};
  wgmma.fence.sync.aligned;
  {opcode} {{{regs}}}, {a_operand}, %db, 0{scales}{trans};
  wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
  ld.param.u64 %D, [pd]; mad.wide.u32 %D, %t, {4 * count}, %D;
{chr(10).join(f"  st.global.b32 [%D+{4 * i}], %acc{i};" for i in range(count))}
  ret;
}}"""


def core_matrices(tile: Any, name: str) -> Any:
    """[rows, k] as bytes: 8 rows of 16 bytes together, then along K, then along rows."""
    t = dtype(name)
    stored = np.packbits(tile.astype(np.uint8), axis=1, bitorder="little") if t.bits == 1 else tile
    raw = np.ascontiguousarray(stored).view(np.uint8).reshape(tile.shape[0], -1, 16)
    rows, units, _ = raw.shape
    assert t.bits in (1, 8, 16, 32)
    return np.ascontiguousarray(raw.reshape(rows // 8, 8, units, 16).transpose(0, 2, 1, 3)).reshape(-1)


def stored(tile: Any, name: str) -> Any:
    t = dtype(name)
    return tile.astype(t.numpy) if t.is_integer and t.bits >= 8 else tile


@pytest.mark.parametrize(("a", "d"), WG_TYPES)
@pytest.mark.parametrize("in_registers", [False, True], ids=["shared", "registers"])
@pytest.mark.parametrize("n", [8, 24, 96])
def test_wgmma(a: str, d: str, in_registers: bool, n: int, assembles: Callable[[str, str], None]) -> None:
    t = dtype(a)
    k = 256 // t.bits
    rng = np.random.default_rng(8)
    ta, tb = values(rng, (64, k), a), values(rng, (n, k), a)
    count = n // 2 // fragments.elements_per_register(d)
    ptx = wgmma_ptx(n, a, d, count, in_registers=in_registers)
    assembles(ptx, "sm_90a")
    regs = registers(stored(ta, a), fragments.wgmma_fragment(n, k, "A", a), a)
    out = np.zeros((128, count), np.uint32)
    args = {
        "a": core_matrices(stored(ta, a), a),
        "b": core_matrices(stored(tb, a), a),
        "d": out,
        "ra": np.ascontiguousarray(regs, dtype=np.uint32),
    }
    machine.run(ptx, {"grid": 1, "block": 128, "shared": 2048 + 32 * n}, args, strict=True)
    want = ta.astype(np.float64) @ tb.astype(np.float64).T
    got = fragments.unpack(out, d).astype(np.float64)
    assert (got == want[fragments.wgmma_fragment(n, k, "D", d)]).all()


def test_wgmma_reads_b_along_n(assembles: Callable[[str, str], None]) -> None:
    """B stored [k, n]: core matrices of 8 columns of N by 8 of K, N contiguous."""
    n, k = 32, 16
    rng = np.random.default_rng(9)
    a, b = values(rng, (64, k), "f16"), values(rng, (k, n), "f16")
    ptx = wgmma_ptx(n, "f16", "f32", n // 2, in_registers=False, trans_b=True)
    assembles(ptx, "sm_90a")
    raw = b.view(np.uint8).reshape(k // 8, 8, n // 8, 16).transpose(0, 2, 1, 3)
    out = np.zeros((128, n // 2), np.float32)
    args = {
        "a": core_matrices(a, "f16"),
        "b": np.ascontiguousarray(raw).reshape(-1),
        "d": out,
        "ra": np.zeros((128, 4), np.uint32),
    }
    machine.run(ptx, {"grid": 1, "block": 128, "shared": 2048 + 32 * n}, args, strict=True)
    want = a.astype(np.float64) @ b.astype(np.float64)
    assert (out == want[fragments.wgmma_fragment(n, k, "D", "f32")]).all()


@pytest.mark.parametrize("rounding", ["rz", "rm", "rp"])
def test_f64_in_a_direction(rounding: str) -> None:
    """1 + 2^-60 and -1 - 2^-60: a directed sum is not the nearest one."""
    ones, tiny = np.ones((32, 1)), np.full((32, 1), 2.0**-60)
    for sign in (1.0, -1.0):
        c = np.concatenate([sign * ones, sign * ones], 1)
        operands = [(x.view(np.uint64), "f64") for x in (sign * tiny, ones, c)]
        got = run_mma(f"mma.sync.aligned.m8n8k4.row.col.{rounding}.f64.f64.f64.f64", operands, 2, True)
        away = {"rz": False, "rm": sign < 0, "rp": sign > 0}[rounding]
        # Four products are added one after the other, and each one moves the sum by a unit in the last place.
        unit = np.spacing(1.0)
        assert (got.view(np.float64) == sign * (1.0 + (4 * unit if away else 0.0))).all()


def test_forms_that_do_not_exist_are_refused() -> None:
    rng = np.random.default_rng(0)
    regs = rng.integers(0, 9, (32, 4), dtype=np.uint32)
    with pytest.raises(machine.HazardError) as caught:
        run_mma(
            "mma.sync.aligned.m16n8k16.row.col.f16.bf16.bf16.f16",
            [(regs, ""), (regs[:, :2], ""), (regs[:, :2], "")],
            2,
            False,
        )
    assert caught.value.code == "no-such-form"


def test_undefined_metadata_is_reported() -> None:
    rng = np.random.default_rng(0)
    regs = rng.integers(0, 9, (32, 4), dtype=np.uint32)
    opcode = "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f16.f16.f16.f16"
    zeros = np.zeros((32, 1), np.uint32)
    with pytest.raises(machine.HazardError) as caught:
        run_mma_with_metadata(opcode, [(regs, ""), (regs, ""), (regs[:, :2], ""), (zeros, "")], 2, 10)
    assert caught.value.code == "sparse-metadata"
