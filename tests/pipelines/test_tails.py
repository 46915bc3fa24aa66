"""The operations around a loop that copies ahead decide whether its epilogue may be merged into it."""

from __future__ import annotations

import numpy as np
import pytest

import tilemma as tm
from tilemma import cdiv, dma, foreach, if_, machine, mma, parallel, shared, swap, wait
from tilemma.kernels import facts_of

TILE, TURNS = 32, 4


def copied(lhs, rhs, m, n, k, batch):
    tile = lhs.subspan(1, TILE, TILE).at(0, m, k)
    a = dma.copy(tile if batch else tile.sqz(), to="shared", async_=True)
    return a, dma.copy(rhs.subspan(TILE, TILE).at(n, k), to="shared", async_=True)


def turn(mc, a, b, batch):
    wait(a, b)
    for p, q in parallel(2, 2, level="group"):
        for i in foreach(2):
            rows = a.data.subspan(1, 16, 16).at(0, p, i) if batch else a.data.subspan(16, 16).at(p, i)
            mma.row.row(mc, mma.load(rows), mma.load(b.data.subspan(16, 16).at(q, i)))


@tm.kernel
def multiply(
    lhs: tm.Global["f16", "B", "M", "K"],
    rhs: tm.Global["f16", "N", "K"],
    order: tm.Global["s32", 4],
    seen: tm.Global["f16", "M"],
    out: tm.Global["f32", "M", "N"],
    *,
    TABLE=False,
    ELEMENT=False,
    CONDITION=False,
    BATCH=False,
):
    """``out = lhs[0] @ rhs.T``, where the tiles of ``rhs``' rows follow ``order`` with TABLE."""
    (_, M, K), N = lhs.shape, rhs.shape[0]
    for m in parallel(cdiv(M, TILE), level="block"):
        table = shared("s32", 4)
        dma.copy(order, table)
        mc = mma.fill(0.0, "f32")
        a0, b0 = copied(lhs, rhs, m, table[0] if TABLE else 0, 0, BATCH)
        for k in foreach(cdiv(K, TILE), start=1):
            a1, b1 = copied(lhs, rhs, m, table[k] if TABLE else 0, k, BATCH)
            turn(mc, a0, b0, BATCH)
            swap(a0, a1)
            swap(b0, b1)
        turn(mc, a0, b0, BATCH)
        for p, q in parallel(2, 2, level="group"):
            mma.store(mc, out.subspan(TILE, TILE).at(m, 0).subspan(16, 16).at(p, q))
        if ELEMENT or CONDITION:
            for t in parallel(TILE, level="thread"):
                here = m * TILE + t < M
                with if_(here & (a0.data[t, 1] != a0.data[t, 2]) if CONDITION else here):
                    seen[m * TILE + t] = a0.data[t, 0] if ELEMENT else 1.0


def problem() -> dict:
    rng = np.random.default_rng(0)
    shapes = {"lhs": (1, 40, TILE * TURNS), "rhs": (TILE, TILE * TURNS)}
    arrays = {name: rng.integers(-3, 4, shape).astype(np.float16) for name, shape in shapes.items()}
    order, seen, out = np.zeros(4, np.int32), np.full(40, 7, np.float16), np.zeros((40, TILE), np.float32)
    return {**arrays, "order": order, "seen": seen, "out": out}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("what", ["", "TABLE", "ELEMENT", "CONDITION", "BATCH"])
def test_reference_and_machine_agree(what: str, arch: str) -> None:
    """What a table says of a tile behind the last may lie outside the table.  Elements of the last tile, and
    conditions on them, are asked of the buffer that still holds it.  Tiles of extent 1 in a dimension multiply."""
    constants = {what: True} if what else {}
    expected, found = problem(), problem()
    multiply(**expected, **constants)
    assert np.array_equal(expected["out"], expected["lhs"][0].astype(np.float32) @ expected["rhs"].T)
    compiled = multiply.compile(arch, facts=facts_of(found), **constants)
    folded = any(d.pass_name == "tail" for d in compiled.decisions)
    assert folded == (what in ("", "BATCH"))
    for schedule in ("late", "random"):
        machine.run(compiled.ptx, compiled.launches[0], found, seed=1, schedule=schedule, strict=True)
        for name, array in expected.items():
            assert np.array_equal(array, found[name]), name
