"""Overlap of the epilogue with the next tile's multiplies: where it applies, and right results in every case."""

from __future__ import annotations

from pathlib import Path

import pytest
from pipeline_runs import check, close, problem

from tilemma import machine
from tilemma.compiler import compile_kernel, default_facts, with_facts
from tilemma.ir.printer import print_op
from tilemma.ir.tile import Copy, For, If, Store
from tilemma.ir.walk import walk
from tilemma.modules import load_python
from tilemma.targets.cpu import execute
from tilemma.targets.ptx.passes import decide

ROOT = Path(__file__).resolve().parents[4]
TEXT = (ROOT / "examples" / "py" / "persistent.py").read_text(encoding="utf-8")


def built(path, **constants):
    kernel = load_python(path).only().source.build(constants)
    return with_facts(kernel, default_facts(kernel))


def example(**constants):
    return built(ROOT / "examples" / "py" / "persistent.py", **constants)


def late(kernel):
    decided, log = decide(kernel, "sm_90a")
    return decided, [d for d in log if d.pass_name == "overlapped epilogue"]


def variant(tmp_path, old, new):
    assert TEXT.count(old) == 1
    path = tmp_path / "variant.py"
    path.write_text(TEXT.replace(old, new), encoding="utf-8")
    return built(path)


def test_each_piece_in_a_turn_of_its_own():
    decided, found = late(example())
    assert [d.data["pieces"] for d in found] == [4]
    due = stored_late(decided)
    assert [len(list(walk_stores(x))) for x in due.then if any(walk_stores(x))] == [1, 1, 1, 1]
    # They differ in registers, columns and slots alone.
    (copy,) = copies_of(due)
    assert "output_s{k.1 % 2}" in print_op(copy) and "mc.place1 + k.1 * 64 +: 64" in print_op(copy)


def stored_late(decided):
    loops = [op for op in walk(decided.body) if isinstance(op, For) and op.index.name.startswith("k")]
    (due,) = [op for loop in loops for op in loop.body if isinstance(op, If) and any(walk_stores(op))]
    return due


def copies_of(op):
    return [x for x in walk((op,)) if isinstance(x, Copy)]


def walk_stores(op):
    return (x for x in walk((op,)) if isinstance(x, Store))


def test_tiles_are_packed_once_into_registers_that_start_as_nothing():
    ptx = compile_kernel(example(), "sm_90a").ptx
    packed = 64 * 256 // 128 // 2
    assert ptx.count("cvt.rn.f16x2.f32") == packed
    assert "%mc_held_0_0_r0, " in ptx and ptx.count("mov.b32 %mc_held") == 0


def test_the_machine_reports_them_where_nothing_guards_them():
    """The first tile's turns would store what was never written."""
    kernel = example(CLUSTER=1, GRID=1)
    compiled = compile_kernel(kernel, "sm_90a")
    unset = "mov.b32 %mc_waiting, 0;"
    assert compiled.ptx.count(unset) == 1
    (launch,) = compiled.launches
    arrays, _ = problem(kernel, (72, 264, 328))
    with pytest.raises(machine.HazardError) as found:
        machine.run(compiled.ptx.replace(unset, unset.replace("0", "1")), launch, arrays)
    assert found.value.code == "uninitialised-register"


def test_a_whole_tile_of_staging_is_not_cut():
    assert not late(example(TILE_N=128))[1]


def test_a_tile_of_two_pieces():
    (found,) = late(example(CONSUMERS=3, TILE_N=128, STAGES=5, CLUSTER=1))[1]
    assert found.data["pieces"] == 2


def test_no_registers_to_spare():
    """One consumer's block has none set apart."""
    assert not late(example(CONSUMERS=1, STAGES=5))[1]


@pytest.mark.parametrize("columns", range(144, 184, 8))
def test_registers_of_three_consumers_hold_a_packed_tile_besides_the_sums_and_40_others(columns):
    """They have 160 each."""
    registers = 64 * columns // 128
    fits = registers + registers // 2 + 40 <= 160
    assert bool(late(example(CONSUMERS=3, TILE_N=columns, STAGES=3, CLUSTER=1))[1]) == fits


LOOP = "                        for k in foreach({}):\n                            wait(full[slot])"
OTHERS = {
    "element work in the main loop": (
        "                            mma.commit()\n",
        "                            mma.wait(0)\n" + " " * 28 + "mc *= 1.0\n" + " " * 28 + "mma.commit()\n",
    ),
    "turns that depend on the tile": (LOOP.format("steps"), LOOP.format("steps, stop=steps - t % 2")),
}


@pytest.mark.parametrize(("old", "new"), OTHERS.values(), ids=OTHERS)
def test_what_stays_where_it_is(tmp_path, old, new):
    assert not late(variant(tmp_path, old, new))[1]


# The consumers' loop over tiles, its stores, and what may follow them.
TILES = "                    for t in foreach(tiles_m * tiles_n, start=team, step=teams):\n"
BEGIN = " " * 24 + 'mc = mma.fill(0.0, "f32")\n'
STORES = " " * 24 + "mma.store(mc,"
STORED = "                            output.subspan(WARP_M, TILE_N).at(m * CONSUMERS + wg - 1, n),\n"
LAST = STORED + "                        )\n"


# Each consumer as a role of its own: as one they would have to wait for each other where tiles are in any order.
ROLE = "                with inthreads(wg >= 1, async_=True):\n"
ROLES = f"""{" " * 16}for part in range(CONSUMERS):
{" " * 18}with inthreads(wg == part + 1, async_=True):
"""


def consumer_variant(path, *changes):
    """The text with the last occurrence of each first one in ``changes`` replaced by the second."""
    text = TEXT
    for old, new in (*changes, (ROLE, ROLES)):
        head, found, tail = text.rpartition(old)
        assert found
        text = head + new + tail
    (path / "variant.py").write_text(text, encoding="utf-8")
    return built(path / "variant.py", CLUSTER=1, GRID=1)


def while_loop(condition, before="", behind=""):
    """The consumers' tiles by a `while` loop.  Places of a tile are compared by variables that are set once."""
    begin = f"{' ' * 20}following = var(team)\n{before}{' ' * 20}with tm.while_(lambda: {condition}):\n"
    more = f"{behind}{' ' * 24}following += teams\n"
    tile = f"{begin}{' ' * 24}t = var(following)\n"
    return (TILES, tile), (LAST, LAST + more), (BEGIN, f"{' ' * 24}m, n = var(m), var(n)\n{BEGIN}")


COUNTED = while_loop("following < tiles_m * tiles_n")


def indented(text, by=4):
    return "".join(" " * by + x for x in text.splitlines(keepends=True))


def whole_stores():
    """The statements that store a tile."""
    return TEXT[TEXT.index(STORES) : TEXT.index(LAST) + len(LAST)]


def in_branch(condition, otherwise):
    """The stores of some tiles, and others of the rest."""
    head = f"{' ' * 24}with tm.if_({condition}):\n"
    rest = f"{' ' * 24}with tm.else_():\n{indented(otherwise, 28)}"
    return whole_stores(), head + indented(whole_stores()) + rest


DIRECT = "mma.store(mc, output.subspan(WARP_M, TILE_N).at(m * CONSUMERS + wg - 1, n))\n"
REPLACING = DIRECT.replace("n)", "n - 1)")


def test_operations_behind_the_stores(tmp_path):
    """The next tile is found there."""
    kernel = consumer_variant(tmp_path, (LAST, LAST + " " * 24 + "slot += 0\n"))
    assert late(kernel)[1]
    check(kernel, "sm_90a", (72, 520, 200), seeds=(0,))


@pytest.mark.parametrize("shape", [(72, 520, 200), (72, 520, 136), (72, 264, 0)], ids=str)
def test_tiles_of_a_while_loop(tmp_path, shape):
    kernel = consumer_variant(tmp_path, *COUNTED)
    assert late(kernel)[1]
    check(kernel, "sm_90a", shape, seeds=(0,))


@pytest.mark.parametrize("loop", [(), COUNTED], ids=["for", "while"])
def test_tiles_some_of_which_are_stored_otherwise(tmp_path, loop):
    """Some tiles leave their registers at once, behind a wait for the pieces of the one before."""
    kernel = consumer_variant(tmp_path, *loop[1:], in_branch("t % 3 != 1", DIRECT), *loop[:1])
    assert late(kernel)[1]
    check(kernel, "sm_90a", (72, 776, 200), seeds=(0, 1))


def test_a_tile_is_stored_once(tmp_path):
    """Some tiles replace the one before: its pieces come earlier, and not again."""
    kernel = consumer_variant(tmp_path, *COUNTED[1:], in_branch("t % 3 != 1", REPLACING), *COUNTED[:1])
    _, want = problem(kernel, (72, 776, 200))
    # The second tile is in the place of the first, and nothing in its own.
    want[:, :256], want[:, 256:512] = want[:, 256:512], 7
    check_overlapped(kernel, (72, 776, 200), want)


# A main loop without multiplies.
SKIPPED = """for k in foreach(steps):
    wait(full[slot])
    trigger(empty[slot], cluster=True)
    slot.set(select(slot == STAGES - 1, 0, slot + 1))
"""


@pytest.mark.parametrize(("left_out", "loop"), [(1, ()), (2, COUNTED)], ids=["for", "while"])
def test_main_loops_in_a_branch(tmp_path, left_out, loop):
    """Some tiles are neither multiplied nor stored: pieces do not wait for them."""
    tile = TEXT[TEXT.rindex(BEGIN) : TEXT.index(LAST) + len(LAST)]
    head, rest = (" " * 24 + f"with {x}:\n" for x in (f"tm.if_(t % 3 != {left_out})", "tm.else_()"))
    branches = tile, head + indented(tile) + rest + indented(SKIPPED, 28)
    kernel = consumer_variant(tmp_path, *loop, branches)
    _, want = problem(kernel, (72, 1032, 136))
    for n in range(left_out, 5, 3):
        want[:, 256 * n : 256 * (n + 1)] = 7
    decided = check_overlapped(kernel, (72, 1032, 136), want)
    # Of this tile and of the next one, in each role.
    conditions = [print_op(op).partition("{")[0] for op in walk(decided.body) if isinstance(op, If)]
    assert sum(f"% 3 != {left_out}" in x and "lnot" not in x for x in conditions) == 4


def check_overlapped(kernel, shape, want):
    """The epilogue is overlapped, and the result is ``want``; returns the decided kernel."""
    decided, found = late(kernel)
    assert found
    for run in (kernel, decided, None):
        arrays, _ = problem(kernel, shape)
        if run is None:
            compiled = compile_kernel(kernel, "sm_90a")
            machine.run(compiled.ptx, compiled.launches[0], arrays, strict=True)
        else:
            execute(run, arrays, {}, dims=dict(zip("MNK", shape, strict=True)))
        assert close(arrays["output"], want)
    return decided


def test_a_condition_that_is_read_from_memory(tmp_path):
    """It may be another one when it is read again."""
    before = " " * 20 + "count_s = shared('s32', 4)\n" + " " * 20 + "count_s[0] = tiles_m * tiles_n\n"
    assert not late(consumer_variant(tmp_path, *while_loop("following < count_s[0]", before)))[1]


NOTES = " " * 20 + "slot = var(0)\n" + " " * 20 + "notes_s = shared('s32', 4)\n"


def test_shared_memory_that_each_tile_uses(tmp_path):
    """The barriers of the pieces kept the threads of one tile from those of the next."""
    note = f"{' ' * 24}notes_s[0] = n\n{' ' * 24}n = var(notes_s[0])\n"
    kernel = consumer_variant(tmp_path, (" " * 20 + "slot = var(0)\n", NOTES), (BEGIN, note + BEGIN))
    _, want = problem(kernel, (72, 776, 200))
    check_overlapped(kernel, (72, 776, 200), want)


def test_the_result_is_read_between(tmp_path):
    """A wait for the stores of the tile before stands in front of what reads it."""
    more = f"{' ' * 24}slot += tm.select(output[0, 0] > 9.0, 0, 0)\n"
    loop = while_loop("following < tiles_m * tiles_n", behind=more)
    assert not late(consumer_variant(tmp_path, *loop))[1]


SCALED = STORES, " " * 24 + "mc *= 2.0\n" + " " * 24 + "mc *= 0.5\n" + STORES


def test_element_work_between_the_main_loop_and_the_stores(tmp_path):
    """Nothing is held then: its registers are free."""
    assert late(variant(tmp_path, *SCALED))[1]
    check(built(tmp_path / "variant.py", CLUSTER=1, GRID=1), "sm_90a", (72, 520, 200), seeds=(0,))


def test_two_pieces_fit_beside_a_small_buffer_to_the_byte(tmp_path):
    """4 stages of 48 KB, 2 pieces of 16 KB, 2 KB of scales and the events: 960 bytes are left."""
    room = "            output_s = shared(T, TILE_M, TILE_N)\n"
    more = "scales_s = shared(T, 8, 128)", "tm.dma.copy(lhs.subspan(8, 128).at(0, 0), scales_s)"
    kernel = variant(tmp_path, room, room + "".join(f"            {x}\n" for x in more))
    (staging,) = (d for d in decide(kernel, "sm_90a")[1] if d.pass_name == "staging")
    assert staging.data["slots"] == 2


def test_pieces_that_an_earlier_wait_covers():
    """224 columns in 3 pieces of 64 through a ring, and one of 32 through a buffer of its own."""
    kernel = example(TILE_N=224, CLUSTER=1, GRID=1)
    decided, (found,) = late(kernel)
    assert found.data["pieces"] == len(copies_of(stored_late(decided))) == 4
    check(kernel, "sm_90a", (72, 456, 456), seeds=(0,))


ALTERNATING = (ROOT / "examples" / "py" / "pingpong.py").read_text(encoding="utf-8")
# Each consumer is a role of its own, with its half of one buffer, and lets the other go before its last multiply.
APART = (
    ("shared(T, TILE_M, TILE_N, copies=2)", "shared(T, 2 * TILE_M, TILE_N)"),
    (
        "                with inthreads(wg >= 1, async_=True):\n                    turn = wg % 2\n",
        "                for turn in range(2):\n                  with inthreads(wg == turn + 1, async_=True):\n",
    ),
    (
        "for order in foreach(done + steps, start=done):\n                            wait(full",
        "for k in foreach(steps):\n" + " " * 28 + "order = done + k\n" + " " * 28 + "wait(full",
    ),
    (
        "                            ma =",
        " " * 28 + "with tm.if_(k == steps - 1):\n" + " " * 32 + "trigger(go[1 - turn])\n" + " " * 28 + "ma =",
    ),
    (" " * 24 + "trigger(go[1 - turn])\n" + " " * 24 + "mma.store", " " * 24 + "mma.store"),
    ("mma.store(mc, output_s[turn])", "mma.store(mc, output_s.subspan(TILE_M, TILE_N).at(turn, 0))"),
    ("tma.copy(output_s[turn], ", "tma.copy(output_s.subspan(TILE_M, TILE_N).at(turn, 0), "),
)


def test_a_wait_that_the_pieces_would_leave_behind(tmp_path):
    """A tile's buffer is free before its main loop, where the other role is let go."""
    text = ALTERNATING
    for old, new in APART:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / "apart.py").write_text(text, encoding="utf-8")
    kernel = built(tmp_path / "apart.py", CLUSTER=1, GRID=1, RASTER=1, TILE_N=104)
    assert not late(kernel)[1]
    check(kernel, "sm_90a", (136, 112, 264), seeds=(0,))


@pytest.mark.parametrize("shape", [(72, 520, 200), (72, 520, 136), (72, 264, 0), (72, 136, 328)], ids=str)
def test_right_and_free_of_hazards(shape):
    """Ragged; a turn for each piece, too few turns, none, a tile that no other follows."""
    check(example(CLUSTER=1, GRID=1), "sm_90a", shape, seeds=(0,))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"T": "bf16"}, {"RASTER": 2}, {"STAGES": 3}], ids=str)
def test_right_in_other_configurations(settings):
    check(example(**{"GRID": 2, "RASTER": 1} | settings), "sm_90a", (264, 520, 328), seeds=(0, 1, 2))
