"""Each pass on small blocks, as text: `*.ir` beside this file has a block for each case.

``== name`` starts a case: a block, ``-->``, what the pass makes of it.  In `sync.ir` a block alone is what `InsertSync`
makes of the same block without its synchronisation: what is there is necessary, and nothing is missing.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from block_text import SYNC, kernel, text, without

from tilemma.errors import CompileError
from tilemma.targets.ptx.passes.insert_sync import InsertSync


def cases(file: str) -> list[object]:
    """(before, after) of each case; before is empty where there is one block."""
    found = ("\n" + (Path(__file__).parent / file).read_text(encoding="utf-8")).split("\n== ")[1:]
    blocks = {name: body.strip("\n").rpartition("\n-->\n") for name, _, body in (c.partition("\n") for c in found)}
    return [pytest.param(before, after, id=name) for name, (before, _, after) in blocks.items()]


@pytest.mark.parametrize(("before", "after"), cases("sync.ir"))
def test_synchronisation(before: str, after: str) -> None:
    assert text(InsertSync("sm_90a").run(kernel(before or without(after)), [])) == after


REFUSED = {
    "loops of different lengths": ("barrier-not-uniform", "element y[0, w] = s[3 - w]", """
        alloc shared f32 s[256]
        parallel (w: 4) : group {
          for i: 4 = 0 to w step 1 {
            element s[w] = x[0, w]
            element y[0, w] = s[3 - w]
          }
        }
    """),
    "a condition that each thread decides": ("barrier-not-uniform", "element y[0, t] = s[99 - t]", """
        alloc shared f32 s[256]
        parallel (t: 128) : thread {
          if x[0, t] > 0.0 {
            element s[t] = x[0, t]
            element y[0, t] = s[99 - t]
          }
        }
    """),
    "part of a warp": ("barrier-partial-warp", "element y[0, t] = s[99 - t]", """
        alloc shared f32 s[256]
        parallel (t: 100) : thread {
          element s[t] = x[0, t]
          element y[0, t] = s[99 - t]
        }
    """),
    "a written barrier that some miss": ("barrier-not-uniform", "sync.barrier", """
        parallel (g: 2) : group-4 {
          for i: 4 = 0 to g step 1 {
            sync.barrier
          }
        }
    """),
    "a written barrier of a group whose threads differ": ("barrier-not-uniform", "sync.barrier", """
        parallel (g: 2) : group-4 {
          parallel (t: 128) : thread {
            for i: 4 = 0 to t step 1 {
              sync.barrier {level = group-4}
            }
          }
        }
    """),
    "a future that nothing waits for": ("future-never-waited-for", "copy.dma", """
        alloc shared f32 s[128]
        copy.dma x[0, 0 +: 128] => s {asynchronous = true, future = f, @cp.async(block, 128)}
    """),
    "a future waited for too late": ("copy-not-waited-for", "element y[0, t] = s[127 - t]", """
        alloc shared f32 s[128]
        copy.dma x[0, 0 +: 128] => s {asynchronous = true, future = f, @cp.async(block, 128)}
        parallel (t: 128) : thread {
          element y[0, t] = s[127 - t]
        }
        wait_future (f)
    """),
    "an event waited for too late": ("copy-not-waited-for", "element y[0, t] = s[127 - t]", """
        event e {arrivals = 1}
        alloc shared f32 s[128]
        copy.tma x[0, 0 +: 128] => s {asynchronous = true, event = e, @tma(block, 128, box = (128))}
        trigger e {bytes = 512}
        parallel (t: 128) : thread {
          element y[0, t] = s[127 - t]
        }
        wait e
    """),
    "an event waited for by another role": ("copy-not-waited-for", "element y[0, t] = s{1}[127 - t]", """
        event e[2] {arrivals = 1}
        alloc shared f32 s[128] copies 2
        copy.tma x[0, 0 +: 128] => s{0} {asynchronous = true, event = e[0], @tma(block, 128, box = (128))}
        copy.tma x[0, 0 +: 128] => s{1} {asynchronous = true, event = e[1], @tma(block, 128, box = (128))}
        trigger e[0] {bytes = 512}
        trigger e[1] {bytes = 512}
        parallel (t: 128) : thread {
          element y[0, t] = s{1}[127 - t]
        }
    """),
}  # fmt: skip


@pytest.mark.parametrize(("code", "place", "block"), REFUSED.values(), ids=REFUSED.keys())
def test_what_no_barrier_can_order_is_refused(code: str, place: str, block: str) -> None:
    with pytest.raises(CompileError) as caught:
        InsertSync("sm_90a").run(kernel(block), [])
    assert caught.value.code == code and place in str(caught.value)
