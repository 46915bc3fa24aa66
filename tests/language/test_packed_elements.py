"""Elements narrower than a byte: products, copies and single elements, on reference and machine; what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilemma as tm
from tests.sampling import examples
from tilemma import dtypes
from tilemma.arithmetic.packing import pack, unpack
from tilemma.errors import TilemmaError
from tilemma.kernels import Kernel
from tilemma.targets.cpu import execute

NARROW = ("s4", "u4", "b1")
XOR = "SM80_16x8x128_S32U1U1S32_TN_XORPOPC"


def values(t: str, shape: tuple[int, ...], seed: int = 0) -> Any:
    kind = dtypes.dtype(t)
    low = -(1 << kind.bits - 1) if kind.kind == "int" else 0
    return np.random.default_rng(seed).integers(low, low + (1 << kind.bits), shape).astype(kind.numpy)


def product(
    ta: str,
    tb: str,
    tile: tuple[int, int, int],
    *,
    level: str = "group",
    way: str = "load",
    atom: str | None = None,
) -> Kernel:
    """``way``: "load" from shared memory, "view" without a load, "global", "tma"."""
    tm_, tn, tk = tile
    engine = tm.tma if way == "tma" else tm.dma

    def multiply(
        a: tm.Global["TA", "M", "K"], b: tm.Global["TB", "N", "K"], c: tm.Global["s32", "M", "N"], *, TA=ta, TB=tb
    ):
        for i, j in tm.parallel(tm.cdiv(a.shape[0], tm_), tm.cdiv(b.shape[0], tn), level="block"):
            mc = tm.mma.fill(0, "s32")
            for k in tm.foreach(tm.cdiv(a.shape[1], tk)):
                x, y = a.subspan(tm_, tk).at(i, k), b.subspan(tn, tk).at(j, k)
                if way != "global":
                    x, y = engine.copy(x, to="shared").data, engine.copy(y, to="shared").data
                for _ in tm.parallel(1, level=level):
                    if way == "view":
                        tm.mma.row.row(mc, x, y, atom=atom)
                    else:
                        tm.mma.row.row(mc, tm.mma.load(x), tm.mma.load(y), atom=atom)
            for _ in tm.parallel(1, level=level):
                tm.mma.store(mc, c.subspan(tm_, tn).at(i, j))

    return tm.kernel(multiply)


def check(kernel: Kernel, a: Any, b: Any, want: Any, arch: str) -> None:
    """On the reference, on the machine from both forms of the arrays, and the decided IR on the reference."""
    (m, k), n = a.shape, b.shape[0]
    packed = [pack(x, dtypes.from_numpy(x.dtype) if x.dtype != bool else dtypes.b1) for x in (a, b)]
    for run, args in (
        (kernel, (a, b)),
        (kernel, packed),
        (kernel.on("machine", arch=arch), (a, b)),
        (kernel.on("machine", arch=arch), packed),
    ):
        c = np.zeros((m, n), np.int32)
        run(*args, c)
        np.testing.assert_array_equal(c, want)
    c = np.zeros((m, n), np.int32)
    decided = kernel.compile(arch).kernel
    execute(decided, dict(zip("ab", packed, strict=True)) | {"c": c}, {}, dims={"M": m, "N": n, "K": k})
    np.testing.assert_array_equal(c, want)


CASES = [
    ("s4", "s4", "load", "group", "sm_75"),
    ("u4", "s4", "view", "group-4", "sm_80"),
    ("s4", "u4", "global", "group", "sm_90a"),
    ("u4", "u4", "tma", "group-4", "sm_90a"),
    ("b1", "b1", "load", "group", "sm_80"),
    ("b1", "b1", "global", "group-4", "sm_90a"),
    ("b1", "b1", "view", "group", "sm_90a"),
    ("b1", "b1", "tma", "group-4", "sm_90a"),
]


@pytest.mark.parametrize(("ta", "tb", "way", "level", "arch"), CASES)
def test_products(ta: str, tb: str, way: str, level: str, arch: str) -> None:
    depth = 128 if ta == "b1" else 64
    a, b = values(ta, (70, 3 * depth)), values(tb, (20, 3 * depth), 1)
    want = a.astype(np.int64) @ b.astype(np.int64).T
    check(product(ta, tb, (64, 16, 2 * depth), level=level, way=way), a, b, want, arch)


@pytest.mark.parametrize("depth", [512, *(pytest.param(n, marks=pytest.mark.slow) for n in (256, 1024))])
def test_a_warpgroup_multiplies_bits_by_wgmma(depth: int) -> None:
    """From every swizzle that a row of so many bits has; with A from registers by name."""
    n = 24 if depth == 256 else 48
    a, b = values("b1", (70, depth + 256)), values("b1", (n + 2, depth + 256), 1)
    want = a.astype(np.int64) @ b.astype(np.int64).T
    for way, atom in (("load", None), ("view", f"SM90_64x{n}x256_S32U1U1_RS_TN")):
        kernel = product("b1", "b1", (64, n, depth), level="group-4", way=way, atom=atom)
        check(kernel, a, b, want, "sm_90a")
        assert f"wgmma.mma_async.sync.aligned.m64n{n}k256.s32.b1.b1.and.popc" in kernel.compile("sm_90a").ptx
        kernel.compile("sm_90a").explain()


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
def test_differences_of_bits_by_the_name_of_the_instruction(arch: str) -> None:
    a, b = values("b1", (40, 256)), values("b1", (20, 256), 1)
    want = (a[:, None] != b[None]).sum(-1)
    name = "SM75_8x8x128_S32U1U1S32_TN_XORPOPC" if arch == "sm_75" else XOR
    check(product("b1", "b1", (32, 16, 128), atom=name), a, b, want, arch)


@given(st.data())
@settings(max_examples=examples(24))
def test_random_products(data: st.DataObject) -> None:
    ta = data.draw(st.sampled_from(NARROW))
    tb = ta if ta == "b1" else data.draw(st.sampled_from(("s4", "u4")))
    arch = data.draw(st.sampled_from(("sm_80", "sm_90a") if ta == "b1" else ("sm_75", "sm_80", "sm_90a")))
    level, warps = data.draw(st.sampled_from((("group", 1), ("group-2", 2), ("group-4", 4))))
    step = 128 // dtypes.dtype(ta).bits
    tile = (
        16 * warps * data.draw(st.integers(1, 2)),
        8 * data.draw(st.integers(1, 4)),
        step * data.draw(st.integers(1, 4)),
    )
    m, n = (data.draw(st.integers(1, 80)) for _ in "mn")
    # Rows of a whole number of 4 bytes and others, whose copies are narrower.
    k = 8 // dtypes.dtype(ta).bits * data.draw(st.integers(1, 100))
    way = data.draw(st.sampled_from(("load", "view", "global")))
    a, b = values(ta, (m, k)), values(tb, (n, k), 1)
    kernel = product(ta, tb, tile, level=level, way=way)
    check(kernel, a, b, a.astype(np.int64) @ b.astype(np.int64).T, arch)


@tm.kernel
def elements(x: tm.Global["T", "M", "K"], y: tm.Global["f32", "M", "K"], *, T="s4"):
    for i in tm.parallel(x.shape[0], level="block"):
        s = tm.shared(T, 1, 64)
        tm.dma.copy(x.subspan(1, 64).at(i, 0), s)
        for t in tm.parallel(32, level="thread"):
            for j in tm.foreach(2):
                y[i, 2 * t + j] = x[i, 2 * t + j] * 2 + s[0, 2 * t + j]


@pytest.mark.parametrize("t", NARROW)
def test_single_elements_are_read_and_converted(t: str) -> None:
    x = values(t, (5, 64))
    for run in (elements, elements.on("machine", arch="sm_80")):
        y = np.zeros((5, 64), np.float32)
        run(x, y, T=t)
        np.testing.assert_array_equal(y, 3 * x.astype(np.float32))


@tm.kernel
def assigned(x: tm.Global["f32", 32, 8], y: tm.Global["s32", 32, 8], *, T="s4"):
    for _ in tm.parallel(1, level="block"):
        for t in tm.parallel(32, level="thread"):
            v = tm.local(T, 8, init=1)
            for j in tm.foreach(3):
                v[2 * j] = x[t, 2 * j]
            v[7] = v[0]
            for j in tm.foreach(8):
                y[t, j] = v[j]


@pytest.mark.parametrize("t", NARROW)
def test_elements_of_one_lane_are_written(t: str) -> None:
    """Converted as by a store: rounded to even, stopped at the limits; the byte's other elements stay."""
    x = np.random.default_rng(0).integers(-40, 41, (32, 8)).astype(np.float32) / 2
    low, high = {"s4": (-8, 7), "u4": (0, 15), "b1": (0, 1)}[t]
    held = (x != 0) if t == "b1" else np.clip(np.rint(x), low, high)
    want = np.ones((32, 8), np.int32)
    want[:, :6:2], want[:, 7] = held[:, :6:2], held[:, 0]
    for run in (assigned, assigned.on("machine", arch="sm_80")):
        y = np.zeros((32, 8), np.int32)
        run(x, y, T=t)
        np.testing.assert_array_equal(y, want)


@tm.kernel
def copies(x: tm.Global["T", "M", 64], y: tm.Global["T", "M", 64], *, T="s4"):
    for i in tm.parallel(tm.cdiv(x.shape[0], 4), level="block"):
        s = tm.dma.copy(x.subspan(4, 64).at(i, 0), to="shared")
        tm.dma.copy(s, y.subspan(4, 64).at(i, 0))


@pytest.mark.parametrize("t", NARROW)
def test_copies_write_what_they_read(t: str) -> None:
    x = values(t, (6, 64))
    for run in (copies, copies.on("machine", arch="sm_90a")):
        for source in (x, pack(x, dtypes.dtype(t))):
            y = np.zeros_like(source)
            run(source, y, T=t)
            np.testing.assert_array_equal(y, source)


@pytest.mark.parametrize("t", NARROW)
def test_packing_is_inverted(t: str) -> None:
    x = values(t, (7, 40))
    data = pack(x, dtypes.dtype(t))
    assert data.dtype == np.uint8 and data.shape == (7, 40 * dtypes.dtype(t).bits // 8)
    np.testing.assert_array_equal(unpack(data, dtypes.dtype(t)), x)
    first = unpack(np.array([[1]], np.uint8), dtypes.dtype(t))
    assert first[0, 0] == 1 and not first[0, 1:].any()


CROQTILE = """__co__ void multiply(global s4 [M, K] a, global u4 [N, K] b, global s32 [M, N] c) {
  parallel {i, j} by [cdiv(M, 32), cdiv(N, 16)] : block {
    mc = mma.fill.s32 0;
    foreach k in [cdiv(K, 64)] {
      a_s = dma.copy a.subspan(32, 64).at(i, k) => shared;
      b_s = dma.copy b.subspan(16, 64).at(j, k) => shared;
      parallel g by 1 : group {
        ma = mma.load a_s.data; mb = mma.load b_s.data;
        mma.row.row mc, ma, mb;
      }
    }
    parallel g by 1 : group { mma.store mc, c.subspan(32, 16).at(i, j); }
  }
}"""


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_the_same_in_croqtile(arch: str, tmp_path: Path) -> None:
    path = tmp_path / "k.co"
    path.write_text(CROQTILE)
    a, b = values("s4", (40, 160)), values("u4", (20, 160), 1)
    check(tm.load(path).only(), a, b, a.astype(np.int64) @ b.astype(np.int64).T, arch)


# ---- what is refused

PROGRAM = """__co__ void f(global s4 [64, 64] a, global s4 [64, 63] odd, global b1 [64, 128] bits,
                     global s32 [64, 64] c) {{
  parallel p by 1 : block {{ {body} }}
}}"""
LOADS = "s = dma.copy a => shared; parallel g by 1 : group {{ mc = mma.fill.s32 0; {} }}"
REFUSED = {
    "an odd extent": ("s = dma.copy odd => shared;", "packed-width"),
    "an odd view": ("s = dma.copy a.view(4, 3).from(0, 0) => shared;", "packed-width"),
    "an odd column": ("s = dma.copy a.view(4, 8).from(0, 3) => shared;", "packed-width"),
    "a column of seven bits": ("s = dma.copy bits.view(4, 12).from(0, 0) => shared;", "packed-width"),
    "an element": ("parallel t by 32 : thread { a.at(0, t) = 1; }", "packed-write"),
    "a store": (
        LOADS.format("ma = mma.load s.data; mb = mma.load s.data; mma.row.row mc, ma, mb; mma.store mc, a;"),
        "packed-write",
    ),
    "a conversion": (
        LOADS.format("ma = mma.load.s8 s.data; mb = mma.load.s8 s.data; mma.row.row mc, ma, mb; mma.store mc, c;"),
        "packed-load",
    ),
    "across the bytes": (
        LOADS.format("ma = mma.load s.data; mb = mma.load s.data; mma.row.col mc, ma, mb; mma.store mc, c;"),
        "packed-major",
    ),
    "a scale": (
        "parallel g by 1 : group { mc = mma.fill.s32 0; ma = mma.load a; mb = mma.load a; "
        "mma.row.row.scale mc, ma, mb, a.view(64, 1).from(0, 0), 1; mma.store mc, c; }",
        "packed-use",
    ),
    "another accumulator": (
        "s = dma.copy a => shared; parallel g by 1 : group { mc = mma.fill.f32 0.0f; ma = mma.load s.data; "
        "mb = mma.load s.data; mma.row.row mc, ma, mb; mma.store mc, c; }",
        "accumulator-type",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_bytes_is_refused_with_the_rule(case: str, tmp_path: Path) -> None:
    body, code = REFUSED[case]
    path = tmp_path / "f.co"
    path.write_text(PROGRAM.format(body=body.replace("{{", "{").replace("}}", "}")))
    with pytest.raises(TilemmaError) as caught:
        tm.load(path).only().compile("sm_80")
    assert caught.value.code == code, str(caught.value)
    assert caught.value.span is not None


@tm.kernel
def weighted(a: tm.Global["s4", "M", "K"], w: tm.Global["s32", "K"], y: tm.Global["s32", "M"]):
    for i in tm.parallel(a.shape[0], level="block"):
        for _ in tm.parallel(1, level="thread"):
            total = tm.var(0)
            for k in tm.foreach(w.shape[0]):
                total += a[i, k] * w[k]
            y[i] = total


def test_a_dimension_shared_with_other_arrays_is_that_of_elements() -> None:
    a, w = values("s4", (3, 10)), np.arange(10, dtype=np.int32)
    for run in (weighted, weighted.on("machine", arch="sm_80")):
        for given_ in (a, pack(a, dtypes.s4)):
            run(given_, w, y := np.zeros(3, np.int32))
            np.testing.assert_array_equal(y, a.astype(int) @ w)
    compiled = weighted.compile("sm_80")
    arrays = {"a": np.zeros((3, 16), np.uint8), "w": np.zeros(33, np.int32), "y": np.zeros(3, np.int32)}
    with pytest.raises(TilemmaError, match="K is a multiple of 2"):
        tm.machine.run(compiled.ptx, compiled.launch, arrays)


def test_arrays_of_an_odd_width_are_refused_at_the_call() -> None:
    a, b, c = values("s4", (32, 63)), values("s4", (16, 63)), np.zeros((32, 16), np.int32)
    kernel = product("s4", "s4", (32, 16, 64))
    kernel(a, b, c)
    np.testing.assert_array_equal(c, a.astype(int) @ b.astype(int).T)
    with pytest.raises(TilemmaError) as caught:
        kernel.on("machine", arch="sm_80")(a, b, c)
    assert caught.value.code == "packed-extent"
