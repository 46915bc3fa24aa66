"""The record's shape fits instructions that the catalogue does not have yet: none of it needs another class."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tensor_layouts import Layout, atoms_nv

from tilemma.atoms import MmaAtom, Operand, catalogue, contract
from tilemma.atoms.warp import fragment
from tilemma.dtypes import DType, bf16, dtype, f32, f64
from tilemma.tools.show import to_json
from tilemma.tools.show_text import text


def warp_record(name: str, shape: tuple[int, int, int], a: str, d: str, ptx: str, **more: object) -> MmaAtom:
    """An m16n8 (or m8n8) record of a warp, by the rule all of them follow."""
    m, n, k = shape
    operand, total = dtype(a), dtype(d)
    bits = max(32, operand.bits)
    pack, wide = bits // operand.bits, max(32, total.bits)

    def held(letter: str, rows: int, t: DType, cols: int, per: int, register: str) -> Operand:
        registers = rows * cols * t.bits // 32 // {"b32": 32, "f32": 32, "f64": 64}[register]
        return Operand(letter, t, (rows, cols), fragment(rows, cols, per), registers, register)

    into = {"f64": "f64"}.get(d, "f32" if d == "f32" else "b32")
    frag = {"f64": "f64"}.get(a, "b32")
    assert wide in (32, 64)
    return MmaAtom(
        name=name,
        kind="mma.sync",
        threads=32,
        arch="sm_80",
        ptx_version=(7, 0),
        section="",
        ptx=ptx + " {d}, {a}, {b}, {c};",
        shape=shape,
        d=held("D", m, total, n, 2, into),
        a=held("A", m, operand, k, pack, frag),
        b=held("B", n, operand, k, pack, frag),
        c=held("C", m, total, n, 2, into),
        **more,
    )


@pytest.mark.parametrize(
    ("name", "shape", "a", "d"),
    [
        ("SM89_16x8x32_F32E4M3E4M3F32_TN", (16, 8, 32), "f8_e4m3", "f32"),
        ("SM89_16x8x32_F16E5M2E5M2F16_TN", (16, 8, 32), "f8_e5m2", "f16"),
        ("SM80_16x8x32_S32S8S8S32_TN", (16, 8, 32), "s8", "s32"),
        ("SM80_16x8x64_S32S4S4S32_TN", (16, 8, 64), "s4", "s32"),
        ("SM80_16x8x256_S32U1U1S32_TN_XORPOPC", (16, 8, 256), "b1", "s32"),
        ("SM80_16x8x8_F32TF32TF32F32_TN", (16, 8, 8), "tf32", "f32"),
        ("SM80_8x8x4_F64F64F64F64_TN", (8, 8, 4), "f64", "f64"),
    ],
)
def test_other_types(name: str, shape: tuple[int, int, int], a: str, d: str) -> None:
    atom = warp_record(name, shape, a, d, "mma.sync")
    theirs = getattr(atoms_nv, name)
    for operand, layout in ((atom.a, theirs.a_layout), (atom.b, theirs.b_layout), (atom.c, theirs.c_layout)):
        assert [operand.layout(i) for i in range(len(layout))] == [layout(i) for i in range(len(layout))]
    rng = np.random.default_rng(0)
    m, n, k = shape
    x, y, z = (rng.integers(0, 2, s) for s in ((m, k), (n, k), (m, n)))
    out = contract(atom, atom.a.gather(x), atom.b.gather(y), atom.c.gather(z))
    assert np.array_equal(atom.d.scatter(out).astype(np.int64), x @ y.T + z)
    assert name in text(atom, {"A": atom.a, "B": atom.b, "C": atom.c})


def test_sparse_metadata_is_an_operand_like_any_other() -> None:
    atom = catalogue["SM80_SPARSE_16x8x32_F32F16F16F32_TN"]
    assert isinstance(atom, MmaAtom) and atom.e is not None
    # Lane 0 has row 0 in its lower half and row 8 in its upper one; so has lane 2, which another selector names.
    assert atom.e.owners()[8][0] == [(0, 4), (2, 4)]
    found = to_json(atom, {"E": atom.e})
    assert found["types"]["E"] == "u4" and json.dumps(found)
    regs = {"d": ["d0", "d1", "d2", "d3"], "a": ["a0", "a1", "a2", "a3"], "b": ["b0", "b1", "b2", "b3"]}
    assert atom.emit(**regs, e=["e0"]).endswith("{d0, d1, d2, d3}, e0, 0;")


def test_a_cpu_s_tile_registers() -> None:
    """AMX tdpbf16ps: one thread, 16x32 bf16 tiles, B's pairs along K interleaved."""
    k = 32
    atom = MmaAtom(
        name="AMX_16x16x32_F32BF16BF16F32",
        kind="amx",
        threads=1,
        arch="sm_80",
        ptx_version=(0, 0),
        section="Intel SDM, TDPBF16PS",
        ptx="tdpbf16ps {c}, {a}, {b} # {d}",
        shape=(16, 16, k),
        d=Operand("D", f32, (16, 16), Layout((1, (16, 16)), (0, (16, 1))), 1, "tmm"),
        a=Operand("A", bf16, (16, k), Layout((1, (k, 16)), (0, (16, 1))), 1, "tmm"),
        b=Operand("B", bf16, (16, k), Layout((1, (2, 16, k // 2)), (0, (16, 1, 32))), 1, "tmm"),
        c=Operand("C", f32, (16, 16), Layout((1, (16, 16)), (0, (16, 1))), 1, "tmm"),
    )
    assert atom.b.coordinates(0, 3) == (1, 1) and atom.b.coordinates(0, 32) == (0, 2)
    x, y = np.arange(16 * k).reshape(16, k) % 7, np.arange(16 * k).reshape(16, k) % 5
    out = contract(atom, atom.a.gather(x), atom.b.gather(y), atom.c.gather(np.zeros((16, 16))))
    assert np.array_equal(atom.d.scatter(out), x @ y.T)


def test_f64_takes_64_bit_registers() -> None:
    atom = warp_record("f64", (8, 8, 4), "f64", "f64", "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64")
    assert (atom.a.registers, atom.a.register, atom.a.pack) == (1, "f64", 1)
    assert atom.d.registers == 2 and atom.d.dtype is f64
