"""The parts of the benchmarks that compare results: they detect wrong ones."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import machine_vs_gpu as agreement
import merge_results
import mma_ceiling
import mma_energy
import ops_page
import performance_page
import sass_loop
from levers import LEVERS, Lever, rewritten

from tilemma import machine
from tilemma.assemble import NoDisassembler, NoPtxas, find_tool
from tilemma.modules import load_python

PYTHON = Path(__file__).parents[2] / "examples" / "py"


def _case(fill: str) -> tuple[agreement.Case, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """One small product, run on the machine."""
    stored, texts = {}, {}
    kernel = load_python(PYTHON / "matmul_wmma.py").only()
    dims = {"M": 20, "N": 18, "K": 40}
    case = agreement.make_case("wmma", kernel, "sm_80", dims, fill, {}, False, stored, texts)
    _, found = agreement.on_machine((case, texts[case.ptx], stored))
    assert not case.failed
    return case, stored, {n: found[f"{case.key}_{n}"] for n in case.outputs}


@pytest.mark.parametrize("fill", agreement.FILLS)
def test_equal_results_agree(fill: str) -> None:
    case, stored, result = _case(fill)
    outcome = agreement.judge(case, stored, result, result)
    assert not outcome.differences and outcome.same_bits == 1 and outcome.gpu_share <= 1


@pytest.mark.parametrize("fill", agreement.FILLS)
def test_a_wrong_element_is_a_difference(fill: str) -> None:
    case, stored, result = _case(fill)
    wrong = {n: x.copy() for n, x in result.items()}
    wrong["output"][3, 5] ^= 0x0400
    assert agreement.judge(case, stored, result, wrong).differences
    assert agreement.judge(case, stored, wrong, wrong).differences


@pytest.mark.parametrize("lever", [x for x in LEVERS if x.undo], ids=lambda x: x.key)
def test_a_lever_that_is_undone_was_there(lever: object) -> None:
    stem, _, settings = lever.on.partition("@")
    constants = {k: int(v) for k, v in (s.split("=") for s in settings.split(",") if s)}
    ptx = load_python(PYTHON / f"{stem}.py").only().compile("sm_90a", **constants).ptx
    assert lever.undo(ptx) != ptx


@pytest.mark.parametrize("lever", [x for x in LEVERS if x.rewrite], ids=lambda x: x.key)
def test_an_example_is_written_without_a_lever(lever: Lever) -> None:
    plain, without = (load_python(p).only() for p in (PYTHON / f"{lever.on}.py", rewritten(lever)))
    there = "store mc.held" if lever.key == "late_store" else "=> shared output_s"
    assert there in plain.compile(lever.arch or "sm_90a").ptx
    assert there not in without.compile(lever.arch or "sm_90a").ptx


def test_a_lever_whose_example_reads_otherwise_is_refused() -> None:
    stale = Lever("stale", "", "", "persistent", rewrite=(("no such line", ""),))
    with pytest.raises(SystemExit, match="replaces what stands there 0 times"):
        rewritten(stale)


def test_the_innermost_multiplying_loop_is_found() -> None:
    sass = """
.L_x_1:
        /*0000*/                   UIADD3 UR4, UR4, 0x1, URZ ;
.L_x_2:
        /*0010*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R0 ;
        /*0020*/              @!P0 BRA `(.L_x_3) ;
        /*0030*/                   HGMMA.64x256x16.F32 R24, gdesc[UR8], R24, gsb0 ;
        /*0040*/                   ISETP.LT.AND P1, PT, R1, R2, PT ;
        /*0050*/               @P1 BRA `(.L_x_2) ;
        /*0060*/               @P2 BRA `(.L_x_1) ;
.L_x_3:
        /*0070*/                   BRA `(.L_x_3) ;
"""
    found = sass_loop.counts(sass)
    assert list(found.values()) == [1, 0, 0, 1, 2, 0, 1]
    assert sass_loop.main_loop(sass.replace("HGMMA", "FADD")) == []


@pytest.mark.parametrize("loop", sass_loop.LOOPS, ids=lambda x: x.purpose)
def test_main_loops_are_no_longer_than_by_hand(loop: sass_loop.Loop) -> None:
    try:
        find_tool("ptxas"), find_tool("nvdisasm")
    except (NoPtxas, NoDisassembler) as missing:
        pytest.skip(missing.message)
    found, hand = sass_loop.counts(sass_loop.sass_of(), loop.purpose), sass_loop.by_hand(loop)
    assert found[loop.purpose] == hand[loop.purpose] > 0
    # ptxas may give a value, such as the parity of a slot, another register inside the loop: two moves.
    assert sum(found.values()) <= sum(hand.values()) + 2
    assert found[sass_loop.BRANCH] == hand[sass_loop.BRANCH] == loop.floor[sass_loop.BRANCH][0]
    for kind, (least, _) in loop.floor.items():
        assert found[kind] >= least, f"{kind}: the floor is too high"


def test_the_ceiling_counts_what_it_multiplies() -> None:
    """As many multiplies in a turn as its FLOP are counted from, and nothing that ptxas may leave out."""
    ptx = mma_ceiling.ceiling_ptx()
    multiplies = sum(line.lstrip().startswith("mma.sync") for line in ptx.splitlines())
    assert mma_ceiling.ceiling_flop(1, 1) == multiplies * 2 * 16 * 8 * 16 * mma_ceiling.WARPS
    rng = np.random.default_rng(0)
    operands = rng.integers(-2, 3, 256 * 32 * 2).astype(np.float16)
    sums, more = np.zeros(256, np.float32), np.zeros(256, np.float32)
    launch = {"entry": "ceiling", "grid": (1, 1, 1), "block": (256, 1, 1), "arch": "sm_80"}
    for out, turns in ((sums, 1), (more, 3)):
        machine.run(ptx, launch, {"operands": operands, "sums": out, "turns": turns}, strict=True)
    assert np.any(sums) and np.array_equal(more, 3 * sums)


# The tiles of 64, or the steps of 16, that each turn multiplies, or step.
@pytest.mark.parametrize(
    ("title", "depth", "width", "multiplied"),
    [
        ("copies always from the same tiles", 320, 64, [0, 1, 2, 2, 2]),
        ("no copies", 256, 64, [0, 1, 0, 1]),
        ("no ldmatrix", 128, 16, [0, 1] * 4),
        ("neither", 128, 16, [0, 1] * 4),
    ],
)
def test_the_loop_without_a_part_multiplies_what_it_says(
    title: str, depth: int, width: int, multiplied: list[int]
) -> None:
    compiled = load_python(mma_energy.EXAMPLE).only().compile(mma_energy.ARCH)
    edit = mma_energy.EDITS[title]
    assert edit is not None
    rng = np.random.default_rng(0)
    lhs, rhs = (rng.integers(-2, 3, (n, depth)).astype(np.float16) for n in (128, 256))
    output = np.zeros((128, 256), np.float16)
    arrays = {"lhs": lhs, "rhs": rhs, "output": output}
    machine.run(edit(compiled.ptx), compiled.launches[0], arrays, seed=1, strict=True)
    columns = [width * i + x for i in multiplied for x in range(width)]
    want = lhs[:, columns].astype(np.float32) @ rhs[:, columns].T.astype(np.float32)
    assert np.array_equal(output, want)


def test_a_loop_that_reads_otherwise_is_refused() -> None:
    ptx = load_python(mma_energy.EXAMPLE).only().compile(mma_energy.ARCH).ptx
    for edit in (mma_energy.same_tiles, mma_energy.no_copies, mma_energy.no_fragments):
        with pytest.raises(mma_energy.NoSuchLoop):
            edit(edit(ptx))
        with pytest.raises(mma_energy.NoSuchLoop):
            edit("")


def test_energy_of_a_loop_on_the_page() -> None:
    run = {
        "kernel": "all",
        "shape": [8192] * 3,
        "steady_us": 2000.0,
        "steady_ratio": 1,
        "sm_clock": 1500,
        "power": 700,
    }
    assert "| all | 550 | 1.000 | 1500 | 700 | 1.40 |" in performance_page.energy({"results": [run]})
    assert performance_page.MISSING in "".join(performance_page.energy(None))


def test_the_page_of_products_shows_what_was_measured() -> None:
    row = {
        "name": "16x32x64", "group": "large", "dtype": "f16", "flops": 65536.0,
        "ours": {"flushed": 2.0, "graph": 1.0}, "tuned": {"flushed": 1.6}, "peer": {"flushed": 2.2, "graph": 1.5},
    }  # fmt: skip
    about = {"device": "a GPU", "date": "today", "torch": "2", "cuda": "13", "ptxas": "13.5"}
    text = ops_page.table({**about, "rows": [row]})
    assert "| 16 x 32 x 64 | f16 | 0 | 1.100 (1.375) | 1.500 |\n" in text and "a GPU, today" in text
    older = ops_page.table({**about, "rows": [row, {**row, "group": "small", "date": "yesterday"}]})
    assert "rows of small: yesterday" in older and "rows of" not in text
    page = f"before\n{ops_page.BEGIN}\nold\n{ops_page.END}\nafter"
    assert "old" not in ops_page.rewritten(page, text) and text in ops_page.rewritten(page, text)
    with pytest.raises(ValueError):
        ops_page.rewritten("no marks", text)
    svg = ops_page.picture({**about, "rows": [row]})
    assert svg.count("<rect") == 3 and ">1.100<" in svg


def test_the_table_of_products_shows_first_what_is_slower() -> None:
    about = {"device": "a GPU", "date": "today", "torch": "2", "cuda": "13", "ptxas": "13.5"}
    rows = [
        {"name": name, "group": "small", "dtype": "f16", "flops": 1e6, "ours": ours, "tuned": {}, "peer": peer}
        for name, ours, peer in (
            ("fast", {"flushed": 1.0}, {"flushed": 1.2}),
            ("slow", {"flushed": 1.0, "graph": 1.0}, {"flushed": 1.1, "graph": 0.9}),
            ("slowest", {"flushed": 1.0}, {"flushed": 0.8}),
        )
    ]
    text = ops_page.table({**about, "rows": rows})
    assert text.index("slowest") < text.index("| slow |") < text.index("fast")


def test_the_table_of_models_has_a_column_for_each_contestant() -> None:
    rates = {"decode 1, eager": {"torch": 1000.4}, "prefill 2048, eager": {"torch": 9.0, "tilemma s4": 12.0}}
    about = {"device": "a GPU", "date": "today", "torch": "2", "cuda": "13", "ptxas": "13.5"}
    lines = ops_page.llama_table({**about, "tokens a second": rates}).splitlines()
    assert lines[0] == "| | torch | `s4` |" and lines[2:4] == [
        "| prefill 2048, eager | 9 | 12 |",
        "| decode 1, eager | 1,000 |  |",
    ]


def test_results_of_parts_of_a_table_are_merged() -> None:
    """What was not measured again stays, with its date; what was is replaced, and dated as a whole."""
    old = {"date": "1", "rows": [{"group": "a", "name": "x", "us": 1}, {"group": "a", "name": "y", "us": 2}]}
    new = {"date": "2", "rows": [{"group": "a", "name": "y", "us": 3}, {"group": "b", "name": "z", "us": 4}]}
    found = merge_results.merged(old, new)
    assert found["date"] == "2" and found["rows"] == [
        {"date": "1", "group": "a", "name": "x", "us": 1},
        {"group": "a", "name": "y", "us": 3},
        {"group": "b", "name": "z", "us": 4},
    ]
    assert merge_results.merged({}, new) == new
    found = merge_results.merged({**old, "ptxas": "12"}, {**new, "date": "1", "ptxas": "13"})
    assert [r.get("date") for r in found["rows"]] == ["1 with ptxas 12", None, None]
    rates = {"date": "1", "tokens a second": {"a": 1}}, {"date": "2", "tokens a second": {"b": 2}}
    assert merge_results.merged(*rates) == {"date": "2", "tokens a second": {"a": 1, "b": 2}}


def test_the_page_of_types_shows_first_what_is_slower() -> None:
    about = {"device": "a GPU", "date": "today", "torch": "2", "cuda": "13", "ptxas": "13.5"}
    row = {"group": "s8", "name": "", "flops": 2e6, "weights": 1e6, "mine": 2.0, "share": 0.5, "error": ""}
    rows = [{**row, "name": n, "ratio": r} for n, r in (("fast", 1.5), ("slow", 0.9), ("slowest", 0.8))]
    text = ops_page.types_table({**about, "rows": [*rows, {**row, "name": "broken", "error": "why"}]})
    assert text.index("slowest") < text.index("| slow |") < text.index("fast") < text.index("failed: broken")
    assert "| s8 | slow | 2.0 | 1 | 0.50 | 0.900 | 0.500 |" in text and "lowest 0.800" in text


def test_the_page_of_forms_shows_the_layers_that_are_slower() -> None:
    about = {"device": "a GPU", "date": "today", "torch": "2", "cuda": "13", "ptxas": "13.5"}
    row = {"flops": 2e6, "mine": 2.0, "peers": {"cuDNN": 3.0, "other": 4.0}, "ratio": 1.5, "error": ""}
    layers = [{**row, "group": "resnet", "name": n, "ratio": r} for n, r in (("fast", 1.25), ("slow", 0.8))]
    rows = [{**row, "group": "gated", "name": "512^3"}, *layers, {**row, "name": "broken", "error": "why"}]
    text = ops_page.forms_table({**about, "rows": rows})
    assert "| gated | 512^3 | 2.0 | 1 | cuDNN 3.0, other 4.0 | 1.500 |" in text and "| slow |" in text
    assert "fast" not in text and "resnet: 2 layers, geometric mean 1.000, lowest 0.800" in text
    assert "failed: broken" in text


def test_ratios_of_the_readme() -> None:
    """The table is what the recorded run says."""
    readme = (performance_page.ROOT / "README.md").read_text(encoding="utf-8")
    gemm = performance_page.load("gemm")
    assert gemm is not None
    assert ops_page.rewritten(readme, performance_page.ratios(gemm), performance_page.MARK) == readme
