"""`tilemma check` compares results: no false alarm on correct programs, an error for every wrong one."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tilemma as tm
from tilemma.cli import main
from tilemma.kernels import Kernel
from tilemma.modules import load
from tilemma.tools.check import check_kernel
from tilemma.tools.compare import Reference, compare
from tilemma.tools.problem import dimensions
from tilemma.tools.stochastic import StochasticArithmetic

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "language"))
import test_constructs  # noqa: E402
from construct import Case  # noqa: E402

# Examples whose scalars and extents have to fit each other; tests/test_attention.py runs it.
OWN = ("attention_roles",)
EXAMPLES = {f.stem: f for f in sorted((ROOT / "examples" / "co").glob("*.co")) if f.stem not in OWN}
SMALL = {"M": 24, "N": 16, "K": 40}


@pytest.mark.parametrize("case", test_constructs.PYTHON, ids=lambda c: c.name)
def test_no_false_alarm_on_the_constructs(case: Case) -> None:
    """The machine and the reference on the inputs of every construct's own test."""
    arch = case.archs[-1]
    arrays = {n: v.copy() for n, v in case.given.items() if isinstance(v, np.ndarray)}
    scalars = {n: v for n, v in case.given.items() if n not in arrays}
    kernel = case.kernel.build(**case.constants)
    names: dict[str, int] = {}
    for p in kernel.arrays:
        for extent, size in zip(p.buffer.shape, arrays[p.buffer.name].shape, strict=True):
            names[getattr(extent, "name", "")] = size
    reference = Reference(kernel, {n: a.copy() for n, a in arrays.items()}, scalars, names)
    case.kernel.on("machine", arch=arch)(**arrays, **scalars, **case.constants)

    def again(seed: int) -> dict[str, Any]:
        others = {n: a.copy() for n, a in reference.arrays.items()}
        case.kernel.on("machine", arch=arch, seed=seed)(**others, **scalars, **case.constants)
        return others

    found = compare(reference, arrays, "the case's inputs", again)
    assert [d.render() for d in found.differences] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_false_alarm_on_the_examples(name: str) -> None:
    # A launch of as many blocks as the GPU has is mostly blocks without work.
    few = {"GRID": 2} if "define GRID" in EXAMPLES[name].read_text() else {}
    for kernel in load(EXAMPLES[name], few).kernels.values():
        sizes = ",".join(f"{d}={SMALL.get(d, 8)}" for d in dimensions(kernel.build()))
        outcome = check_kernel(kernel, {}, shape=sizes or None, schedules=1)
        assert outcome.ok, outcome.render()
        by_inputs = {x.inputs: x for c in outcome.comparisons for x in c.compared}
        assert set(by_inputs) == {"normal data", "small integers"}
        assert by_inputs["small integers"].bounded == by_inputs["small integers"].skipped == 0
        assert by_inputs["normal data"].skipped == 0


# ---- planted faults ------------------------------------------------------------------------------------------

PRODUCT = """
__co__ void product(global f16 [M, K] lhs, global f16 [N, K] rhs, global f32 [M, N] output) {
  parallel {bm, bn} by [cdiv(M, 16), cdiv(N, 8)] : block {
    mc = mma.fill.f32 0.0f;
    foreach k in [cdiv(K, 16)] {
      ls = dma.copy lhs.subspan(16, 16).at(bm, k) => shared;
      rs = dma.copy rhs.subspan(8, 16).at(bn, k) => shared;
      parallel p by 1 : group {
        ma = mma.load ls.data;
        mb = mma.load rs.data;
        mma.row.row mc, ma, mb;
      }
    }
    parallel p by 1 : group
      mma.store mc, output.subspan(16, 8).at(bm, bn);
  }
}
"""
ELEMENTS = """
__co__ void elements(global f32 [M, N] x, global s32 [N] w, global f32 [M, N] y, global s32 [M, N] z) {
  parallel {b, t} by [M, 32] : block, t by 32 : thread
    if (t < N) {
      y.at(b, t) = __exp(x.at(b, t)) * 0.5f + x.at(b, t);
      z.at(b, t) = w.at(t) * 3 - b;
    }
}
""".replace("{b, t} by [M, 32] : block, t", "b by M : block, t")

# Edits of PTX that leave it valid and free of hazards, and make it wrong.
EDITS = {
    "another value is stored": (r"(st\.global\.\w+ \[[^]]+\], )(%\w+);", r"\g<1>0;"),
    "a sign": (r"\bneg\.s32 ", "mov.b32 "),
    "a factor": (r"(mad\.lo\.s32 %\w+, %\w+), 3,", r"\1, 2,"),
    "a constant": (r"0f3F000000", "0f3F000800"),
    "a store is left out": (r"(@%\w+ )?st\.global\.\w+ \[[^]]+\], %\w+;", ""),
}


def mutants(ptx: str) -> Iterator[tuple[str, str]]:
    """Every single place where an edit applies."""
    for name, (pattern, replacement) in EDITS.items():
        for place in re.finditer(pattern, ptx):
            edited = ptx[: place.start()] + place.expand(replacement) + ptx[place.end() :]
            if edited != ptx:
                yield name, edited


@pytest.mark.parametrize(("text", "sizes"), [(PRODUCT, "M=20,N=11,K=32"), (ELEMENTS, "M=3,N=20")])
def test_a_planted_wrong_store_is_found(
    text: str, sizes: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "kernel.co"
    file.write_text(text)
    kernel = load(file).only()
    made: list[Any] = []
    real = kernel.compile
    monkeypatch.setattr(kernel, "compile", lambda *a, **k: made.append(real(*a, **k)) or made[-1])
    assert check_kernel(kernel, {}, shape=sizes, schedules=1).ok
    planted = list(mutants(made[-1].ptx))
    assert len(planted) >= 3
    for what, edited in planted:
        wrong = SimpleNamespace(ptx=edited, launches=made[-1].launches)
        with monkeypatch.context() as patch:
            patch.setattr(kernel, "compile", lambda *a, wrong=wrong, **k: wrong)
            outcome = check_kernel(kernel, {}, shape=sizes, schedules=1)
        assert not outcome.ok, f"{what}: unnoticed"
        assert outcome.to_json()["differences"], f"{what}: {outcome.render()}"


def test_the_command_says_what_differs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "kernel.co"
    file.write_text(ELEMENTS)
    real = Kernel.compile

    def wrong(self: Kernel, *args: Any, **options: Any) -> Any:
        made = real(self, *args, **options)
        return SimpleNamespace(ptx=made.ptx.replace("neg.s32", "mov.b32"), launches=made.launches)

    monkeypatch.setattr(Kernel, "compile", wrong)
    args = ["check", str(file), "--arch", "sm_80", "--shape", "M=3,N=20", "--schedules", "1"]
    result = CliRunner().invoke(main, [*args, "--json"])
    assert result.exit_code == 1
    said = json.loads(result.output)
    assert said["ok"] is False and said["launches"][0]["ok"] is True
    first = said["differences"][0]
    assert (first["array"], first["size"], first["bound"]) == ("z", 60, 0.0)
    assert first["machine"] != first["reference"] and first["index"] == [1, 0]
    text = CliRunner().invoke(main, args)
    assert text.exit_code == 1 and "DIFFERS from the reference" in text.output
    assert "40 of 60 elements of z differ" in text.output


# ---- the bound -----------------------------------------------------------------------------------------------


def test_a_bound_is_propagated_through_what_follows() -> None:
    """A difference just inside the propagated bound passes, and one well outside of it does not."""

    @tm.kernel
    def chain(x: tm.Global["f32", "N"], y: tm.Global["f32", "N"]):
        for i in tm.parallel(x.shape[0], level="block"):
            y[i] = tm.math.exp(x[i]) * 1000.0 - 900.0

    x = np.linspace(-1, 1, 64, dtype=np.float32)
    reference = Reference(chain.build(), {"x": x, "y": np.zeros_like(x)}, {}, {"N": 64})
    wanted = reference.run()["y"]
    size = 1000 * np.exp(x.astype(np.float64))
    for share, differ in ((2.0**-21, False), (2.0**-14, True)):
        moved = (wanted + size * share).astype(np.float32)
        found = compare(reference, {"y": moved}, "x", lambda seed: {})
        assert bool(found.differences) is differ


def test_what_depends_on_nothing_inexact_has_to_be_equal() -> None:
    @tm.kernel
    def two(x: tm.Global["f32", "N"], y: tm.Global["f32", "N"], z: tm.Global["f32", "N"]):
        for i in tm.parallel(x.shape[0], level="block"):
            y[i] = tm.math.exp(x[i])
            z[i] = x[i] * 3.0

    x = np.linspace(-1, 1, 64, dtype=np.float32)
    reference = Reference(two.build(), {"x": x, "y": x.copy(), "z": x.copy()}, {}, {"N": 64})
    wanted = reference.run()
    found = compare(reference, wanted, "x", lambda seed: {})
    assert [(c.array, c.equal, c.bounded) for c in found.compared] == [("y", 0, 64), ("z", 64, 0)]
    last = wanted["z"].copy()
    last[-1] = np.nextafter(last[-1], np.float32(4))
    assert [d.array for d in compare(reference, {**wanted, "z": last}, "x", lambda s: {}).differences] == ["z"]


@pytest.mark.parametrize("acc", ["f16", "f32"])
@pytest.mark.parametrize("direction", [1, -1, 0])
def test_exact_sums_are_left_alone(acc: str, direction: int) -> None:
    from tilemma import dtypes

    rng = np.random.default_rng(1)
    x, y = (rng.integers(-2, 3, (8, 8)).astype(np.float32) for _ in range(2))
    arithmetic = StochasticArithmetic(0, direction)
    before = np.zeros((8, 8), np.float32)
    same = arithmetic.contraction(x @ y, before, x, y, None, dtypes.dtype(acc), dtypes.f16)
    assert (same == x @ y).all() and not arithmetic.inexact
    moved = arithmetic.contraction((x / 3) @ y, before, x / 3, y, None, dtypes.dtype(acc), dtypes.f16)
    assert (moved != (x / 3) @ y).any() and arithmetic.inexact


def test_a_fault_of_the_reference_is_a_difference(tmp_path: Path) -> None:
    """The machine goes on where the reference stops: an assertion that does not hold on the CPU."""

    @tm.kernel
    def stops(x: tm.Global["f32", "N"], y: tm.Global["f32", "N"]):
        for i in tm.parallel(x.shape[0], level="block"):
            tm.assert_(x[i] < 0.0, "negative")
            y[i] = x[i]

    x = np.ones(4, np.float32)
    reference = Reference(stops.build(), {"x": x, "y": x.copy()}, {}, {"N": 4})
    found = compare(reference, {"y": x}, "x", lambda seed: {})
    assert [d.to_json()["fault"]["code"] for d in found.differences] == ["assertion-failed"]


RING = """
__co__ void ring(global f16 [M, K] a, global f16 [M, K] b) {
  parallel {m} by [cdiv(M, 64)] : block {
    shared f16 [64, 32] s[3];
    foreach {k} in [cdiv(K, 32)] {
      dma.copy a.subspan(64, 32).at(m, k) => s[k % 3];
      dma.copy s[k % 3] => b.subspan(64, 32).at(m, k);
    }
  }
}
"""


def test_sizes_are_chosen_from_the_tiles_and_rings(tmp_path: Path) -> None:
    """A whole tile and a part of one in each dimension, and more tiles around the ring than it has slots."""
    file = tmp_path / "ring.co"
    file.write_text(RING)
    outcome = check_kernel(load(file).only(), {}, schedules=1)
    assert outcome.ok and outcome.chosen
    assert 64 < outcome.dims["M"] < 256 and outcome.dims["M"] % 64
    assert 3 * 32 < outcome.dims["K"] < 512 and outcome.dims["K"] % 32
    data = outcome.to_json()
    assert data["sizes_chosen"] and data["launches"][0]["coverage"]["missed"] is not None
    assert "covered: " in outcome.render() and "smallest that reach every path" in outcome.render()
    coverage = outcome.verdicts[0].coverage
    assert coverage is not None
    part = replace(outcome.verdicts[0], coverage=replace(coverage, missed=(7,)))
    assert "smallest that reach every path" not in replace(outcome, verdicts=[part]).render()
    assert not check_kernel(load(file).only(), {}, shape="M=64,K=64", schedules=1).chosen


def test_coverage_names_what_did_not_run(tmp_path: Path) -> None:
    file = tmp_path / "branch.co"
    file.write_text(
        "__co__ void branch(global s32 [32] a) {\n"
        "  parallel {i} by [32] : thread {\n"
        "    if (a.at(i) > 1000000) {\n"
        "      foreach k in [5] { __atomic_add(a.at(i), k); }\n"
        "    }\n"
        "  }\n"
        "}\n"
    )
    outcome = check_kernel(load(file).only(), {}, schedules=1)
    assert outcome.ok and f"{file}:4" in outcome.render()


def test_progress_moves_inside_a_schedule(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tilemma.machine.scheduler._TICK", 100)
    file = tmp_path / "ring.co"
    file.write_text(RING)
    compiled = load(file).only().compile("sm_80")
    a, b = tm.testing.random_array((144, 96), "f16", 0), tm.testing.random_array((144, 96), "f16", 1)
    seen: list[float] = []
    values = {"a": a, "b": b}
    tm.machine.check(
        compiled.ptx, compiled.launches[0], values, schedules=2, progress=lambda done, _: seen.append(done)
    )
    assert seen == sorted(seen) and {1, 2} <= set(seen)
    assert any(0 < done < 1 for done in seen) and any(1 < done < 2 for done in seen)
