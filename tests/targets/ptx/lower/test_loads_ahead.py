"""Copies through registers in main loops: their loads are an iteration ahead of the multiplies."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilemma as tm
from tilemma import cdiv, dma, foreach, mma, parallel, shared
from tilemma.kernels import Kernel, facts_of
from tilemma.targets.ptx.lower import launches

TILE, DEPTH = 64, 32


def product(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    c: tm.Global["f16", "M", "N"],
    *,
    WRITES=False,
):
    (M, N), K = c.shape, a.shape[1]
    for m, n in parallel(cdiv(M, TILE), cdiv(N, TILE), level="block"):
        left, right = shared("f16", TILE, DEPTH), shared("f16", TILE, DEPTH)
        mc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, DEPTH)):
            dma.copy(a.subspan(TILE, DEPTH).at(m, k), left)
            dma.copy(b.subspan(TILE, DEPTH).at(n, k), right)
            for _ in parallel(1, level="group-4"):
                mma.row.row(mc, mma.load(left), mma.load(right))
            if WRITES:
                for t in parallel(32, level="thread"):
                    c[m * TILE, n * TILE + t] = 0.0
        for _ in parallel(1, level="group-4"):
            mma.store(mc, c.subspan(TILE, TILE).at(m, n))


STAGES = tm.kernel(pipeline=tm.Pipeline(stages=3, persistent=False))(product)
ASKED, OFF = tm.kernel(pipeline=tm.Pipeline(persistent=False))(product), tm.kernel(pipeline=False)(product)
ARCHS = ("sm_80", "sm_90a")


def arrays_of(m: int, n: int, k: int, pitch: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (rows, pitch or k)).astype(np.float16)[:, :k] for rows in (m, n))
    return {"a": a, "b": b, "c": np.full((m, n), np.nan, np.float16)}


def loop_of(kernel: Kernel, arch: str, k: int = 77, **constants: bool) -> str:
    """The loop of the kernel's code that multiplies, as letters: Load, Store, Barrier, Multiply."""
    facts = facts_of(arrays_of(70, 66, k))
    ptx = kernel.compile(arch, facts=facts, **constants).ptx
    kinds = {
        "ld.global": "L",
        "st.shared": "S",
        "st.global": "W",
        "bar.sync": "B",
        "mma.sync": "M",
        "wgmma.mma": "M",
    }
    found = re.split(r"\$\w+_loop_\d+:", ptx)
    (loop,) = (x for x in found if re.search(r"mma\.sync|wgmma\.mma", x))
    loop = loop[: loop.rindex("_loop_")]
    lines = (line.split("%elected ")[-1].lstrip() for line in loop.split("\n"))
    words = (re.sub(r"^@!?%\w+ ", "", line) for line in lines)
    return re.sub(r"(.)\1+", r"\1", "".join(v for w in words for k, v in kinds.items() if w.startswith(k)))


@pytest.mark.parametrize("arch", ARCHS)
def test_loads_stand_between_the_stores_and_the_multiplies(arch: str) -> None:
    assert loop_of(ASKED, arch) == "SLBMB"
    assert loop_of(OFF, arch).startswith("LSLSBM")


@pytest.mark.parametrize("k", [74, 76])
def test_pieces_that_cp_async_could_move_are_loaded_ahead_unless_stages_are_asked_for(k: int) -> None:
    assert loop_of(ASKED, "sm_90a", k) == "SLBMB"
    for arch in ARCHS:
        assert loop_of(STAGES, arch, k) in ("BM", "BMB")


@pytest.mark.parametrize("arch", ARCHS)
def test_loops_that_write_global_memory_stay_as_they_are(arch: str) -> None:
    assert loop_of(ASKED, arch, WRITES=True).startswith("LSLSBM")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("k", "pitch"), [(1, 1), (31, 31), (33, 33), (95, 95), (97, 97), (66, 66), (65, 66), (68, 68), (97, 100)]
)
def test_results_on_the_machine(arch: str, k: int, pitch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = arrays_of(70, 66, k, pitch)
    expected = arrays["a"].astype(np.float32) @ arrays["b"].T.astype(np.float32)
    for ahead in (True, False):
        if not ahead:
            monkeypatch.setattr(launches, "with_loads_ahead", lambda kernel: kernel)
        arrays["c"][...] = np.nan
        assert ASKED.on("machine", arch=arch, strict=True)(**arrays).ok
        np.testing.assert_array_equal(arrays["c"], expected)


@pytest.mark.parametrize("arch", ARCHS)
def test_no_iteration_loads_nothing(arch: str) -> None:
    arrays = arrays_of(70, 66, 0)
    assert ASKED.on("machine", arch=arch, strict=True)(**arrays).ok
    assert not arrays["c"].any()
