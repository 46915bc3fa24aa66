"""`where a <-> b`, launches on devices and streams, and counts and subscripts that parameters decide."""

from __future__ import annotations

import numpy as np
import pytest

import tilemma as tm
from tilemma import croqtile, dma, foreach, mma, parallel
from tilemma.kernels import Kernel


def loaded(co: str) -> Kernel:
    return Kernel(croqtile.load(co, "t.co", {}).sources["k"])


PAIRS = """
__co__ void k(global s32 [6, 4] x, global s32 [6, 8] y) {
  parallel p by 1 : block {
    with t = {i, j} in [6, 4], u = {k, l} in [6, 4], a in 3, b in 3 where t <-> u, a <-> b {
      foreach t y.at(k, l * 2) = x.at(i, j);
      foreach u y.at(i, j * 2 + 1) = -x.at(u);
      foreach a(1:) y.at(0, b) = a * 10 + b;
      foreach b(:-2) y.at(5, a) = 100 + a + b;
    }
  }
}
"""


@pytest.mark.parametrize("target", ["cpu", "machine"])
def test_a_loop_over_one_of_a_pair_runs_over_both(target: str) -> None:
    x, y = np.arange(24, dtype=np.int32).reshape(6, 4), np.zeros((6, 8), np.int32)
    loaded(PAIRS).on(target)(x, y)
    wanted = np.stack([x, -x], 2).reshape(6, 8)
    wanted[0, 1:3] = [11, 22]
    wanted[5, 0] = 100
    assert np.array_equal(y, wanted)


@pytest.mark.parametrize(
    ("head", "text"),
    [
        ("a in 3, b in 4 where a <-> b", "extents [3] and [4]"),
        ("a in 3, {b, c} in [3, 1] where a <-> d", "`d` is not defined"),
        ("a in 3 where a <-> p", "two indices of `with`"),
        ("s = {a, b} in [3, 2], c in 3 where s <-> c", "extents [3, 2] and [3]"),
    ],
)
def test_pairs_have_equal_extents(head: str, text: str) -> None:
    co = f"__co__ void k(global s32 [3] x) {{ parallel p by 3 : block {{ with {head} {{ foreach a x.at(a) = 1; }} }} }}"
    with pytest.raises(tm.CompileError) as refused:
        loaded(co).build()
    assert text in refused.value.render()


DEVICES = """
__co__ void k(stream s, stream q, f32 [256] a, f32 [256]& b, f32 [256]& c) {
  parallel.async by 1 : device(cpu) {
    foreach i in [256]
      a.at(i) = a.at(i) + 1.0;
  }
  parallel.async(s) d by 1 : device(gpu) {
    parallel p by 1 : block, t by 256 : thread
      b.at(t + d) = b.at(t) * 2.0;
  }
  sync.global;
  parallel(q) p by 2 : block, t by 128 : thread
    c.at(p # t) = a.at(p # t) + b.at(p # t);
  sync.global;
}
"""


@pytest.mark.parametrize("target", ["cpu", "machine"])
def test_launches_follow_one_another_on_one_device(target: str) -> None:
    a, c = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    loaded(DEVICES).on(target)(a, a.copy(), c)
    assert np.array_equal(c, 3 * np.arange(256) + 1)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("parallel by 2 : device(gpu) { parallel p by 1 : block x.at(0) = 1; }", "wrong-value"),
        ("parallel by 1 : device(tpu) { parallel p by 1 : block x.at(0) = 1; }", "wrong-value"),
        ("parallel p by 1 : block { parallel by 1 : device(gpu) x.at(0) = 1; }", "wrong-value"),
        ("parallel p by 1 : block, q by 1 : device x.at(0) = 1;", "wrong-value"),
        ("parallel by 1 : device { x.at(0) = 1; parallel p by 1 : block x.at(0) = 1; }", "outside-parallel"),
        ("sync.shared;  parallel p by 1 : block x.at(0) = 1;", "outside-parallel"),
        ("parallel(x) p by 1 : block x.at(0) = 1;", "wrong-value"),
    ],
)
def test_devices_are_no_levels(body: str, code: str) -> None:
    with pytest.raises(tm.CompileError) as refused:
        loaded(f"__co__ void k(global s32 [3] x) {{ {body} }}").build()
    assert refused.value.code == code


@tm.kernel
def framed(x: tm.Global["s32", 3, "N"], y: tm.Global["s32", "H", "W"], n: tm.Int):
    for p in parallel(1, level="block"):
        f = dma.copy(x, to="local", pad=((n, n + 1, 0), (0, 0, n)), pad_value=9)
        dma.copy(f.data, y)


@tm.kernel
def chosen(a: tm.Global["f16", 16, 16], b: tm.Global["f16", 8, 16], c: tm.Global["f32", 2, 16, 8], i: tm.Int):
    for p in parallel(1, level="block"):
        for w in parallel(1, level="group"):
            acc = mma.frag("f32", 16, 8, copies=2, init=0.0)
            for k in foreach(1, unroll=True):
                mma.row.row(acc[i + k], mma.load(a), mma.load(b))
            for k in range(2):
                mma.store(acc[k], c.subspan(1, 16, 8).at(k, 0, 0).sqz())


@pytest.mark.parametrize("target", ["cpu", "machine"])
def test_counts_of_padding_are_parameters(target: str) -> None:
    x = np.arange(6, dtype=np.int32).reshape(3, 2)
    for n in (0, 2):
        wanted = np.full((4 + 2 * n, 2 + n), 9, np.int32)
        wanted[n : n + 3, :: n + 1] = x
        y = np.zeros_like(wanted)
        framed.on(target)(x, y, n)
        assert np.array_equal(y, wanted)


@pytest.mark.parametrize("target", ["cpu", "machine"])
def test_subscripts_of_register_tiles_are_parameters(target: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, (m, 16)).astype(np.float16) for m in (16, 8))
    for i in (0, 1):
        c = np.zeros((2, 16, 8), np.float32)
        chosen.on(target)(a, b, c, i)
        assert np.array_equal(c[i], np.float32(a) @ np.float32(b).T) and not c[1 - i].any()
    with pytest.raises(tm.CompileError) as refused:
        chosen.compile("sm_80", sizes={"i": 2})
    assert refused.value.code == "fragment-subscript"


def test_an_array_and_a_buffer_of_the_same_parameter() -> None:
    k = loaded("""
    __co__ auto k(f32 [64] x, int n) {
      f32 [n] out;
      parallel p by 1 : block {
        shared f32 [n] s;
        dma.copy x.view(n).from(2) => s;
        dma.copy s => out;
      }
      return out;
    }
    """)
    x = np.arange(64, dtype=np.float32)
    for target in ("cpu", "machine"):
        assert np.array_equal(k.on(target)(x, 5), x[2:7])
