"""The catalogue's records of sm_120a, executed by the PTX machine: kinds, block scales and sparse A.

The records have the places of elements, metadata and scales from the manual's figures; so has the machine, which
has them a second time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import execute

from tilemma.arithmetic import sparsity
from tilemma.atoms import MmaAtom, catalogue
from tilemma.atoms.atom import Operand
from tilemma.dtypes import dtype

ATOMS = [a for a in catalogue.values() if isinstance(a, MmaAtom) and a.arch == "sm_120a"]


def words(operand: Operand, codes: Any) -> list[Any]:
    """The registers of an operand, each with the words of 32 lanes, of a matrix of codes."""
    found = np.zeros((32, operand.registers), np.uint32)
    held = operand.gather(codes.astype(np.int64))
    for value in range(operand.values):
        register, bit = operand.place(value)
        found[:, register] |= (held[:, value] << bit).astype(np.uint32)
    return list(found.T)


def numbers(operand: Operand, rng: Any) -> tuple[Any, Any]:
    """Codes of an operand's elements, and their values."""
    values = rng.integers(-2, 3, operand.shape).astype(np.float32).astype(operand.dtype.numpy)
    return values.view(np.uint8), values.astype(np.float64)


def scales(operand: Operand, rng: Any) -> tuple[Any, Any]:
    """Codes of scales, and their values: powers of two."""
    power = rng.integers(-2, 3, operand.shape)
    return (power + 127 if operand.dtype.ptx == "ue8m0" else power + 7 << 3), 2.0**power


@pytest.mark.parametrize("atom", ATOMS, ids=lambda a: a.name)
def test_a_record_computes_what_its_operands_say(atom: MmaAtom) -> None:
    rng = np.random.default_rng(sum(map(ord, atom.name)))
    (a_codes, a), (b_codes, b) = (numbers(x, rng) for x in (atom.a, atom.b))
    registers = {"a": words(atom.a, a_codes), "b": words(atom.b, b_codes)}
    c = rng.integers(-4, 5, atom.c.shape).astype(atom.c.dtype.numpy)
    registers["c"] = words(atom.c, c.view(f"u{c.dtype.itemsize}"))
    depth = atom.shape[2]
    if atom.e is not None:
        pattern = dtype("s4") if atom.a.dtype.bits == 4 else atom.a.dtype
        mask = sparsity.kept(rng.random((16, depth)), pattern)
        fields = sparsity.fields_from(mask, pattern)
        registers["e"] = words(atom.e, fields)
        a = sparsity.expand(a, sparsity.columns_of(fields, pattern))
    if atom.sfa is not None and atom.sfb is not None:
        (sfa, of_a), (sfb, of_b) = (scales(x, rng) for x in (atom.sfa, atom.sfb))
        registers |= {"sfa": words(atom.sfa, sfa), "sfb": words(atom.sfb, sfb)}
        a, b = (x * np.repeat(s, depth // s.shape[1], axis=1) for x, s in ((a, of_a), (b, of_b)))
    inputs, names = {}, {}
    for letter, held in registers.items():
        kind = atom.operands[letter.upper()].register
        names[letter] = [f"%i{len(inputs) + n}" for n in range(len(held))]
        inputs |= {f"{kind}/{len(inputs) + n}": x for n, x in enumerate(held)}
    chosen = {i.name: int(rng.choice(i.legal)) for i in atom.immediates}
    out = [f"%o{n}" for n in range(atom.d.registers)]
    text = atom.emit(d=out, **names, **chosen)
    version = "{}.{}".format(*atom.ptx_version)
    found = execute(text, [atom.d.register] * atom.d.registers, inputs, "sm_120a", version)
    held = np.ascontiguousarray(np.stack(found, axis=1)).view(atom.d.dtype.numpy)
    np.testing.assert_array_equal(atom.d.scatter(held), (a @ b.T + c).astype(atom.d.dtype.numpy))


def test_every_form_has_a_record() -> None:
    """Kinds and counts of scales; 25 pairs of types in bytes, of two types of sums where nothing is scaled."""
    assert len({a.ptx for a in ATOMS}) == len(ATOMS) == 4 * 25 + 4 + 2 * 25 + 2 * 4
