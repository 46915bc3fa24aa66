"""Declarations, names, state spaces and predefined registers against ptxas: both refuse the same modules."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.toolchain import tool
from tilemma.errors import TilemmaError
from tilemma.machine.parser import parse
from tilemma.machine.program import decode_program

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
G = ".global .align 8 .b8 g[64]; .const .align 4 .b32 c[4] = {1, 2, 3, 4};"


def module(
    code: str = "", outside: str = G, parameters: str = ".param .u64 a, .param .u32 n", more: str = ""
) -> str:
    return f"""{HEAD}{outside}
.visible .entry k({parameters}) {more}
{{ .reg .b64 %d<8>; .reg .b32 %r<9>; .reg .pred %p<4>; .reg .f32 %f<4>; .shared .align 16 .b8 s[64];
  .local .align 8 .b8 l[16];
{code}
  ret; }}
"""


EMPTY = ".visible .entry k() { ret; }\n"
MODULES = {
    **{
        f"{op} of {name}": module(f"{op}.u32 %r1, [{name}];")
        for op in ("ld", "ld.global", "ld.shared", "ld.const", "ld.param")
        for name in "gscn"
        if (op, name) not in (("ld.param", "s"), ("ld", "c"))
    },
    **{
        f"{op} to {name}": module(f"{op}.u32 [{name}], %r1;")
        for op in ("st.global", "st.shared")
        for name in "gs"
    },
    **{
        f"{op} of {name}": module(f"{op}.add.u32 %r1, [{name}], 1;")
        for op in ("atom", "atom.global", "atom.shared")
        for name in "gsc"
    },
    "an mbarrier in global memory": module("mbarrier.init.shared.b64 [g], 1;"),
    "a register twice": module(".reg .b32 %x; .reg .b32 %x;"),
    "a register of a family": module(".reg .b32 %r1;"),
    "a register in an inner scope": module("{ .reg .b32 %r1; mov.u32 %r1, 1; }"),
    "a shared variable twice": module(".shared .b8 s[4];"),
    "a global variable twice": module("", G + ".global .b32 g;"),
    "a parameter twice": module("", G, ".param .u32 a, .param .u32 a"),
    "an entry twice": HEAD + EMPTY + EMPTY,
    "a label twice": module("L: L: "),
    "an initial value": module("", ".global .b32 q[4] = {1, 2, 3, 4};"),
    "an initial value that is too long": module("", ".global .b32 q[4] = {1, 2, 3, 4, 5};"),
    "a short initial value": module("", ".global .b32 q[4] = {1, 2};"),
    "a shared initial value": module("", ".shared .b32 q[2] = {1, 2};"),
    "integers in floats": module("", ".global .f32 q[2] = {1, 2};"),
    "floats in integers": module("", ".global .u32 q[2] = {1.0, 2};"),
    "floats": module("", ".global .f32 q[2] = {1.0, 0f3F800000};"),
    "both bounds of threads": module("", G, ".param .u64 a", ".maxntid 128, 1, 1 .reqntid 64, 1, 1"),
    "a bound of threads": module("", G, ".param .u64 a", ".maxntid 128, 1, 1"),
    **{
        f"{name} as {kind}": module(f"mov.{kind} %{register}1, {name};")
        for name in ("%tid.x", "%laneid", "%globaltimer")
        for kind, register in (("u32", "r"), ("u64", "d"), ("f32", "f"))
        if (name, kind) != ("%globaltimer", "u32")
    },
    "an address as a float": module("mov.f32 %f1, s;"),
    **{f"PTX {version} for {target}": f".version {version}\n.target {target}\n.address_size 64\n{EMPTY}"
       for version, target in (("6.0", "sm_90a"), ("7.8", "sm_90"), ("7.8", "sm_90a"), ("8.0", "sm_90a"),
                               ("6.5", "sm_80"), ("7.0", "sm_80"))},
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_ptxas_agrees(name: str, tmp_path: Path) -> None:
    text, path = MODULES[name], tmp_path / "k.ptx"
    path.write_text(text)
    target = text.split(".target ")[1].split()[0]
    command = [tool("ptxas"), f"-arch={target}", "-o", "/dev/null", str(path)]
    judged = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        read = parse(text, "k.ptx")
        entry = read.entries["k"]
        if entry.refused is not None:
            raise entry.refused
        decode_program(read, entry, target)
        refused = ""
    except TilemmaError as error:
        refused = str(error)
    assert bool(refused) == (judged.returncode != 0), (refused, judged.stderr)


def test_the_refusal_names_both_spaces() -> None:
    read = parse(MODULES["ld.shared of g"], "k.ptx")
    with pytest.raises(TilemmaError, match=r"`g` is in \.global, the instruction is for shared addresses"):
        decode_program(read, read.entries["k"], "sm_90a")
