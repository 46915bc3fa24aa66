"""A fixed sample of the fuzzer's kernels (`bench/fuzz_kernels.py` runs thousands), and the fuzzer itself."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dev.fuzz import check as fuzz
from dev.fuzz import programs as f
from dev.fuzz import wide, wide_statements
from dev.fuzz.arguments import hosted
from dev.fuzz.arithmetic import convert
from dev.fuzz.features import features
from dev.fuzz.generate import generate
from dev.fuzz.shrink import shrink
from dev.fuzz.text import python_text

SAMPLE = range(1000, 1012)


@pytest.mark.parametrize("seed", SAMPLE)
def test_kernels_agree_with_numpy(seed: int) -> None:
    failure = fuzz.check(generate(seed), fuzz.ARCHS[seed % 2 :][:1])
    assert failure is None, str(failure)


@pytest.mark.parametrize("seed", range(2000, 2040))
def test_the_reference_agrees_with_numpy(seed: int) -> None:
    failure = fuzz.check(wide.generate(seed), ())
    assert failure is None, str(failure)


def test_the_same_seed_gives_the_same_kernel() -> None:
    assert generate(5) == generate(5)
    assert len({python_text(generate(s)) for s in range(30)}) == 30


def test_the_sample_reaches_every_construct() -> None:
    """So that a change of the generator does not silently stop testing one."""
    programs = [*(generate(s) for s in range(300)), *(wide.generate(s) for s in range(300))]
    found = {type(x) for p in programs for x in f.parts(p.body)}
    wanted = {c for c in vars(f).values() if isinstance(c, type) and issubclass(c, (f.Stmt, f.Expr))}
    assert wanted - {f.Stmt, f.Expr} <= found
    levels = {x.level for s in range(300) for x in f.parts(generate(s).body) if isinstance(x, f.Parallel)}
    assert {"block", "group", "group-2", "group-4", "thread"} <= levels
    kinds = {x.kind for s in range(300) for x in f.parts(generate(s).body) if isinstance(x, f.View)}
    assert {"subspan", "chunkat", "modspan"} <= kinds
    atomics = {x.op for s in range(300) for x in f.parts(generate(s).body) if isinstance(x, f.Atomic)}
    assert atomics == {"add", "min", "max", "and", "or", "xor"}
    types = {x.t for s in range(300) for x in f.parts(generate(s).body) if isinstance(x, f.Expr)}
    assert {*f.FLOATS, *f.FP8, "s64", "u32", "s8"} <= types
    assert {len(generate(s).body) for s in range(300) if isinstance(generate(s).body[0], f.Parallel)} == {1, 2}


def test_a_wrong_kernel_is_found_and_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that multiplies where it should add is caught, and the report is short."""
    right = fuzz.python_text
    monkeypatch.setattr(fuzz, "python_text", lambda q: right(q).replace(" + ", " * "))

    def fails(q: f.Program) -> bool:
        found = fuzz.check(q, (), languages=("python",))
        return found is not None and found.error == ""

    # The shortest of some: each trial compiles and executes it on every target.
    programs = [q for q in map(generate, range(200)) if "+" in right(q) and "mma.fill" not in right(q)]
    p = next(q for q in sorted(programs, key=lambda q: len(right(q))) if len(q.body) > 1 and fails(q))
    small = shrink(p, fails, 15)
    assert fails(small)
    assert len(right(small)) < len(right(p))
    assert dataclasses.replace(small, body=p.body) == p


def test_the_wider_programs_reach_every_construct() -> None:
    programs = [wide.generate(s) for s in range(600)]
    assert wide.generate(7) == wide.generate(7)
    found = {x for p in programs for x in features(p)}
    wanted = {
        "array turned", "array stepped", "array late", "array packed", "break", "continue", "loop unrolled",
        "loop unrolled in part", "jump in unrolled loop", "loop over a range", "loop from an index", "mixed types",
        "loop to an index or value", "loop in a loop", "levels in a loop", "shift", "division quot", "division rem",
        "view of a view", "view span_as", "view chunk", "view sqz", "view view with strides", "copy transposed",
        "view subspan with step", "copy padded", "copy plain", "swap", "inthreads", "applybody", "let", "while",
        "old value of atomic cas", "old value of atomic exch", "old value of atomic on u64", "extreme inputs",
        "old value of atomic on s16", "shared of 4 dimensions", "shared of 1 dimensions", "level cluster",
        "level block", "level thread", "level group", "level group-2", "level group-3", "level group-4",
        "variable of an outer level set in thread", "block > group > thread", "croqtile only", "two launches",
        *(f"type {t}" for t in (*wide_statements.TYPES, *f.FP8)),
    }  # fmt: skip
    assert wanted <= found, wanted - found


def test_an_array_in_memory_is_what_was_asked_for() -> None:
    """Odd strides and places hold the values; a write beside them is found."""
    a = np.arange(12, dtype=np.int16).reshape(3, 4)
    for kind in ("rows", "gapped", "packed", "turned", "stepped", "late"):
        made = hosted(a, kind)
        assert np.array_equal(made.array, a)
        made.check()
    stepped = hosted(a, "stepped")
    stepped.outer[1, 1] = 7
    with pytest.raises(AssertionError):
        stepped.check()
    assert hosted(a, "turned").array.strides[0] == 2 and hosted(a, "late").array.ctypes.data % 4 == 2


@pytest.mark.parametrize(
    ("t", "x", "want"),
    [
        ("bf16", np.int32(16842753), 16908288),
        ("f16", np.int64(65519), 65504),
        ("f16", np.float64(65520), np.inf),
        ("f32", np.int64(2**53 + 1), 2.0**53),
        ("f8_e4m3", np.float32(np.inf), 448),
        ("f8_e5m2", np.float64(1e-9), 0),
        ("f16", np.float64(2**-25 * 1.0001), 2**-24),
    ],
)
def test_the_oracle_rounds_once(t: str, x: np.generic, want: float) -> None:
    assert float(convert(x, t)) == want
