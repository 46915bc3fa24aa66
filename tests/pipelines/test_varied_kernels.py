"""Varied plain kernels: the reference before and after the passes and the PTX machine agree, and `explain` says
what was done, or what stopped it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilemma.ir.expr import Dim, walk
from tilemma.ir.tile import Kernel as TileKernel
from tilemma.kernels import Kernel, facts_of
from tilemma.modules import load, load_python
from tilemma.targets.cpu import execute

HERE = Path(__file__).parent
PYTHON, CROQTILE = HERE / "varied_kernels.py", HERE / "varied_kernels.co"
KERNELS: dict[str, Kernel] = {**load_python(PYTHON).kernels, **load(CROQTILE).kernels}
SIZES = {"M": 136, "N": 136, "K": 336, "L": 3, "B": 2, "T": 200, "R": 4, "F": 72, "P": 136}
OTHER_SIZES = {
    "feeds_itself": {"L": 256},
    "three": {"L": 136},
    "gather": {"L": 8},
    "prefix": {"L": 6},
    "triangle": {"M": 192},
}
# No instruction of sm_80 multiplies 8-bit floats.
PAIRS = [
    (name, arch) for name in KERNELS for arch in ("sm_80", "sm_90a") if (name, arch) != ("block_scales", "sm_80")
]
GIVEN = {"order": [3, -1, 0, 5, 9, 2, -1, 7], "limit": [2, 9, 0, 1], "keep": [1, 0, 1, 1]}


def arrays(name: str, kernel: TileKernel) -> tuple[dict[str, Any], dict[str, int]]:
    """Small integers, scales that are powers of two, and the dimensions."""
    sizes, rng, found = {**SIZES, **OTHER_SIZES.get(name, {})}, np.random.default_rng(1), {}
    dims = {e.name for p in kernel.arrays for n in p.buffer.shape for e in walk(n) if isinstance(e, Dim)}
    for p in kernel.arrays:
        shape = [sizes[e.name] if isinstance(e, Dim) else e.value for e in p.buffer.shape]
        kind = p.buffer.name
        value = rng.integers(0, 5, shape) if p.buffer.dtype.name == "u8" else rng.integers(-2, 3, shape)
        if kind in ("sc", "sa", "sb"):
            value = 2.0 ** rng.integers(-1, 2, shape)
        if name == "feeds_itself" and kind == "w":
            value = np.eye(64)[rng.permutation(64)]
        found[kind] = np.array(GIVEN.get(kind, value)).astype(p.buffer.dtype.numpy)
    return found, {d: sizes[d] for d in dims}


def same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all(found[n].tobytes() == wanted[n].tobytes() for n in wanted)


def check(name: str, kernel: Kernel, arch: str, schedules: int) -> list[str]:
    """The decisions on the pipeline, after all results are compared."""
    built = kernel.build()
    wanted, dims = arrays(name, built)
    kernel.on("cpu")(**wanted)
    compiled = kernel.compile(arch, facts=facts_of(wanted))
    found, _ = arrays(name, built)
    execute(compiled.kernel, found, {}, dims=dims)
    assert same(found, wanted), "after the passes"
    for seed in range(schedules):
        found, _ = arrays(name, built)
        schedule = ("random", "late", "early", "starve", "random")[seed]
        kernel.on("machine", arch=arch, seed=seed, schedule=schedule, strict=True)(**found)
        assert same(found, wanted), f"machine, schedule {seed}"
    return [d.text for d in compiled.decisions if d.pass_name == "pipeline"]


@pytest.mark.parametrize("name, arch", PAIRS)
def test_as_written(name: str, arch: str) -> None:
    said = check(name, KERNELS[name], arch, 5)
    assert any("stages" in x or "not pipelined" in x or "left as written" in x for x in said), said


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kernel]:
    """The kernels with settings that ask for roles and persistent blocks."""
    folder = tmp_path_factory.mktemp("divided")
    settings = "@tm.kernel(pipeline=tm.Pipeline(stages=3, producer=True, persistent=True))\n"
    python = folder / "divided.py"
    python.write_text(PYTHON.read_text().replace("@tm.kernel\n", settings))
    text = CROQTILE.read_text().replace("[[pipeline(stages=3)]]\n", "")
    croqtile = folder / "divided.co"
    croqtile.write_text(text.replace("__co__", "[[pipeline(stages=3, producer=true, persistent=true)]]\n__co__"))
    return {**load_python(python).kernels, **load(croqtile).kernels}


@pytest.mark.parametrize("name", KERNELS)
def test_divided_into_roles_where_that_is_legal(name: str, divided: dict[str, Kernel]) -> None:
    said = check(name, divided[name], "sm_90a", 5)
    assert any("in a ring" in x or "not pipelined" in x for x in said), said


@pytest.mark.parametrize("name", ["own_slots", "feeds_itself", "three", "early_exit", "gather"])
def test_small_blocks_say_why_they_stay(name: str) -> None:
    """Nothing was said of loops whose copies cannot be ahead alone, or only by a role of their own."""
    kernel = KERNELS[name]
    compiled = kernel.compile("sm_90a", facts=facts_of(arrays(name, kernel.build())[0]))
    assert [d.text for d in compiled.decisions if d.pass_name == "pipeline"]
