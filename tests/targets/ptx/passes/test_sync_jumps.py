"""`break` and `continue` between accesses: synchronisation converges, orders them, and is minimal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from pass_kernels import BLOCK, GROUP, Builder, Dim, Space, Tile, dtypes
from race_oracle import races
from test_insert_sync import DIMS, sync_ops, synchronised, without

from tests.sampling import pairwise
from tilemma.ir.expr import add, binary
from tilemma.ir.tile import Break, Continue, CopyWait, Kernel
from tilemma.ir.types import THREAD
from tilemma.passes.scope import block_threads, blocks

TURNS = 3
# Where the jump stands: in front of both accesses, between them, behind them; or in a loop of its own inside.
PLACES = ("before", "between", "after", "inner")


def found_races(kernel: Kernel) -> Iterator[str]:
    """The races of one block for every iteration at which the jump may happen first."""
    (block,) = blocks(kernel)
    for m in (1, 0, 3):
        yield from races(kernel, {**DIMS, "M": m}, block_threads(block))


def jumping(level: str, jump: type[Break] | type[Continue], place: str, backwards: bool) -> Kernel:
    """A loop that writes a shared tile and reads what others wrote; from iteration M on, or up to it, it jumps."""
    b = Builder("k")
    x = b.array_param("x", dtypes.f32, ["M", "K"])
    y = b.array_param("y", dtypes.f32, ["M", "K"])

    def leave(j):
        with b.if_(binary("lt" if backwards else "ge", j.value, Dim("M"))):
            b.emit(jump())

    def turns(write, read):
        with b.foreach("j", TURNS) as j:
            if place == "inner":
                with b.foreach("i", 3) as i:
                    write(i)
                    leave(i)
                    read(i)
                read(j)
                return
            steps = [lambda: write(j), lambda: read(j)]
            steps.insert(("before", "between", "after").index(place), lambda: leave(j))
            for step in steps:
                step()

    with b.parallel(["i"], [1], BLOCK):
        s = Tile.whole(b.alloc("s", Space.SHARED, dtypes.f32, [4, 64]))

        def row(tile, i):
            return tile.subspan([1, 64], [i, 0])

        if level == "block":
            # Half a row: other threads read than have written.
            half = s.subspan([1, 32], [0, 1])
            turns(
                lambda j: b.copy(row(x, j), row(s, 0)),
                lambda j: b.copy(half, y.subspan([1, 32], [add(j.value, 100), 0])),
            )
        elif level == "group":
            with b.parallel(["w"], [4], GROUP) as (w,):
                other = binary("sub", 3, w.value)
                turns(
                    lambda j: b.copy(row(x, add(w.value, j.value)), row(s, w)),
                    lambda j: b.copy(row(s, other), row(y, w)),
                )
        else:
            with b.parallel(["t"], [64], THREAD) as (t,):
                other = binary("sub", 63, t.value)
                turns(
                    lambda j: b.set_element(s, [0, t], b.element(x, [j, t])),
                    lambda j: b.set_element(y, [j, t], b.element(s, [0, other])),
                )
    return b.finish()


CASES = [
    *pairwise(("block",), (Break, Continue), PLACES, (False, True)),
    *itertools.product(("group",), (Break, Continue), ("between", "after"), (False,)),
    *itertools.product(("thread",), (Break, Continue), ("between",), (False,)),
]


@pytest.mark.parametrize(("level", "jump", "place", "backwards"), CASES)
def test_jumps_are_ordered_and_nothing_can_be_left_out(level, jump, place, backwards):
    kernel = synchronised(jumping(level, jump, place, backwards))
    assert not any(found_races(kernel))
    ops = sync_ops(kernel)
    # Unread copies are waited for at the block's end, which the oracle does not check.
    last = 2 if ops[-2:] == ["CopyCommit", "CopyWait"] and isinstance(kernel.body[0].body[-1], CopyWait) else 0
    for i, name in enumerate(ops[: len(ops) - last]):
        assert any(found_races(without(kernel, i))), f"{name} ({i} of {ops}) is superfluous"
