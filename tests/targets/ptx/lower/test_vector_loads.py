"""Operands that lanes load 16 bytes at a time: narrow elements converted in pairs, and rows along K."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilemma as tm
from tests.sampling import pairwise
from tilemma import cdiv, dma, foreach, mma, parallel, shared

INTEGERS = {"s4": (-8, 8), "u4": (0, 16), "s8": (-128, 128), "u8": (0, 256)}
TYPES: dict[str, Any] = {
    "s4": ml_dtypes.int4, "u4": ml_dtypes.uint4, "s8": np.int8, "u8": np.uint8, "f16": np.float16,
    "f8_e4m3": ml_dtypes.float8_e4m3fn, "f8_e5m2": ml_dtypes.float8_e5m2, "bf16": ml_dtypes.bfloat16,
    "f32": np.float32, "f64": np.float64, "s32": np.int32,
}  # fmt: skip


@tm.kernel
def widened(
    a: tm.Global["TA", 64, "K"],
    b: tm.Global["TB", 16, "K"],
    c: tm.Global["f32", 64, 16],
    *,
    TA="s4",
    TB="bf16",
    T="bf16",
    K=128,
    LEVEL="group-4",
):
    for g in parallel(1, level="block"):
        s, t = shared(TA, 64, K), shared(TB, 16, K)
        dma.copy(a.subspan(64, K).at(0, 0), s)
        dma.copy(b.subspan(16, K).at(0, 0), t)
        for p in parallel(1, level=LEVEL):
            mc = mma.fill(0.0, "f32")
            mma.row.row(mc, mma.load(s, dtype=T), mma.load(t, dtype=T))
            mma.store(mc, c)


def every(kind: str, shape: tuple[int, int]) -> Any:
    """All values of a narrow type but NaN and infinity, again and again."""
    if kind in INTEGERS:
        values = np.arange(*INTEGERS[kind]).astype(np.int32).astype(TYPES[kind])
    else:
        values = np.arange(256, dtype=np.uint8).view(TYPES[kind])
        values = values[np.isfinite(values.astype(np.float32)) & (np.abs(values.astype(np.float32)) < 500)]
    return np.resize(values, shape)


NARROW = [t for t in TYPES if t in INTEGERS or t.startswith("f8")]


@pytest.mark.parametrize(
    ("kind", "t", "depth", "level", "arch"),
    pairwise(NARROW, ("f16", "bf16"), (16, 32, 128), ("group", "group-4"), ("sm_80", "sm_90a")),
)
def test_narrow_operands_become_pairs(kind: str, t: str, depth: int, level: str, arch: str) -> None:
    a = every(kind, (64, depth))
    # One number in each row of B: each element of A is seen alone, and each place along K.
    b = np.zeros((16, depth), TYPES[t])
    b[np.arange(16), np.arange(16) * 9 % depth] = 1
    expected = a.astype(np.float32) @ b.astype(np.float32).T
    for target in ("cpu", "machine"):
        c = np.zeros((64, 16), np.float32)
        options = {} if target == "cpu" else {"arch": arch}
        widened.on(target, **options)(a, b, c, TA=kind, TB=t, T=t, K=depth, LEVEL=level)
        assert (c == expected).all(), target


@pytest.mark.parametrize(
    ("kind", "depth", "arch"), pairwise(NARROW, (32, 64, 96, 128), ("sm_80", "sm_90a")), ids=str
)
def test_a_lane_takes_neighbours_of_narrow_elements(kind: str, depth: int, arch: str) -> None:
    """Both operands of mma.sync take K in another order: a lane's elements lie in its own words."""
    ptx = widened.compile(arch, TA=kind, TB="f16", T="f16", K=depth, LEVEL="group").ptx
    loads = re.findall(r"ld\.shared\.(?:v(\d)\.)?b32 \{?%narrow", ptx)
    words = sum(int(n or 1) for n in loads)
    bits = 4 if kind.endswith("4") else 8
    # Of 64 and 16 rows, without the elements of the other lanes of a quad; and no ldmatrix.
    if kind.startswith("f8") and arch == "sm_80":
        assert words == 0
    else:
        assert words == (64 * bits + 16 * 16) * depth // 32 // 32 and "ldmatrix" not in ptx


@tm.kernel
def beside(
    a: tm.Global["TA", 32, 64],
    w: tm.Global["T", 32, 64],
    b: tm.Global["T", 16, 64],
    c: tm.Global["f32", 32, 16],
    *,
    TA="s4",
    T="f16",
    BOTH=False,
    CHANGED="",
):
    for g in parallel(1, level="block"):
        s, t, u = shared(TA, 32, 64), shared(T, 16, 64), shared(T, 32, 64)
        dma.copy(a, s)
        dma.copy(b, t)
        dma.copy(w, u)
        for p in parallel(1, level="group"):
            mc = mma.fill(0.0, "f32")
            ma, mb = mma.load(s, dtype=T), mma.load(t)
            x = {"a": ma, "b": mb}.get(CHANGED)
            if x is not None:
                for i, j in tm.apply(x):
                    x[i, j] = x[i, j] * (j % 3).astype(T)
            mma.row.row(mc, ma, mb)
            if BOTH:
                mma.row.row(mc, mma.load(u), mb)
            mma.store(mc, c)


@pytest.mark.parametrize(("both", "changed"), [(True, ""), (False, "a"), (False, "b"), (True, "b")])
@pytest.mark.parametrize("kind", ["s4", "f8_e4m3", "f16"])
def test_an_operand_that_others_read_keeps_its_order(kind: str, both: bool, changed: str) -> None:
    """Element loops see each element at its place, and a shared operand fits both multiplies."""
    rng = np.random.default_rng(0)
    a = every(kind, (32, 64)) if kind != "f16" else rng.integers(-4, 5, (32, 64)).astype(np.float16)
    w, b = (rng.integers(-4, 5, (rows, 64)).astype(np.float16) for rows in (32, 16))
    c = [np.zeros((32, 16), np.float32) for _ in range(2)]
    for target, out in zip(("cpu", "machine"), c, strict=True):
        beside.on(target)(a, w, b, out, TA=kind, T="f16", BOTH=both, CHANGED=changed)
    np.testing.assert_allclose(c[1], c[0], rtol=1e-5)


@tm.kernel
def scaled_columns(a: tm.Global["f64", 16, 16], b: tm.Global["f64", 8, 16], out: tm.Global["f64", 16, 8]):
    for _ in parallel(1, level="block"):
        s, t = shared("f64", 16, 16), shared("f64", 8, 16)
        dma.copy(a, s)
        dma.copy(b, t)
        for p in parallel(1, level="group"):
            mc, ma = mma.fill(0.0, "f64"), mma.load(s)
            for i, j in tm.apply(ma):
                ma[i, j] = ma[i, j] * (j + 1).astype("f64")
            mma.row.row(mc, ma, mma.load(t))
            mma.store(mc, out)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_an_f64_operand_that_is_changed_keeps_its_order(arch: str) -> None:
    rng = np.random.default_rng(0)
    a, b, out = rng.standard_normal((16, 16)), rng.standard_normal((8, 16)), np.zeros((16, 8))
    scaled_columns.on("machine", arch=arch)(a, b, out)
    np.testing.assert_allclose(out, (a * np.arange(1, 17)) @ b.T, rtol=1e-12)


@tm.kernel
def converted(
    a: tm.Global["TA", 128, "K"], c: tm.Global["T", 128, "K"], *, TA="s4", T="bf16", K=128, LEVEL="group", GROUPS=4
):
    ROWS = 128 // GROUPS
    for g in parallel(1, level="block"):
        s, t = shared(TA, 128, K), shared(T, 128, K)
        dma.copy(a.subspan(128, K).at(0, 0), s)
        for p in parallel(GROUPS, level=LEVEL):
            mma.store(mma.load(s.subspan(ROWS, K).at(p, 0), dtype=T), t.subspan(ROWS, K).at(p, 0))
        dma.copy(t, c)


@pytest.mark.parametrize(
    ("kind", "t", "depth", "level", "arch"),
    pairwise(NARROW, ("f16", "bf16"), (16, 32, 128), ("group", "group-4"), ("sm_80", "sm_90a")),
)
def test_narrow_tiles_become_pairs(kind: str, t: str, depth: int, level: str, arch: str) -> None:
    """Tiles that no multiply reads are accumulators, whose registers of 16-bit types hold pairs too."""
    a = every(kind, (128, depth))
    constants = {"TA": kind, "T": t, "K": depth, "LEVEL": level, "GROUPS": 4 if level == "group" else 2}
    for target in ("cpu", "machine"):
        c = np.zeros((128, depth), TYPES[t])
        options = {} if target == "cpu" else {"arch": arch}
        converted.on(target, **options)(a, c, **constants)
        assert (c.astype(np.float32) == a.astype(np.float32)).all(), target


@pytest.mark.parametrize("kind", ["s4", "s8"])
def test_both_operands_may_be_narrow(kind: str) -> None:
    a, b = every(kind, (64, 64)), every(kind, (16, 64))[:, ::-1]
    c = np.zeros((64, 16), np.float32)
    widened.on("machine", arch="sm_90a")(a, np.ascontiguousarray(b), c, TA=kind, TB=kind, T="f16", K=64)
    assert (c == a.astype(np.float32) @ b.astype(np.float32).T).all()


@pytest.mark.parametrize("t", ["f16", "bf16"])
def test_nan_of_narrow_floats_stays_nan(t: str) -> None:
    a = every("f8_e4m3", (64, 32))
    a[3, 5] = np.nan
    b, c = np.ones((16, 32), TYPES[t]), np.zeros((64, 16), np.float32)
    widened.on("machine", arch="sm_90a")(a, b, c, TA="f8_e4m3", TB=t, T=t, K=32)
    assert (np.isnan(c).any(axis=1) == (np.arange(64) == 3)).all()


@tm.kernel
def product(
    a: tm.Global["T", "A0", "A1"],
    b: tm.Global["T", "B0", "B1"],
    c: tm.Global["T", 64, 32],
    *,
    T="f64",
    STEP=16,
    LHS="row",
    RHS="row",
    A0=64,
    A1="K",
    B0=32,
    B1="K",
    LEVEL="group-4",
):
    K = a.shape[1 if LHS == "row" else 0]
    for g in parallel(1, level="block"):
        s = shared(T, 64, STEP) if LHS == "row" else shared(T, STEP, 64)
        t = shared(T, 32, STEP) if RHS == "row" else shared(T, STEP, 32)
        mc = mma.fill(0 if T == "s32" else 0.0, T)
        for k in foreach(cdiv(K, STEP)):
            dma.copy(a.subspan(64, STEP).at(0, k) if LHS == "row" else a.subspan(STEP, 64).at(k, 0), s)
            dma.copy(b.subspan(32, STEP).at(0, k) if RHS == "row" else b.subspan(STEP, 32).at(k, 0), t)
            for p in parallel(1, level=LEVEL):
                getattr(getattr(mma, LHS), RHS)(mc, mma.load(s), mma.load(t))
        for p in parallel(1, level=LEVEL):
            mma.store(mc, c)


@pytest.mark.parametrize(
    ("t", "step", "lhs", "rhs", "level", "arch"),
    pairwise(
        ("f64", "f32", "s32"),
        (4, 8, 16),
        ("row", "col"),
        ("row", "col"),
        ("group", "group-4"),
        ("sm_80", "sm_90a"),
    ),
)
def test_rows_along_k(t: str, step: int, lhs: str, rhs: str, level: str, arch: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, (rows, 20)).astype(TYPES[t]) for rows in (64, 32))
    left, right = (x if by == "row" else np.ascontiguousarray(x.T) for x, by in ((a, lhs), (b, rhs)))
    names = dict(zip(("A0", "A1"), (64, "K") if lhs == "row" else ("K", 64), strict=True))
    names |= dict(zip(("B0", "B1"), (32, "K") if rhs == "row" else ("K", 32), strict=True))
    c = np.zeros((64, 32), TYPES[t])
    constants = {"T": t, "STEP": step, "LHS": lhs, "RHS": rhs, "LEVEL": level, **names}
    product.on("machine", arch=arch)(left, right, c, **constants)
    assert (c == a @ b.T).all()


def loads(ptx: str) -> set[str]:
    """The widths of the loads from shared memory."""
    return set(re.findall(r"ld\.shared\.(\S+)", ptx))


def test_loads_of_rows_are_vectors() -> None:
    assert loads(product.compile("sm_90a", T="f32").ptx) == {"v4.b32"}
    assert loads(product.compile("sm_90a", T="f64").ptx) == {"v2.b64", "b64"}
    assert loads(widened.compile("sm_90a").ptx) == {"v4.b32"}
    # Nor does a tile that no multiply reads: other shared loads are of the copy to memory, 16 bytes as well.
    assert loads(converted.compile("sm_90a").ptx) == {"v4.b32"}
    # A lane cannot take neighbours of one operand alone.
    assert loads(product.compile("sm_90a", T="f64", RHS="col", B0="K", B1=32).ptx) == {"b64"}


def test_vectors_of_f64_are_neighbours_in_the_instruction() -> None:
    """ptxas joins neighbouring loads from one register, and copies what lies apart before each multiply."""
    ptx = product.compile("sm_90a", T="f64").ptx
    multiplies = "".join(re.findall(r"mma\.sync.*", ptx))
    operands = [x.split(", ") for x in re.findall(r"\{([^{}]*)\}", multiplies)]
    vectors = re.findall(r"ld\.shared\.v2\.b64 \{(\S+), (\S+)\}", ptx)
    assert vectors and all(x[x.index(a) + 1] == b for a, b in vectors for x in operands if a in x)
    found = re.findall(r"ld\.shared\.b64 \S+, \[([^+\]]+)\+?(-?\d+)?\]", ptx)
    single = {(base, int(at or 0)) for base, at in found}
    assert single and not any((base, at + 8) in single for base, at in single)
