"""Loops of mma.sync that the compiler pipelines with cp.async, and the reasons against it."""

# A case is easier to read on one line.
# ruff: noqa: E501
from __future__ import annotations

import numpy as np
import pytest

from dev.fuzz import pipelined
from tilemma import croqtile
from tilemma.compiler import Compiled
from tilemma.ir.tile import ArrayFacts, Barrier, Copy, CopyCommit, CopyWait, For, Kernel, SwapFutures
from tilemma.ir.walk import walk
from tilemma.kernels import Kernel as Callable
from tilemma.passes.decision import Decision
from tilemma.targets.ptx.passes import pipeline_loops

LISTING = """#define TILE 32
{attribute} __co__ void f(global f16 [M, K] a, global f16 [N, K] b, global f16 [M, N] c) {{
  parallel {{i, j}} by [cdiv(M, TILE), cdiv(N, TILE)] : block {{
    shared f16 [TILE, TILE] c_s;
    parallel {{v, w}} by [2, 2] : group {{
      mc = mma.fill.f32 0.0;
      foreach k in cdiv(K, TILE) {{
        a_s = dma.copy a.subspan(TILE, TILE).at(i, k) => shared;
        b_s = dma.copy b.subspan(TILE, TILE).at(j, k) => shared;
        foreach s in TILE / 16 {{
          ma = mma.load a_s.chunkat(v, s);
          mb = mma.load b_s.chunkat(w, s);
          mma.row.row mc, ma, mb;
        }}
      }}
      mma.store mc, c_s.subspan(16, 16).at(v, w);
    }}
    dma.copy c_s => c.subspan(TILE, TILE).at(i, j);
  }}
}}
"""


def compiled(attribute: str = "", arch: str = "sm_80") -> Compiled:
    return Callable(croqtile.load(LISTING.format(attribute=attribute), "f.co").sources["f"]).compile(arch)


def main_loop(kernel: Kernel) -> For:
    return next(op for op in walk(kernel.body) if isinstance(op, For))


def said(c: Compiled) -> list[str]:
    return [d.text for d in c.decisions if d.pass_name == "pipeline"]


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_listing_1_with_any_number_of_stages(stages: int) -> None:
    """The stages rotate, and an iteration has one barrier and no copy that it waits for itself."""
    c = compiled(f"[[pipeline(stages={stages})]]")
    loop = main_loop(c.kernel)
    rotations = [op for op in walk(loop.body) if isinstance(op, SwapFutures)]
    assert [len(op.futures) for op in rotations] == [stages, stages]
    assert sum(isinstance(op, Barrier) for op in walk(loop.body)) == 1
    assert all(op.asynchronous for op in walk(loop.body) if isinstance(op, Copy))
    assert any(f"{stages} stages" in text for text in said(c)) and f"{stages} stages" in c.explain().render()
    assert not c.explain().warnings


def test_the_model_pipelines_what_says_nothing_and_leaves_what_is_off() -> None:
    assert any("stages" in text for text in said(compiled()))
    for attribute in ("[[pipeline(off)]]", "[[pipeline(stages=1)]]"):
        c = compiled(attribute)
        assert not said(c) and not any(isinstance(op, SwapFutures) for op in walk(c.kernel.body))


def test_a_target_without_cp_async_runs_it_as_written() -> None:
    assert said(compiled(arch="sm_75")) == ["left as written: sm_75 has no cp.async, which copies tiles ahead"]
    assert any("not pipelined as asked" in x for x in said(compiled("[[pipeline(stages=2)]]", arch="sm_75")))


def test_more_stages_than_fit_are_reduced_and_reported() -> None:
    text = LISTING.replace("TILE 32", "TILE 128").replace("(16, 16).at", "(64, 64).at").replace("TILE / 16", "8")
    text = text.replace("a_s.chunkat(v, s)", "a_s.subspan(64, 16).at(v, s)")
    text = text.replace("b_s.chunkat(w, s)", "b_s.subspan(64, 16).at(w, s)").format(
        attribute="[[pipeline(stages=4)]]"
    )
    c = Callable(croqtile.load(text, "f.co").sources["f"]).compile("sm_80")
    assert any("2 stages: " in w and "do not fit" in w for w in c.explain().warnings)
    assert c.launches[0].shared <= 163 * 1024


def test_what_stops_it_is_named_with_its_place_and_a_change() -> None:
    text = LISTING.replace("foreach s in", "if (k == 3) break; foreach s in").format(attribute="")
    c = Callable(croqtile.load(text, "f.co").sources["f"]).compile("sm_80")
    found = [d for d in c.decisions if d.pass_name == "pipeline"]
    assert [d.data["rule"] for d in found] == ["early-exit"] and found[0].warning and found[0].span is not None
    assert any("break" in w for w in c.explain().warnings)


DECLARED = LISTING.replace(
    "shared f16 [TILE, TILE] c_s;", "shared f16 [TILE, TILE] c_s; shared f16 [TILE, TILE] a_s;"
).replace(
    "a_s = dma.copy a.subspan(TILE, TILE).at(i, k) => shared;", "dma.copy a.subspan(TILE, TILE).at(i, k) => a_s;"
)
COPY, WORK = "dma.copy a.subspan(TILE, TILE).at(i, k) => a_s;", "foreach s in TILE"
AFTER = "dma.copy c_s => c"
# The rule, part of the change that is advised, what of `DECLARED` makes the wrong program, and what the right one.
Edit = tuple[str, str]
FOLLOWED_RULES: list[tuple[str, str, Edit, Edit]] = [
    ("early-exit", "put a condition around the work", (WORK, f"if (k == 3) break; {WORK}"), (WORK, f"if (k != 3) {WORK}")),
    ("conditional-copy", "put the condition around the use of the tile", (COPY, f"if (c_s.at(0, 0) < 3) {{{{ {COPY} }}}} c_s.at(0, 0) = 1.0f;"), (WORK, f"if (c_s.at(0, 0) < 3) {WORK}")),
    ("read-outside-loop", "put the condition around the use of the tile", (COPY, f"if (k < 3) {{{{ {COPY} }}}}"), (WORK, f"if (k < 3) {WORK}")),
    ("written-elsewhere", "give the other data a shared buffer of its own", (COPY, f"a_s.at(0, 0) = 0.0f; {COPY}"),
     (COPY, f"z_s.at(0, 0) = 0.0f; {COPY}")),
    ("source-written", "write the results to another array", (COPY, f"{COPY} a.at(0, 0) = 0.0f;"), (COPY, f"{COPY} c.at(0, 0) = 0.0f;")),
    ("read-outside-loop", "copy the tile again where it is needed, into a buffer of its own", (AFTER, f"c.at(0, 0) = a_s.at(0, 0); {AFTER}"),
     (AFTER, f"d = dma.copy a.subspan(TILE, TILE).at(i, 0) => shared; c.at(0, 0) = d.data.at(0, 0); {AFTER}")),
    ("part-of-a-buffer", "give the copied tile a shared buffer of its own", (COPY, COPY.replace("a_s;", "a_s.subspan(TILE, TILE).at(0, 0);")), ("", "")),
]  # fmt: skip


@pytest.mark.parametrize("case", FOLLOWED_RULES, ids=lambda c: c[0])
def test_followed_the_change_lets_it_be_pipelined(case: tuple[str, str, Edit, Edit]) -> None:
    rule, change, wrong, right = case
    found = []
    for old, new in (wrong, right):
        text = DECLARED.replace(
            "shared f16 [TILE, TILE] c_s;", "shared f16 [TILE, TILE] c_s; shared f16 [1, 1] z_s;"
        )
        if rule == "part-of-a-buffer" and old:
            text = text.replace("[TILE, TILE] a_s;", "[TILE, 64] a_s;").replace(
                "a_s.chunkat(v, s)", "a_s.subspan(16, 16).at(v, s)"
            )
        text = text.replace(old, new, 1).format(attribute="[[pipeline(stages=2)]]")
        c = Callable(croqtile.load(text, "f.co").sources["f"]).compile("sm_80")
        found.append([d for d in c.decisions if d.pass_name == "pipeline"])
    stopped = [d for d in found[0] if d.data.get("rule") == rule]
    assert stopped and any(change in d.text for d in stopped), [d.text for d in found[0]]
    assert not [d for d in found[1] if d.data.get("rule") == rule], [d.text for d in found[1]]
    assert any("stages" in d.text for d in found[1]), [d.text for d in found[1]]


# A loop around a `parallel` of warps.
OUTSIDE = """#define TILE 32
[[pipeline(stages=2)]] __co__ void f(global f16 [M, K] a, global f16 [N, K] b, global f16 [M, N] c) {
  parallel {i, j} by [cdiv(M, TILE), cdiv(N, TILE)] : block {
    shared f16 [TILE, TILE] c_s, a_s, b_s; shared s32 [4] n_s {0};
    mutable int q = 0;
    mc = mma.fill.f32 0.0;
    AROUND foreach k in cdiv(K, TILE) {
      COPY_A dma.copy b.subspan(TILE, TILE).at(j, k) => b_s;
      parallel {v, w} by [2, 2] : group {
        INSIDE
        foreach s in TILE / 16 {
          mma.row.row mc, a_s.subspan(16, TILE).at(v, 0).chunkat(_, s), b_s.subspan(16, TILE).at(w, 0).chunkat(_, s);
        }
      }
      LAST
    } END
    parallel {v, w} by [2, 2] : group { mma.store mc, c_s.subspan(16, 16).at(v, w); }
    dma.copy c_s => c.subspan(TILE, TILE).at(i, j);
  }
}
"""
HEAD, COPY_A = "foreach k in cdiv(K, TILE) {", "dma.copy a.subspan(TILE, TILE).at(i, k) => a_s;"
READ = "if (k > 0) { c.at(0, 0) = a_s.at(0, 0); }"
Places = dict[str, str]
# The rule, part of the change that is advised, and the parts of `OUTSIDE` in the wrong program and in the right one.
MORE_RULES: list[tuple[str, str, Places, Places]] = [
    ("while-loop", "use `foreach`", {HEAD: "mutable int k = 0; while (k < cdiv(K, TILE)) {", "LAST": "k += 1;"}, {}),
    ("copy-by-instances", "move the copy out of the `parallel`", {"COPY_A": "", "INSIDE": COPY_A}, {}),
    ("address-from-memory", "compute it from indices and parameters", {"at(i, k) => a_s": "at(i, n_s.at(0)) => a_s", "LAST": "n_s.at(0) = k + 1;"}, {"LAST": "n_s.at(0) = k + 1;"}),
    ("address-from-variable", "compute the place from the index of the loop", {"at(i, k) => a_s": "at(i, q) => a_s", "LAST": "q += 1;"}, {"LAST": "q += 1;"}),
    ("read-before-copy", "read the tile in the iteration that copies it", {"COPY_A": READ + COPY_A}, {"COPY_A": COPY_A + READ}),
    ("scope", "put the loop directly into the block", {"AROUND": "inthreads (i < 100) {", "END": "}"}, {}),
    ("hand-written", "use synchronous copies and no events", {"COPY_A": COPY_A.replace("dma.copy a", "f = dma.copy.async a") + "wait f;"}, {}),
]  # fmt: skip


def decided(places: Places, facts: dict[str, ArrayFacts] | None = None) -> list[Decision]:
    text = OUTSIDE
    for old, new in {"COPY_A": COPY_A, **places, "AROUND": places.get("AROUND", "")}.items():
        text = text.replace(old, new)
    for rest in ("INSIDE", "LAST", "END"):
        text = text.replace(rest, "")
    text = text.replace("c_s, a_s, b_s;", "c_s; shared f16 [TILE, TILE] a_s; shared f16 [TILE, TILE] b_s;")
    c = Callable(croqtile.load(text, "f.co").sources["f"]).compile("sm_80", facts=facts)
    return [d for d in c.decisions if d.pass_name == "pipeline"]


@pytest.mark.parametrize("case", MORE_RULES, ids=lambda c: c[0])
def test_followed_around_warps_the_change_lets_it_be_pipelined(case: tuple[str, str, Places, Places]) -> None:
    rule, change, wrong, right = case
    stopped = decided(wrong)
    assert any(d.data.get("rule") == rule and change in d.text for d in stopped), [d.text for d in stopped]
    assert any("copies into `a_s`, `b_s` are issued 1 iteration ahead" in d.text for d in decided(right))


def test_rows_that_cp_async_cannot_copy() -> None:
    wide = ArrayFacts(1, 16)
    stopped = decided({}, {"a": ArrayFacts(1, 2), "b": wide, "c": wide})
    assert any(d.data.get("rule") == "no-cp-async" and "start on multiples of 4 bytes" in d.text for d in stopped)
    assert any("`a_s`, `b_s`" in d.text for d in decided({}, {"a": ArrayFacts(1, 4), "b": wide, "c": wide}))


# What stands in front of the copies and of the multiplies of `OUTSIDE`, and behind them.
BRANCHES = {
    "one branch": {"COPY_A": "if (k % 3 != 1) {" + COPY_A, "LAST": "}"},
    "a table": {"COPY_A": "if (n_s.at(k % 4) == 0 && k != 2) {" + COPY_A, "LAST": "}"},
    "the other branch": {"COPY_A": "if (k % 3 == i) { q = k; } else {" + COPY_A, "LAST": "}"},
    "branches inside": {"COPY_A": "if (k > i) { if (k % 2 == 0) {" + COPY_A, "LAST": "} }"},
    "around the warps": {
        "for": "parallel {v, w} by [2, 2] : group { foreach k in cdiv(K, TILE) { if (k % 3 != 1) {"
    },
}


def with_branches(case: str) -> str:
    text = OUTSIDE
    places = BRANCHES[case]
    if "for" in places:
        text = text.replace(HEAD, places["for"]).replace(
            "parallel {v, w} by [2, 2] : group {\n        INSIDE", "{"
        )
        places = {"LAST": "} }"}
    for old, new in {"COPY_A": COPY_A, **places}.items():
        text = text.replace(old, new)
    for rest in ("AROUND", "INSIDE", "LAST", "END"):
        text = text.replace(rest, "")
    return text.replace(
        "shared f16 [TILE, TILE] c_s, a_s, b_s;", "".join(f"shared f16 [TILE, TILE] {x}_s;" for x in "abc")
    )


@pytest.mark.parametrize("case", BRANCHES)
def test_copies_in_branches_are_issued_ahead(case: str) -> None:
    """Each iteration closes one group of copies, which is empty where no branch copies."""
    kernel = Callable(croqtile.load(with_branches(case), "f.co").sources["f"])
    c = kernel.compile("sm_80")
    assert any("copies into `a_s`, `b_s` are issued 1 iteration ahead" in x for x in said(c)), said(c)
    loop = main_loop(c.kernel)
    assert [type(op) for op in loop.body if isinstance(op, (CopyCommit, CopyWait, Barrier))] == [
        CopyWait,
        Barrier,
        CopyCommit,
    ]
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (40, 280)).astype(np.float16) for _ in range(2))
    wanted, found = (np.full((40, 40), np.nan, np.float16) for _ in range(2))
    kernel.on("cpu")(a, b, wanted)
    for seed in range(5):
        kernel.on("machine", arch="sm_80", seed=seed, strict=True)(a, b, found)
        np.testing.assert_array_equal(found, wanted)


def test_copies_in_branches_stay_where_no_setting_asks() -> None:
    text = with_branches("one branch").replace("[[pipeline(stages=2)]] ", "")
    c = Callable(croqtile.load(text, "f.co").sources["f"]).compile("sm_80")
    assert {d.data.get("rule") for d in c.decisions if d.warning} == {"branch"}
    assert any("ask for copies ahead by `pipeline`" in w for w in c.explain().warnings)
    assert not any(isinstance(op, SwapFutures) for op in walk(c.kernel.body))


# Of the last two the waits of the loop inside order the copies of both.
@pytest.mark.parametrize("seed", [3, 7, 11, 14, 170014, 170025])
def test_random_kernels(seed: int) -> None:
    assert not pipelined.check(pipelined.generate(seed), schedules=2).failure


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, 50))
def test_most_random_kernels_are_pipelined(first: int) -> None:
    """In parts, which several processes can run."""
    results = [pipelined.check(pipelined.generate(seed), schedules=5) for seed in range(first, first + 50)]
    assert not [r.failure for r in results if r.failure]
    assert sum(any(r.pipelined.values()) for r in results) >= 20


@pytest.mark.parametrize("shape", [(1, 1, 1), (320, 100, 70), (8 * 32, 64, 33), (1, 300, 40), (290, 32, 64)])
def test_blocks_take_their_tiles_in_bands_of_rows(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tile is computed once, also where the last band is short."""
    monkeypatch.setattr(pipeline_loops, "rows_of_bands", lambda *_: 8)
    kernel = Callable(croqtile.load(LISTING.format(attribute=""), "f.co").sources["f"])
    assert any(text.startswith("blocks in bands of 8 rows of tiles") for text in said(kernel.compile("sm_80")))
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (rows, k)).astype(np.float16) for rows in (m, n))
    c = np.full((m, n), np.nan, np.float16)
    kernel.on("machine", arch="sm_80")(a, b, c)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.T.astype(np.float32))


def test_grids_that_keep_their_order() -> None:
    """One index: the program has its own order.  Blocks that wait for blocks: those have to start before."""
    own = LISTING.replace(
        "{{i, j}} by [cdiv(M, TILE), cdiv(N, TILE)] : block {{",
        "t by cdiv(M, TILE) * cdiv(N, TILE) : block {{\n    i = t / cdiv(N, TILE);\n    j = t % cdiv(N, TILE);",
    )
    waiting = LISTING.replace("global f16 [M, N] c)", "global f16 [M, N] c, global s32 [1] turn)").replace(
        "    shared f16 [TILE, TILE] c_s;",
        "    shared f16 [TILE, TILE] c_s;\n    while (turn.at(0) < i) {{ }}\n    __atomic_add(turn.at(0), 1);",
    )
    for text in (own, waiting):
        c = Callable(croqtile.load(text.format(attribute=""), "f.co").sources["f"]).compile("sm_80")
        assert any("stages" in x for x in said(c)) and not any(x.startswith("blocks in bands") for x in said(c))
