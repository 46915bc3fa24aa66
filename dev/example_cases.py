"""Problems for every example that multiplies, copies or synchronises: small, but each wait is reached.

``python -m dev.example_cases 100 --jobs 16 --json docs/proofs/schedules.json`` runs each on the PTX machine under
so many schedules, strict, and records the hazards.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dev.gallery import kernel as gallery_kernel
from dev.gallery import problems
from tilemma.compiler import Compiled
from tilemma.errors import TilemmaError
from tilemma.kernels import facts_of
from tilemma.machine.run import Job, schedule_of
from tilemma.modules import load
from tilemma.runtime import packed
from tilemma.runtime.binding import bind
from tilemma.tools.problem import make_problem

ROOT = Path(__file__).resolve().parents[1] / "examples"
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
    "w4a16": {"m": 33, "n": 70, "k": 1090},
}
# Where blocks are persistent: enough tiles that each block computes three.
PERSISTENT: dict[str, dict[str, Any]] = {
    "attention": {"b": 1, "heads": 140, "groups": 1, "queries": 300, "keys": 130, "causal": True},
    "batched": {"b": 400, "m": 16, "n": 16, "k": 328},
    "convolution": {"images": 4, "height": 102, "width": 70, "c": 136, "f": 40, "r": 3, "s": 2},
    "experts": {"rows": (5,) * 280, "n": 40, "k": 328},
    "gated_mlp": {"m": 2560, "n": 2560, "k": 328},
    "sparse": {"m": 2560, "n": 5120, "k": 288},
}
# The same for examples of tiles below 128x128, whose rings have more stages.
SEVERAL_TILES = {
    "matmul_wgmma": {"M": 1472, "N": 1472, "K": 904},
    "matmul_wgmma_2group": {"M": 2560, "N": 1472, "K": 648},
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
        if arch == "sm_90a" and self.file in SEVERAL_TILES:
            return replace(self, sizes=SEVERAL_TILES[self.file], blocks=2)
        if arch == "sm_90a" and self.file in PERSISTENT:
            return replace(self, problem=PERSISTENT[self.file], blocks=2)
        return self

    def __str__(self) -> str:
        return "-".join([self.file, self.kernel, *(f"{k}{v}".lower() for k, v in self.defines.items())])

    def compiled(self, arch: str) -> tuple[Compiled, dict[str, Any]]:
        """The kernel and its arguments; CompileError where the target does not have it."""
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
        plan, stored = packed.stored(kernel.signature().plan, list(values), list(values.values()), "machine")
        values = dict(zip(values, stored, strict=True))
        arrays = {n: a for n, a in values.items() if isinstance(a, np.ndarray)}
        names = bind(plan, stored, {}, order=list(values)).names
        return kernel.compile(arch, facts=facts_of(arrays), sizes=names), values


def _names(kernel: Any) -> Iterator[str]:
    for p in kernel.params:
        yield p.buffer.name if hasattr(p, "buffer") else p.scalar.name


OTHERS = {
    # Whole tiles, which leave through shared memory: three for each block.
    "experts": (Case("experts", problem={"rows": (300,) * 94, "n": 256, "k": 72}, blocks=2),),
    # A block without a tile.
    "histogram": (Case("histogram", problem={"n": 4000}),),
    # Sums of more tiles than threads.
    "scan": (Case("scan", problem={"n": 2_100_000}, blocks=1),),
    # An even number of iterations.
    "sparse": (Case("sparse", problem={"m": 2560, "n": 5120, "k": 256}, blocks=2),),
    # One tile: the loops over those above it do not run.
    "triangular_solve": (Case("triangular_solve", problem={"n": 30, "r": 40}),),
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
    # Without steps along K only the events of the turns keep the threads of a warpgroup together.
    Case(
        "pingpong",
        {"STAGES": 2, "TILE_N": 128, "GRID": 1},
        TILES,
        others=(Case("pingpong", {"STAGES": 2, "TILE_N": 128, "GRID": 1}, {"M": 1000, "N": 264, "K": 0}),),
    ),
    # Enough tiles that each of the persistent blocks computes three.
    Case("plain", sizes={"M": 3072, "N": 3072, "K": 328}, blocks=2),
    Case("tma_pipeline", {"STAGES": 3}),
    Case("warp_specialized", {"STAGES": 3, "CONSUMERS": 2, "TILE_N": 128}),
]


def run(task: tuple[int, str, int]) -> tuple[str, int, str]:
    """(name, schedules without a hazard, the first hazard's code) of a case on a target."""
    number, arch, schedules = task
    case = CASES[number].on(arch)
    name = f"{case} {arch}"
    try:
        compiled, values = case.compiled(arch)
    except TilemmaError as e:
        return name, 0, f"refused: {e.code}"
    for i in range(schedules):
        given = {n: a.copy() if isinstance(a, np.ndarray) else a for n, a in values.items()}
        for launch in compiled.launches:
            options: dict[str, Any] = {"seed": i, "schedule": schedule_of(i), "strict": True}
            try:
                Job(compiled.ptx, launch, given).run(ctas=case.blocks or None, **options)
            except TilemmaError as e:
                return name, i, e.code
    return name, schedules, ""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("schedules", type=int)
    options.add_argument("--archs", default="sm_80,sm_90a")
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    start, archs = time.monotonic(), given.archs.split(",")
    tasks = [(n, arch, given.schedules) for arch in archs for n in range(len(CASES))]
    found, refused, failed = dict[str, int](), dict[str, str](), dict[str, str]()
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for name, schedules, code in pool.imap_unordered(run, tasks):
            if code.startswith("refused"):
                refused[name] = code
            else:
                found[name] = schedules
            if code and name not in refused:
                failed[name] = code
                print(f"{name}: {code} at schedule {schedules}", flush=True)
    print(
        f"{len(found)} examples under {given.schedules} schedules, {len(failed)} hazards, {len(refused)} refused"
    )
    if given.json is not None:
        date = f"{datetime.date.today():%Y-%m-%d}"
        entry = {"target": "PTX machine, strict", "date": date, "archs": archs,
                 "schedules": dict(sorted(found.items())), "hazards": failed,
                 "refused": dict(sorted(refused.items())),
                 "seconds": round(time.monotonic() - start), "jobs": given.jobs}  # fmt: skip
        given.json.write_text(json.dumps({"runs": [entry]}, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
