"""Random roles of several warps: for any delayed warp, none misses a generation, and all data arrive."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pipeline_runs import from_co

from tests.sampling import examples
from tilemma import machine
from tilemma.compiler import compile_kernel
from tilemma.errors import CompileError
from tilemma.kernels import facts_of
from tilemma.passes.scope import block_threads, blocks
from tilemma.targets.cpu import execute

ROWS, STEPS, TILES = 4, 3, 3
KERNEL = """
__co__ void k(global f32 [K, N] x, global f32 [K, N] y) {
  parallel cta by 1 : block {
    shared event full[SLOTS], empty[SLOTS] = ready;
    shared f32 [4, 64] a[SLOTS];
    OWN
    parallel p by PRODUCERS + CONSUMERS : LEVEL {
      inthreads.async (p < PRODUCERS) {
        foreach n in TILES {
          SAY_FIRST
          foreach k in cdiv(K, 4 * TILES) {
            wait empty WHICH;
            PREPARE
            FILLER {
              FILL
              trigger full WHICH;
            }
          }
        }
      }
      inthreads.async (p >= PRODUCERS) {
        foreach n in TILES {
          foreach k in cdiv(K, 4 * TILES) {
            wait full WHICH;
            SAY_LAST
            USE
            READER { trigger empty WHICH; }
          }
        }
      }
    }
  }
}
"""
ORDER = "n * cdiv(K, 4 * TILES) + k"
SOURCE = f"x.subspan(4, 64).at({ORDER}, 0)"
USES = {
    # Each consumer writes rows of its own.
    "rows": f"""
            dma.copy a[SLOT].subspan(PART, 64).at(p - PRODUCERS, 0)
                => y.subspan(4, 64).at({ORDER}, 0).subspan(PART, 64).at(p - PRODUCERS, 0);
    """,
    # By a buffer that only the consumers use.
    "own": f"""
            dma.copy a[SLOT].subspan(PART, 64).at(p - PRODUCERS, 0) => own.subspan(PART, 64).at(p - PRODUCERS, 0);
            dma.copy own.subspan(PART, 64).at(CONSUMERS - 1 - (p - PRODUCERS), 0)
                => y.subspan(4, 64).at({ORDER}, 0).subspan(PART, 64).at(CONSUMERS - 1 - (p - PRODUCERS), 0);
    """,
}


@st.composite
def roles(draw) -> str:
    producers, consumers = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2]))
    slots = draw(st.integers(1, 3))
    way = draw(st.sampled_from(["tma", "tma", "dma"]))
    one = draw(st.integers(0, producers - 1))
    filler = f"inthreads (p == {one})"
    if producers == 1:
        filler = draw(st.sampled_from(["", "inthreads (K > 0)", "if (K > 0)", filler]))
    reader = draw(st.sampled_from(["", f"inthreads (p == {producers + draw(st.integers(0, consumers - 1))})"]))
    slot = f"(({ORDER}) % {slots})"
    use = draw(st.sampled_from(sorted(USES)))
    texts = {
        "FILLER": filler,
        "READER": reader,
        "USE": USES[use],
        "OWN": "shared f32 [4, 64] own;" if use == "own" else "",
        "SAY_FIRST": draw(st.sampled_from(["", 'if (K < 0) println("none");'])),
        "SAY_LAST": draw(st.sampled_from(["", 'if (K < 0) println("none");'])),
        "PREPARE": draw(st.sampled_from(["", "mutable int rest = k; rest = rest + 1;"])),
        "FILL": (
            f"tma.copy.async<full WHICH> {SOURCE} => a[SLOT];"
            if way == "tma"
            else f"dma.copy {SOURCE} => a[SLOT];"
        ),
        "WHICH": draw(st.sampled_from([f"[{slot}]", f".at({ORDER})"])),
        "LEVEL": draw(st.sampled_from(["group", "group-4", "group-2"])),
        "SLOTS": str(slots),
        "SLOT": slot,
        "PART": str(ROWS // consumers),
        "PRODUCERS": str(producers),
        "CONSUMERS": str(consumers),
        "TILES": str(draw(st.sampled_from([1, TILES]))),
    }
    text = KERNEL
    for name, value in texts.items():
        text = text.replace(name, value)
    return text


@settings(max_examples=examples(36), deadline=None, suppress_health_check=list(HealthCheck))
@given(roles())
def test_random_roles_under_starvation(text: str) -> None:
    kernel = from_co(text)
    rows = ROWS * STEPS * TILES
    x = np.random.default_rng(0).integers(-99, 100, (rows, 64)).astype(np.float32)
    y = np.zeros_like(x)
    execute(kernel, {"x": x, "y": y}, {}, dims={"K": rows, "N": 64})
    assert np.array_equal(y, x)
    try:
        compiled = compile_kernel(kernel, "sm_90a", facts_of({"x": x, "y": y}))
    except CompileError as e:
        assert e.code in ("barrier-not-uniform", "not-built"), e
        return
    (launch,) = compiled.launches
    (block,) = blocks(kernel)
    for seed in range(block_threads(block) // 32):
        y = np.zeros_like(x)
        machine.run(compiled.ptx, launch, {"x": x, "y": y}, seed=seed, schedule="starve", strict=True)
        assert np.array_equal(y, x)
