"""Vectorised paths give the results of executing lanes and instructions one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import ptx_for

from tilemma import machine
from tilemma.machine.exec.atomics import atomic_function, atomic_on_arrays
from tilemma.machine.memory import Allocation
from tilemma.machine.program import matrix_batches
from tilemma.machine.run import Job
from tilemma.machine.syntax import TYPE_BYTES

pytestmark = pytest.mark.usefixtures("engine")

ATOMICS = [
    *((op, kind) for op in ("add", "min", "max") for kind in ("u32", "s32", "u64", "s64")),
    *((op, "b32") for op in ("and", "or", "xor", "exch", "cas")),
    *((op, "u32") for op in ("inc", "dec")),
    *(("add", kind) for kind in ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")),
]


@pytest.mark.parametrize(("op", "kind"), ATOMICS)
def test_atomics_on_distinct_addresses(op: str, kind: str) -> None:
    word = np.dtype(f"u{TYPE_BYTES[kind]}")
    rng = np.random.default_rng(3)
    # Small numbers, whose order and equality matter, and any bits.
    old, b, c = (
        np.concatenate([rng.integers(0, 4, 16), rng.integers(0, 1 << 8 * word.itemsize, 16, np.uint64)]).astype(
            word
        )
        for _ in range(3)
    )
    one = atomic_function(op, kind)
    wanted = [one(*(int(v) for v in x)) for x in zip(old, b, c, strict=True)]
    got = atomic_on_arrays(op, kind)(old[:, None], b[:, None], c[:, None])
    assert got.ravel().tolist() == wanted


def _job(code: str) -> tuple[Job, dict[str, Any]]:
    """Four registers of random halves in, four of floats out."""
    rng = np.random.default_rng(5)
    args: dict[str, Any] = {
        f"i{n}": rng.integers(-8, 8, (32, 2)).astype(np.float16).view(np.uint32)[:, 0] for n in range(6)
    }
    args |= {f"o{n}": np.zeros(32, np.uint32) for n in range(8)}
    ptx = ptx_for(code, ["b32"] * 8, ["b32"] * 6, "sm_90a", "8.6")
    return Job(ptx, {"grid": 1, "block": 32}, args), args


def _mma(d: str, c: str) -> str:
    return (
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        f"{{{d}}}, {{%i0, %i1, %i2, %i3}}, {{%i4, %i5}}, {{{c}}};"
    )


FIRST, SECOND = (", ".join(f"%o{i}" for i in range(n, n + 4)) for n in (0, 4))
ZERO = "mov.b32 %t0, 0;"
ZEROS = "%t0, %t0, %t0, %t0"


@pytest.mark.parametrize(
    ("second", "batches"),
    [(ZEROS, 1), (FIRST, 0)],
    ids=["independent", "the second adds to the first"],
)
def test_matrix_instructions_in_a_row(second: str, batches: int) -> None:
    code = f"{ZERO} {_mma(FIRST, ZEROS)} {_mma(SECOND, second)}"
    results = []
    for at_once in (True, False):
        job, args = _job(code)
        assert len(job.program.batches) == batches == len(matrix_batches(job.program))
        if not at_once:
            job.program.batches = {}
        report = job.run()
        assert report.ok
        results.append((report.instructions, [args[f"o{n}"].tolist() for n in range(8)]))
    assert results[0] == results[1]
    assert any(results[0][1][4])


def test_logged_reads_are_entered_in_order() -> None:
    allocation = Allocation("a", 1 << 20, np.zeros(64, np.uint8), 64)
    lanes, first, second = np.arange(4), 1 << 32, 2 << 32
    allocation.log_read(lanes, 4, first + 32 + lanes)
    allocation.log_read(lanes, 4, first + 64 + lanes)
    allocation.log_read(lanes[:2], 4, second + 32 + lanes[:2])
    last, other = (x.reshape(-1, 4)[:4, 0] for x in allocation.read_shadow())
    assert last.tolist() == [second + 32, second + 33, first + 66, first + 67]
    assert other.tolist() == [first + 64, first + 65, 0, 0]


def test_a_fma_is_rounded_once() -> None:
    from fractions import Fraction

    from tilemma.machine.exec.floating import fast_fma

    rng = np.random.default_rng(7)
    # Sums near ties of f32: a large term, and a product far below its last bit.
    a = (1 + rng.integers(0, 1 << 12, 4096) / 4096).astype(np.float32)
    b = (np.float32(2.0) ** rng.integers(-40, -20, 4096)).astype(np.float32)
    c = (1 + rng.integers(0, 1 << 23, 4096) / (1 << 23)).astype(np.float32)
    got = fast_fma(a, b, c)
    for x, y, z, result in zip(a, b, c, got, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        error = abs(Fraction(float(result)) - exact)
        for neighbour in (np.nextafter(result, np.float32(np.inf)), np.nextafter(result, np.float32(-np.inf))):
            assert error <= abs(Fraction(float(neighbour)) - exact)


def test_shuffles_remember_patterns_not_values() -> None:
    code = "mov.b32 %t1, 1; shfl.sync.bfly.b32 %o0, %i0, %t1, 31, -1; shfl.sync.bfly.b32 %o1, %o0, %t1, 31, -1;"
    values = np.arange(32, dtype=np.uint32)
    ptx = ptx_for(code, ["b32"] * 2, ["b32"], "sm_90a", "8.6")
    args = {"i0": values, "o0": np.zeros(32, np.uint32), "o1": np.zeros(32, np.uint32)}
    assert machine.check(ptx, {"grid": 1, "block": 32}, args, schedules=2).ok
    assert (args["o0"] == (values ^ 1)).all()
    assert (args["o1"] == values).all()
