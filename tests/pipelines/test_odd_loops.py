"""Loops that can be pipelined although they do not look so, and loops that only look so: the results stay.

Every kernel multiplies tiles of `a` and `b`; the loops differ in their control flow and in what else they do with
the tiles.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sampling import by_night

from tilemma import croqtile
from tilemma.kernels import Kernel, facts_of
from tilemma.targets.cpu import execute
from tilemma.targets.ptx.passes import pipeline_model

KERNEL = """
[[pipeline(SETTINGS)]] __co__ void kernel(global f16 [M, K] a, global f16 [N, K] b, global f32 [M, N] c,
    global s32 [64] table, int n) {
  parallel {i, j} by [cdiv(M, 64), cdiv(N, 32)] : block {
    shared f16 [64, 32] sa;
    shared f16 [32, 32] sb;
    shared f16 [32, 32] sc;
    shared s32 [64] st;
    mutable int p = 0;
    mc = mma.fill.f32 0.0f;
    LOOP
    parallel g by 1 : group-4
      mma.store mc, c.subspan(64, 32).at(i, j);
  }
}
"""
MULTIPLY = "parallel g by 1 : group-4 mma.row.row mc, sa, sb;"
EACH = "foreach k in cdiv(K, 32)"
THREADS = "parallel t by 128 : thread"


def tiles(k: str) -> str:
    return f"dma.copy a.subspan(64, 32).at(i, {k}) => sa; dma.copy b.subspan(32, 32).at(j, {k}) => sb;"


def step(k: str = "k") -> str:
    return f"{tiles(k)} {MULTIPLY}"


CHANGED = f"{THREADS} if (t < 64) foreach e in 32 sa.at(t, e) = sa.at(t, e) * sa.at(t, e);"
SECOND = "dma.copy b.subspan(32, 32).at(j, 0) => sc; parallel g by 1 : group-4 mma.row.row mc, sa, sc;"
# The loop, and the targets that copy ahead: those that issue copies with the threads that multiply (8), and those
# that have a role for it (9).
LOOPS = {
    "the tile is changed in place": (f"{EACH} {{ {tiles('k')} {CHANGED} {MULTIPLY} }}", "89"),
    "the tile is changed after its use": (f"{EACH} {{ {step()} {CHANGED} {MULTIPLY} }}", "89"),
    "a product is stored over the tile": (
        f"{EACH} {{ {step()} parallel g by 1 : group-4 {{ md = mma.fill.f32 1.0f; mma.store md, sa; }}"
        f" {MULTIPLY} }}",
        "89",
    ),
    "few threads change the tile": (
        f"{EACH} {{ {tiles('k')} parallel t by 64 : thread foreach e in 32 sa.at(t, e) = sa.at(t, e) * 2.0f;"
        f" {MULTIPLY} parallel t by 1 : thread sa.at(t, t) = 1.0f; {MULTIPLY} }}",
        "89",
    ),
    "two loops, one pair of buffers": (f"{EACH} {{ {step()} }} foreach k in n {{ {step()} }}", "89"),
    "two loops, in another order": (
        f"{EACH} {{ {step()} }} foreach k in n {{ dma.copy b.subspan(32, 32).at(j, k) => sb;"
        f" dma.copy a.subspan(64, 32).at(i, k) => sa; {MULTIPLY} }}",
        "89",
    ),
    "a tile is used between two loops": (f"{EACH} {{ {step()} }} {MULTIPLY} foreach k in n {{ {step()} }}", ""),
    "one buffer twice in an iteration": (
        f"{EACH} {{ {step()} dma.copy a.subspan(64, 32).at(i, 0) => sa; {MULTIPLY} }}",
        "89",
    ),
    "a loop in a loop, one pair of buffers": (f"foreach z in n {{ {step('z')} {EACH} {{ {step()} }} }}", "89"),
    "the inner loop's tile is used after it": (
        f"foreach z in n {{ {step('z')} {EACH} {{ {step()} }} {MULTIPLY} }}",
        "89",
    ),
    "a use before the copy": (f"{EACH} {{ if (k > 0) {MULTIPLY} {step()} }}", ""),
    "a branch": (f"{EACH} {{ if (table.at(k) == 1) {{ {step()} }} }}", "89"),
    "two branches": (f"{EACH} {{ if (table.at(i + k) == 1) {{ {step()} }} else {{ {step('0')} }} }}", "89"),
    "branches in branches": (
        f"{EACH} {{ if (table.at(k) == 1) {{ if (k != n) {{ {step()} }} }}"
        f" else {{ if (k == 2) {{ {step()} }} }} }}",
        "89",
    ),
    "copies in a branch, uses after it": (f"{EACH} {{ if (k % 2 == 0) {{ {tiles('k')} }} {MULTIPLY} }}", ""),
    "another tile in a branch": (
        f"{EACH} {{ {step()} if (table.at(k) == 1) dma.copy a.subspan(64, 32).at(i, 0) => sa; {MULTIPLY} }}",
        "89",
    ),
    "break before the copies": (f"{EACH} {{ if (table.at(k + 3) == 1) break; {step()} }}", "9"),
    "continue before the copies": (f"{EACH} {{ if (table.at(k) == 1) continue; {step()} }}", "9"),
    "break after the use": (f"{EACH} {{ {step()} if (k == n) break; }}", "9"),
    "break between copy and use": (f"{EACH} {{ {tiles('k')} if (table.at(k + 3) == 1) break; {MULTIPLY} }}", ""),
    "break between two rings": (f"{EACH} {{ {step()} if (k == n) break; {SECOND} }}", "9"),
    "break of the outer loop": (f"foreach z in 3 {{ {EACH} {{ {step()} }} if (z == n) break; }}", "89"),
    "break of a loop inside": (
        f"{EACH} {{ {tiles('k')} foreach z in 4 {{ if (z == n) break; {MULTIPLY} }} }}",
        "89",
    ),
    "while": (f"while (p < cdiv(K, 32)) {{ {step('p')} p = p + 1 + table.at(p); }}", "9"),
    "while in a loop": (f"foreach z in n {{ while (p % 3 != 2) {{ {step('p')} p = p + 1; }} p = p + 2; }}", "9"),
    "a list of tiles": (f"p = n; while (p != 4 && p < 8) {{ {step('p % 4')} p = p + 1 + 2 * table.at(p); }}", "9"),
    "the place is counted": (f"{EACH} {{ {step('p')} p = p + 1; }}", "9"),
    "the place is counted by threads": (f"{EACH} {{ {step('p')} {THREADS} p = p + 1; }}", ""),
    "the place is read from the tile": (
        f"{EACH} {{ {step('p')} if (sa.at(0, 0) > __to<f16>(0.0f)) p = p + 1; }}",
        "",
    ),
    "a table in shared memory": (
        f"{THREADS} {{ if (t < 64) st.at(t) = table.at(t); }} {EACH} {{ {step('st.at(k)')} }}",
        "8",
    ),
    "a table that the loop changes": (
        f"{THREADS} {{ if (t < 64) st.at(t) = table.at(t); }}"
        f" {EACH} {{ {step('st.at(k)')} {THREADS} if (t == 0) st.at(k + 1) = 1 - st.at(k + 1); }}",
        "",
    ),
    "as often as an argument says": (f"foreach k in n {{ {step()} }}", "89"),
    "an initial value that is never read": (
        f"shared f16 [64, 32] si {{1}}; {EACH} {{ {tiles('k')} dma.copy a.subspan(64, 32).at(i, k) => si;"
        " if (table.at(k) == 1) dma.copy a.subspan(64, 32).at(i, 0) => si;"
        " parallel g by 1 : group-4 mma.row.row mc, si, sb; }",
        "89",
    ),
    "a triangle": (f"foreach k in i + 1 {{ {step()} }}", "89"),
    "from the end": (f"{EACH} {{ {step('cdiv(K, 32) - 1 - k')} }}", "89"),
    "the result of the iteration before": (
        f"{EACH} {{ {step()} parallel g by 1 : group-4 mc = mc * 2.0f; }}",
        "89",
    ),
}  # fmt: skip
SETTINGS = (
    "persistent=true",
    "persistent=false, stages=2",
    "cluster=2, stages=3",
    "blocks=1, order=keep",
    "stages=6",
)
SIZES = {"M": 72, "N": 40, "K": 104}
# Every sixth by day, all by night.
CASES = [pytest.param(x, marks=() if i % 6 == 0 else pytest.mark.slow, id=x) for i, x in enumerate(LOOPS)]


def problem() -> dict[str, Any]:
    """Arrays of small integers, whose products are exact; the kernels only read ones and zeros from the table."""
    rng = np.random.default_rng(0)
    m, n, k = SIZES.values()
    a, b = (rng.integers(-2, 3, (x, k)).astype(np.float16) for x in (m, n))
    table = rng.integers(0, 2, 64).astype(np.int32)
    return {"a": a, "b": b, "c": np.zeros((m, n), np.float32), "table": table}


def kernel_of(name: str, settings: str) -> Kernel:
    text = KERNEL.replace("SETTINGS", settings).replace("LOOP", LOOPS[name][0])
    return Kernel(croqtile.load(text, "odd_loops.co").sources["kernel"])


@pytest.mark.parametrize("name", CASES)
def test_results_stay(name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    # Each of the persistent blocks computes several tiles.
    monkeypatch.setattr(pipeline_model, "MULTIPROCESSORS", 2)
    all_cases = by_night(request.config)
    at = list(LOOPS).index(name)
    for settings in SETTINGS if all_cases else SETTINGS[at // 6 % len(SETTINGS) :][:1]:
        kernel = kernel_of(name, settings)
        for n in (0, 1, 3) if all_cases else (2,):
            wanted = problem()
            kernel.on("cpu")(**wanted, n=n)
            for arch in ("sm_80", "sm_90a") if all_cases else (("sm_80", "sm_90a")[at // 6 % 2],):
                compiled = kernel.compile(arch, facts=facts_of(wanted))
                found = problem()
                execute(compiled.kernel, found, {"n": n}, dims=SIZES)
                np.testing.assert_array_equal(found["c"], wanted["c"], f"{settings} {n} {arch}")
                if all_cases:
                    run = problem()
                    kernel.on("machine", arch=arch, seed=n, strict=True)(**run, n=n)
                    np.testing.assert_array_equal(run["c"], wanted["c"], f"machine {settings} {n} {arch}")


@pytest.mark.parametrize("name", CASES)
def test_which_are_pipelined(name: str) -> None:
    arrays = problem()
    for arch in ("sm_80", "sm_90a"):
        compiled = kernel_of(name, "stages=2").compile(arch, facts=facts_of(arrays))
        said = [d for d in compiled.decisions if d.pass_name == "pipeline"]
        ahead = any(("full" if arch == "sm_90a" else "stages") in d.data and not d.warning for d in said)
        assert ahead == (arch[3] in LOOPS[name][1]), said
        assert ahead or any("change" in d.data and d.span is not None for d in said), said
