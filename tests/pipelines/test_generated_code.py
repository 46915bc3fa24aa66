"""The optimizations of a hand-written persistent kernel, each found in the code of the example by its
instruction."""

from __future__ import annotations

import re

import pytest
from configurations import EXAMPLES

from tilemma import croqtile
from tilemma.assemble import NoPtxas
from tilemma.compiler import Compiled
from tilemma.kernels import Kernel
from tilemma.modules import load_python


@pytest.fixture(scope="module")
def persistent() -> Compiled:
    return load_python(EXAMPLES / "py" / "persistent.py").only().compile("sm_90a")


def between(text: str, first: str, last: str) -> list[str]:
    """The lines from the one that holds ``first`` to the one that holds ``last``."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if first in line)
    end = next(i for i, line in enumerate(lines) if i > start and last in line)
    return lines[start : end + 1]


def loop_of(text: str, instruction: str) -> list[str]:
    """The innermost loop around the first ``instruction``."""
    lines = text.splitlines()
    here = next(i for i, line in enumerate(lines) if instruction in line)
    start = max(i for i, line in enumerate(lines[:here]) if re.fullmatch(r"\s*\$\w+_loop_\d+:", line))
    label = lines[start].strip().rstrip(":")
    end = next(i for i, line in enumerate(lines) if i > here and f" {label};" in line)
    return lines[start : end + 1]


def test_registers_go_from_the_producer_to_the_consumers(persistent):
    """Within what the block is launched with; ptxas honours it and spills nothing."""
    few, many = (
        int(re.search(rf"setmaxnreg.{way}.sync.aligned.u32 (\d+);", persistent.ptx)[1]) for way in ("dec", "inc")
    )
    assert (few, many) == (24, 240)
    threads = int(re.search(r"\.maxntid (\d+)", persistent.ptx)[1])
    assert ".minnctapersm 1" in persistent.ptx
    try:
        cubin = persistent.assembled()
    except NoPtxas:
        pytest.skip("no ptxas")
    assert not cubin.problems and not cubin.setmaxnreg_ignored and not cubin.spills
    assert 128 * few + (threads - 128) * many <= threads * cubin.registers


def test_more_blocks_on_a_multiprocessor_start_with_fewer_registers(tmp_path):
    """What the consumers get is more than that."""
    text = (EXAMPLES / "py" / "persistent.py").read_text()
    path = tmp_path / "two.py"
    path.write_text(text.replace('level="block"', 'level="block", min_blocks=2'))
    ptx = load_python(path).only().compile("sm_90a").ptx
    assert ".minnctapersm 2" in ptx
    few, many = (int(re.search(rf"setmaxnreg.{way}.sync.aligned.u32 (\d+);", ptx)[1]) for way in ("dec", "inc"))
    assert few < 65536 // 2 // 384 < many


def test_one_elected_thread_starts_the_copies(persistent):
    loop = loop_of(persistent.ptx, "cp.async.bulk.tensor.2d.shared::cluster")
    loads = [line for line in loop if "cp.async.bulk.tensor" in line]
    assert len(loads) == 2 and all(line.strip().startswith("@%elected") for line in loads)
    assert "elect.sync" in persistent.ptx
    assert not any("bar.sync" in line for line in loop)


def test_multiplies_stay_in_flight_across_steps(persistent):
    """The wait leaves the newest batch open, and the slot released behind it is the one before."""
    loop = loop_of(persistent.ptx, "wgmma.mma_async")
    waits = [line for line in loop if "wgmma.wait_group" in line]
    assert [line.split()[-1] for line in waits] == ["1;"]
    releases = [i for i, line in enumerate(loop) if "mbarrier.arrive" in line]
    assert releases and min(releases) > loop.index(waits[0])
    assert all(loop[i].strip().startswith("@%") for i in releases)  # the first step has none before it


def test_the_number_of_a_barrier_is_not_in_a_uniform_register(persistent):
    """`BAR.SYNC` takes it from a lane's: from the thread's number, not from that of the warp."""
    (number,) = set(re.findall(r"bar\.sync (%\w+), 128;", persistent.ptx))
    sources = {number}
    for line in reversed(persistent.ptx.splitlines()):
        target, *operands = re.findall(r"%\w+", line.split(":")[0])[:3] or [""]
        if target in sources and "bar.sync" not in line and ".reg" not in line:
            sources |= set(operands)
    assert "%thread" in sources and "%warp" not in sources


@pytest.mark.parametrize("name", ["persistent", "warp_specialized", "multicast", "pingpong"])
def test_rings_turn_without_division(name):
    """Slots and generations of counters that never become negative are bits of them, or select what is next."""
    ptx = load_python(EXAMPLES / "py" / f"{name}.py").only().compile("sm_90a").ptx
    for instruction in ("wgmma.mma_async", "cp.async.bulk.tensor.2d.shared::cluster"):
        loop = loop_of(ptx, instruction)
        # The first iteration also finds the place of the tile, in a branch.
        always = [line for line in loop[2:] if _indentation(line) <= _indentation(loop[2])]
        assert len(always) > 10
        assert not [line for line in always if re.search(r"\b(div|rem)\.", line)]


@pytest.fixture(scope="module")
def plain() -> str:
    """The code of the plain product as persistent blocks without clusters."""
    settings = "[[pipeline(cluster=1, order=keep)]]\n__co__"
    text = (EXAMPLES / "co" / "plain.co").read_text().replace("__co__", settings)
    return Kernel(croqtile.load(text, "plain.co").sources["plain"]).compile("sm_90a").ptx


def test_places_of_tiles_are_found_when_nothing_waits_for_them(plain):
    """Before the barrier in front of the first copies, behind the copies of the tile before, and behind the first
    multiplies; not between the multiplies of a tile and its store."""
    lines = plain.splitlines()
    divisions = [i for i, line in enumerate(lines) if re.search(r"\b(div|rem)\.", line)]

    def first(text: str, start: int = 0) -> int:
        return next(i for i, line in enumerate(lines) if i >= start and text in line)

    assert divisions and not [i for i in divisions if first("bar.sync 0") < i < first("cp.async.bulk.tensor")]
    finished = first("wgmma.wait_group.sync.aligned 0")
    assert not [i for i in divisions if finished < i < first("stmatrix", finished)]


def test_the_number_of_persistent_blocks_is_read(plain):
    assert "%nctaid.x" in plain and not re.search(r"(div|rem)\.u32.*, 132;", plain)


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def test_the_first_multiply_ignores_the_accumulator(persistent):
    """A scale-d predicate in place of 128 registers set to zero, but where K = 0 leaves nothing to multiply."""
    multiplies = [line for line in persistent.ptx.splitlines() if "wgmma.mma_async" in line]
    scale_d = [re.search(r"\}, %\w+, %\w+, ([%\w]+),", line)[1] for line in multiplies]
    assert scale_d[0].startswith("%") and set(scale_d[1:]) == {"1"}
    loop = loop_of(persistent.ptx, "wgmma.mma_async")
    assert not any(re.search(r"mov\.(f32|b32) %mc\w*_r\d+, ", line) for line in loop)
    zeroed = [
        i
        for i, line in enumerate(persistent.ptx.splitlines())
        if re.search(r"mov\.(f32|b32) %mc\w*_r\d+, 0", line)
    ]
    lines = persistent.ptx.splitlines()
    assert len(zeroed) == 128
    assert re.search(r"@!%\w+ bra", "".join(lines[zeroed[0] - 3 : zeroed[0]]))


def test_tensor_maps_are_fetched_ahead(persistent):
    assert persistent.ptx.count("prefetch.tensormap") == 3  # of lhs, rhs and output
    assert persistent.ptx.index("prefetch.tensormap") < persistent.ptx.index("mbarrier.init")


def test_results_leave_by_stmatrix_and_tma_while_the_next_part_is_staged(persistent):
    """The staging buffer is written again when its last store but one has been read, without a wait for the
    writes."""
    epilogue = between(persistent.ptx, "stmatrix", "cp.async.bulk.tensor.2d.global")
    assert not any("st.shared" in line for line in epilogue)
    waits = re.findall(r"cp\.async\.bulk\.wait_group(\S*) (\d)", persistent.ptx)
    assert set(waits) == {(".read", "1"), (".read", "0")} or set(waits) == {(".read", "1"), ("", "0")}
    assert waits.count((".read", "1")) == persistent.ptx.count("cp.async.bulk.commit_group")
