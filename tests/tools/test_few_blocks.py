"""`tilemma check` of persistent kernels: small problems in which a block computes several tiles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tilemma import croqtile
from tilemma.kernels import Kernel
from tilemma.launch import evaluate
from tilemma.targets.ptx.passes.persistent_grid import fewer_blocks
from tilemma.tools.check import FewOutcome, check_kernel
from tilemma.tools.few_blocks import _same_but, few_blocks

PLAIN = (Path(__file__).resolve().parents[2] / "examples" / "co" / "plain.co").read_text()
SMALL = PLAIN.replace("TILE_N 256", "TILE_N 128").replace("TILE_K 64", "TILE_K 32")
SIZES = {"M": 144, "N": 144, "K": 48}


def kernel(settings: str = "") -> Kernel:
    text = SMALL.replace("__co__", f"[[pipeline({settings})]]\n__co__") if settings else SMALL
    return Kernel(croqtile.load(text, "plain.co").sources["plain"])


def test_a_block_computes_several_tiles() -> None:
    outcome = check_kernel(kernel(), {}, schedules=1)
    assert outcome.ok and outcome.few is not None, outcome.render()
    assert outcome.complete and "smallest that reach every path" in outcome.render()
    assert f"{outcome.few.fewer} persistent blocks" in outcome.render()
    assert outcome.to_json()["few_blocks"]["in_place_of"] == outcome.few.most
    second = outcome.few.outcome
    assert len(second.comparisons) == len(outcome.comparisons) > 0
    wrong = replace(second, few=FewOutcome(second, 3, 2))
    wrong.verdicts = [replace(v, hazards=[object()]) for v in second.verdicts]  # type: ignore[list-item]
    assert not replace(outcome, few=replace(outcome.few, outcome=wrong)).ok


@pytest.mark.parametrize("settings", ["", "blocks=64", "blocks=100", "cluster=1", "blocks=32, cluster=1"])
def test_the_code_differs_in_the_number_of_blocks_alone(settings: str) -> None:
    k = kernel(settings)
    compiled = k.compile("sm_90a")
    few = few_blocks(k.build(), compiled, SIZES, {})
    assert few is not None and few.fewer < few.most
    # Loops that go on by the number of blocks read it from a register.
    assert few.compiled.launches != compiled.launches
    for sizes in few.sizes:
        (launch,) = few.compiled.launches
        blocks = evaluate(launch.grid[0], sizes)
        tiles = -(-sizes["M"] // 128) * -(-sizes["N"] // 128)
        assert 0 < blocks < tiles, (sizes, blocks)


@pytest.mark.parametrize("settings", ["persistent=false", "blocks=1, cluster=1", "blocks=2, cluster=1"])
def test_without_persistent_blocks_to_lower(settings: str) -> None:
    assert fewer_blocks(kernel(settings).compile("sm_90a").kernel) is None


def test_another_difference_is_refused() -> None:
    numbers = {("66", "3"), ("65", "2")}
    assert _same_but("add %i_66, 65; div 66, 4", "add %i_66, 2; div 3, 4", numbers)
    for other in (
        "add %i_3, 65; div 66, 4",
        "add %i_66, 65; div 66, 5",
        "sub %i_66, 65; div 66, 4",
        "add %i_66, 65;",
    ):
        assert not _same_but("add %i_66, 65; div 66, 4", other, numbers), other


@pytest.mark.slow
def test_instructions_that_need_a_second_tile() -> None:
    """With this tile a store overlaps the multiplies of the next tile: its instructions are others."""
    outcome = check_kernel(Kernel(croqtile.load(PLAIN, "plain.co").sources["plain"]), {}, schedules=1)
    assert outcome.ok and outcome.complete and not replace(outcome, few=None).complete, outcome.render()


LOOP = """
__co__ void halves(global f32 [N] x, global f32 [N] y) {
  parallel b by {count} : block, t by 32 : thread {
    {more}
    foreach i in 1 {
      with n in cdiv(N, 32) { foreach n(b::{count}) {
        if (n * 32 + t < N) y.at(n * 32 + t) = x.at(n * 32 + t) * 0.5f;
      } }
    }
  }
}
"""


def looped(count: str, more: str = "") -> Kernel:
    text = LOOP.replace("{count}", count).replace("{more}", more)
    return Kernel(croqtile.load(text, "loop.co").sources["halves"])


COUNTS = (
    "24",
    "64",
    "__max(__min(cdiv(N, 32), 24), 1)",
    "__min(24, __max(cdiv(N, 32), 1))",
    "cdiv(__max(N, 1), cdiv(__max(N, 1), 24))",
)


@pytest.mark.parametrize("count", COUNTS)
def test_a_number_of_blocks_in_the_program(count: str) -> None:
    """The machine and the reference run the program with fewer blocks, which then take several tiles each."""
    k = looped(count)
    for built in (k.build(), k.compile("sm_80").kernel):
        found = fewer_blocks(built)
        assert found is not None and found.most in (24, 64) and found.fewer < 4
    outcome = check_kernel(k, {}, arch="sm_80", schedules=1)
    assert outcome.ok and outcome.few is not None, outcome.render()
    assert outcome.complete and outcome.few.most in (24, 64)


@pytest.mark.parametrize(
    "count, more",
    [
        ("24", "y.at(b) = 0.0f;"),
        ("2", ""),
        ("__max(cdiv(N, 32), 1)", ""),
        ("24", "with m in cdiv(N, 32) { foreach m(b::12) { y.at(m) = x.at(m); } }"),
    ],
)
def test_a_number_of_blocks_that_the_results_depend_on(count: str, more: str) -> None:
    assert fewer_blocks(looped(count, more).build()) is None


# Each is correct with 24 blocks, and with fewer of them hangs or leaves out its last statement.
COUNTED = {
    "barrier": """
      __atomic_add(count.at(0), 1);
      mutable s32 seen = 0;
      while (seen < 24) { seen = __atomic_add(count.at(0), 0); }""",
    "flag": """
      s32 before = __atomic_add(count.at(0), 1);
      if (before == 23) __atomic_exch(count.at(1), 1);
      while (count.at(1) == 0) { }""",
    "last block": """
      s32 before = __atomic_add(count.at(0), 1);
      if (before >= 23) count.at(1) = 1;""",
    "number": """
      mutable int left = 24;
      left = left - __atomic_add(count.at(0), 1);
      if (left == 1) count.at(1) = 1;""",
    "loop with break": """
      __atomic_add(count.at(0), 1);
      foreach i in 1000000 {
        if (count.at(0) / 8 == 3) break;
      }""",
    "swap": "__atomic_cas(count.at(0), 23, 0);",
}


@pytest.mark.parametrize("name", COUNTED)
def test_a_kernel_that_counts_its_blocks(name: str) -> None:
    text = LOOP.replace("{count}", "24").replace("{more}", "").replace("y) {", "y, global s32 [2] count) {")
    plain = Kernel(croqtile.load(text, "counted.co").sources["halves"])
    end = text.rindex("  }\n}")
    text = f"{text[:end]}    sync.barrier : block;\n    if (t == 0) {{{COUNTED[name]}\n    }}\n{text[end:]}"
    counted = Kernel(croqtile.load(text, "counted.co").sources["halves"])
    for k, found in ((plain, True), (counted, False)):
        assert (fewer_blocks(k.build()) is not None) is found
        assert (fewer_blocks(k.compile("sm_80").kernel) is not None) is found


SECOND = """
__co__ void marked(global f32 [N] x, global f32 [N] y) {
  parallel b by 24 : block, t by 32 : thread {
    mutable int again = 0;
    with n in cdiv(N, 32) { foreach n(b::24) {
      if (n * 32 + t < N) {
        if (again == 1) y.at(n * 32 + t) = x.at(n * 32 + t) + 1.0f; else y.at(n * 32 + t) = 2.0f;
      }
      again = 1;
    } }
  }
}
"""


def test_instructions_of_the_second_tile_of_a_block() -> None:
    """What a block does in its second tile alone runs, and is compared with the reference of as few blocks."""
    outcome = check_kernel(Kernel(croqtile.load(SECOND, "s.co").sources["marked"]), {}, arch="sm_80", schedules=1)
    assert outcome.ok and outcome.few is not None, outcome.render()
    assert outcome.complete and not replace(outcome, few=None).complete


@pytest.mark.slow
@pytest.mark.parametrize("name", ["persistent", "multicast"])
def test_persistent_blocks_written_by_hand(name: str) -> None:
    """Results are stored during the multiplies of the next tile: a small problem has it with fewer blocks."""
    path = Path(__file__).resolve().parents[2] / "examples" / "co" / f"{name}.co"
    outcome = check_kernel(Kernel(croqtile.load(path.read_text(), path.name).sources[name]), {}, schedules=1)
    assert outcome.ok and outcome.complete and not replace(outcome, few=None).complete
