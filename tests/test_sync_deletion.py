"""No synchronisation too many: without any one operation that the compiler inserts, the PTX machine, strict,
reports a hazard or computes something else, under some schedule of 20.

The Python examples have the tile IR of their `.co` twins (tests/test_examples.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dev.gallery import kernel as gallery_kernel
from dev.gallery import problems
from dev.sync_deletion import survey
from tilemma.compiler import Compiled
from tilemma.errors import TilemmaError
from tilemma.kernels import facts_of
from tilemma.modules import load
from tilemma.runtime.binding import bind
from tilemma.targets.ptx.target import targets
from tilemma.tools.problem import make_problem

ROOT = Path(__file__).resolve().parents[1] / "examples"
# Of the variants of a case, every run takes each n-th; by night all.
DAILY = 7
WIDE = {"M": 72, "N": 136, "K": 328}
# Several tiles of the grid for each block.
TILES = {"M": 264, "N": 136, "K": 328}


# Problems of the gallery that reach every wait: several tiles along K, rows without keys.
GALLERY: dict[str, dict[str, Any]] = {
    "attention": {"b": 1, "heads": 1, "groups": 1, "queries": 300, "keys": 130, "causal": True},
    "batched": {"b": 2, "m": 16, "n": 16, "k": 328},
    "convolution": {"images": 1, "height": 4, "width": 70, "c": 72, "f": 40, "r": 3, "s": 2},
    "dequantized": {"m": 70, "n": 72, "k": 200},
    "experts": {"rows": (70, 0, 5), "n": 40, "k": 328},
    "gated_mlp": {"m": 70, "n": 40, "k": 328},
    "gemv": {"m": 19, "k": 3001},
    "histogram": {"n": 13008},
    "layer_norm": {"m": 3, "n": 336},
    "reduction": {"n": 25001, "blocks": 3},
    "scan": {"n": 20001},
    "softmax": {"m": 3, "n": 336},
    "sparse": {"m": 70, "n": 40, "k": 96},
    "stencil": {"m": 21, "n": 150},
    "transpose": {"m": 40, "n": 72},
    "triangular_solve": {"n": 75, "r": 40},
    "w4a16": {"m": 33, "n": 70, "k": 201},
}
# Where blocks are persistent: enough tiles that each block computes three.
PERSISTENT: dict[str, dict[str, Any]] = {
    "attention": {"b": 1, "heads": 140, "groups": 1, "queries": 300, "keys": 130, "causal": True},
    "batched": {"b": 400, "m": 16, "n": 16, "k": 328},
    "convolution": {"images": 4, "height": 102, "width": 70, "c": 136, "f": 40, "r": 3, "s": 2},
    "experts": {"rows": (5,) * 280, "n": 40, "k": 328},
    "gated_mlp": {"m": 2560, "n": 2560, "k": 328},
    "sparse": {"m": 2560, "n": 5120, "k": 160},
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
    # The arguments of the problem, of a kernel of the gallery; further problems reach further operations.
    problem: Mapping[str, Any] = field(default_factory=dict)
    others: tuple[Case, ...] = ()

    def on(self, arch: str) -> Case:
        """The case with a problem for ``arch``."""
        if arch == "sm_90a" and self.file in PERSISTENT:
            return replace(self, problem=PERSISTENT[self.file], blocks=2)
        return self

    def __str__(self) -> str:
        return "-".join([self.file, self.kernel, *(f"{k}{v}".lower() for k, v in self.defines.items())])

    def compiled(self, arch: str) -> tuple[Compiled, dict[str, Any]]:
        """The kernel and its arguments; TilemmaError where the target does not have it."""
        if self.file == "attention_roles":
            problem = problems.attention(**self.problem)
            kernel = load(ROOT / "co" / "attention_roles.co", self.defines).only()
            values = dict(zip(_names(kernel.build()), problem.arguments, strict=True))
        elif self.file in GALLERY:
            problem = getattr(problems, self.file)(**self.problem)
            kernel = gallery_kernel(self.file, "co", **problem.constants)
            values = dict(zip(_names(kernel.traced()), problem.arguments, strict=True))
        else:
            (path,) = ROOT.glob(f"*/{self.file}.co")
            module = load(path, self.defines)
            kernel = module[self.kernel] if self.kernel else module.only()
            values = make_problem(kernel.build(), dict(self.sizes), {}, 0).arrays
        arrays = {n: a for n, a in values.items() if isinstance(a, np.ndarray)}
        names = bind(kernel.signature().plan, list(values.values()), {}, order=list(values)).names
        return kernel.compile(arch, facts=facts_of(arrays), sizes=names), values


def _names(kernel: Any) -> Iterator[str]:
    for p in kernel.params:
        yield p.buffer.name if hasattr(p, "buffer") else p.scalar.name


OTHERS = {
    # A block without a tile.
    "histogram": (Case("histogram", problem={"n": 4000}),),
    # Sums of more tiles than threads.
    "scan": (Case("scan", problem={"n": 2_100_000}, blocks=1),),
}
CASES = [
    Case("1_scalar", sizes={"M": 6, "N": 5, "K": 9}),
    *(Case(f) for f in ("2_tiles", "3_warps", "4_ahead", "5_warpgroups")),
    *(Case(name, problem=sizes, others=OTHERS.get(name, ())) for name, sizes in GALLERY.items()),
    Case("attention_roles", {"DIM": 64}, problem=GALLERY["attention"] | {"queries": 140, "keys": 330}),
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


def pairs() -> Iterator[Any]:
    """Every second case on one target by day, on the others by night."""
    for i, case in enumerate(CASES):
        for arch in targets():
            day = (i % 4 == 1 and arch == "sm_80") or (i % 4 == 3 and arch == "sm_90a")
            yield pytest.param(case, arch, id=f"{case}-{arch}", marks=() if day else pytest.mark.slow)


@pytest.mark.parametrize("case, arch", list(pairs()))
def test_nothing_can_be_left_out(case: Case, arch: str, request: pytest.FixtureRequest) -> None:
    by_night = "slow" in str(request.config.getoption("-m"))
    case = case.on(arch)
    superfluous: set[str] | None = None
    for problem in (case, *case.others):
        try:
            compiled, values = problem.compiled(arch)
        except TilemmaError as e:
            pytest.skip(f"{arch} does not have it: {e.code}")

        def arguments(values: Mapping[str, Any] = values) -> dict[str, Any]:
            return {n: a.copy() if isinstance(a, np.ndarray) else a for n, a in values.items()}

        found = list(survey(compiled, arguments, every=1 if by_night else DAILY, blocks=problem.blocks))
        nothing = {x.insertion for x in found if not x.found}
        superfluous = nothing if superfluous is None else superfluous & nothing
    assert not superfluous, "\n".join(sorted(superfluous))
