"""The PTX that records print: ptxas takes every statement of every record, and none on an older target."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from records import FAMILIES, few

from tilemma.assemble import assemble
from tilemma.assemble.ptxas import PtxRejected
from tilemma.atoms import CopyAtom, MmaAtom, catalogue
from tilemma.atoms.atom import Atom, WrongEmission
from tilemma.errors import WrongArgument


def statements(atom: Atom) -> Iterator[str]:
    """Every way of emitting the record."""
    if isinstance(atom, CopyAtom):
        if atom.fragment is None:
            for size in (None, 0, "%r0"):
                yield atom.emit(address="%r1", source="%rd0", source_size=size)
        else:
            yield atom.emit(address="%r9", registers=[f"%r{i}" for i in range(atom.matrices)])
        return
    registers = {
        letter.lower(): [f"%{o.register[0]}_{letter}{i}" for i in range(o.registers)] if o.in_registers else "%rd0"
        for letter, o in atom.operands.items()
    }
    if atom.in_place:
        del registers["c"]
    free = [i for i in atom.immediates if i.name.startswith(("trans", "scale_d"))]
    for values in itertools.product(*(("%p0", *i.legal) if i.predicate else i.legal for i in free)):
        chosen = {i.name: v for i, v in zip(free, values, strict=True)}
        yield atom.emit(**registers, **chosen)


def kernel(atom: Atom) -> str:
    name = atom.name.lower()
    declared = [".reg .b32 %r<10>;", ".reg .b64 %rd<2>;", ".reg .pred %p<1>;"]
    used = ["setp.eq.u32 %p0, %r0, 0;"]
    if isinstance(atom, MmaAtom):
        for letter, o in atom.operands.items():
            if o.in_registers and not (letter == "C" and atom.in_place):
                names = [f"%{o.register[0]}_{letter}{i}" for i in range(o.registers)]
                declared.append(f".reg .{o.register} {', '.join(names)};")
    fences = ["wgmma.fence.sync.aligned;"] if isinstance(atom, MmaAtom) and atom.asynchronous else []
    after = ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"] if fences else []
    if isinstance(atom, MmaAtom):
        register = atom.d.register
        after += [f"st.global.{register} [%rd1], %{register[0]}_D{i};" for i in range(atom.d.registers)]
    body = [*declared, *used, *fences, *statements(atom), *after, "ret;"]
    return f".visible .entry {name}() .reqntid 128 {{\n" + "\n".join(f"  {line}" for line in body) + "\n}\n"


def module(atoms: list[Atom], arch: str) -> str:
    version = max(atom.ptx_version for atom in atoms)
    # A target has a lowest PTX version of its own.
    version = max(
        version,
        {"sm_80": (7, 0), "sm_75": (6, 3), "sm_90": (7, 8), "sm_86": (7, 1), "sm_89": (7, 8)}.get(arch, (8, 0)),
    )
    head = f".version {version[0]}.{version[1]}\n.target {arch}\n.address_size 64\n"
    return head + "".join(kernel(a) for a in atoms)


@pytest.mark.parametrize("name", list(FAMILIES))
def test_ptxas_takes_every_statement(name: str) -> None:
    atoms = few(FAMILIES[name])
    assert assemble(module(atoms, atoms[0].arch), atoms[0].arch).bytes


@pytest.mark.parametrize("name", list(FAMILIES))
def test_ptxas_refuses_it_on_an_older_target(name: str) -> None:
    atom = FAMILIES[name][0]
    older = {
        "sm_120a": "sm_120",
        "sm_90a": "sm_90",
        "sm_90": "sm_89",
        "sm_89": "sm_86",
        "sm_80": "sm_75",
        "sm_75": None,
    }[atom.arch]
    if older is None or f"SM75{atom.name[4:]}" in catalogue:
        pytest.skip("the form is older than the catalogue")
    assert not atom.runs_on(older)
    with pytest.raises(PtxRejected):
        assemble(module([atom], older), older)


def test_what_an_instruction_does_not_have_cannot_be_emitted() -> None:
    rs = catalogue["SM90_64x8x16_F16F16F16_RS"]
    regs = {"d": ["%r0", "%r1"], "a": ["%r2", "%r3", "%r4", "%r5"], "b": "%rd0"}
    assert rs.emit(**regs, trans_b=1).endswith("%rd0, 1, 1, 1, 1;")
    with pytest.raises(WrongEmission, match="trans_a"):
        rs.emit(**regs, trans_a=0)
    with pytest.raises(WrongArgument, match=r"2 .* as `scale_a`"):
        rs.emit(**regs, scale_a=2)
    with pytest.raises(WrongEmission, match="1 register for D"):
        rs.emit(d=["%r0"], a=regs["a"], b="%rd0")
    with pytest.raises(WrongEmission, match="in place"):
        rs.emit(**regs, c=["%r6", "%r7"])
