"""Random products of every element type: what is loaded, how it is multiplied, and how the sum is stored.

`Product` describes one kernel; `dev.fuzz.product_text` prints it in both languages, `expected` is its result by
NumPy.  The numbers are small integers, so that every product and sum is exact in every accumulator.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from dev.fuzz import product_text
from dev.fuzz.arithmetic import NUMPY, convert

Arrays = dict[str, Any]
KINDS: dict[str, Any] = {**NUMPY, "tf32": np.float32, "s4": ml_dtypes.int4, "u4": ml_dtypes.uint4, "b1": np.bool_}
BITS = {
    "f64": 64, "f32": 32, "tf32": 32, "s32": 32, "f16": 16, "bf16": 16, "s16": 16, "f8_e4m3": 8, "f8_e5m2": 8,
    "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1,
}  # fmt: skip
FP8 = ("f8_e4m3", "f8_e5m2")
# (A and B, accumulators, the oldest target, columns of K that a warp's instruction takes).
Types = tuple[tuple[str, str], tuple[str, ...], str, int]
DENSE: list[list[Types]] = [
    [(("f16", "f16"), ("f32", "f16"), "sm_75", 16)],
    [(("bf16", "bf16"), ("f32",), "sm_80", 16)],
    [(("tf32", "tf32"), ("f32",), "sm_80", 8)],
    [(("f64", "f64"), ("f64",), "sm_80", 16)],
    [(("f32", "f32"), ("f32",), "sm_75", 16), (("s32", "s32"), ("s32",), "sm_75", 16)],
    [((a, b), ("s32",), "sm_75", 32) for a in ("s8", "u8") for b in ("s8", "u8")],
    [((a, b), ("s32",), "sm_75", 64) for a in ("s4", "u4") for b in ("s4", "u4")],
    [(("b1", "b1"), ("s32",), "sm_80", 256)],
    [((a, b), ("f32", "f16"), "sm_89", 32) for a in FP8 for b in FP8],
]
SPARSE: list[list[Types]] = [
    [(("f16", "f16"), ("f32", "f16"), "sm_80", 32)],
    [(("bf16", "bf16"), ("f32",), "sm_80", 32)],
    [(("tf32", "tf32"), ("f32",), "sm_80", 16)],
    [((a, b), ("s32",), "sm_80", 64) for a in ("s8", "u8") for b in ("s8", "u8")],
    [((a, b), ("s32",), "sm_80", 128) for a in ("s4", "u4") for b in ("s4", "u4")],
    [((a, b), ("f32",), "sm_89", 64) for a in FP8 for b in FP8],
]
# What `mma.load` converts from.
CONVERTED = {
    "f16": ("f32", "s8", "u8", *FP8), "bf16": ("f32", "s8", "u8", *FP8), "tf32": ("f32",),
}  # fmt: skip
ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a")


@dataclass(frozen=True)
class Product:
    """A kernel over A, B and what else it takes, which writes ``c``.

    ``operands``: types of the multiply; ``stored``: of the arrays.  ``words``: the type of sparse metadata, or "".
    ``tile``: M, N and K of a step of a block; ``parts``: instances that divide M; ``steps``: parts of K of a tile.
    ``source``: "copy" (into declared buffers), "shared" (=> shared), "tma", "view" (no load), "global".
    ``start``: a number, or the type of the array that is loaded.  ``signs``: which operands are negated.
    ``scale``: "", "fused", "later"; ``rows`` and ``columns`` of it: "number", "tile" or (rows) "turned".
    ``factor``: of the sum before it is stored, or 0.  ``mask``: rows and columns that are stored, -1 for all.
    """

    seed: int
    operands: tuple[str, str]
    stored: tuple[str, str]
    d: str
    words: str
    contract: str
    level: str
    archs: tuple[str, ...]
    sizes: tuple[int, int, int]
    tile: tuple[int, int, int]
    parts: int
    steps: int
    source: str
    start: int | str
    inside: bool
    signs: str
    scale: str
    rows: str
    columns: str
    factor: float
    out: str
    transposed: bool
    mask: tuple[int, int]
    atom: str
    fast: bool

    @property
    def turned(self) -> tuple[bool, bool]:
        a, b = (part == "col" for part in self.contract.split("."))
        return a, b

    @property
    def unit(self) -> int:
        """Columns of K that a word of the metadata describes."""
        width = {32: 2, 4: 8}.get(BITS[self.operands[0]], 4)
        return BITS[f"s{self.words[1:]}"] // 4 * width

    def python(self) -> str:
        return product_text.python(self)

    def croqtile(self) -> str:
        return product_text.croqtile(self)

    def arguments(self) -> Arrays:
        return arguments(self)

    def expected(self, given: Arrays) -> Arrays:
        return expected(self, given)

    def features(self) -> set[str]:
        """Names of what the kernel has."""
        found = {f"A of {self.operands[0]}", f"sum of {self.d}", f"level {self.level}", *self.archs}
        found |= {f"operands by {self.source}", f"stored as {self.out}", f"mma.{self.contract}"}
        found |= {"sparse " + self.words} if self.words else set()
        found |= {f"load converts {x} to {t}" for x, t in zip(self.stored, self.operands, strict=True) if x != t}
        found |= {f"scale {self.scale}", f"scale rows {self.rows}"} if self.scale else set()
        found |= {"negated " + self.signs} if self.signs else set()
        found |= {f"C loaded from {self.start}"} if isinstance(self.start, str) else set()
        found |= {"store transposed"} if self.transposed else set()
        found |= {"store masked"} if self.mask != (-1, -1) else set()
        found |= {"sum scaled before the store"} if self.factor else set()
        return found


def values(t: str, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    """Small integers of both signs where ``t`` has them; all values of types of less than a byte."""
    low, high = {"u8": (0, 5), "u4": (0, 15), "s4": (-8, 7), "b1": (0, 1), "s32": (-99, 99)}.get(t, (-2, 2))
    return rng.integers(low, high + 1, shape).astype(np.float64).astype(KINDS[t])


def arguments(p: Product) -> Arrays:
    """The arrays and numbers of a call; ``c`` starts as 5."""
    rng = np.random.default_rng(p.seed)
    m, n, k = p.sizes
    a, b = values(p.stored[0], (m, k), rng), values(p.stored[1], (n, k), rng)
    made: Arrays = {}
    if p.words:
        a, made["e"] = _half(p, a, rng)
    made |= {"a": a.T.copy() if p.turned[0] else a, "b": b.T.copy() if p.turned[1] else b}
    if p.scale and p.rows != "number":
        v = _scales(p, m, rng)
        made["v"] = v[:, None].copy() if p.rows == "tile" else v[None].copy()
    if p.scale and p.columns == "tile":
        made["w"] = _scales(p, n, rng)[None].copy()
    if isinstance(p.start, str):
        made["c0"] = values(p.start, (m, n), rng)
    made["c"] = np.full((n, m) if p.transposed else (m, n), 5).astype(KINDS[p.out])
    if p.mask != (-1, -1):
        made |= {"r": p.mask[0], "q": p.mask[1]}
    return made


def _scales(p: Product, count: int, rng: np.random.Generator) -> Any:
    """1 or 2; for a sum in f64 such that a product of two has more bits than f32."""
    if p.d == "f64":
        return (1 + rng.integers(1, 1 << 13, count) * 2.0**-13).astype(np.float32)
    return rng.integers(1, 3, count).astype(np.float32)


def _half(p: Product, a: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """The stored half of ``a`` [M, K] for random positions, and its metadata.

    Written from the PTX ISA ("Sparse matrix storage") alone: a chunk of four columns keeps two, of two columns one
    (32 bits), of eight two pairs (4 bits).
    """
    bits = BITS[p.operands[0]]
    run, places = (2, 4) if bits == 4 else (1, 2 if bits == 32 else 4)
    width = run * places
    m, k = a.shape
    fields = np.zeros((m, k // width), np.int64)
    kept = np.zeros((m, k // 2), a.dtype)
    for i in range(m):
        for j in range(k // width):
            chosen = sorted(rng.choice(places, places // 2, replace=False).tolist())
            fields[i, j] = (0b0100, 0b1110)[chosen[0]] if places == 2 else chosen[0] | chosen[1] << 2
            columns = [j * width + x * run + y for x in chosen for y in range(run)]
            kept[i, j * width // 2 : (j + 1) * width // 2] = a[i, columns]
    per = BITS[f"s{p.words[1:]}"] // 4
    words = (fields.reshape(m, -1, per) << 4 * np.arange(per)).sum(-1)
    return kept, words.astype(KINDS[p.words])


def whole(p: Product, given: Arrays) -> Any:
    """A [M, K] with its zeros."""
    a = given["a"].T if p.turned[0] else given["a"]
    if not p.words:
        return a
    bits = BITS[p.operands[0]]
    run, places = (2, 4) if bits == 4 else (1, 2 if bits == 32 else 4)
    per = BITS[f"s{p.words[1:]}"] // 4
    fields = (given["e"].astype(np.int64)[..., None] >> 4 * np.arange(per) & 15).reshape(a.shape[0], -1)
    found = np.zeros((a.shape[0], 2 * a.shape[1]), np.float64)
    for i, j in np.ndindex(*fields.shape):
        f, first = int(fields[i, j]), j * run * places // 2
        chosen = [0b0100, 0b1110].index(f) if places == 2 else 0
        for x, place in enumerate((chosen,) if places == 2 else (f & 3, f >> 2)):
            at = j * run * places + place * run
            found[i, at : at + run] = a[i, first + x * run : first + (x + 1) * run]
    return found


def expected(p: Product, given: Arrays) -> Arrays:
    """What the kernel leaves in ``c``."""
    a, b = whole(p, given), given["b"].T if p.turned[1] else given["b"]
    x, y = (v.astype(np.float64) for v in (a, b))
    total = (x[:, None] != y[None]).sum(-1).astype(np.float64) if p.atom else x @ y.T
    if len(p.signs) == 1:
        total = -total
    if p.scale:
        total = total * (given["v"].reshape(-1, 1) if p.rows != "number" else 0.5)
        total = total * (given["w"] if p.columns == "tile" else 2.0)
    total = total + (given["c0"].astype(np.float64) if isinstance(p.start, str) else p.start)
    if p.factor:
        total = total * p.factor
    found = np.array([[convert(np.float64(z), p.out) for z in row] for row in total]).astype(KINDS[p.out])
    c = given["c"].T.copy() if p.transposed else given["c"].copy()
    height, width = p.tile[0] // p.parts, p.tile[1]
    r, q = (n if limit < 0 else min(limit, n) for limit, n in zip(p.mask, (height, width), strict=True))
    for i in range(0, p.sizes[0], height):
        for j in range(0, p.sizes[1], width):
            c[i : i + r, j : j + q] = found[i : i + r, j : j + q]
    return {"c": c.T if p.transposed else c}


def generate(seed: int) -> Product:
    r = random.Random(seed)
    sparse = r.random() < 0.3
    operands, sums, oldest, depth = r.choice(r.choice(SPARSE if sparse else DENSE))
    bits = min(BITS[t] for t in operands)
    archs = ARCHS[ARCHS.index(oldest) :]
    arch = r.choice((archs[0], "sm_90a", r.choice(archs)))
    d = r.choice(sums)
    packed = bits < 8
    level, warps = r.choice((("group", 1), ("group", 1), ("group-2", 2), ("group-4", 4), ("group-4", 4)))
    if arch == "sm_90a" and r.random() < 0.4:
        level, warps = "group-4", 4
    contract = "row.row" if packed else r.choice(("row.row", "row.row", "col.row", "row.col", "col.col"))
    words = r.choice(("u8", "u16", "u32")) if sparse else ""
    width = {32: 2, 4: 8}.get(bits, 4)
    unit = BITS[f"s{words[1:]}"] // 4 * width if sparse else max(1, 8 // bits)
    steps = r.choice((1, 1, 2))
    k_tile = depth * steps * r.choice((1, 1, 2))
    k_tile = -(-k_tile // (unit * steps)) * unit * steps
    parts = r.choice((1, 1, 2))
    m_tile, n_tile = 16 * warps * parts * r.choice((1, 1, 2)), 8 * r.choice((1, 2, 3, 4))
    if operands[0] in ("f32", "s32", "f64") or r.random() < 0.5:
        n_tile = -(-n_tile // 16) * 16
    if (m_tile + n_tile) * k_tile * max(BITS[t] for t in operands) > 8 * 40_000:
        # Shared memory of sm_75 is small.
        m_tile, parts = 16 * warps, 1
    m, n = r.randint(1, 2 * m_tile), r.randint(1, 2 * n_tile + 3)
    k = unit * r.randint(1, max(1, 3 * k_tile // unit))
    source = r.choice(("copy", "copy", "shared", "view", "global", "tma" if arch == "sm_90a" else "copy"))
    stored = operands
    others = (*CONVERTED.get(operands[0], ()), operands[0])
    if source != "tma" and not sparse and operands[0] == operands[1] and r.random() < 0.25:
        stored = (r.choice(others), r.choice(others))
    if source == "tma":
        # Rows of a multiple of 16 bytes.
        whole = 128 // bits
        first, second = contract.split(".")
        m = -(-m // whole) * whole if first == "col" else m
        n = -(-n // whole) * whole if second == "col" else n
        k = -(-k // (2 * unit * whole)) * 2 * unit * whole
        n_tile = -(-n_tile // whole) * whole
    if stored != operands and source == "view":
        source = "copy"
    start: int | str = r.choice((0, 0, 1, 3))
    inside = r.random() < 0.4
    if inside and r.random() < 0.5:
        start = r.choice((d, *(("f32", "f16", "bf16") if d[0] == "f" else ("s8", "s32"))))
    floats = operands[0][0] in "ft" or operands[0] == "bf16"
    signs = r.choice(("", "", "a", "b", "ab")) if floats and source != "view" else ""
    scale = r.choice(("", "", "fused", "later"))
    columns = r.choice(("number", "tile"))
    # An integer times 0.5 would be rounded in each step.
    rows = r.choice(("number", "tile", "turned") if floats or columns == "number" else ("tile", "turned"))
    factor = r.choice((0.0, 0.0, 0.0, 0.25, 0.5))
    outs = ("f32", "f16", "bf16", d, "f8_e4m3", "s8") if d[0] == "f" else ("s32", "s32", "f32", "s8", "u8", "s16")
    atom = ""
    if operands[0] == "b1" and r.random() < 0.4:
        atom = "SM80_16x8x128_S32U1U1S32_TN_XORPOPC"
    mask = (r.randint(0, m_tile), r.randint(0, n_tile)) if r.random() < 0.25 else (-1, -1)
    return Product(
        seed, operands, stored, d, words, contract, level, tuple(dict.fromkeys((arch,))), (m, n, k),
        (m_tile, n_tile, k_tile), parts, steps, source, start, inside or isinstance(start, str), signs, scale,
        rows, columns, factor, r.choice(outs),
        r.random() < 0.25, mask, atom, "f8" in operands[0] and d == "f32" and r.random() < 0.3,
    )  # fmt: skip
