"""What multiplying instructions keep of a sum: this machine's GPU against the PTX machine, bit for bit.

    python bench/proof_sums.py --save build/sums.npz          # run on this machine's GPU
    python bench/proof_sums.py --compare build/sums.npz       # compare results that were saved; needs no GPU

The sum of an instruction depends on how its addends are aligned, on the bits that are cut, on the order, and on
rounding.  Random operands do not separate these, so the experiments vary the exponents: addends of one binade, of
narrow and of wide windows of exponents, one large addend at every position with smaller ones at every distance,
accumulators above and below the products, values near the largest and the smallest numbers, infinities and NaN.
Operands come from fixed seeds, so a comparison needs the results alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import proof_kernels as kernels
import proof_wgmma as warpgroup
import prove_atoms as proof
from numpy.typing import NDArray
from proof_device import Cuda

from tilemma.arithmetic import sparsity
from tilemma.assemble import assemble
from tilemma.atoms import MmaAtom, catalogue
from tilemma.dtypes import DType
from tilemma.machine.isa import sums

Array = NDArray[Any]
ARCH = "sm_90a"


def is_quad_pairs(atom: MmaAtom) -> bool:
    """Whether it is m8n8k4 of f16, four products of the quad pairs of a warp."""
    return ".m8n8k4." in atom.ptx and atom.a.dtype.bits == 16


def instructions() -> list[MmaAtom]:
    """One record of each kind, K and types: the narrowest, and of some a wider one."""
    found: dict[tuple[Any, ...], MmaAtom] = {}
    for atom in catalogue.values():
        if not isinstance(atom, MmaAtom) or not atom.runs_on(ARCH) or not atom.d.dtype.is_float:
            continue
        if atom.kind == "fma" or atom.meaning is not None:
            continue
        types = (atom.a.dtype, atom.b.dtype, atom.d.dtype)
        mixed = atom.a.dtype is not atom.b.dtype
        if mixed and (atom.kind != "wgmma" or atom.d.dtype.bits == 16):
            continue
        key = (atom.kind, atom.arch, types, atom.shape[2], atom.a.in_registers, is_quad_pairs(atom) and atom.name)
        if atom.asynchronous and atom.a.in_registers and (mixed or atom.e is not None or atom.a.dtype.bits == 32):
            continue
        wide = atom.asynchronous and atom.shape[1] == 16 and atom.e is None and not mixed
        if wide:
            found[(*key, 16)] = atom
        found.setdefault(key, atom)
    return list(found.values())


@dataclass(frozen=True)
class Operands:
    """Values, as float64: A's stored elements [experiments, M, stored K], B [.., N, K], C [.., M, N]; and of a
    sparse A the column of each stored element [M, stored K] and the metadata's fields."""

    a: Array
    b: Array
    c: Array
    columns: Array | None = None
    fields: Array | None = None


def _spread(
    rng: np.random.Generator, t: DType, shape: tuple[int, ...], low: Array | int, high: Array | int
) -> Array:
    """Random values of ``t`` with exponents from ``low`` to ``high``, limited to the largest number; below the
    smallest normal number, subnormal ones."""
    f = t.floating
    mantissa = 1 + rng.integers(0, 1 << f.mantissa, shape) / (1 << f.mantissa)
    exponent = rng.integers(low, np.asarray(high) + 1, shape)
    found = np.ldexp(mantissa * rng.choice([-1.0, 1.0], shape), exponent)
    unit = np.ldexp(1.0, np.maximum(np.frexp(found)[1] - 1, f.lowest) - f.mantissa)
    found = np.trunc(found / unit) * unit  # exact in every format
    limit = f.largest
    return np.clip(found, -limit, limit)


def _range(t: DType) -> tuple[int, int]:
    """The exponents of the smallest subnormal and of the largest number."""
    f = t.floating
    return f.lowest - f.mantissa, int(np.frexp(f.largest)[1]) - 1


def _families(atom: MmaAtom) -> Iterator[tuple[str, Operands]]:
    m, k = atom.a.shape
    n, depth = atom.b.shape
    a_type, b_type, c_type = atom.a.dtype, atom.b.dtype, atom.c.dtype
    count = max(1, 1536 // (m * n))
    rng = np.random.default_rng([depth, a_type.bits, b_type.bits, c_type.bits, a_type.floating.mantissa, n])
    (a_low, a_high), (b_low, b_high), (c_low, c_high) = (_range(t) for t in (a_type, b_type, c_type))
    columns = fields = None
    if atom.e is not None:
        fields = sparsity.fields_from(sparsity.kept(rng.random((m, depth)), a_type), a_type)
        columns = sparsity.columns_of(fields, a_type)

    def made(a: Array, b: Array, c: Array) -> Operands:
        return Operands(a, b, c, columns, fields)

    def window(low: int, high: int, center: int, reach: int) -> tuple[int, int]:
        return max(low, center - reach), min(high, center + reach)

    shapes = ((count, m, k), (count, n, depth), (count, m, n))
    for reach in (0, 1, 2, 4, 8, 15):
        a = _spread(rng, a_type, shapes[0], *window(a_low, a_high, 0, reach))
        b = _spread(rng, b_type, shapes[1], *window(b_low, b_high, 0, min(reach, 1)))
        yield f"reach {reach}, C = 0", made(a, b, np.zeros(shapes[2]))
        c = _spread(rng, c_type, shapes[2], *window(c_low, c_high, 2, reach + 2))
        yield f"reach {reach}", made(a, b, c)
        at = rng.integers(-8, 27, shapes[2])
        top = np.minimum(at, c_high)
        yield f"reach {reach}, C at every distance", made(a, b, _spread(rng, c_type, shapes[2], top, top))
    # One large element in each row, at every position; the others smaller by up to 40 binades.
    large = rng.integers(0, k, (count, m, 1)) == np.arange(k)
    for width in (1, 14, 40):
        bottom = max(a_low, -width)
        a = np.where(
            large,
            _spread(rng, a_type, shapes[0], 0, 1),
            _spread(rng, a_type, shapes[0], bottom, min(bottom + 6, -1)),
        )
        b = _spread(rng, b_type, shapes[1], 0, 0)
        yield f"one large, others near 2^-{width}", made(a, b, np.zeros(shapes[2]))
        a = np.where(large, a, a * (rng.random(shapes[0]) < 0.15))
        yield f"one large, few near 2^-{width}", made(a, b, _spread(rng, c_type, shapes[2], max(c_low, -30), 1))
    # The whole range of the types, and its ends.
    yield "whole range", made(*(_spread(rng, t, s, *_range(t)) for t, s in _typed(atom, shapes)))
    low = (_spread(rng, t, s, _range(t)[0], _range(t)[0] + 6) for t, s in _typed(atom, shapes))
    yield "smallest", made(*low)
    middle = -(c_type.floating.mantissa + 140) // 2 if c_type.bits == 32 else -12
    a = _spread(rng, a_type, shapes[0], *window(a_low, a_high, max(middle, a_low), 6))
    b = _spread(rng, b_type, shapes[1], *window(b_low, b_high, max(middle, b_low), 6))
    yield "products near the smallest C", made(a, b, _spread(rng, c_type, shapes[2], c_low, c_low + 30))
    high = (_spread(rng, t, s, _range(t)[1] - 3, _range(t)[1]) for t, s in _typed(atom, shapes))
    yield "largest", made(*high)
    # Infinities and NaN, a few in each matrix.
    values = [_spread(rng, t, s, -2, 2) for t, s in _typed(atom, shapes)]
    for x, t in zip(values, (a_type, b_type, c_type), strict=True):
        chosen = rng.random(x.shape)
        if t.floating.infinite:
            x[chosen < 0.004] = np.inf
            x[chosen > 0.996] = -np.inf
        x[(chosen > 0.5) & (chosen < 0.502)] = np.nan
    yield "infinities and NaN", made(*values)


def _typed(atom: MmaAtom, shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[DType, tuple[int, ...]]]:
    return zip((atom.a.dtype, atom.b.dtype, atom.c.dtype), shapes, strict=True)


def entry(atom: MmaAtom) -> str:
    return "sum_" + atom.name.lower()


def ptx(atom: MmaAtom) -> str:
    text = warpgroup.sum_kernel if atom.asynchronous else kernels.mma_sync
    return kernels.module(ARCH, [text(atom, entry(atom))])


def run(atom: MmaAtom, x: Operands, runner: proof.Runner) -> Array:
    """D of each experiment, bits as the type's NumPy type: [experiments, M, N]."""
    count = len(x.a)
    words = [] if atom.asynchronous else [proof.bits_of(atom.a, proof.gathered(atom.a, x.a))]
    if not atom.asynchronous:
        words.append(proof.bits_of(atom.b, proof.gathered(atom.b, x.b)))
    metadata = np.zeros((count, atom.threads, 1), np.uint32)
    if atom.e is not None:
        metadata = proof.bits_of(atom.e, proof.gathered(atom.e, x.fields, count))
    c = proof.bits_of(atom.c, proof.gathered(atom.c, x.c))
    out = np.zeros((count, atom.threads, atom.d.values * atom.d.dtype.bits // 32), c.dtype)
    if atom.asynchronous:
        arguments = warpgroup.sum_arguments(atom, x.a, x.b, c, metadata, out, proof.bits_of, proof.gathered)
        runner(entry(atom), entry(atom), count, 128, kernels.SHARED_BYTES, arguments)
    else:
        arguments = [*words, c, *([metadata] if atom.e is not None else []), out]
        runner(entry(atom), entry(atom), count, 32, 0, [np.ascontiguousarray(y) for y in arguments[:-1]] + [out])
    fragments = out.view(atom.d.dtype.numpy).reshape(count, atom.threads, -1)
    flat = np.zeros((count, atom.d.shape[0] * atom.d.shape[1]), fragments.dtype)
    flat[:, atom.d.coordinates_table.reshape(-1)] = fragments.reshape(count, -1)
    return flat.reshape(count, atom.d.shape[1], atom.d.shape[0]).transpose(0, 2, 1)


def expected(atom: MmaAtom, x: Operands) -> Array:
    """D as the PTX machine computes it."""
    types = [t.name for t in (atom.a.dtype, atom.b.dtype, atom.d.dtype)]
    a, b, c = (v.astype(o.dtype.numpy) for v, o in ((x.a, atom.a), (x.b, atom.b), (x.c, atom.c)))
    if is_quad_pairs(atom):
        return sums.quad_pairs(a, b.transpose(0, 2, 1), c, types[2])
    kind: sums.Kind = "wgmma" if atom.asynchronous else "mma"
    return sums.multiply(kind, a, b.transpose(0, 2, 1), c, *types, x.columns)


def compare(atom: MmaAtom, found: dict[str, Array]) -> dict[str, Any]:
    """How many results differ from the machine's, by family; one example of each."""
    out: dict[str, Any] = {"results": 0, "differences": 0}
    for family, x in _families(atom):
        want, have = expected(atom, x), found[f"{atom.name}/{family}"]
        unit = f"u{want.dtype.itemsize}"
        same = want.view(unit) == have.view(unit)
        out["results"] += want.size
        out["differences"] += int((~same).sum())
        if not same.all():
            e, i, j = (int(v) for v in np.argwhere(~same)[0])
            text = (
                f"{int((~same).sum())} of {want.size}: experiment {e}, ({i}, {j}): {have[e, i, j]!r}, the machine "
            )
            out.setdefault("families", {})[family] = text + repr(want[e, i, j])
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="records whose name contains this")
    parser.add_argument("--save", type=Path, help="write the GPU's results here")
    parser.add_argument("--compare", type=Path, help="results that --save wrote")
    parser.add_argument("--json", type=Path, help="write the comparison here")
    options = parser.parse_args()
    atoms = [a for a in instructions() if options.only in a.name]
    found: dict[str, Array] = {}
    facts: dict[str, Any] = {}
    if options.compare:
        found = dict(np.load(options.compare))
    else:
        texts = {entry(a): ptx(a) for a in atoms}
        gpu = Cuda(lambda name: assemble(texts[name], ARCH).bytes)
        facts = gpu.describe()
        for atom in atoms:
            for family, x in _families(atom):
                found[f"{atom.name}/{family}"] = run(atom, x, gpu.run)
    if options.save:
        plain = {n: v.view(f"u{v.dtype.itemsize}") if v.dtype.kind == "V" else v for n, v in found.items()}
        np.savez_compressed(options.save, **plain)
    results = {a.name: compare(a, found) for a in atoms}
    for name, result in results.items():
        print(f"{name}: {result['differences']} of {result['results']} differ", file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps({**facts, "instructions": results}, indent=1) + "\n")
    return int(any(r["differences"] for r in results.values()))


if __name__ == "__main__":
    sys.exit(main())
