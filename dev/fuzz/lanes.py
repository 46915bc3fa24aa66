"""Random kernels over the lanes of warps: chains of shuffles, ballots and integer arithmetic, in both languages,
with their result by NumPy."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

THREADS = 64
ARCHS = ("sm_80",)


@dataclass(frozen=True)
class LaneProgram:
    """A kernel over s32 [64] `x` that writes s32 [64] `y`: each step is (operation, number)."""

    seed: int
    steps: tuple[tuple[str, int], ...]
    archs: tuple[str, ...] = ARCHS

    def croqtile(self) -> str:
        lines = ["mutable s32 v = x.at(t);"]
        for op, n in self.steps:
            other = f"__to<s32>(__ballot(v > {n}))" if op == "ballot" else f"__{op}(v, {self._lane(op, n)})"
            lines.append(f"v = v + {n};" if op == "add" else f"v = v ^ {other};")
        body = "\n    ".join([*lines, "y.at(t) = v;"])
        head = f"__co__ void k(global s32 [{THREADS}] x, global s32 [{THREADS}] y) {{\n"
        return f"{head}  parallel p by 1 : block, t by {THREADS} : thread {{\n    {body}\n  }}\n}}\n"

    def python(self) -> str:
        lines = ["v = var(x[t])"]
        for op, n in self.steps:
            other = (
                f'lane.ballot(v > {n}).astype("s32")' if op == "ballot" else f"lane.{op}(v, {self._lane(op, n)})"
            )
            lines.append(f"v.set(v + {n})" if op == "add" else f"v.set(v ^ {other})")
        body = "\n            ".join([*lines, "y[t] = v"])
        return f"""@tm.kernel
def k(x: tm.Global["s32", {THREADS}], y: tm.Global["s32", {THREADS}]):
    for p in parallel(1, level="block"):
        for t in parallel({THREADS}, level="thread"):
            {body}
"""

    @staticmethod
    def _lane(op: str, n: int) -> str:
        """The second operand: a number, or for odd ones one that differs between lanes."""
        return f"(t * {n}) % 32" if n % 2 and op == "shfl_idx" else str(n)

    def arguments(self) -> dict[str, Any]:
        x = np.random.default_rng(self.seed).integers(-40, 40, THREADS).astype(np.int32)
        return {"x": x, "y": np.zeros(THREADS, np.int32)}

    def features(self) -> set[str]:
        return {op for op, _ in self.steps}

    def expected(self, given: dict[str, Any]) -> dict[str, Any]:
        own, x = np.arange(32), given["x"]
        result = []
        for first in range(0, THREADS, 32):
            v = x[first : first + 32].astype(np.int64)
            for op, n in self.steps:
                if op == "add":
                    v = _wrapped(v + n)
                    continue
                if op == "ballot":
                    # Stores and conversions saturate: a ballot of lane 31 is no s32.
                    votes = min(sum(1 << int(i) for i in np.flatnonzero(v > n)), 2**31 - 1)
                    v = v ^ votes
                    continue
                lane = (own + first) * n % 32 if n % 2 else np.full(32, n)
                source = {"shfl_xor": own ^ n, "shfl_up": own - n, "shfl_down": own + n, "shfl_idx": lane}[op]
                v = v ^ v[np.where((source < 0) | (source > 31), own, source)]
            result.append(v)
        return {"y": np.concatenate(result).astype(np.int32)}


def _wrapped(v: Any) -> Any:
    return v.astype(np.int32).astype(np.int64)


def generate(seed: int) -> LaneProgram:
    r = random.Random(seed)
    names = ("shfl_xor", "shfl_up", "shfl_down", "shfl_idx", "ballot", "add")
    return LaneProgram(seed, tuple((r.choice(names), r.randrange(32)) for _ in range(r.randrange(1, 7))))
