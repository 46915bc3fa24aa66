"""Choosing records, and the table of reasons against the others."""

from __future__ import annotations

import pytest

from tilemma.atoms import MmaAtom, catalogue, select
from tilemma.atoms.choose import _family as family
from tilemma.dtypes import f16, f32


def test_the_widest_that_divides_comes_first() -> None:
    found = select(arch="sm_90a", threads=128, a=f16, b="f16", d=f32, tile=(64, 192, 64), a_from="shared")
    assert found.best is catalogue["SM90_64x192x16_F32F16F16_SS"]
    widths = [a.shape[1] for a in found.candidates]
    assert widths == sorted(widths, reverse=True) and all(192 % n == 0 for n in widths)


def test_every_record_is_a_candidate_or_refused() -> None:
    found = select(arch="sm_86", a="bf16")
    families = {r.candidate for r in found.refusals}
    for atom in catalogue.mma():
        assert (atom in found.candidates) != (family(atom.name) in families)
    assert [a.a.dtype.name for a in found.candidates] == ["bf16"] * 2


@pytest.mark.parametrize(
    ("wanted", "family", "rule"),
    [
        ({"arch": "sm_90"}, "SM90_64xNx16_F32F16F16_SS", "needs sm_90a, the target is sm_90"),
        ({"kind": "wgmma"}, "SM80_16x8x8_F16F16F16F16_TN", "is mma.sync, not wgmma"),
        ({"threads": 128}, "SM80_16x8x8_F16F16F16F16_TN", "is executed by 32 threads, not 128"),
        ({"d": "f16"}, "SM80_16x8x8_F32F16F16F32_TN", "D is f32, not f16"),
        ({"a_from": "shared"}, "SM90_64xNx16_F32F16F16_RS", "reads A from registers"),
        ({"a_from": "registers"}, "SM90_64xNx16_F32F16F16_SS", "reads A from shared memory"),
        ({"tile": (32, 64, 64)}, "SM90_64xNx16_F32F16F16_SS", "M = 32 is no multiple of the instruction's 64"),
        ({"tile": (64, 12, 64)}, "SM80_16x8x16_F32F16F16F32_TN", "N = 12 is no multiple of the instruction's 8"),
        ({"tile": (64, 64, 24)}, "SM80_16x8x16_F32F16F16F32_TN", "K = 24 is no multiple of the instruction's 16"),
    ],
)
def test_each_rule_is_named(wanted: dict[str, object], family: str, rule: str) -> None:
    refusals = {(r.candidate, r.rule): r for r in select(**wanted).refusals}
    assert (family, rule) in refusals
    assert refusals[family, rule].section.startswith("PTX ISA, 9.7.1")


def test_a_majorness_is_asked_of_shared_memory_only() -> None:
    found = select(a_major="MN", b_major="MN").candidates
    wanted = {
        a for a in catalogue.mma() if a.rank >= 0 and a.e is None and (a.kind != "wgmma" or a.a.dtype.bits == 16)
    }
    assert set(found) == wanted
    import dataclasses

    from tilemma.atoms.choose import select_from

    ss = catalogue["SM90_64x64x16_F32F16F16_SS"]
    assert isinstance(ss, MmaAtom)
    k_only = dataclasses.replace(ss, b=dataclasses.replace(ss.b, majors=("K",)))
    (refusal,) = select_from([k_only], b_major="MN").refusals
    assert refusal.rule == "B of type f16 is read K-major only"
    assert select_from([k_only], b_major="K").best is k_only


def test_nothing_fits() -> None:
    found = select(arch="sm_80", threads=128)
    assert found.best is None and found.candidates == () and found.refusals
