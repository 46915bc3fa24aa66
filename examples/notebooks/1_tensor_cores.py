# %% [markdown]
# # Tensor cores in 20 minutes
#
# A tensor core multiplies small matrices: one instruction, one warp of 32 lanes, `C += A x B`. The operands are
# in registers, spread over the lanes in a pattern that the hardware fixes. This notebook looks at one such
# instruction, uses it in a kernel, and ends with a kernel that the compiler pipelines for Hopper. It needs
# NumPy and no GPU.

# %%
import numpy as np

import tilemma as tm
from tilemma import cdiv, dma, foreach, full, mma, parallel, shared

# %% [markdown]
# ## One instruction
#
# The catalogue has a record for each instruction. This one multiplies a 16 x 16 matrix A by a 16 x 8 matrix B.
# A cell of the picture names the lane that holds the element, and the element's number in that lane's
# registers.

# %%
tm.atoms["SM80_16x8x16_F32F16F16F32_TN"]

# %% [markdown]
# ## The smallest kernel
#
# One block, one warp, one instruction. `dma.copy` brings the operands to shared memory. `mma.fill`, `mma.load`,
# `mma.row.row` and `mma.store` are the four steps of every kernel: fill, load, multiply, store. No line says
# which lane holds what.


# %%
@tm.kernel
def one_tile(a: tm.Global["f16", 16, 16], b: tm.Global["f16", 8, 16], c: tm.Global["f32", 16, 8]):
    for _ in parallel(1, level="block"):
        a_s = dma.copy(a, to="shared")
        b_s = dma.copy(b, to="shared")
        for _ in parallel(1, level="group"):
            mc = mma.fill(0.0, "f32")
            mma.row.row(mc, mma.load(a_s.data), mma.load(b_s.data))
            mma.store(mc, c)


rng = np.random.default_rng(0)
a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((16, 16), (8, 16)))
c = np.zeros((16, 8), np.float32)
one_tile(a, b, c)
float(abs(c - a.astype(np.float64) @ b.T.astype(np.float64)).max())

# %% [markdown]
# NumPy arrays run on the CPU reference. The compiler made the decisions that the program left open. They are
# the plan:

# %%
one_tile.compile("sm_80").explain()

# %% [markdown]
# ## Shared memory has 32 banks
#
# `ldmatrix` reads 8 rows of 16 bytes at once. Rows of 128 bytes without a swizzle all start in the same bank,
# so the read takes 8 passes. The swizzle of 128 bytes exchanges pieces of a row such that each pass reads all
# banks.

# %%
from tilemma.layouts import plain_layout, shared_layout

plain_layout("f16", 8, 64)

# %%
shared_layout("f16", 8, 64, "K", 128)

# %% [markdown]
# ## A matrix product
#
# The same four steps over tiles. The kernel takes any M, N and K. It says nothing about buffers or barriers.


# %%
@tm.kernel
def matmul(lhs: tm.Global["f16", "M", "K"], rhs: tm.Global["f16", "N", "K"], out: tm.Global["f16", "M", "N"]):
    (M, K), N = lhs.shape, rhs.shape[0]
    for m, n in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        a, b, c = shared("f16", 128, 64), shared("f16", 128, 64), shared("f16", 128, 128)
        mc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(lhs.subspan(128, 64).at(m, k), a)
            dma.copy(rhs.subspan(128, 64).at(n, k), b)
            for p in parallel(2, level="group-4"):
                for kk in foreach(4):
                    left = mma.load(a.subspan(64, 64).at(p, 0).chunkat(full, kk))
                    mma.row.row(mc, left, mma.load(b.chunkat(full, kk)))
        for p in parallel(2, level="group-4"):
            mma.store(mc, c.subspan(64, 128).at(p, 0))
        dma.copy(c, out.subspan(128, 128).at(m, n))


a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((200, 136), (96, 136)))
c = np.zeros((200, 96), np.float16)
matmul(a, b, c)
bound = tm.testing.error_bound(a, b.T, acc="f32", out="f16")
tm.testing.share_of_bound(c, tm.testing.reference("mk,nk->mn", a, b), bound)

# %% [markdown]
# The largest error is below 1, its bound. On Hopper the compiler turns the loop into a pipeline: a warpgroup
# that copies with TMA, others that multiply with `wgmma`, and a ring of buffers between them.

# %%
matmul.compile("sm_90a").explain()

# %% [markdown]
# `matmul.show()` draws all of this as a page. Here is the page of the smallest kernel: try a click on a line of
# its source, and the lanes of its fragments.

# %%
one_tile.show("sm_80")
