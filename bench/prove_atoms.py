"""Proof on hardware: which lane and register holds which element, for every record of the catalogue.

    python bench/prove_atoms.py --assemble            # PTX -> cubins in build/proof; needs no GPU
    python bench/prove_atoms.py                       # run on this machine's GPU, write docs/proofs/<gpu>.json

Operands are one-hot: one element of A is 1 and all others 0, while B holds the number of each of its own
elements.  What is not zero in D then names the row of the element of A (by where it is), and the column and
the position along K of B's elements (by their numbers).  That is done for every element of A of every
record.  Elements in shared memory are placed by the layouts, so the descriptors are proved with them.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import proof_kernels as kernels
import proof_wgmma as forms
from numpy.typing import NDArray
from proof_device import Cuda

from tilemma.arithmetic import sparsity
from tilemma.assemble import assemble
from tilemma.atoms import CopyAtom, MmaAtom, catalogue
from tilemma.atoms.atom import Atom, Operand
from tilemma.layouts import SWIZZLES, Major, SharedLayout, shared_layout

ROOT = Path(__file__).resolve().parent.parent
# run(module, entry, grid, threads, shared bytes, arguments): arrays are copied in and out, (type, int) pairs
# are numbers.
Runner = Callable[[str, str, int, int, int, Sequence[Any]], None]


@dataclass
class Finding:
    """What came out for one record."""

    experiments: int = 0
    configurations: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def to_json(self, atom: Atom) -> dict[str, Any]:
        return {
            "result": "proven" if not self.differences else "refuted",
            "fingerprint": atom.fingerprint,
            "experiments": self.experiments,
            # Written once for all records with the same (`shared_configurations`).
            **({"configurations": self.configurations} if self.configurations else {}),
            **({"differences": self.differences[:20]} if self.differences else {}),
        }


def entry_name(atom: Atom) -> str:
    return "prove_" + atom.name.lower()


def module_of(atom: Atom) -> str:
    """The module that the record's kernels stand in: one for each family, so that few are loaded."""
    kind = atom.kind.replace(".", "_")
    if isinstance(atom, MmaAtom) and atom.asynchronous:
        types = "".join(o.dtype.name for o in (atom.d, atom.a, atom.b))
        half = "narrow" if atom.shape[1] <= 128 else "wide"
        return f"{kind}_{types}_{'R' if atom.a.in_registers else 'S'}S_{half}"
    return kind


def kernel(atom: Atom) -> str:
    """PTX of the record's entry."""
    name = entry_name(atom)
    if isinstance(atom, CopyAtom):
        return kernels.matrix_copy(atom, name) if atom.fragment else kernels.async_copy(atom, name)
    if not atom.asynchronous:
        return kernels.mma_sync(atom, name)
    return kernels.wgmma(atom, name) if is_dense_16_bit(atom) else forms.kernel(atom, name)


def modules(atoms: Sequence[Atom], arch: str) -> dict[str, str]:
    """PTX text by module name."""
    groups: dict[str, list[str]] = {}
    for atom in atoms:
        groups.setdefault(module_of(atom), []).append(kernel(atom))
    return {name: kernels.module(arch, texts) for name, texts in groups.items()}


def bits_of(operand: Operand, values: NDArray[Any]) -> NDArray[np.uint32]:
    """Register words of fragments (..., threads, values): shape (..., threads, words of 32 bits)."""
    t = operand.dtype
    if t.bits >= 8:
        return np.ascontiguousarray(values.astype(t.numpy)).view(np.uint32)
    per = 32 // t.bits
    fields = values.astype(np.int64).reshape(*values.shape[:-1], -1, per) & ((1 << t.bits) - 1)
    return np.ascontiguousarray((fields << t.bits * np.arange(per)).sum(-1).astype(np.uint32))


def gathered(operand: Operand, matrix: NDArray[Any], count: int = 0) -> NDArray[Any]:
    """The fragments of matrices [experiments, rows, cols], or of one for ``count`` experiments."""
    if count:
        return np.broadcast_to(operand.gather(matrix), (count, operand.threads, operand.values))
    flat = matrix.transpose(0, 2, 1).reshape(len(matrix), -1)
    return flat[:, operand.coordinates_table]


# --- instructions of a warp, operands in registers ----------------------------------------------------------


def is_dense_16_bit(atom: MmaAtom) -> bool:
    """Whether a wgmma record has the proof below, which spells out its map; the others have `proof_wgmma`'s."""
    return atom.a.dtype.bits == 16 and atom.e is None


def prove_mma_sync(atom: MmaAtom, run: Runner, limit: int | None = None) -> Finding:
    """Element p of A is 1.  B's elements are numbered from 1, and each launch has one binary digit of the numbers,
    which each type holds; the last has numbers in C alone.  The metadata of a sparse A is random."""
    a, b, c, d = atom.a, atom.b, atom.c, atom.d
    (m, k), n = a.shape, b.shape[0]
    total = m * k if limit is None else limit
    one_hot = np.zeros((total + 1, m * k))
    # All elements, or some from the first to the last.
    places = np.linspace(0, m * k - 1, total).round().astype(np.int64)
    one_hot[np.arange(total), places] = 1
    matrices = one_hot.reshape(total + 1, m, k)
    numbers = np.arange(1, n * b.shape[1] + 1).reshape(b.shape)
    fields = columns = None
    if atom.e is not None:
        kept = sparsity.kept(np.random.default_rng(0).random((m, b.shape[1])), a.dtype)
        fields = sparsity.fields_from(kept, a.dtype)
        columns = sparsity.columns_of(fields, a.dtype)
    finding = Finding()
    for digit in range(int(numbers.max()).bit_length() + 1):
        last = 1 << digit > numbers.max()
        chosen = numbers * 0 if last else numbers >> digit & 1
        start = np.arange(1, m * n + 1).reshape(m, n) * int(last)
        words = [bits_of(a, gathered(a, matrices)), bits_of(b, gathered(b, chosen, total + 1))]
        words.append(bits_of(c, gathered(c, start, total + 1)))
        if atom.e is not None:
            words.append(bits_of(atom.e, gathered(atom.e, fields, total + 1)))
        out = np.zeros_like(bits_of(d, gathered(d, start, total + 1)))
        run(module_of(atom), entry_name(atom), total + 1, 32, 0, [*words, out])
        found = out.view(d.dtype.numpy).reshape(total + 1, d.threads, d.values).astype(np.float64)
        expected = gathered(d, _computed(atom, matrices, chosen, start, columns)).astype(np.float64)
        finding.experiments += total + 1
        for p, lane, value in np.argwhere(found != expected)[: 20 - len(finding.differences)]:
            element = divmod(int(places[p]), k) if p < total else "no element"
            finding.differences.append(
                f"A: {element} is 1, digit {digit} of B: D of lane {lane}, value {value} is "
                f"{found[p, lane, value]}, not {expected[p, lane, value]}"
            )
    return finding


def _computed(
    atom: MmaAtom, matrices: NDArray[Any], b: NDArray[Any], c: NDArray[Any], columns: NDArray[Any] | None
) -> NDArray[Any]:
    """D of every A in ``matrices`` [experiments, M, stored K]."""
    if atom.meaning is not None:
        return np.stack([atom.meaning(x, b, c) for x in matrices])
    if columns is None:
        return matrices @ b.T + c
    return np.einsum("pmj,mjn->pmn", matrices, b.T[columns]) + c


# --- wgmma --------------------------------------------------------------------------------------------------

Case = tuple[Major, int]
CASES: tuple[Case, ...] = tuple((major, swizzle) for major in ("K", "MN") for swizzle in SWIZZLES)


@functools.cache
def tile_for(t: str, rows: int, k: int, case: Case) -> tuple[SharedLayout, int, int]:
    """A tile with a ``rows`` x ``k`` operand off its origin: (tile, row0, k0)."""
    major, swizzle = case
    span = max(swizzle, 16) * 8 // 16
    row0 = 8 if major == "K" else span
    step = (8, span) if major == "K" else (span, 8)
    shape = tuple(-(-extent // s) * s for extent, s in zip((row0 + rows, 2 * k), step, strict=True))
    return shared_layout(t, shape[0], shape[1], major, swizzle), row0, k


def combinations(atom: MmaAtom) -> list[tuple[Case | None, Case]]:
    """Every majorness with every swizzle for each operand, and all four pairs of majornesses."""
    if atom.a.in_registers:
        return [(None, b) for b in CASES]
    return [(CASES[i], CASES[(i + shift) % 8]) for shift in (0, 4) for i in range(8)]


def prove_wgmma(
    atom: MmaAtom, run: Runner, limit: int | None = None, cases: Sequence[tuple[Case | None, Case]] | None = None
) -> Finding:
    """Every element of A, against both digits of every number of B's elements."""
    finding = Finding()
    for number, (a_case, b_case) in enumerate(combinations(atom) if cases is None else cases):
        label = " ".join(f"{x}:{c[0]}-major SW{c[1]}" for x, c in (("A", a_case), ("B", b_case)) if c)
        found = _wgmma_case(atom, a_case, b_case, run, limit, listed=number == 0)
        finding.experiments += 2 * (atom.a.shape[0] * atom.a.shape[1] if limit is None else limit)
        finding.configurations.append(label)
        finding.differences += [f"{label}: {text}" for text in found]
    return finding


def _wgmma_case(
    atom: MmaAtom, a_case: Case | None, b_case: Case, run: Runner, limit: int | None, listed: bool
) -> list[str]:
    (m, k), n = atom.a.shape, atom.b.shape[0]
    t = atom.a.dtype
    b_tile, b_row, b_k = tile_for(t.name, n, k, b_case)
    numbers = np.arange(n)[:, None] * k + np.arange(k)[None, :]
    images = np.zeros((2, b_tile.size_bytes), dtype=np.uint8)
    at = b_tile.offsets()[b_row : b_row + n, b_k : b_k + k]
    for digit, image in enumerate(images):
        digits = (numbers >> 8 * digit & 255) + 1
        image.view(t.numpy)[at // 2] = digits.astype(t.numpy)
    desc_b = b_tile.descriptor(b_row, b_k, n, k).encode()
    if a_case is None:
        table = atom.a.coordinates_table.reshape(-1)
        row, col = table % m, table // m
        a_at, desc_a, trans_a = np.zeros(m * k, np.uint32), 0, 0
    else:
        a_tile, a_row, a_k = tile_for(t.name, m, k, a_case)
        row, col = (x.reshape(-1) for x in np.indices((m, k)))
        a_at = a_tile.offsets()[a_row : a_row + m, a_k : a_k + k].reshape(-1).astype(np.uint32)
        desc_a, trans_a = a_tile.descriptor(a_row, a_k, m, k).encode(), int(a_case[0] == "MN")
    coords = (row << 16 | col).astype(np.uint32)
    places = atom.d.coordinates_table
    places = (places % m << 16 | places // m).astype(np.uint32)
    out = np.zeros(2, np.uint32)
    records = np.zeros(places.size * (1 + kernels.SLOTS) if listed else 1, np.uint32)
    count = m * k if limit is None else limit
    one = int(np.ones(1, t.numpy).view(np.uint16)[0])
    run(
        module_of(atom),
        entry_name(atom),
        min(16, count),
        128,
        kernels.SHARED_BYTES,
        [
            *(a_at, coords, images.reshape(-1), places, out),
            records if listed else ("u64", 0),
            *(("u64", desc_a), ("u64", desc_b), ("u32", trans_a + 2 * int(b_case[0] == "MN"))),
            *(("u32", b_tile.size_bytes), ("u32", one), ("u32", count)),
        ],
    )
    differences = [f"{out[0]} accumulators differ, up to element {out[1]} of A"] if out[0] else []
    if listed and limit is None:
        differences += _compare_map(atom, records, coords)
    return differences


def _compare_map(atom: MmaAtom, records: NDArray[np.uint32], coords: NDArray[np.uint32]) -> list[str]:
    """The map that the lists spell out, element by element, against the record's."""
    d, k = atom.d, atom.shape[2]
    size = d.threads * d.values
    counts, entries = records[:size], records[size:].reshape(size, kernels.SLOTS).astype(np.int64)
    wrong = np.argwhere(counts != 2 * k)[:5]
    if wrong.size:
        return [f"register {divmod(int(r), d.values)} met {counts[r]} products, not {2 * k}" for (r,) in wrong]
    entries = np.sort(entries[:, : 2 * k], axis=1).reshape(size, k, 2)
    element, digits = entries[:, :, 0] >> 13, (entries & 4095) - 1
    number = digits[:, :, 0] + 256 * digits[:, :, 1]
    rows, along_a = coords[element] >> 16, coords[element] & 65535
    table = d.coordinates_table.reshape(-1)
    expected_row, expected_column = table % d.shape[0], table // d.shape[0]
    bad = (
        (rows != expected_row[:, None]).any(1)
        | (number // k != expected_column[:, None]).any(1)
        | (number % k != along_a).any(1)
    )
    return [
        f"lane, value {divmod(int(r), d.values)} holds ({rows[r, 0]}, {number[r, 0] // k}), "
        f"the record says ({expected_row[r]}, {expected_column[r]})"
        for (r,) in np.argwhere(bad)[:5]
    ]


# --- copies -------------------------------------------------------------------------------------------------


def prove_matrix_copy(atom: CopyAtom, run: Runner) -> Finding:
    """Rows at shuffled addresses, every 16-bit element numbered; one experiment for each of 8 shuffles."""
    fragment = atom.fragment
    assert fragment is not None
    finding = Finding()
    for seed in range(8):
        rng = np.random.default_rng(seed)
        # Lanes whose address is not used point at rows of their own, which must stay untouched.
        lanes = (rng.permutation(256)[:32] * 16).astype(np.uint32)
        image = rng.permutation(2048).astype(np.uint16)
        tile_at = np.array([lanes[atom.lane_of_row(r)] // 2 + np.arange(8) for r in range(atom.rows)])
        registers = np.zeros((32, fragment.registers), np.uint32)
        expected_image = image.copy()
        if atom.kind == "ldmatrix":
            expected = fragment.gather(image[tile_at])
        else:
            expected = rng.integers(0, 65536, (32, fragment.values)).astype(np.uint16)
            registers = np.ascontiguousarray(expected).view(np.uint32).copy()
            expected_image[tile_at] = fragment.scatter(expected)
        run(module_of(atom), entry_name(atom), 1, 32, 4096, [image, lanes, registers])
        got = registers.view(np.uint16).reshape(32, -1)
        finding.experiments += 1
        for lane, value in np.argwhere(got != expected)[:3]:
            text = f"lane {lane}, value {value} holds {got[lane, value]}, not {expected[lane, value]}"
            finding.differences.append(f"shuffle {seed}: {text}")
        if not np.array_equal(image, expected_image):
            finding.differences.append(f"shuffle {seed}: shared memory differs")
    return finding


def prove_async_copy(atom: CopyAtom, run: Runner) -> Finding:
    """32 lanes at shuffled places, with every number of source bytes from none to all."""
    size = atom.row_bytes
    finding = Finding()
    for seed in range(8):
        rng = np.random.default_rng(seed)
        source = rng.integers(1, 256, 4096).astype(np.uint8)
        image = rng.integers(1, 256, 4096).astype(np.uint8)
        start, lanes = ((rng.permutation(4096 // size)[:32] * size).astype(np.uint32) for _ in range(2))
        sizes = (np.arange(32) % (size + 1)).astype(np.uint32)
        expected = image.copy()
        for i in range(32):
            expected[lanes[i] : lanes[i] + size] = 0
            expected[lanes[i] : lanes[i] + sizes[i]] = source[start[i] : start[i] + sizes[i]]
        run(module_of(atom), entry_name(atom), 1, 32, 4096, [image, source, start, lanes, sizes])
        finding.experiments += 1
        if not np.array_equal(image, expected):
            finding.differences.append(f"shuffle {seed}: {int((image != expected).sum())} bytes differ")
    return finding


def prove(atom: Atom, run: Runner) -> Finding:
    """All experiments for one record."""
    if isinstance(atom, CopyAtom):
        return prove_matrix_copy(atom, run) if atom.fragment else prove_async_copy(atom, run)
    if not atom.asynchronous:
        return prove_mma_sync(atom, run)
    return prove_wgmma(atom, run) if is_dense_16_bit(atom) else prove_wgmma_rows(atom, run)


def prove_wgmma_rows(atom: MmaAtom, run: Runner, **options: Any) -> Finding:
    """The experiments of `proof_wgmma`."""
    return Finding(*forms.prove(atom, run, module_of(atom), entry_name(atom), bits_of, **options))


# --- assembling ---------------------------------------------------------------------------------------------


def cubin_path(folder: Path, name: str, text: str) -> Path:
    return folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.cubin"


def assemble_all(texts: dict[str, str], arch: str, folder: Path, jobs: int) -> Iterator[str]:
    """Cubins of all modules into ``folder``, ``jobs`` at a time; each module's name when its cubin is there."""
    folder.mkdir(parents=True, exist_ok=True)

    def one(name: str) -> str:
        path = cubin_path(folder, name, texts[name])
        if not path.exists():
            cubin = assemble(texts[name], arch)
            path.write_bytes(cubin.bytes)
            (folder / "assembler.txt").write_text(".".join(map(str, cubin.ptxas_version)))
        return name

    with ThreadPoolExecutor(jobs) as pool:
        # The largest first: a module's time grows with its text.
        pending = [pool.submit(one, n) for n in sorted(texts, key=lambda n: -len(texts[n]))]
        try:
            for done in as_completed(pending):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def shared_configurations(records: dict[str, Any]) -> tuple[dict[str, Any], list[list[str]]]:
    """The records with the number of their configurations in a list of them, which follows."""
    every: dict[tuple[str, ...], int] = {}
    numbered = {
        name: {**r, "configurations": every.setdefault(tuple(r["configurations"]), len(every))}
        if "configurations" in r
        else r
        for name, r in records.items()
    }
    return numbered, [list(c) for c in every]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--assemble", action="store_true", help="only assemble; needs no GPU")
    parser.add_argument("--arch", default="sm_90a", help="PTX target; records that need another are left out")
    parser.add_argument("--only", default="", help="records whose name contains this")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "proof")
    parser.add_argument("--out", type=Path, help="the JSON file; default docs/proofs/<gpu>.json")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="modules assembled at the same time")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="prove no further module after this")
    options = parser.parse_args()
    started = time.perf_counter()
    atoms = [a for a in catalogue.values() if a.runs_on(options.arch) and options.only in a.name]
    texts = modules(atoms, options.arch)
    folder = options.build / options.arch
    ready = assemble_all(texts, options.arch, folder, options.jobs)
    if options.assemble:
        for name in ready:
            print(f"{name}: assembled after {time.perf_counter() - started:.1f} s", file=sys.stderr)
        return 0
    gpu = Cuda(lambda name: cubin_path(folder, name, texts[name]).read_bytes())
    facts = gpu.describe()
    short = facts["device"].removeprefix("NVIDIA ").split()[0].lower()
    out = options.out or ROOT / "docs" / "proofs" / f"{short}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    records: dict[str, Any] = {}
    for name in ready:
        members = [a for a in atoms if module_of(a) == name]
        begun = time.perf_counter()
        records |= {a.name: prove(a, gpu.run).to_json(a) for a in members}
        now = time.perf_counter()
        print(f"{now - started:.1f} s: {name}, {len(members)} records in {now - begun:.1f} s", file=sys.stderr)
        order = {a.name: i for i, a in enumerate(atoms)}
        ordered = {n: records[n] for n in sorted(records, key=order.__getitem__)}
        numbered, configurations = shared_configurations(ordered)
        result = {
            **facts,
            "arch": options.arch,
            "ptxas": (folder / "assembler.txt").read_text(),
            "date": datetime.date.today().isoformat(),
            "seconds": round(now - started, 1),
            "configurations": configurations,
            "records": numbered,
        }
        out.write_text(json.dumps(result, indent=1) + "\n")  # after each module: a run that is stopped keeps it
        if now - started > options.seconds:
            print(f"time is over: {len(records)} of {len(atoms)} records", file=sys.stderr)
            break
    refuted = [n for n, r in records.items() if r["result"] != "proven"]
    print(f"{len(records) - len(refuted)} of {len(records)} records proven in {result['seconds']} s: {out}")
    for name in refuted:
        print(name, *records[name]["differences"][:3], sep="\n  ")
    return 1 if refuted else 0


if __name__ == "__main__":
    sys.exit(main())
