"""The lowest PTX version of targets and instructions: ptxas accepts it, and refuses the one below."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tilemma.assemble.toolchain import find_tool
from tilemma.ir.lane import Imm, Instr, LaneFor, LaneIf, LaneKernel, LaneOp, Reg
from tilemma.targets.ptx.version import _ARCH, _MNEMONIC, Version, _needed, ptx_version

VERSIONS = [
    (6, 0), (6, 1), (6, 2), (6, 3), (6, 4), (6, 5), *((7, n) for n in range(9)), *((8, n) for n in range(9)),
]  # fmt: skip
# For each prefix of the table the oldest target that lowering writes it for, and a statement.
STATEMENTS = {
    "wgmma.": ("sm_90a", "wgmma.fence.sync.aligned;"),
    "fence.proxy.async": ("sm_90", "fence.proxy.async;"),
    "fence.mbarrier_init": ("sm_90", "fence.mbarrier_init.release.cluster;"),
    "mbarrier.try_wait": ("sm_90", "mbarrier.try_wait.parity.shared::cta.b64 p, [r1], r2;"),
    "mbarrier.arrive.expect_tx": ("sm_90", "mbarrier.arrive.expect_tx.shared::cta.b64 d1, [r1], r2;"),
    "mbarrier.expect_tx": ("sm_90", "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [r1], r2;"),
    "mbarrier.test_wait.parity": ("sm_80", "mbarrier.test_wait.parity.shared.b64 p, [r1], r2;"),
    "mbarrier.": ("sm_80", "mbarrier.init.shared.b64 [r1], r2;"),
    "cp.async.bulk": ("sm_90", "cp.async.bulk.commit_group;"),
    "prefetch.tensormap": ("sm_90", "prefetch.tensormap [d1];"),
    "griddepcontrol": ("sm_90", "griddepcontrol.wait;"),
    "createpolicy": ("sm_80", "createpolicy.fractional.L2::evict_first.b64 d1, 1.0;"),
    "setmaxnreg": ("sm_90a", "setmaxnreg.inc.sync.aligned.u32 24;"),
    "elect.sync": ("sm_90", "elect.sync r1|p, 0xffffffff;"),
    "mapa": ("sm_90", "mapa.shared::cluster.u32 r1, r2, r3;"),
    "barrier.cluster": ("sm_90", "barrier.cluster.arrive;"),
    "cvt.rn.satfinite.e4m3x2.f32": ("sm_89", "cvt.rn.satfinite.e4m3x2.f32 h, f1, f2;"),
    "cvt.rn.satfinite.e5m2x2.f32": ("sm_89", "cvt.rn.satfinite.e5m2x2.f32 h, f1, f2;"),
    "cvt.rn.f16x2.e": ("sm_89", "cvt.rn.f16x2.e4m3x2 r1, h;"),
}


def accepts(version: Version, arch: str, statement: str, folder: Path) -> bool:
    ptxas = find_tool("ptxas")
    source = folder / "k.ptx"
    registers = ".reg .b32 r<4>; .reg .b64 d<2>; .reg .pred p; .reg .b16 h; .reg .f32 f<3>;"
    head = f".version {version[0]}.{version[1]}\n.target {arch}\n.address_size 64\n"
    source.write_text(f"{head}.visible .entry k() {{ {registers} {statement} ret; }}\n")
    command = [ptxas.path, f"-arch={arch}", str(source), "-o", str(folder / "k.cubin")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_every_mnemonic_has_a_statement() -> None:
    assert STATEMENTS.keys() == {prefix for prefix, _ in _MNEMONIC}


def version(arch: str, *body: LaneOp, cluster: tuple[int, int, int] | None = None) -> Version:
    return ptx_version(LaneKernel("k", arch, (), 32, 0, body, cluster=cluster))


def test_a_kernel_needs_the_highest_of_its_versions() -> None:
    """Its target, its cluster, and each instruction, also inside control."""
    mma, loop = Instr("mma.sync", (), ()), Reg("i", "s32")
    for prefix, needed in _MNEMONIC:
        inside = LaneIf(
            Reg("p", "pred"), (), (LaneFor(loop, Imm(0), Imm(1), Imm(1), (Instr(prefix, (), ()), mma)),)
        )
        for arch, lowest in _ARCH.items():
            assert version(arch, mma) == lowest
            assert version(arch, mma, cluster=(2, 1, 1)) == max(lowest, (7, 8))
            assert version(arch, mma, inside) == max(lowest, needed)


def test_a_target_without_an_entry_has_a_version_of_those_before() -> None:
    assert version("sm_88") == version("sm_87") and version("sm_121") == max(_ARCH.values())


@pytest.mark.parametrize("arch", [a for a in _ARCH if a != "sm_70"])
def test_the_lowest_version_of_a_target(arch: str, tmp_path: Path) -> None:
    at = VERSIONS.index(version(arch))
    found = [accepts(v, arch, "", tmp_path) for v in VERSIONS[at - 1 : at + 1]]
    assert found == [False, True]


@pytest.mark.parametrize("prefix", STATEMENTS)
def test_the_lowest_version_of_an_instruction(prefix: str, tmp_path: Path) -> None:
    arch, statement = STATEMENTS[prefix]
    at = VERSIONS.index(_needed(statement.split(" ")[0]))
    found = [accepts(v, arch, statement, tmp_path) for v in VERSIONS[at - 1 : at + 1]]
    assert found == [False, True]
