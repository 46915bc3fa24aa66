"""A fixed sample of the fuzzer's kernels (`bench/fuzz_kernels.py` runs thousands), and the fuzzer itself."""

from __future__ import annotations

import dataclasses

import pytest

from tilemma.tools import fuzz
from tilemma.tools import fuzz_programs as f
from tilemma.tools.fuzz_generate import generate
from tilemma.tools.fuzz_shrink import shrink

SAMPLE = range(1000, 1012)


@pytest.mark.parametrize("seed", SAMPLE)
def test_kernels_agree_with_numpy(seed: int) -> None:
    failure = fuzz.check(generate(seed), fuzz.ARCHS[seed % 2 :][:1])
    assert failure is None, str(failure)


def test_the_same_seed_gives_the_same_kernel() -> None:
    assert generate(5) == generate(5)
    assert len({f.python_text(generate(s)) for s in range(30)}) == 30


def test_the_sample_reaches_every_construct() -> None:
    """So that a change of the generator does not silently stop testing one."""
    found = {type(x) for s in range(300) for x in f.parts(generate(s).body)}
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
    seed = next(
        s
        for s in range(1000)
        if "+" in f.python_text(generate(s)) and "mma.fill" not in f.python_text(generate(s))
    )
    p = generate(seed)
    right = fuzz.python_text
    monkeypatch.setattr(fuzz, "python_text", lambda q: right(q).replace(" + ", " * "))

    def fails(q: f.Program) -> bool:
        found = fuzz.check(q, (), languages=("python",))
        return found is not None and found.error == ""

    assert fails(p)
    small = shrink(p, fails, 15)
    assert fails(small)
    assert len(right(small)) < len(right(p))
    assert dataclasses.replace(small, body=p.body) == p
