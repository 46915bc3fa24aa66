# %% [markdown]
# # Write, check, look
#
# A kernel is right when its results agree with a reference, for all sizes, and when no schedule of the hardware
# can change them. This notebook writes a kernel, compares it, runs it on the PTX machine under hostile
# schedules, and then looks inside. It needs NumPy and no GPU.

# %%
import re
import tempfile
from pathlib import Path

import numpy as np

import tilemma as tm
from tilemma import machine

# %% [markdown]
# ## Write
#
# This kernel is in Croqtile's `.co` language; Python kernels work the same. One warpgroup copies tiles with TMA
# into a ring of three buffers, another multiplies them. The events `full` and `empty` connect the two.

# %%
SOURCE = """
__co__ void ring(global f16 [M, K] lhs, global f16 [N, K] rhs, global f32 [M, N] out) {
  parallel {m, n} by [cdiv(M, 64), cdiv(N, 64)] : block {
    shared event full[3], empty[3] = ready;
    shared f16 [64, 64] a[3];
    shared f16 [64, 64] b[3];
    parallel wg by 2 : group-4 {
      inthreads.async (wg == 0) {
        foreach k in cdiv(K, 64) {
          wait empty[k % 3];
          tma.copy.async<full[k % 3]> lhs.subspan(64, 64).at(m, k) => a[k % 3];
          tma.copy.async<full[k % 3]> rhs.subspan(64, 64).at(n, k) => b[k % 3];
          trigger full[k % 3];
        }
      }
      inthreads.async (wg == 1) {
        mc = mma.fill.f32 0.0f;
        foreach k in cdiv(K, 64) {
          wait full[k % 3];
          ma = mma.load a[k % 3];
          mb = mma.load b[k % 3];
          mma.row.row mc, ma, mb;
          mma.commit;
          trigger empty[k % 3];
        }
        mma.store mc, out.subspan(64, 64).at(m, n);
      }
    }
  }
}
"""
folder = Path(tempfile.mkdtemp())
(folder / "ring.co").write_text(SOURCE)
ring = tm.load(folder / "ring.co").ring
ring

# %% [markdown]
# ## Check
#
# The CPU reference defines the results; a float64 product and a bound on its rounding errors judge them.

# %%
rng = np.random.default_rng(0)
a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((100, 328), (72, 328)))
c = np.zeros((100, 72), np.float32)
ring(a, b, c)
bound = tm.testing.error_bound(a, b.T, acc="f32", out="f32")
tm.testing.share_of_bound(c, tm.testing.reference("mk,nk->mn", a, b), bound)

# %% [markdown]
# The PTX machine executes the PTX that a GPU would execute, lane by lane. Its scheduler completes copies late
# or early, and lets warps run far ahead. `machine.check` tries many schedules and reports each hazard.

# %%
compiled = ring.compile("sm_90a")
arrays = {"lhs": a, "rhs": b, "out": np.zeros_like(c)}
machine.check(compiled.ptx, compiled.launches[0], arrays, schedules=5)

# %% [markdown]
# The machine's results are those of the reference, bit for bit where the sums have one order:

# %%
bool(abs(arrays["out"] - c).max() < 1e-4)

# %% [markdown]
# ## Look
#
# `trace=True` records when each warp ran, what it waited for, and when copies were in flight. The rows have the
# names of the program.

# %%
report = ring.on("machine", trace=True)(a[:64], b[:64], c[:64, :64].copy())
print(report.timeline.text(width=84))

# %% [markdown]
# `machine.inspect` stops one warp in front of a line of the PTX. Here it is the first multiply: the machine
# reads the operand through the descriptor as the tensor core does, and it is the first tile of `lhs`.

# %%
line = next(i for i, text in enumerate(compiled.ptx.split("\n"), 1) if "wgmma.mma_async" in text)
view = machine.inspect(compiled.ptx, compiled.launches[0], arrays, line, warp=4)
first = re.search(r"%\w*desc\w*", view.instruction)[0]
tile = view.tile(int(view.register(first)[0]), 64, 16, "f16")
bool((tile == a[:64, :16]).all())

# %% [markdown]
# All of this is one page too: `ring.show()`, or `tilemma show FILE --html` on the command line.

# %%
page = ring.show(shape={"M": 64, "N": 64, "K": 192})
page.save(folder / "ring.html")
