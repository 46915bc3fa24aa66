"""Kernels of every element type and every form of operand for the surveys of the PTX machine (`machine_cases`).

`dev.fuzz` describes each and prints its text; sizes are such that interior and edge tiles run, each loop more than
twice.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from dev.fuzz.families import Described, croqtile_kernel, python_kernel
from dev.fuzz.fragments import FragmentProgram
from dev.fuzz.products import Product

__all__ = ["TYPED", "Described", "croqtile_kernel", "python_kernel"]

XOR = "SM80_16x8x128_S32U1U1S32_TN_XORPOPC"


def product(arch: str, level: str, types: str, d: str, k: int, **changes: Any) -> Product:
    """A product in tiles of 16 rows a warp, 16 columns and ``k`` of K; five iterations."""
    a, b = types.split()
    rows = {"group": 16, "group-2": 32, "group-4": 64}[level] * changes.get("parts", 1)
    plain: dict[str, Any] = {
        "seed": 0, "operands": (a, b), "stored": (a, b), "d": d, "words": "", "contract": "row.row",
        "level": level,
        "archs": (arch,), "sizes": (rows + 8, 24, 5 * k), "tile": (rows, 16, k), "parts": 1, "steps": 1,
        "source": "copy", "start": 0, "inside": False, "signs": "", "scale": "", "rows": "tile", "columns": "tile",
        "factor": 0.0, "out": d, "transposed": False, "mask": (-1, -1), "atom": "", "fast": False,
    }  # fmt: skip
    return Product(**{**plain, **changes})


def fragments(arch: str, types: str, d: str, shape: tuple[int, int, int], words: str = "") -> FragmentProgram:
    """Three products of one warp on its lanes' values, with an exchange between lanes."""
    a, b = types.split()
    return FragmentProgram(
        0, (a, b), d, shape, words, (arch,), (shape[0] + 3, shape[1]), (2, 0), 3, None, "shfl_xor", 1, 5, True
    )


TYPED: dict[str, Described] = {
    "fp8 scaled": product("sm_90a", "group-4", "f8_e4m3 f8_e5m2", "f32", 64, scale="fused"),
    "fp8 promoted": product("sm_89", "group", "f8_e4m3 f8_e4m3", "f32", 64, out="f8_e4m3"),
    "s8": product("sm_80", "group-2", "s8 u8", "s32", 64, source="shared", out="s8"),
    "s8 wgmma": product("sm_90a", "group-4", "s8 s8", "s32", 64, source="tma", sizes=(72, 32, 320)),
    "tf32 negated": product("sm_80", "group-2", "tf32 tf32", "f32", 16, signs="a", contract="row.col"),
    "tf32 wgmma": product("sm_90a", "group-4", "tf32 tf32", "f32", 32, signs="b", start="f32", inside=True),
    "f64": product("sm_80", "group-2", "f64 f64", "f64", 16, contract="col.row", transposed=True),
    "b1": product("sm_80", "group", "b1 b1", "s32", 256, atom=XOR),
    "b1 wgmma": product("sm_90a", "group-4", "b1 b1", "s32", 256),
    "s4": product("sm_80", "group", "s4 u4", "s32", 128),
    "sparse scaled": product("sm_90a", "group-4", "f16 f16", "f32", 64, words="u16", scale="later"),
    "sparse s8": product("sm_80", "group-2", "s8 s8", "s32", 128, words="u32", parts=2),
    "weights": product("sm_90a", "group-4", "f16 f16", "f32", 32, stored=("s8", "f16")),
    "bf16 negated": product("sm_90a", "group-4", "bf16 bf16", "f32", 64, signs="a", source="tma", out="bf16"),
    "lanes": fragments("sm_80", "f16 f16", "f32", (16, 8, 16)),
    "lanes sparse": fragments("sm_80", "s8 s8", "s32", (16, 8, 64), "u16"),
}
