"""Products with a sparse A, in both languages, on the CPU reference and on the machine; programs that are refused."""

from __future__ import annotations

import numpy as np
import pytest
from differential import agree, croqtile_kernel, python_kernel
from test_element_types import numbers

import tilemma as tm
from tilemma import dtypes
from tilemma.arithmetic import sparsity
from tilemma.dtypes import DType, dtype
from tilemma.errors import CompileError, TilemmaError

CO = """
__co__ void f(global {a} [{left}] a, global {e} [M, E] e, global {b} [{right}] b, global {d} [M, N] c) {{
  parallel {{i, j}} by [cdiv(M, {m}), cdiv(N, 16)] : block {{
    shared {a} [{left_tile}] a_s; shared {b} [{right_tile}] b_s; shared {e} [{m}, {w}] e_s;
    mc = mma.fill.{d} 0.0f;
    foreach t in [cdiv(K, {k})] {{
      dma.copy a.subspan({left_tile}).at({left_at}) => a_s;
      dma.copy b.subspan({right_tile}).at({right_at}) => b_s;
      dma.copy e.subspan({m}, {w}).at(i, t) => e_s;
      parallel p by 1 : {level} {{
        ma = mma.load a_s; mb = mma.load b_s; me = mma.load e_s;
        mma.{contract}.sp mc, ma, mb, me;
      }}
    }}
    parallel p by 1 : {level} mma.store mc, c.subspan({m}, 16).at(i, j);
  }}
}}
"""
PYTHON = """
@tm.kernel
def f(a: tm.Global["{a}", {left_dims}], e: tm.Global["{e}", "M", "E"], b: tm.Global["{b}", {right_dims}],
      c: tm.Global["{d}", "M", "N"]):
    (M, N), K = c.shape, b.shape[{k_axis}]
    for i, j in parallel(cdiv(M, {m}), cdiv(N, 16), level="block"):
        a_s, b_s, e_s = shared("{a}", {left_tile}), shared("{b}", {right_tile}), shared("{e}", {m}, {w})
        mc = mma.fill(0.0, "{d}")
        for t in foreach(cdiv(K, {k})):
            dma.copy(a.subspan({left_tile}).at({left_at}), a_s)
            dma.copy(b.subspan({right_tile}).at({right_at}), b_s)
            dma.copy(e.subspan({m}, {w}).at(i, t), e_s)
            for p in parallel(1, level="{level}"):
                ma, mb, me = mma.load(a_s), mma.load(b_s), mma.load(e_s)
                mma.{contract}.sp(mc, ma, mb, me)
        for p in parallel(1, level="{level}"):
            mma.store(mc, c.subspan({m}, 16).at(i, j))
"""


def programs(a: DType, b: DType, d: DType, e: DType, contract: str, level: str, k: int) -> tuple[str, str]:
    m, half = (64 if level == "group-4" else 16), k // 2
    a_turned, b_turned = (part == "col" for part in contract.split("."))
    facts = {
        "left": "H, M" if a_turned else "M, H",
        "right": "K, N" if b_turned else "N, K",
        "left_dims": '"H", "M"' if a_turned else '"M", "H"',
        "right_dims": '"K", "N"' if b_turned else '"N", "K"',
        "left_tile": f"{half}, {m}" if a_turned else f"{m}, {half}",
        "right_tile": f"{k}, 16" if b_turned else f"16, {k}",
        "left_at": "t, i" if a_turned else "i, t",
        "right_at": "t, j" if b_turned else "j, t",
        "k_axis": 0 if b_turned else 1,
        "w": k // sparsity.unit(a, e),
    }
    given = {"a": a, "b": b, "d": d, "e": e, "contract": contract, "level": level, "k": k, "m": m}
    return CO.format(**facts, **given), PYTHON.format(**facts, **given)


CASES = [
    ("f16 f16 f32", "u16", "row.row", "sm_80", "group"),
    ("f16 f16 f16", "u32", "col.col", "sm_90a", "group-4"),
    ("tf32 tf32 f32", "u32", "row.row", "sm_90a", "group-4"),
    ("s8 u8 s32", "u8", "row.col", "sm_80", "group"),
]
NIGHTLY = [
    (types, words, contract, arch, level)
    for i, types in enumerate(
        (
            "f16 f16 f32",
            "bf16 bf16 f32",
            "tf32 tf32 f32",
            "u8 s8 s32",
            "f8_e4m3 f8_e5m2 f32",
            "f8_e5m2 f8_e4m3 f16",
        )
    )
    for j, words in enumerate(("u8", "u16", "u32"))
    for arch, level in (("sm_89", "group"), ("sm_90a", "group-4"))
    for contract in (("row.row", "col.row", "row.col", "col.col")[(i + j) % 4],)
    # Only `wgmma` adds products of 8-bit floats in f16 here, and it reads their B K-major.
    if not (types.endswith("f16") and types.startswith("f8") and (level == "group" or contract.endswith("col")))
]


@pytest.mark.parametrize(
    ("types", "words", "contract", "arch", "level"),
    [*CASES, *(pytest.param(*x, marks=pytest.mark.slow) for x in NIGHTLY)],
)
def test_a_sparse_product(types: str, words: str, contract: str, arch: str, level: str) -> None:
    a, b, d = map(dtype, types.split())
    e = dtype(words)
    k = max(1024 // a.bits, sparsity.unit(a, e))
    m, n, depth = (72 if level == "group-4" else 24), 24, 2 * k
    whole = tm.sparse.prune(numbers(a, (m, depth), 1))
    stored = tm.sparse.compress(whole, words)
    y = numbers(b, (n, depth), 2)
    a_turned, b_turned = (part == "col" for part in contract.split("."))
    given = {
        "a": np.ascontiguousarray(stored.values.T) if a_turned else stored.values,
        "e": stored.metadata,
        "b": np.ascontiguousarray(y.T) if b_turned else y,
        "c": np.zeros((m, n), d.numpy),
    }
    found = agree(*programs(a, b, d, e, contract, level, k), given, (arch,))
    assert not isinstance(found, str), found
    np.testing.assert_array_equal(found["c"], (whole.astype(np.float64) @ y.astype(np.float64).T).astype(d.numpy))


def both(types: str, words: str, width: int, k: int = 64) -> list[TilemmaError]:
    """What each language says of metadata tiles of ``width`` words."""
    a, b, d = map(dtype, types.split())
    found = []
    co, python = programs(a, b, d, dtype(words), "row.row", "group", k)
    right = k // sparsity.unit(a, dtype("u8") if dtype(words).kind != "uint" else dtype(words))
    for make, text in ((croqtile_kernel, co), (python_kernel, python)):
        wrong = text.replace(f"16, {right}]", f"16, {width}]").replace(f"16, {right})", f"16, {width})")
        with pytest.raises(CompileError) as caught:
            make(wrong).compile("sm_80")
        found.append(caught.value)
    return found


@pytest.mark.parametrize(("types", "words", "width"), [("f16 f16 f32", "u16", 3), ("tf32 tf32 f32", "u8", 8)])
def test_metadata_of_another_width_is_refused(types: str, words: str, width: int) -> None:
    for error in both(types, words, width):
        assert error.code == "sparse-metadata" and words in str(error)


def test_metadata_that_breaks_the_pattern_is_refused() -> None:
    """Two positions in falling order: the reference refuses it, the machine reports it."""
    co, _ = programs(*map(dtype, ("f16", "f16", "f32", "u16")), "row.row", "group", 64)
    kernel = croqtile_kernel(co)
    stored = tm.sparse.compress(tm.sparse.prune(numbers(dtypes.f16, (16, 64), 1)), "u16")
    stored.metadata[3, 1] = 0b0001_0001_0001_0001
    arrays = [stored.values, stored.metadata, numbers(dtypes.f16, (16, 64), 2), np.zeros((16, 16), np.float32)]
    with pytest.raises(TilemmaError) as caught:
        kernel.on("cpu")(*arrays)
    assert caught.value.code == "sparse-pattern" and "row 3" in str(caught.value)
    with pytest.raises(TilemmaError):
        kernel.on("machine", arch="sm_80")(*arrays)


def test_what_is_infinite_in_b_and_not_met_does_no_harm() -> None:
    co, _ = programs(*map(dtype, ("f16", "f16", "f32", "u16")), "row.row", "group", 64)
    kernel = croqtile_kernel(co)
    x = np.zeros((16, 64), np.float16)
    x[:, ::4] = 1
    x[:, 1::4] = 2
    stored = tm.sparse.compress(x, "u16")
    y = numbers(dtypes.f16, (16, 64), 2)
    wanted = x.astype(np.float64) @ y.astype(np.float64).T
    y[:, 3::4] = np.inf
    for target in ("cpu", "machine"):
        out = np.zeros((16, 16), np.float32)
        kernel.on(target)(stored.values, stored.metadata, y, out)
        np.testing.assert_array_equal(out, wanted)


# Variants of one multiply: (Croqtile, Python, whether the product is scaled).
VARIANTS = {
    "scaled": (
        "mma.row.row.sp.scale mc, ma, mb, me, v, 0.5f;",
        "mma.row.row.sp.scale(mc, ma, mb, me, v, 0.5)",
        True,
    ),
    "asynchronous": (
        "f = mma.row.row.sp.async mc, -ma, mb, me; wait f;",
        "wait(mma.row.row.sp(mc, -ma, mb, me, async_=True))",
        False,
    ),
    "scaled, in an order": (
        "[[schedule(k_tiles(1, 0))]] mma.row.row.sp.scale mc, ma, mb, me, v, 0.5f;",
        "mma.row.row.sp.scale(mc, ma, mb, me, v, 0.5, k_tiles=(1, 0))",
        True,
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_a_sparse_multiply(variant: str) -> None:
    co, python, scaled = VARIANTS[variant]
    co = f"""
__co__ void f(global f16 [16, 32] a, global u16 [16, 4] e, global f16 [16, 64] b, global f32 [16, 1] v,
              global f32 [16, 16] c) {{
  parallel p by 1 : block, g by 1 : group {{
    mc = mma.fill.f32 0.0f; ma = mma.load a; mb = mma.load b; me = mma.load e;
    {co}
    mma.store mc, c;
  }}
}}
"""
    python = f"""
@tm.kernel
def f(a: tm.Global["f16", 16, 32], e: tm.Global["u16", 16, 4], b: tm.Global["f16", 16, 64],
      v: tm.Global["f32", 16, 1], c: tm.Global["f32", 16, 16]):
    for p in parallel(1, level="block"):
        for g in parallel(1, level="group"):
            mc, ma, mb, me = mma.fill(0.0, "f32"), mma.load(a), mma.load(b), mma.load(e)
            {python}
            mma.store(mc, c)
"""
    whole, b = tm.sparse.prune(numbers(dtypes.f16, (16, 64), 1)), numbers(dtypes.f16, (16, 64), 2)
    stored = tm.sparse.compress(whole, "u16")
    v = np.arange(1, 17, dtype=np.float32)[:, None]
    given = {"a": stored.values, "e": stored.metadata, "b": b, "v": v, "c": np.zeros((16, 16), np.float32)}
    found = agree(co, python, given, ("sm_80",))
    assert not isinstance(found, str), found
    product = whole.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_array_equal(found["c"], product * v * 0.5 if scaled else -product)
