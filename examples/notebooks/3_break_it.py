# %% [markdown]
# # Break it, and let the machine find it
#
# A race can give right results for years. This notebook removes synchronisation from working programs, one
# piece at a time. The compiler refuses some of the programs, and the PTX machine finds the others. It needs
# NumPy and no GPU.

# %%
import json
import tempfile
from pathlib import Path

import numpy as np

import tilemma as tm
from tilemma import machine
from tilemma.errors import TilemmaError

# %% [markdown]
# ## A barrier that a warp does not need, says its author
#
# This sum over a block, PTX of another compiler, leaves out the barrier below 64 threads: "a warp runs in
# lockstep". It does not, from Volta on.

# %%
ptx = Path("../ptx/block_sum.ptx").read_text()
launch = {"grid": 1, "block": 256, "read_only": ["values"]}
arrays = {"values": np.arange(256, dtype=np.float32), "sums": np.zeros(1, np.float32)}
machine.check(ptx, launch, arrays, schedules=5)

# %% [markdown]
# The report names both accesses, the lanes and the barrier that is missing. The result can be right all the
# same:

# %%
float(arrays["sums"][0]), float(arrays["values"].sum())

# %% [markdown]
# With the barrier in every step there is no hazard:

# %%
machine.check(ptx.replace("  @%p1 bra NEXT;\n", ""), launch, arrays, schedules=5)

# %% [markdown]
# ## A pipeline
#
# TMA fills a ring of buffers, `wgmma` reads it. This one is right:

# %%
SOURCE = """
__co__ void ring(global f16 [64, K] lhs, global f16 [64, K] rhs, global f32 [64, 64] out) {
  parallel one by 1 : block {
    shared event full[2], empty[2] = ready;
    shared f16 [64, 64] a[2];
    shared f16 [64, 64] b[2];
    parallel wg by 2 : group-4 {
      inthreads.async (wg == 0) {
        foreach k in cdiv(K, 64) {
          wait empty[k % 2];
          tma.copy.async<full[k % 2]> lhs.subspan(64, 64).at(0, k) => a[k % 2];
          tma.copy.async<full[k % 2]> rhs.subspan(64, 64).at(0, k) => b[k % 2];
          trigger full[k % 2];
        }
      }
      inthreads.async (wg == 1) {
        mc = mma.fill.f32 0.0f;
        foreach k in cdiv(K, 64) {
          wait full[k % 2];
          ma = mma.load a[k % 2];
          mb = mma.load b[k % 2];
          mma.row.row mc, ma, mb;
          mma.commit;
          trigger empty[k % 2];
        }
        mma.store mc, out;
      }
    }
  }
}
"""
rng = np.random.default_rng(0)
a, b = (rng.standard_normal((64, 320)).astype(np.float16) for _ in range(2))


def load(text):
    path = Path(tempfile.mkdtemp()) / "ring.co"
    path.write_text(text)
    return tm.load(path).ring


def check(ptx, launch):
    return machine.check(ptx, launch, {"lhs": a, "rhs": b, "out": np.zeros((64, 64), np.float32)}, schedules=8)


compiled = load(SOURCE).compile("sm_90a")
check(compiled.ptx, compiled.launches[0])

# %% [markdown]
# ## Break the program
#
# Without `trigger empty` the producer waits for ever. The compiler simulates the events, without data, and
# refuses:

# %%
try:
    load(SOURCE.replace("trigger empty[k % 2];", "")).compile("sm_90a").ptx
except TilemmaError as error:
    found = error
found

# %% [markdown]
# ## Break the code
#
# What the compiler inserted by itself can be changed in the PTX alone. First the wait before a buffer goes back
# to the producer: with a 2 it lets both multiplies run on.


# %%
def mutant(old, new):
    assert old in compiled.ptx, old
    return check(compiled.ptx.replace(old, new, 1), compiled.launches[0])


mutant("wgmma.wait_group.sync.aligned 1;", "wgmma.wait_group.sync.aligned 2;")

# %% [markdown]
# TMA writes a buffer that `wgmma` may still read. Next, the number of bytes that the mbarrier expects is
# halved, so that the consumer starts too early:

# %%
mutant(", 16384;", ", 8192;")

# %% [markdown]
# ## Break the launch
#
# A swizzle belongs to both sides: TMA writes with it, the descriptor of `wgmma` reads with it. Here the tensor
# map of `lhs` has none. Nothing races, all waits are right, and the result is garbage. The machine follows each
# byte from the array to the tensor core and says so:

# %%
plan = json.loads(json.dumps(compiled.launch))
plan["arguments"][0]["swizzle"] = 0
check(compiled.ptx, plan)
