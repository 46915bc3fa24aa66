"""Multiplies of main loops between their loads and copies: what may exchange places, and for which loops."""

from __future__ import annotations

import random
import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from tilemma.compiler import Compiled, with_facts
from tilemma.ir.lane import AtomInstr, CopyInstr, Imm, Instr, LaneBody, LaneOp, Mem, Reg
from tilemma.ir.plans import ArrayFacts
from tilemma.modules import load
from tilemma.targets.ptx.lower import expected_option, launches
from tilemma.targets.ptx.lower.interleave_multiplies import (
    _is_kept,
    _ordered,
    registers_read,
    registers_written,
)

ROOT = Path(__file__).resolve().parents[4]
PLAIN, BUFFERS = ROOT / "bench/plain_warps.co", ROOT / "examples/co/double_buffer.co"
ATOM = "SM80_16x8x16_F32F16F16F32_TN"


def _random_body(turns: random.Random) -> LaneBody:
    """Operations on few registers, so that most pairs conflict somewhere."""
    pool = [Reg(f"r{i}", "b32") for i in range(24)]

    def some(count: int) -> tuple[Reg, ...]:
        return tuple(turns.sample(pool, count))

    out: list[LaneOp] = []
    for _ in range(turns.randrange(5, 60)):
        match turns.randrange(8):
            case 0:
                out.append(CopyInstr("ldmatrix", Mem(some(1)[0]), some(4)))
            case 1:
                out.append(CopyInstr("cp.async", Mem(some(1)[0]), source=Mem(some(1)[0]), source_size=some(1)[0]))
            case 2:
                out.append(Instr("bar.sync", (), (Imm(0),)))
            case 3:
                out.append(Instr("add.s32", some(1), some(2)))
            case _:
                d = some(4)
                out.append(AtomInstr(ATOM, d, some(4), some(2), d))
    return tuple(out)


@pytest.mark.parametrize("seed", range(200))
def test_operations_that_share_a_written_register_keep_their_order(seed: int) -> None:
    body = _random_body(random.Random(seed))
    found = _ordered(body)
    place = {id(x): i for i, x in enumerate(found)}
    assert sorted(place) == sorted(map(id, body)) and len(found) == len(body)
    for a, b in combinations(body, 2):
        chained = (_is_kept(a) and _is_kept(b)) or (isinstance(a, AtomInstr) and isinstance(b, AtomInstr))
        written_a, written_b = set(registers_written(a)), set(registers_written(b))
        conflict = not written_a.isdisjoint({*written_b, *registers_read(b)}) or not written_b.isdisjoint(
            registers_read(a)
        )
        if chained or conflict:
            assert place[id(a)] < place[id(b)]


WHOLE_ROWS = ArrayFacts(1, 16, nonempty=True)


def _compiled(path: Path, facts: ArrayFacts = WHOLE_ROWS, arch: str = "sm_80") -> Compiled:
    kernel = load(path).only()
    return kernel.compile(arch, facts={a.name: facts for a in kernel.signature().plan.arrays})


def _main_loop(ptx: str) -> str:
    """The kinds of the operations of the loop with multiplies: m, Load, Copy, Wait, Barrier."""
    kinds = {"mma": "m", "ldmatrix": "L", "cp.async.wait": "W", "cp.async.cg": "C", "bar.sync": "B"}
    (body,) = (x for x in re.findall(r"_loop_\d+:(.*?)bra", ptx, re.DOTALL) if "mma." in x)
    return "".join(v for line in body.split("\n") for k, v in kinds.items() if line.lstrip().startswith(k))


@pytest.mark.parametrize("path", [PLAIN, BUFFERS], ids=lambda p: p.stem)
def test_loads_and_copies_of_a_main_loop_stand_between_its_multiplies(path: Path) -> None:
    compiled = _compiled(path)
    assert compiled.ptx.startswith("// ptxas -Ofc=min\n")
    assert "for ptxas -Ofc=min" in str(compiled.explain())
    loop = _main_loop(compiled.ptx)
    assert {k: loop.count(k) for k in "mLCWB"} == {"m": 128, "L": 32, "C": 12, "W": 1, "B": 1}
    assert not re.search("LLLLL|CC|m{25}", loop)


@pytest.mark.parametrize("path", [PLAIN, BUFFERS], ids=lambda p: p.stem)
@pytest.mark.parametrize("shape", [(128, 256, 64), (136, 264, 200)])
def test_the_order_does_not_change_a_result(
    path: Path, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, k)).astype(np.float16) for rows in (m, n))
    results = []
    for interleaved in (True, False):
        if not interleaved:
            monkeypatch.setattr(launches, "with_multiplies_interleaved", lambda kernel: kernel)
        c = np.zeros((m, n), np.float16)
        assert load(path).only().on("machine", arch="sm_80", strict=True)(a, b, c).ok
        results.append(c)
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    ("path", "facts"),
    [
        # Steps of 8 multiplies; loads that the next multiply waits for; a branch in the loop.
        (ROOT / "examples/co/matmul_wgmma_2group.co", WHOLE_ROWS),
        (ROOT / "examples/co/event_pipeline.co", WHOLE_ROWS),
        (PLAIN, ArrayFacts(1, 16, nonempty=True, ragged=True)),
    ],
)
def test_other_loops_stay_as_they_are(path: Path, facts: ArrayFacts) -> None:
    compiled = _compiled(path, facts)
    assert compiled.ptx.startswith(".version")
    assert re.search(r"(ldmatrix[^\n]*\n\s*){4}", compiled.ptx)
    assert "ptxas" not in str(compiled.explain())


def test_the_option_is_explained_only_if_the_text_has_it(tmp_path: Path) -> None:
    """A second launch without multiplies: the module names no option."""
    text = BUFFERS.read_text().rstrip()
    copies = """
parallel {b} by [cdiv(M, 16)] : block {
shared f16 [16, 64] tile;
dma.copy output.subspan(16, 64).at(b, 0) => tile;
dma.copy tile => output.subspan(16, 64).at(b, 0);
}
}"""
    (tmp_path / "two.co").write_text(text.removesuffix("}") + copies)
    compiled = _compiled(tmp_path / "two.co")
    assert [x.lane.option for x in compiled.lowered] == ["-Ofc=min", ""]
    assert compiled.ptx.startswith(".version") and "-Ofc" not in str(compiled.explain())


# Some have operands that are loaded ahead, some lack registers for them, and some have blocks that are not joined.
OPTIONS = [
    *(f"co/{x}" for x in ("double_buffer", "multistage", "matmul_wgmma_2group", "event_pipeline", "plain")),
    *("gallery/batched", "gallery/experts", "gallery/sparse", "tutorial/3_warps", "tutorial/4_ahead"),
]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_option_is_expected_before_the_passes_run(name: str, ragged: bool, arch: str) -> None:
    kernel = load(ROOT / f"examples/{name}.co").only()
    facts = {a.name: ArrayFacts(1, 16, True, ragged) for a in kernel.signature().plan.arrays}
    option = "".join({x.lane.option for x in kernel.compile(arch, facts=facts).lowered})
    assert expected_option(with_facts(kernel.build(), facts), arch) == option
