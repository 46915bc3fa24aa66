"""No synchronisation too many: without any one operation that the compiler inserts, the PTX machine, strict,
reports a hazard or computes something else, under some schedule of 20.

The Python examples have the tile IR of their `.co` twins (tests/test_examples.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_example_uses import PROBLEMS, numbers

from dev.sync_deletion import survey
from tilemma.compiler import Compiled
from tilemma.errors import TilemmaError
from tilemma.kernels import facts_of
from tilemma.modules import load
from tilemma.targets.ptx.target import targets
from tilemma.tools.problem import make_problem

ROOT = Path(__file__).resolve().parents[1] / "examples"
# Of the variants of a case, every run takes each n-th; by night all.
DAILY = 7
WIDE = {"M": 72, "N": 136, "K": 328}
# Several tiles of the grid for each block.
TILES = {"M": 264, "N": 136, "K": 328}


def attention() -> list[Any]:
    """Causal: the rows of the first block have no keys."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, n, 64)).astype(np.float16) for n in (300, 130, 130))
    return [q, k, v, np.full_like(q, np.nan), 0.18, 1]


def batched() -> list[Any]:
    a, b = numbers(2, 70, 200, seed=0), numbers(2, 33, 200, seed=1)
    return [a, b, np.full((2, 70, 33), np.nan, np.float16)]


def convolution() -> list[Any]:
    x, w = numbers(1, 5, 70, 40, seed=0), numbers(40, 3, 2, 40, seed=1)
    return [x, w, np.full((1, 3, 69, 40), np.nan, np.float16)]


def experts() -> list[Any]:
    x, w, gate = numbers(75, 200, seed=0), numbers(2, 40, 200, seed=1), numbers(75, seed=2).astype(np.float32)
    return [x, w, np.array([0, 70, 75], np.int32), gate, np.full((75, 40), np.nan, np.float16)]


ARGUMENTS = {
    "attention": attention,
    "attention_roles": attention,
    "batched": batched,
    "convolution": convolution,
    "experts": experts,
    **{name: lambda name=name: PROBLEMS[name]()[0] for name in ("dequantized", "sparse")},
}


@dataclass(frozen=True)
class Case:
    """An example with constants, and the sizes of its problem where `ARGUMENTS` has none."""

    file: str
    defines: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=lambda: WIDE)
    kernel: str = ""
    # Blocks of the grid that run; 0: all.
    blocks: int = 0

    def __str__(self) -> str:
        return "-".join([self.file, self.kernel, *(f"{k}{v}".lower() for k, v in self.defines.items())])

    def compiled(self, arch: str) -> tuple[Compiled, dict[str, Any]]:
        """The kernel and its arguments; TilemmaError where the target does not have it."""
        (path,) = ROOT.glob(f"*/{self.file}.co")
        module = load(path, self.defines)
        kernel = module[self.kernel] if self.kernel else module.only()
        if self.file in ARGUMENTS:
            values = dict(zip(_names(kernel.build()), ARGUMENTS[self.file](), strict=True))
        else:
            values = make_problem(kernel.build(), dict(self.sizes), {}, 0).arrays
        arrays = {n: a for n, a in values.items() if isinstance(a, np.ndarray)}
        return kernel.compile(arch, facts=facts_of(arrays)), values


def _names(kernel: Any) -> Iterator[str]:
    for p in kernel.params:
        yield p.buffer.name if hasattr(p, "buffer") else p.scalar.name


CASES = [
    Case("1_scalar", sizes={"M": 6, "N": 5, "K": 9}),
    *(Case(f) for f in ("2_tiles", "3_warps", "4_ahead", "5_warpgroups")),
    *(Case(f, {"DIM": 64}) for f in ("attention", "attention_roles")),
    *(Case(f) for f in ("batched", "convolution", "dequantized", "experts", "sparse")),
    Case("double_buffer"),
    Case("event_pipeline", {"STAGES": 2}),
    Case("hello_mma", kernel="micro_gemm"),
    *(Case(f) for f in ("matmul_wgmma", "matmul_wgmma_2group", "matmul_wmma", "multistage")),
    Case("multicast", {"STAGES": 3, "TILE_N": 128, "GRID": 1}, TILES),
    Case("persistent", {"STAGES": 3, "CONSUMERS": 2, "TILE_N": 128, "GRID": 2, "RASTER": 2}, TILES),
    Case("pingpong", {"STAGES": 2, "TILE_N": 128, "GRID": 1}, TILES),
    # Enough tiles that each of the persistent blocks computes three.
    Case("plain", sizes={"M": 3072, "N": 3072, "K": 328}, blocks=2),
    Case("tma_pipeline", {"STAGES": 3}),
    Case("warp_specialized", {"STAGES": 3, "CONSUMERS": 2, "TILE_N": 128}),
]


@pytest.mark.parametrize(
    "arch", [a if a in ("sm_80", "sm_90a") else pytest.param(a, marks=pytest.mark.slow) for a in targets()]
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_can_be_left_out(case: Case, arch: str, request: pytest.FixtureRequest) -> None:
    by_night = "slow" in str(request.config.getoption("-m"))
    try:
        compiled, values = case.compiled(arch)
    except TilemmaError as e:
        pytest.skip(f"{arch} does not have it: {e.code}")

    def arguments() -> dict[str, Any]:
        return {n: a.copy() if isinstance(a, np.ndarray) else a for n, a in values.items()}

    found = list(survey(compiled, arguments, every=1 if by_night else DAILY, blocks=case.blocks))
    superfluous = [x.insertion for x in found if not x.found]
    assert not superfluous, "\n".join(superfluous)
