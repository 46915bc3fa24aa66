"""Metadata of wgmma in two sets of registers: a group of multiplies stays in flight, results stay the same."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilemma as tm
from tilemma import machine, sparse
from tilemma.ops.mixed_kernels import mixed_tiles
from tilemma.targets.ptx.passes import alternate_operand_registers

# The metadata of a sparse A (in registers), for tiles of 128 x N and 2 * UNIT columns of K.
TEXT = """
__co__ void k(global {t} [M, HALF] values, global u32 [M, WORDS] meta, global {t} [N, K] rhs,
              global {acc} [M, N] output) {{
  parallel {{m, n}} by [cdiv(M, 128), cdiv(N, {n})] : block {{
    shared {t} [128, {unit}] values_s; shared {t} [{n}, {wide}] rhs_s;
    mc = mma.fill.{acc} 0;
    foreach k in cdiv(K, {wide}) {{
      dma.copy values.subspan(128, {unit}).at(m, k) => values_s;
      dma.copy rhs.subspan({n}, {wide}).at(n, k) => rhs_s;
      parallel wg by 2 : group-4 {{
        mb = mma.load rhs_s; me = mma.load meta.subspan(64, {words}).at(m # wg, k);
        {load} mma.row.row.sp mc, ma, mb, me;
      }}
    }}
    parallel wg by 2 : group-4 {{ mma.store mc, output.subspan(64, {n}).at(m # wg, n); }}
  }}
}}"""
FORMS = {("f16", "f32"): 32, ("bf16", "f32"): 32, ("f16", "f16"): 32, ("s8", "s32"): 64}


@cache
def kernel(folder: Path, t: str, acc: str, n: int = 128) -> Any:
    unit = FORMS[t, acc]
    path = folder / f"{t}_{acc}_{n}.co"
    path.write_text(
        TEXT.format(
            t=t,
            acc=acc,
            n=n,
            unit=unit,
            wide=2 * unit,
            words=2 * unit // 32,
            load=f"ma = mma.load values_s.subspan(64, {unit}).at(wg, 0);",
        )
    )
    return tm.load(path)["k"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def arrays(t: str, acc: str, tiles: int, n: int = 100) -> tuple[list[Any], Any]:
    rng, k = np.random.default_rng(tiles), 2 * FORMS[t, acc] * tiles
    number = tm.dtypes.dtype(t).numpy
    a = sparse.prune(rng.integers(-2, 3, (100, k)).astype(np.float32).astype(number))
    b = rng.integers(-2, 3, (n, k)).astype(np.float32).astype(number)
    stored = sparse.compress(a, "u32")
    wanted = np.asarray(a, dtype=np.float64) @ np.asarray(b, dtype=np.float64).T
    return [stored.values, stored.metadata, b, np.zeros((100, n), tm.dtypes.dtype(acc).numpy)], wanted


def decisions(compiled: Any) -> list[str]:
    return [d.text for d in compiled.explain().decisions if d.pass_name == "operand registers"]


@pytest.mark.parametrize("tiles", [1, 2, 3])
@pytest.mark.parametrize(("t", "acc"), FORMS)
def test_products_are_exact(t: str, acc: str, tiles: int, folder: Path) -> None:
    """Odd and even numbers of iterations, and a single one."""
    given, wanted = arrays(t, acc, tiles)
    made = kernel(folder, t, acc)
    made.on("machine")(*given)
    assert np.array_equal(np.asarray(given[-1], dtype=np.float64), wanted)
    assert any(x.startswith("two sets of registers") for x in decisions(made.compile("sm_90a")))


def test_one_group_is_in_flight_in_every_iteration(folder: Path) -> None:
    """The loop of two iterations has a wait for all but one group for each, and none for all groups."""
    ptx = kernel(folder, "f16", "f32").compile("sm_90a").ptx
    waits = [int(n) for n in re.findall(r"wgmma\.wait_group\.sync\.aligned (\d)", ptx)]
    first_all = waits.index(0)
    assert waits[:first_all].count(1) >= 2


def test_one_set_where_registers_do_not_suffice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alternate_operand_registers, "MOST_REGISTERS", 50)
    compiled = kernel(folder, "f16", "f32", n=256).compile("sm_90a")
    assert [x.split(":")[0] for x in decisions(compiled)] == ["a wait for each group"]


def test_left_operands_in_registers_have_one_set() -> None:
    """On an H200 two sets of computed weights gave wrong sums, which the machine does not see."""
    constants = {"AB": 1, "TV": "u8", "PACKED": True, "ZEROS": True, "GROUP": 64, "TILE_M": 128, "GROUPS": 2}
    compiled = mixed_tiles.compile("sm_90a", **constants)
    assert "wgmma" in compiled.ptx and not decisions(compiled)
    assert not re.search(r"wgmma\.wait_group\.sync\.aligned [1-9]", compiled.ptx)


def test_the_machine_sees_registers_that_are_written_too_early(folder: Path) -> None:
    """With waits for one group less, a set is rewritten while a multiply reads it."""
    compiled = kernel(folder, "f16", "f32").compile("sm_90a")
    given, _ = arrays("f16", "f32", 6)
    wrong = compiled.ptx.replace("wgmma.wait_group.sync.aligned 1", "wgmma.wait_group.sync.aligned 3")
    assert wrong != compiled.ptx
    names = ("values", "meta", "rhs", "output")
    verdict = machine.check(wrong, compiled.launches[0], dict(zip(names, given, strict=True)), schedules=3)
    assert not verdict.ok
