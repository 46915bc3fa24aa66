"""Random kernels on one lane's fragments: loads, products of dense and sparse instructions of every type,
arithmetic and shuffles on the values of the accumulator, stores; in both languages, with their result by NumPy.

Which lanes hold elements of the accumulator is written from the PTX ISA (9.7.14.5), not from the catalogue.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from dev.fuzz.products import BITS, FP8, KINDS, values
from tilemma.atoms import catalogue
from tilemma.dtypes import dtype
from tilemma.sparse import Sparse, compress, prune

Arrays = dict[str, Any]
_S8 = [(a, b) for a in ("s8", "u8") for b in ("s8", "u8")]
_S4 = [(a, b) for a in ("s4", "u4") for b in ("s4", "u4")]
_F8 = [(a, b) for a in FP8 for b in FP8]
# (A and B, accumulators, M and N, what K may be, the oldest target).
DENSE: list[tuple[list[tuple[str, str]], tuple[str, ...], tuple[int, int], tuple[int, ...], str]] = [
    ([("f16", "f16")], ("f32", "f16"), (16, 8), (16,), "sm_80"),
    ([("f16", "f16")], ("f32", "f16"), (16, 8), (8,), "sm_75"),
    ([("bf16", "bf16")], ("f32",), (16, 8), (16, 8), "sm_80"),
    ([("tf32", "tf32")], ("f32",), (16, 8), (8, 4), "sm_80"),
    ([("f64", "f64")], ("f64",), (8, 8), (4,), "sm_80"),
    (_S8, ("s32",), (8, 8), (16,), "sm_75"),
    (_S8, ("s32",), (16, 8), (32, 16), "sm_80"),
    (_S4, ("s32",), (8, 8), (32,), "sm_75"),
    (_S4, ("s32",), (16, 8), (64, 32), "sm_80"),
    ([("b1", "b1")], ("s32",), (16, 8), (256, 128), "sm_80"),
    (_F8, ("f32",), (16, 8), (32,), "sm_89"),
]
SPARSE: list[tuple[list[tuple[str, str]], tuple[str, ...], tuple[int, int], tuple[int, ...], str]] = [
    ([("f16", "f16")], ("f32", "f16"), (16, 8), (32, 16), "sm_80"),
    ([("bf16", "bf16")], ("f32",), (16, 8), (32, 16), "sm_80"),
    ([("tf32", "tf32")], ("f32",), (16, 8), (16, 8), "sm_80"),
    (_S8, ("s32",), (16, 8), (64, 32), "sm_80"),
    (_S4, ("s32",), (16, 8), (128, 64), "sm_80"),
    (_F8, ("f32",), (16, 8), (64,), "sm_89"),
]


@dataclass(frozen=True)
class FragmentProgram:
    """``steps`` products along K of one warp, whose tile starts at ``at``; then value ``value`` of each lane is
    changed: doubled ("double"), or added to that of another lane ("shfl_xor", ``lane``)."""

    seed: int
    types: tuple[str, str]
    d: str
    shape: tuple[int, int, int]
    words: str
    archs: tuple[str, ...]
    sizes: tuple[int, int]
    at: tuple[int, int]
    steps: int
    start: int | None
    change: str
    value: int
    lane: int
    named: bool

    @property
    def name(self) -> str:
        """The catalogue's name of the instruction."""
        a, b, d = (dtype(t) for t in (*self.types, self.d))
        found = catalogue.mma("mma.sp" if self.words else "mma.sync", a=a, b=b, d=d)
        fits = [x for x in found if x.shape == self.shape and x.rank >= 0 and x.runs_on(self.archs[0])]
        return next(x.name for x in fits if "XOR" not in x.name)

    def features(self) -> set[str]:
        kind = "sparse" if self.words else "dense"
        return {f"fragments {kind} {self.types[0]}", f"fragments m{self.shape[0]}", self.change, *self.archs}

    def arguments(self) -> Arrays:
        rng = np.random.default_rng(self.seed)
        (m, n), k = self.sizes, self.shape[2] * self.steps
        a, b = values(self.types[0], (m, k), rng), values(self.types[1], (k, n), rng)
        made: Arrays = {"a": a, "b": b}
        if self.words:
            stored = compress(prune(a), self.words)
            made |= {"a": stored.values, "e": stored.metadata}
        if self.start is None:
            made["c"] = values(self.d, (m, n), rng)
        return {**made, "d": np.full((m, n), 5).astype(KINDS[self.d])}

    def expected(self, given: Arrays) -> Arrays:
        m, n, _ = self.shape
        a = self._whole(given["a"], given["e"]) if self.words else given["a"]
        total = np.zeros((m, n), np.float64)
        (r, c), (rows, columns) = self.at, self.sizes
        part = a[r : r + m].astype(np.float64) @ given["b"][:, c : c + n].astype(np.float64)
        total[: part.shape[0], : part.shape[1]] = part
        if self.start is None:
            first = given["c"][r : r + m, c : c + n].astype(np.float64)
            total[: first.shape[0], : first.shape[1]] += first
        else:
            total += self.start
        places = [self._place(lane) for lane in range(32)]
        held = np.array([total[p] for p in places])
        other = np.array([held[lane ^ self.lane] for lane in range(32)])
        for lane, p in enumerate(places):
            total[p] = held[lane] * 2 if self.change == "double" else held[lane] + other[lane]
        d = given["d"].copy()
        d[r : r + m, c : c + n] = total[: rows - r, : columns - c].astype(np.float32).astype(d.dtype)
        return {"d": d}

    @staticmethod
    def _whole(half: Any, words: Any) -> Any:
        return Sparse(half, words, (half.shape[0], 2 * half.shape[1])).decompress()

    def _place(self, lane: int) -> tuple[int, int]:
        return lane // 4 + 8 * (self.value // 2), lane % 4 * 2 + self.value % 2

    # ---- texts

    def _extents(self) -> dict[str, tuple[str, str]]:
        found = {"a": ("M", "H" if self.words else "K"), "b": ("K", "N"), "c": ("M", "N"), "d": ("M", "N")}
        if self.start is not None:
            del found["c"]
        return {**found, "e": ("M", "E")} if self.words else found

    def _types(self) -> dict[str, str]:
        return {"a": self.types[0], "b": self.types[1], "c": self.d, "d": self.d, "e": self.words}

    def _loads(self) -> list[tuple[str, str, str, str]]:
        """(fragment, letter, array, its place) of each load of a step."""
        k = self.shape[2]
        (r, c), words = self.at, 0
        found = [("x", "a", "a", f"{r}, q * {k // 2 if self.words else k}"), ("y", "b", "b", f"q * {k}, {c}")]
        if self.words:
            width = {32: 2, 4: 8}.get(BITS[self.types[0]], 4)
            words = k // (BITS[f"s{self.words[1:]}"] // 4 * width)
            found.append(("w", "e", "e", f"{r}, q * {words}"))
        return found

    def _changed(self, co: bool) -> str:
        z = f"z[{self.value}]"
        if self.change == "double":
            return f"{z} = {z} * 2"
        return f"{z} = {z} + " + (f"__shfl_xor({z}, {self.lane})" if co else f"lane.shfl_xor({z}, {self.lane})")

    def python(self) -> str:
        types = self._types()
        params = ", ".join(f'{n}: tm.Global["{types[n]}", "{x}", "{y}"]' for n, (x, y) in self._extents().items())
        shape, named = f"[{', '.join(map(str, self.shape))}]", f', atom="{self.name}"' if self.named else ""
        place = f"{self.at[0]}, {self.at[1]}"
        z = f"load_matrix_c{shape}(c, {place}{named})"
        if self.start is not None:
            z = f'local("{self.d}", {self.shape[0] * self.shape[1] // 32}, init={self.start})'
        lines = [f"z = {z}", f"for q in foreach({self.steps}):"]
        lines += [f"    {f} = load_matrix_{x}{shape}({a}, {at}{named})" for f, x, a, at in self._loads()]
        sparse = ("", ".sp")[bool(self.words)]
        lines += [f"    mma.row.col{sparse}(z, x, y{', w' if self.words else ''}{named})", self._changed(False)]
        lines += [f"store_matrix_d{shape}(d, z, {place}{named})"]
        body = "\n            ".join(lines)
        levels = '    for p in parallel(1, level="block"):\n        for t in parallel(32, level="thread"):\n'
        return f"@tm.kernel\ndef k({params}):\n{levels}            {body}\n"

    def croqtile(self) -> str:
        types = self._types()
        params = ", ".join(f"global {types[n]} [{x}, {y}] {n}" for n, (x, y) in self._extents().items())
        shape, named = f"<{', '.join(map(str, self.shape))}>", f", atom = {self.name}" if self.named else ""
        place = f"{self.at[0]}, {self.at[1]}"
        lines = [f"z = load_matrix_c{shape}(c, {place}{named});"]
        if self.start is not None:
            lines = [f"local {self.d} [{self.shape[0] * self.shape[1] // 32}] z{{{self.start}}};"]
        lines += [f"foreach q in [{self.steps}] {{"]
        lines += [f"  {f} = load_matrix_{x}{shape}({a}, {at}{named});" for f, x, a, at in self._loads()]
        atom = f"[[atom({self.name})]] " if self.named else ""
        sparse = ("", ".sp")[bool(self.words)]
        lines += [f"  {atom}mma.row.col{sparse} z, x, y{', w' if self.words else ''};", "}"]
        lines += [f"{self._changed(True)};", f"store_matrix_d{shape}(d, z, {place}{named});"]
        body = "\n    ".join(lines)
        return (
            f"__co__ void k({params}) {{\n  parallel p by 1 : block, t by 32 : thread {{\n    {body}\n  }}\n}}\n"
        )


def generate(seed: int) -> FragmentProgram:
    r = random.Random(seed)
    sparse = r.random() < 0.4
    operands, sums, (m, n), depths, oldest = r.choice(SPARSE if sparse else DENSE)
    types, k, d = r.choice(operands), r.choice(depths), r.choice(sums)
    fields = k // {32: 2, 4: 8}.get(BITS[types[0]], 4)
    words = r.choice([w for w in ("u8", "u16", "u32") if fields * 4 % BITS[f"s{w[1:]}"] == 0]) if sparse else ""
    # Rows of whole bytes; the tile may reach over the edge of the arrays.
    at = r.randint(0, 3), 8 * r.randint(0, 1)
    sizes = at[0] + r.randint(1, m + 3), at[1] + 8
    ambiguous = sparse or types[0] == "b1"
    archs = tuple(dict.fromkeys((oldest, r.choice((oldest, "sm_90a")))))
    return FragmentProgram(
        seed, types, d, (m, n, k), words, archs, sizes, at, r.randint(1, 3), r.choice((None, None, 0, 1)),
        r.choice(("double", "shfl_xor")), r.randrange(m * n // 32), r.randrange(1, 32),
        ambiguous or r.random() < 0.4,
    )  # fmt: skip
