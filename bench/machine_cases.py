"""The examples with small tiles, and kernels of every element type, as the PTX machine's surveys run them
(mutate.py, false_alarms.py)."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from typed_kernels import TYPED, Described, python_kernel

from tilemma import machine
from tilemma.kernels import Kernel, facts_of
from tilemma.launch import Launch
from tilemma.modules import load_python
from tilemma.ops import arguments, product
from tilemma.ops.plan import Plan
from tilemma.runtime.arrays import describe
from tilemma.tools.problem import make_problem

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
_HEAD = re.compile(r"^\.(version|target) .*$", re.MULTILINE)
MMA, TMA = ("sm_80", "sm_86", "sm_89", "sm_90a"), ("sm_90a",)


@dataclass(frozen=True)
class Case:
    """An example with small tiles, at one (M, N, K), for each architecture that it supports.

    Sizes are such that interior and edge tiles run, and every slot of a ring is used more than once.
    """

    example: str
    archs: tuple[str, ...]
    shape: tuple[int, int, int]
    constants: tuple[tuple[str, Any], ...] = ()
    # Rows of the operands begin at multiples of this many elements.
    rows: int = 1
    # A kernel of `ops.matmul` instead of an example; the order of its operands in memory.
    plan: Plan | None = None
    orders: str = "CF"
    # A kernel that `typed_kernels` describes instead of an example.
    described: Described | None = None
    # False: an example that is compiled as written.
    pipelined: bool = True

    @property
    def kernel(self) -> Kernel:
        if self.described is not None:
            return python_kernel(self.described)
        file = EXAMPLES / "py" / f"{self.example}.py"
        return load_python(file).only() if self.pipelined else _as_written(file)

    @cached_property
    def output(self) -> str:
        """The array that it writes."""
        if self.described is None:
            return "output"
        (name,) = self.described.expected(self.described.arguments())
        return name

    @cached_property
    def distinct(self) -> dict[str, tuple[str, ...]]:
        """Architectures whose PTX differs in more than its head, each with those that have the same."""
        found: dict[str, list[str]] = {}
        for arch in self.archs:
            found.setdefault(_HEAD.sub("", compiled(self, arch).ptx), []).append(arch)
        return {same[0]: tuple(same) for same in found.values()}


@lru_cache
def _as_written(file: Path) -> Kernel:
    text = file.read_text(encoding="utf-8").replace("@tm.kernel\n", "@tm.kernel(pipeline=False)\n")
    copy = Path(tempfile.mkdtemp()) / file.name
    copy.write_text(text, encoding="utf-8")
    return load_python(copy).only()


@dataclass(frozen=True)
class Program:
    """A case compiled for an architecture, and arguments for it: small whole numbers, whose sums are exact."""

    ptx: str
    launch: Launch
    arrays: dict[str, Any]


@lru_cache(maxsize=16)
def compiled(case: Case, arch: str) -> Program:
    if case.plan is not None:
        return _of_ops(case, case.plan, arch)
    if case.described is not None:
        return _described(case.described, arch)
    kernel, constants = case.kernel, dict(case.constants)
    sizes = dict(zip("MNK", case.shape, strict=True))
    arrays = make_problem(kernel.build(**constants), sizes, {}, 0, None).arrays
    for seed, name in enumerate(("lhs", "rhs")):
        arrays[name] = _in_rows(arrays[name], case.rows)
        arrays[name][...] = np.random.default_rng(seed).integers(-2, 3, arrays[name].shape)
    result = kernel.compile(arch, facts=facts_of(arrays), **constants)
    (launch,) = result.launches
    return Program(result.ptx, launch, arrays)


def _in_rows(array: Any, multiple: int) -> Any:
    """An array like ``array``, whose rows begin at multiples of ``multiple`` elements."""
    columns = array.shape[-1]
    return np.zeros((*array.shape[:-1], -(-columns // multiple) * multiple), array.dtype)[..., :columns]


def _of_ops(case: Case, plan: Plan, arch: str) -> Program:
    """The first kernel that `ops.matmul` would run on the machine."""
    m, n, k = case.shape
    rng = np.random.default_rng(0)
    a, b = (
        np.array(rng.integers(-2, 3, shape), np.float16, order=order)
        for shape, order in zip(((m, k), (k, n)), case.orders, strict=True)
    )
    call = arguments.Call(describe(a), describe(b))
    problem = arguments.problem(call, describe(np.zeros((m, n), np.float16)), made=False)
    return _first_launch(lambda: product.run(problem, plan, "machine", arch=arch))


def _described(p: Described, arch: str) -> Program:
    kernel = python_kernel(p).on("machine", arch=arch)
    return _first_launch(lambda: kernel(**p.arguments()))


def _first_launch(call: Callable[[], Any]) -> Program:
    """The first program that ``call`` would run on the machine, with its arguments there."""
    calls: list[Program] = []
    with mock.patch.object(
        machine, "run", lambda ptx, launch, values, **_: calls.append(Program(ptx, launch, values))
    ):
        call()
    return calls[0]


@lru_cache(maxsize=16)
def on_the_cpu(case: Case) -> Any:
    """What the reference makes of a case's arguments; of a described case NumPy's result."""
    if case.described is not None:
        return case.described.expected(case.described.arguments())[case.output]
    arrays = {name: a.copy() for name, a in compiled(case, case.archs[0]).arrays.items()}
    case.kernel(**arrays, **dict(case.constants))
    return arrays["output"]


def case(
    example: str, archs: tuple[str, ...], shape: tuple[int, int, int], rows: int = 1, **constants: Any
) -> Case:
    pipelined = not example.startswith("matmul_wgmma")
    return Case(example, archs, shape, tuple(constants.items()), rows, pipelined=pipelined)


CASES = [
    case("matmul_wmma", MMA, (24, 40, 40)),
    case("matmul_wgmma", MMA, (72, 72, 136), TILE_K=64),
    case("matmul_wgmma_2group", MMA, (136, 72, 136), TILE_K=64),
    case("double_buffer", MMA, (72, 40, 181), 8, TILE_M=64, TILE_N=32, TILE_K=32, WARP_M=32, WARP_N=32),
    case("multistage", MMA, (72, 40, 181), 8, TILE_M=64, TILE_N=32, TILE_K=32, WARP_M=32, WARP_N=32),
    case("event_pipeline", MMA, (72, 72, 328), TILE_N=64),
    case("tma_pipeline", TMA, (136, 72, 456), TILE_N=64),
    case("warp_specialized", TMA, (136, 72, 456), TILE_N=64, STAGES=3),
    case("persistent", TMA, (136, 520, 200), GRID=2),
    case("multicast", TMA, (264, 136, 264), TILE_N=64, STAGES=3, RASTER=2, GRID=1),
    case("pingpong", TMA, (264, 72, 264), TILE_N=64, STAGES=3, RASTER=2, GRID=1),
]

_SLOTS = {"kernel": "pipelined", "tile": (64, 64, 64), "groups": 1, "stages": 2, "grid": 2}
OPS = [
    Case("ops tiles", MMA, (72, 72, 136), plan=Plan("tiles", (64, 64, 64), 1)),
    Case("ops tiles, MN-major", MMA, (72, 72, 136), plan=Plan("tiles", (64, 64, 64), 1), orders="FC"),
    Case("ops pipelined", TMA, (136, 72, 200), plan=Plan(**_SLOTS, store="direct")),
    Case("ops pipelined, MN-major", TMA, (136, 72, 200), plan=Plan(**_SLOTS, store="tma"), orders="FC"),
    Case("ops clusters", TMA, (264, 72, 200), plan=Plan(**_SLOTS, store="tma", cluster=(2, 1))),
]

TYPES = [Case(f"typed {name}", p.archs, (0, 0, 0), described=p) for name, p in TYPED.items()]
