"""Which instructions ptxas makes several others of, on each target: the records against SASS."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.toolchain import tool
from tilemma.atoms import MmaAtom, catalogue

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import proof_kernels as kernels

ATOMS = [a for a in catalogue.mma() if a.kind in ("mma.sync", "mma.sp")]
TARGETS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_103", "sm_120", "sm_120a")
# What a product is made of beside the instruction itself.
_PARTS = re.compile(r"(F2F|F2FP|I2F|CALL|SHFL|LOP3|PRMT|HADD|HFMA|FADD|IADD3|POPC|SHF)")
_MULTIPLIES = re.compile(r"[HIBDQO]MMA")


def entry(atom: MmaAtom) -> str:
    """One instruction on registers that memory fills, and its result to memory."""
    registers = {x: kernels.names(x, getattr(atom, x).registers) for x in "abc"}
    d = kernels.names("d", atom.d.registers)
    lines = ["  .reg .u64 %at;", "  .reg .b32 %e;", "  ld.param.u64 %at, [at];"]
    lines += [kernels.declare(getattr(atom, x), x) for x in "abcd"]
    of = [(getattr(atom, x).register, name) for x, names in registers.items() for name in names]
    lines += [f"  ld.global.{t} {name}, [%at + {8 * i}];" for i, (t, name) in enumerate(of)]
    metadata = {} if atom.e is None else {"e": "%e"}
    lines += ["  ld.global.b32 %e, [%at + 1024];", "  " + atom.emit(d=d, **registers, **metadata)]
    lines += [f"  st.global.{atom.d.register} [%at + {2048 + 8 * i}], {x};" for i, x in enumerate(d)]
    return kernels.entry(f"k{ATOMS.index(atom)}", "u64 at", 32, [*lines, "  ret;"])


def sass(target: str, folder: Path) -> dict[int, Counter[str]]:
    """How often each opcode stands in each record's kernel."""
    ptxas, disassemble = tool("ptxas"), tool("nvdisasm")
    text = "\n".join(entry(a) for a in ATOMS if a.runs_on(target))
    (folder / "k.ptx").write_text(f".version 9.0\n.target {target}\n.address_size 64\n{text}\n")
    cubin = str(folder / "k.cubin")
    subprocess.run([ptxas, f"-arch={target}", str(folder / "k.ptx"), "-o", cubin], check=True, capture_output=True)
    printed = subprocess.run([disassemble, cubin], check=True, capture_output=True, text=True).stdout
    found: dict[int, Counter[str]] = {}
    for line in printed.splitlines():
        if section := re.search(r"\.section\s+\.text\.k(\d+)", line):
            counted = found[int(section[1])] = Counter()
        elif code := re.search(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)", line):
            counted[code[1]] += 1
    return found


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_the_records_say_what_is_emulated(target: str, tmp_path: Path) -> None:
    for number, codes in sass(target, tmp_path).items():
        atom = ATOMS[number]
        # The instruction of sm_70 is one of several steps.
        multiplies = {re.sub(r"\.STEP\d", "", code) for code in codes.elements() if _MULTIPLIES.match(code)}
        single = len(multiplies) == 1 and all(n == 1 for code, n in codes.items() if _MULTIPLIES.match(code))
        alone = not any(_PARTS.match(code) for code in codes)
        assert (single and alone) == (target not in atom.emulated), f"{atom.name} on {target}: {dict(codes)}"
