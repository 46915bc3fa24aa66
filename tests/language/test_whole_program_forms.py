"""Forms of whole programs: first values of a result, levels without a block, the first tile of a `subspan`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilemma as tm
from tilemma import dma, foreach, full, global_, parallel, shared

CO = {
    "initial": """
__co__ auto k(f32 [M, N] x) {
  f32 [M, N] out{1.5f};
  parallel i by M : block, t by 32 : thread { if (t < N && i % 2 == 0) { out.at(i, t) = x.at(i, t); } }
  return out;
}
""",
    "threads": """
__co__ auto k(f32 [6, 20] x) {
  f32 [6, 20] out;
  parallel {i, t} by [6, 20] : thread { out.at(i, t) = x.at(i, t) * 2.0f; }
  return out;
}
""",
    "origin": """
__co__ auto k(f32 [M, N] x) {
  f32 [M, N] out{0.0f};
  parallel b by 1 : block, t by 32 : thread {
    s = dma.copy x.subspan(4, 8) => shared;
    dma.copy s => out.subspan(4, 8);
  }
  return out;
}
""",
}


@tm.kernel
def initial(x: tm.Global["f32", "M", "N"]):
    (M, N) = x.shape
    out = global_("f32", M, N, init=1.5)
    for i in parallel(M, level="block"):
        for t in parallel(32, level="thread"):
            with tm.if_((t < N) & (i % 2 == 0)):
                out[i, t] = x[i, t]
    return out


@tm.kernel
def threads(x: tm.Global["f32", 6, 20]):
    out = global_("f32", 6, 20)
    for i, t in parallel(6, 20, level="thread"):
        out[i, t] = x[i, t] * 2.0
    return out


@tm.kernel
def origin(x: tm.Global["f32", "M", "N"]):
    (M, N) = x.shape
    out = global_("f32", M, N, init=0)
    for _ in parallel(1, level="block"):
        s = shared("f32", 4, 8)
        dma.copy(x.subspan(4, 8), s)
        dma.copy(s, out.subspan(4, 8))
    return out


def wanted(name: str, x: np.ndarray) -> np.ndarray:
    if name == "threads":
        return x * 2
    out = np.full_like(x, 1.5 if name == "initial" else 0)
    if name == "initial":
        out[::2, :32] = x[::2, :32]
    else:
        out[:4, :8] = x[:4, :8]
    return out


@pytest.mark.parametrize("name", CO)
@pytest.mark.parametrize("target", ["cpu", "machine"])
def test_both_languages(name: str, target: str, tmp_path: Path) -> None:
    (tmp_path / "k.co").write_text(CO[name])
    x = np.random.default_rng(0).standard_normal((6, 20) if name == "threads" else (7, 23)).astype(np.float32)
    for kernel in (tm.load(tmp_path / "k.co").k, {"initial": initial, "threads": threads, "origin": origin}[name]):
        assert np.array_equal(kernel.on(target)(x), wanted(name, x))


def test_a_kernel_without_levels_gives_its_result_a_first_value(tmp_path: Path) -> None:
    (tmp_path / "k.co").write_text("__co__ auto k(f32 [M] x) { f32 [M] y {2.0f}; return y; }")
    for target in ("cpu", "machine"):
        assert np.array_equal(
            tm.load(tmp_path / "k.co").k.on(target)(np.zeros(700, np.float32)), np.full(700, 2.0)
        )


def test_the_first_tile_keeps_whole_dimensions() -> None:
    @tm.kernel
    def k(x: tm.Global["f32", 8, 16], y: tm.Global["f32", 8, 16]):
        for _ in parallel(1, level="block"):
            s = shared("f32", 4, 16)
            dma.copy(x.subspan(4, full), s)
            for i in foreach(2):
                dma.copy(s, y.subspan(4, full).at(i, full))

    x = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    y = np.zeros_like(x)
    k.on("cpu")(x, y)
    assert np.array_equal(y, np.vstack([x[:4], x[:4]]))


REGISTERS = """
__co__ void k(global f32 [64] x, stream s) {
  parallel<s> b by 1 : block, w by 2 : group {
    inthreads.async (w == 0) { FEWER }
    inthreads.async (w == 1) {
      MORE
      x.at(0) = 1.0f;
    }
  }
}
__co__ void other(global f32 [64] x) {
  parallel b by 1 : block { __cpp__("x[0] = 2;"); }
}
"""
MORE = {
    "setreg 240;": "setreg.dec 24;",
    'asm volatile("setmaxnreg.inc.sync.aligned.u32 240;" ::: "memory");': "call croq::cuda::setreg_dec(24);",
    '__cpp__(R"(asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");)");': (
        '__cpp__("asm volatile(\\"setmaxnreg.dec.sync.aligned.u32 24;\\");");'
    ),
}


@pytest.mark.parametrize("more", MORE)
def test_register_counts_and_foreign_text(tmp_path: Path, more: str) -> None:
    """Register counts of every spelling are read; C++ refuses the kernel that has it, and no other."""
    text = REGISTERS.replace("MORE", more).replace("FEWER", MORE[more])
    (tmp_path / "k.co").write_text(text)
    module = tm.load(tmp_path / "k.co")
    x = np.zeros(64, np.float32)
    module.k(x)
    assert x[0] == 1
    with pytest.raises(tm.CompileError) as refused:
        module.other(x)
    assert refused.value.code == "not-built-yet" and refused.value.span.line == 12
    (tmp_path / "k.co").write_text(text.replace("240", "250"))
    with pytest.raises(tm.CompileError, match="a multiple of 8 from 24 to 256"):
        tm.load(tmp_path / "k.co").k(x)


AROUND = """
#define LOG(...) printf(__VA_ARGS__)
#define SUM(a, ...) (a + cdiv(__VA_ARGS__))
int main() { LOG("%d %d", 1, 2); return 0; }
__co__ void k(global f32 [N] x, global f32 [N] y) {
  print("N = ", N, ", ", SUM(1, N, 128), " blocks");
  [[launch_bounds(256, 2)]] parallel b by cdiv(N, 128) : block {
    parallel w by 4 : group, t by 32 : thread {
      i = b * 128 + w * 32 + t;
      inthreads.async (w >= 0) { call croq::cuda::setreg_inc(240); setreg.inc 240; }
      if (i < N) { y.at(i) = x.at(i) + 1.0f; }
    }
  }
}
"""


def test_what_stands_around_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Variadic macros, `print` outside every level, bounds of a launch, counts of registers."""
    (tmp_path / "k.co").write_text(AROUND)
    kernel = tm.load(tmp_path / "k.co").k
    x = np.arange(300, dtype=np.float32)
    for target in ("cpu", "machine"):
        y = np.zeros_like(x)
        kernel.on(target)(x, y)
        assert np.array_equal(y, x + 1)
        assert "N = 300, 4 blocks" in capsys.readouterr().out


PARTS = """
__co__ void k(global f32 [6, 4, 8] x, global f32 [B, H, W] q, global f32 [6, 2, 16] y, global f32 [B, 2, W] z) {
  parallel b by 6 : block {
    shared f32 [4, 8] s[2];
    dma.copy x.subspan(1, 4, 8).at(b, 0, 0).span_as([4, 8]) => s[1];
    dma.copy s[1].subspan(2, 8).at(1, 0).span_as([1, 16]) => y.subspan(1, 1, 16).at(b, 0, 0).sqz().span_as([1, 16]);
    dma.copy x.span_as([24, 8]).view(2, 8).from(b * 4, 0).span_as([16]) => y.subspan(1, 1, 16).at(b, 1, 0).span_as([16]);
    parallel t by 32 : thread {
      if (b < B && t < 2 * W) z.subspan(1, 2, _).at(b, 0, 0).span_as([2 * W]).at(t) = q.subspan(1, 2, _).at(b, 0, 0).span_as([2 * W]).at(t);
    }
  }
}
"""


def test_parts_in_another_shape(tmp_path: Path) -> None:
    """`span_as` of contiguous parts of parameters and of shared buffers, of extents known and not known."""
    (tmp_path / "k.co").write_text(PARTS)
    kernel = tm.load(tmp_path / "k.co").k
    x, q = np.arange(192, dtype=np.float32).reshape(6, 4, 8), np.arange(60, dtype=np.float32).reshape(4, 3, 5)
    for target in ("cpu", "machine"):
        y, z = np.zeros((6, 2, 16), np.float32), np.zeros((4, 2, 5), np.float32)
        kernel.on(target)(x, q, y, z)
        assert np.array_equal(y[:, 0], x[:, 2:].reshape(6, 16)) and np.array_equal(
            y[:, 1], x[:, :2].reshape(6, 16)
        )
        assert np.array_equal(z, q[:, :2])
    (tmp_path / "k.co").write_text(PARTS.replace("from(b * 4, 0)", "from(b * 4, 4)"))
    with pytest.raises(tm.CompileError, match="is not contiguous in rows of 1"):
        tm.load(tmp_path / "k.co").k(x, q, y, z)


def test_a_part_over_an_inner_edge() -> None:
    """The elements behind an inner edge are those of the next row, not zeros: refused at the call."""

    @tm.kernel
    def k(x: tm.Global["f32", "B", "T", 4], y: tm.Global["f32", "B", 8]):
        for b in parallel(x.shape[0], level="block"):
            for i in foreach(x.shape[1]):
                dma.copy(x.subspan(1, 2, 4).at(b, i, 0).span_as(8), y.subspan(1, 8).at(b, 0).sqz())

    y = np.zeros((3, 8), np.float32)
    for target in ("cpu", "machine"):
        with pytest.raises(tm.TilemmaError, match="inside a dimension of T"):
            k.on(target)(np.zeros((3, 5, 4), np.float32), y)
