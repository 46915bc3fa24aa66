"""Settings of pipelines are followed, or `explain` says which are not; what it says of each loop holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilemma as tm
from tilemma.errors import CompileError
from tilemma.ir.tile import DeclareEvent, For
from tilemma.ir.walk import walk
from tilemma.kernels import Kernel
from tilemma.modules import loads

PLAIN = """
KERNEL __co__ void f(global f16 [M, K] a, global f16 [N, K] b, global f32 [M, N] y) {
  parallel {i, j} by [ROWS, cdiv(N, 128)] : block {
    shared f16 [128, 64] s;
    shared f16 [128, 64] t;
    acc = mma.fill.f32 0.0f;
    LOOP foreach k in cdiv(K, 64) {
      dma.copy a.subspan(128, 64).at(i, k) => s;
      dma.copy b.subspan(128, 64).at(j, k) => t;
      parallel g by 2 : group-4 mma.row.row acc, s.subspan(64, 64).at(g, 0), t;
    }
    parallel g by 2 : group-4 mma.store acc, y.subspan(64, 128).at(i # g, j);
  }
}
"""


def plain(kernel: str = "", loop: str = "", rows: str = "cdiv(M, 128)") -> Kernel:
    return loads(PLAIN.replace("KERNEL", kernel).replace("LOOP", loop).replace("ROWS", rows)).kernels["f"]


def said(kernel: Kernel, arch: str = "sm_90a", **facts: Any) -> list[str]:
    found = kernel.compile(arch, **facts).decisions
    return ["warning: " * d.warning + d.text for d in found if d.pass_name == "pipeline"]


def stages(kernel: Kernel) -> int:
    return next(
        op.event.slots for op in walk(kernel.compile("sm_90a").kernel.body) if isinstance(op, DeclareEvent)
    )


def test_a_loop_keeps_the_order_of_its_sums() -> None:
    """A setting of the loop alone was not looked at."""
    assert any("rounded differently" in x for x in said(plain()))
    for kernel in (plain(loop="[[pipeline(order=keep)]]"), plain(kernel="[[pipeline(order=keep)]]")):
        assert not any("rounded differently" in x for x in said(kernel))


def test_as_many_stages_as_fit() -> None:
    """More than fit made the kernel one without a producer."""
    for kernel in (plain("[[pipeline(stages=16)]]"), plain(loop="[[pipeline(stages=16)]]")):
        texts = said(kernel)
        assert stages(kernel) == 7 and any(x.startswith("warning: 7 stages: 16 stages of 32768") for x in texts)
    assert stages(plain("[[pipeline(stages=3)]]")) == 3


def test_one_block_is_no_pair() -> None:
    assert any("clusters of 1" in x for x in said(plain("[[pipeline(blocks=1)]]")))
    assert any("clusters of 2" in x for x in said(plain("[[pipeline(blocks=2)]]")))


@pytest.mark.parametrize("rows", ["2", "cdiv(M, 128)"])
def test_blocks_with_one_tile_do_not_persist(rows: str) -> None:
    kernel = plain(rows=rows).compile("sm_90a", sizes={"N": 256} if rows == "2" else None)
    assert any(isinstance(op, For) and op.blocks for op in walk(kernel.kernel.body))
    few = loads(PLAIN.replace("KERNEL", "").replace("LOOP", "").replace("[ROWS, cdiv(N, 128)]", "[2, 3]")).kernels[
        "f"
    ]
    assert not any(isinstance(op, For) and op.blocks for op in walk(few.compile("sm_90a").kernel.body))
    texts = said(few)
    assert "not persistent: the grid has 6 tiles, one for each block" in texts
    assert not any("rounded differently" in x for x in texts)


def test_blocks_that_do_not_persist_are_not_counted() -> None:
    texts = said(plain("[[pipeline(persistent=false, blocks=3)]]"))
    assert any(x.startswith("warning: not as asked: `blocks=3`") for x in texts)


def test_settings_of_another_target_are_named_without_those_that_hold() -> None:
    texts = said(plain("[[pipeline(stages=3, producer=true, order=keep)]]"), "sm_80")
    assert any(x.startswith("3 stages") for x in texts)
    (left,) = (x for x in texts if x.startswith("warning: "))
    assert "`pipeline(producer=true)`" in left and "it runs without" in left


def test_rows_that_tma_cannot_copy_have_a_remedy() -> None:
    rows = np.zeros((64, 68), np.float16)
    texts = said(plain("[[pipeline]]"), facts=tm.kernels.facts_of({"a": rows}))
    assert any("pass `a` with rows of a multiple of 16 bytes" in x for x in texts)
    assert any(x.startswith("2 stages") for x in texts) and not any("not pipelined: " in x for x in texts)


def test_large_tiles_that_tma_cannot_copy_are_copied_ahead_by_threads() -> None:
    uneven = tm.kernels.facts_of({"a": np.zeros((64, 68), np.float16)})
    assert any(x.startswith("2 stages: the copies into `s`, `t`") for x in said(plain(), facts=uneven))
    small = (
        PLAIN.replace("KERNEL", "")
        .replace("LOOP", "")
        .replace("ROWS", "cdiv(M, 64)")
        .replace("[128, 64] s", "[64, 64] s")
    )
    small = small.replace("a.subspan(128", "a.subspan(64").replace("by 2", "by 1")
    assert not any("stages" in x for x in said(loads(small).kernels["f"], facts=uneven))


NESTED = """
__co__ void f(global f16 [M, K] a, global f16 [L, K] x, global f16 [N, L] b, global f32 [M, N] y) {
  parallel i by cdiv(M, 64) : block {
    shared f16 [64, 64] s;
    shared f16 [64, 64] t;
    shared f16 [128, 64] u;
    parallel g by 1 : group-4 {
      out = mma.fill.f32 0.0f;
      foreach l in cdiv(L, 64) {
        mid = mma.fill.f32 0.0f;
        foreach k in cdiv(K, 64) {
          dma.copy a.subspan(64, 64).at(i, k) => s;
          dma.copy x.subspan(64, 64).at(l, k) => t;
          mma.row.row mid, s, t;
        }
        frag f16[64, 64] mid_h {0.0};
        mid_h = mid;
        dma.copy b.subspan(128, 64).at(0, l) => u;
        mma.row.row out, mid_h, u;
      }
      mma.store out, y.subspan(64, 128).at(i, 0);
    }
  }
}
"""


def test_a_loop_that_another_one_gives_way_is_not_refused() -> None:
    """The inner loop is pipelined after the outer one has a `parallel` of its own."""
    assert [x[:8] for x in said(loads(NESTED).kernels["f"], "sm_80")] == ["3 stages", "3 stages"]


def test_a_copy_that_stays_is_no_pipeline_of_the_program() -> None:
    """A loop of which one copy stays was analysed again, and its own futures taken for the program's."""
    text = PLAIN.replace("LOOP", "").replace("ROWS", "cdiv(M, 128)").replace("KERNEL", "[[pipeline(stages=3)]]")
    for before, after in (
        ("=> t;", "=> t.span_as([128, 64]);"),
        ("[128, 64] t;", "[2, 64, 64] t;"),
        ("0), t;", "0), t.span_as([128, 64]);"),
    ):
        text = text.replace(before, after)
    kernel = loads(text).kernels["f"]
    for arch, there in (("sm_80", "3 stages"), ("sm_90a", "1 tile in a ring of 3 stages")):
        texts = said(kernel, arch)
        assert any(x.startswith(there) for x in texts)
        assert [x for x in texts if "one copy stays where it is" in x]
        assert not any("not pipelined" in x for x in texts), texts


def test_copies_of_rows_that_each_iteration_waits_for() -> None:
    """A copy issued ahead gains nothing where others, in a loop inside, are waited for at once."""
    text = PLAIN.replace("KERNEL", "").replace("LOOP", "").replace("ROWS", "cdiv(M, 128)")
    row = "foreach r in 128 dma.copy a.view(1, 64).from(i * 128 + r, k * 64) => s.subspan(1, 64).at(r, 0);"
    kernel = loads(text.replace("dma.copy a.subspan(128, 64).at(i, k) => s;", row)).kernels["f"]
    texts = said(kernel, "sm_80")
    assert any("every iteration waits for the copy into `s`" in x for x in texts), texts


REPEATED = [
    ("[[pipeline(stages=2)]] [[pipeline(stages=3)]]", "a loop got a second `pipeline`"),
    ("[[unroll(2)]] [[unroll(4)]]", "a loop got a second `unroll`"),
]


@pytest.mark.parametrize(("attributes", "message"), REPEATED)
def test_a_loop_has_one_of_each_setting(attributes: str, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        plain(loop=attributes).build()
    shown = caught.value.render()
    assert message in shown and "^" in shown and "remove one of the two" in shown


def test_settings_that_do_not_end_are_not_taken_for_host_code() -> None:
    with pytest.raises(CompileError) as caught:
        plain("[[pipeline(stages=4) ]")
    shown = caught.value.render()
    assert caught.value.code == "wrong-value" and "no `]]` in front of `__co__`" in shown and "^" in shown


def test_numpy_truth_values() -> None:
    assert tm.Pipeline(producer=np.True_, persistent=np.False_) == tm.Pipeline(producer=True, persistent=False)
