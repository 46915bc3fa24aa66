"""The records that hardware has confirmed; the proof detects a wrong record."""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensor_layouts import Layout

from dev.pages.proofs import proof_status, proof_summary, read_proofs
from tilemma.assemble import assemble
from tilemma.atoms import CopyAtom, MmaAtom, catalogue
from tilemma.atoms.atom import Atom
from tilemma.dtypes import u16
from tilemma.machine.isa import descriptors, fragments

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import proof_kernels as kernels  # noqa: E402
import prove_atoms as proof  # noqa: E402

PROOFS = read_proofs(ROOT / "docs" / "proofs")
# One of each kernel's form.
SAMPLE = [
    "SM80_16x8x8_F16F16F16F16_TN",
    "SM80_16x8x16_F32BF16BF16F32_TN",
    "SM80_16x8x32_S32U8S8S32_TN",
    "SM90_64x24x16_F16F16F16_SS",
    "SM90_64x24x16_F32BF16BF16_SS",
    "SM90_64x40x16_F32F16F16_RS",
    "SM75_U16x8_LDSM_T",
    "SM90_U32x2_STSM_N",
    "SM80_CP_ASYNC_CACHEALWAYS_8B",
]


@pytest.mark.parametrize("gpu", list(PROOFS))
def test_no_record_is_refuted(gpu: str) -> None:
    found = proof_summary(PROOFS[gpu], catalogue.values())
    assert found["refuted"] == []
    for status in ("changed", "unproven"):
        if found[status]:
            warnings.warn(
                f"{gpu}: {len(found[status])} records {status} since {PROOFS[gpu]['date']}, prove them again with "
                f"bench/prove_atoms.py: {', '.join(found[status][:5])} ...",
                stacklevel=1,
            )


def test_a_record_that_changes_is_no_longer_proven() -> None:
    atom = catalogue["SM80_16x8x16_F32F16F16F32_TN"]
    file = {"records": {atom.name: proof.Finding().to_json(atom)}}
    assert proof_status(atom, file) == "proven"
    assert proof_status(dataclasses.replace(atom, rates=(), section="elsewhere"), file) == "proven"
    assert proof_status(_swapped(atom), file) == "changed"
    assert proof_status(catalogue["SM75_U32x4_LDSM_N"], file) == "unproven"
    file["records"][atom.name] = proof.Finding(differences=["x"]).to_json(atom)
    assert proof_status(atom, file) == "refuted"


def test_fingerprints_differ() -> None:
    assert len({a.fingerprint for a in catalogue.values()}) == len(catalogue)


@pytest.mark.parametrize("name", SAMPLE)
def test_the_kernels_assemble(name: str) -> None:
    for text in proof.modules([catalogue[name]], "sm_90a").values():
        cubin = assemble(text, "sm_90a")
        assert cubin.spills_stores == 0


@pytest.mark.slow
@pytest.mark.skipif("TILEMMA_SLOW" not in os.environ, reason="a minute of ptxas; set TILEMMA_SLOW=1")
def test_all_kernels_assemble() -> None:
    for text in proof.modules(list(catalogue.values()), "sm_90a").values():
        assert assemble(text, "sm_90a").spills_stores == 0


class Simulated:
    """A GPU made of the manual's formulas: does what the proof's kernels do, and knows no record's layouts."""

    def __init__(self, atom: Atom) -> None:
        self.atom = atom

    def run(self, module: str, entry: str, grid: int, threads: int, shared: int, arguments: Sequence[Any]) -> None:
        assert entry == proof.entry_name(self.atom)
        kind = self.atom.kind.replace(".", "_")
        getattr(self, kind)(*(x if isinstance(x, np.ndarray) else x[1] for x in arguments))

    def mma_sync(self, a: Any, b: Any, c: Any, d: Any) -> None:
        atom = self.atom
        parts = {}
        for letter, words in (("A", a), ("B", b), ("C", c)):
            t = atom.operands[letter].dtype.name
            rows, cols = fragments.mma_fragment(atom.shape, letter, t)
            values = fragments.unpack(words, t).astype(np.float64)
            matrix = np.zeros((len(words), rows.max() + 1, cols.max() + 1))
            matrix[:, rows, cols] = values
            parts[letter] = matrix
        out = parts["A"] @ parts["B"] + parts["C"]
        d[:] = fragments.pack(out[:, rows, cols].astype(atom.d.dtype.numpy), atom.d.dtype.name)

    def wgmma(
        self, a_at: Any, coords: Any, images: Any, places: Any, out: Any, found: Any, desc_a: int, desc_b: int,
        trans: int, b_bytes: int, one: int, count: int,
    ) -> None:  # fmt: skip
        m, n, k = self.atom.shape
        t = self.atom.a.dtype
        where_b = descriptors.operand_addresses(descriptors.decode(desc_b), n, k, 16, "MN" if trans & 2 else "K")
        rows, cols = fragments.wgmma_fragment(n, k, "D", self.atom.d.dtype.name)
        counts = np.zeros(rows.size, dtype=np.int64)
        if self.atom.a.in_registers:
            a_rows, a_cols = fragments.wgmma_fragment(n, k, "A", t.name)
        else:
            where_a = descriptors.operand_addresses(
                descriptors.decode(desc_a), m, k, 16, "MN" if trans & 1 else "K"
            )
        for p in range(count):
            if self.atom.a.in_registers:
                a = np.zeros((m, k))
                a[a_rows.reshape(-1)[p], a_cols.reshape(-1)[p]] = 1
            else:
                a = (where_a == a_at[p]).astype(np.float64)
            for digit in (0, 1):
                image = images[digit * b_bytes : (digit + 1) * b_bytes].view(t.numpy).astype(np.float64)
                d = (a @ image[where_b // 2].T)[rows, cols]
                row, col = places >> 16, places & 65535
                number = (col.astype(np.int64) * k + (coords[p] & 65535)) >> 8 * digit & 255
                bad = d != np.where(row == coords[p] >> 16, number + 1, 0)
                out[0] += bad.sum()
                out[1] = p if bad.any() else out[1]
                if isinstance(found, int):
                    continue
                for r in np.flatnonzero(d.reshape(-1)):
                    slot = rows.size + r * kernels.SLOTS + counts[r]
                    found[slot] = (2 * p + digit) << 12 | int(d.reshape(-1)[r])
                    counts[r] += 1
                    found[r] = counts[r]

    def ldmatrix(self, image: Any, lanes: Any, registers: Any) -> None:
        theirs = fragments.ldmatrix_map(self.atom.matrices, self.atom.trans)
        at = self._elements(theirs, lanes)
        registers[:] = fragments.pack(image[at].reshape(32, -1), u16.name)

    def stmatrix(self, image: Any, lanes: Any, registers: Any) -> None:
        theirs = fragments.stmatrix_map(self.atom.matrices, self.atom.trans)
        image[self._elements(theirs, lanes).reshape(32, -1)] = fragments.unpack(registers, u16.name)

    def _elements(self, theirs: fragments.MatrixMap, lanes: Any) -> Any:
        matrix = np.arange(self.atom.matrices)[None, :, None]
        return lanes[theirs.address_lane[matrix, theirs.rows]].astype(np.int64) // 2 + theirs.cols

    def cp_async(self, image: Any, source: Any, start: Any, lanes: Any, sizes: Any) -> None:
        size = self.atom.row_bytes
        for f, at, s in zip(start, lanes, sizes, strict=True):
            image[at : at + size] = np.where(np.arange(size) < s, source[f : f + size], 0)


def _prove(atom: Atom, simulated: Atom) -> proof.Finding:
    run = Simulated(simulated).run
    if atom.kind == "wgmma":
        cases = proof.combinations(atom)
        return proof.prove_wgmma(atom, run, cases=[cases[3], cases[-2]])
    return proof.prove(atom, run)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_true_record_is_proven(name: str) -> None:
    atom = catalogue[name]
    assert _prove(atom, atom).differences == []


def _swapped(atom: MmaAtom | CopyAtom) -> Any:
    """The record with two modes of one layout exchanged: still a partition of the tile, but not the true one."""
    if isinstance(atom, CopyAtom):
        if atom.fragment is None:
            return dataclasses.replace(atom, row_bytes=2 * atom.row_bytes)
        turned = catalogue[
            atom.name.replace("U16x8_LDSM_T", "U32x4_LDSM_N").replace("U32x2_STSM_N", "U16x4_STSM_T")
        ]
        return dataclasses.replace(atom, fragment=turned.fragment)
    if atom.kind == "mma.sync" or atom.a.in_registers:
        (lanes, values), (lane_strides, given) = atom.a.layout.shape, atom.a.layout.stride
        strides = list(given)
        # Two modes of one extent: the width of the elements is the first one's.
        x, y = (0, 1) if values[0] == values[1] else (1, 2)
        strides[x], strides[y] = strides[y], strides[x]
        layout = Layout((lanes, values), (lane_strides, tuple(strides)))
        return dataclasses.replace(atom, a=dataclasses.replace(atom.a, layout=layout))
    (lanes, values), (lane_strides, (first, second, *rest)) = atom.d.layout.shape, atom.d.layout.stride
    layout = Layout((lanes, values), (lane_strides, (second, first, *rest)))
    d, c = (dataclasses.replace(o, layout=layout) for o in (atom.d, atom.c))
    return dataclasses.replace(atom, d=d, c=c)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_false_record_is_refuted(name: str) -> None:
    atom = catalogue[name]
    false = _swapped(atom)
    assert false.fingerprint != atom.fingerprint
    assert _prove(false, atom).differences != []
