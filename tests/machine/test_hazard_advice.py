"""Advice of hazards that names an instruction and a line of PTX: inserted there, the hazard is gone."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ptx_programs import BULK_STORE, plain, tma, without
from test_hazards import CASES, Case

from tilemma import machine

_AFTER = re.compile(r"add `([^`]+;)` (?:after|between) (?:the \w+ of )?PTX lines? (\d+)(?: and (\d+))?")
_BEFORE = re.compile(r"add `([^`]+;)` before PTX line (\d+)")


def repaired(ptx: str, remedy: str) -> str | None:
    """``ptx`` with the advised instruction; None where the advice is not of this form."""
    lines = ptx.split("\n")
    if found := _BEFORE.match(remedy):
        lines.insert(int(found[2]) - 1, f"  {found[1]}")
    elif found := _AFTER.match(remedy):
        lines.insert(min(int(n) for n in found.groups()[1:] if n), f"  {found[1]}")
    else:
        return None
    return "\n".join(lines)


def verdict(case: Case, ptx: str | None) -> Any:
    broken, launch, args = case.build(case.edit)
    launch = {**launch, **case.launch}
    return machine.check(ptx or broken, launch, args, schedules=case.schedules, strict=case.strict)


# Hazards whose advice has this form in the cases of `test_hazards`.
FOLLOWED = frozenset({
    "race", "missing-proxy-fence", "missing-proxy-fence-read", "race-lanes", "register-in-flight",
    "missing-wgmma-fence", "mbarrier-before-init", "mbarrier-init-not-visible", "mbarrier-init-not-visible-cta",
})  # fmt: skip


@pytest.mark.parametrize("code", sorted(FOLLOWED))
def test_the_advised_instruction_cures(code: str) -> None:
    cured = 0
    for case in (c for c in CASES if c.code == code):
        ptx = case.build(case.edit)[0]
        # An advice for each place: they are followed one after the other.
        for _ in range(24):
            hazard = next((h for h in verdict(case, ptx).hazards if h.code == code), None)
            made = None if hazard is None else repaired(ptx, hazard.remedy)
            if made is None:
                break
            ptx, cured = made, cured + 1
        assert ptx == case.build(case.edit)[0] or hazard is None, hazard and hazard.render()
    assert cured


ITERATIONS = """
  shl.b32 %r4, %t, 2; mov.u32 %r0, smem; add.u32 %r0, %r0, %r4;
  xor.b32 %r5, %t, 32; shl.b32 %r5, %r5, 2; mov.u32 %r1, smem; add.u32 %r1, %r1, %r5;
  mov.b32 %r2, 0; mov.b32 %r6, 0;
LOOP:
  st.shared.b32 [%r0], %r2; // @write
  bar.sync 0; // @written
  ld.shared.b32 %r3, [%r1]; // @read
  bar.sync 0; // @taken
  add.s32 %r6, %r6, %r3; add.s32 %r2, %r2, 1; setp.lt.s32 %p0, %r2, 4; @%p0 bra LOOP;
  st.global.b32 [%Y], %r6;
"""


@pytest.mark.parametrize("missing", [("written",), ("taken",), ("written", "taken")])
def test_a_barrier_is_advised_where_it_orders_the_iterations(missing: tuple[str, ...]) -> None:
    """Whichever access comes first: a barrier is missing between lines in the order of the text, or between one
    iteration and the next."""
    ptx, launch, args = plain(ITERATIONS)()
    for mark in missing:
        ptx = without(ptx, mark)
    for _ in range(2 * len(missing)):
        found = machine.check(ptx, launch, args, schedules=20)
        if found.ok:
            break
        remedies = [h.remedy for h in found.hazards if h.code == "race"]
        for first, second in re.findall(r"between PTX lines (\d+) and (\d+)", "\n".join(remedies)):
            assert int(first) < int(second)
        made = repaired(ptx, remedies[0])
        assert made is not None, remedies[0]
        ptx = made
    assert found.ok, found.render()
    assert len(re.findall("bar.sync", ptx)) == 2


def overwritten(built: Any) -> Any:
    """The first hazard of an overwrite, of schedules enough that one finds it."""
    hazards = machine.check(*built, schedules=20).hazards
    return next(h for h in hazards if h.code == "overwrite-in-flight")


def test_an_overwrite_between_blocks_names_both() -> None:
    """Two CTAs that store the same elements by bulk copy: no wait in one of them orders them."""
    hazard = overwritten(plain(BULK_STORE, grid=2)())
    assert "may still be writing" in hazard.message
    assert "store each element from one CTA only, here from CTA (" in hazard.remedy
    assert "(0, 0, 0)" in hazard.remedy and "(1, 0, 0)" in hazard.remedy and "red.release.gpu" in hazard.remedy
    apart = "mov.u32 %r3, %ctaid.x; mad.wide.u32 %d0, %r3, 256, %d0; st.shared"
    ptx, launch, args = plain(BULK_STORE.replace("st.shared", apart, 1), grid=2)()
    assert machine.check(ptx, launch, args, schedules=20).ok


def test_an_overwrite_by_the_same_block_is_advised_a_wait_for_what_is_written() -> None:
    """`.read` waits for the source of a bulk store only: the words that it stores are still open."""
    again = BULK_STORE.replace("wait_group.read 0; // @wait", "wait_group.read 0;\n  st.global.b32 [%d0], %t;")
    hazard = overwritten(plain(again)())
    assert hazard.remedy.startswith("add `cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;`")
    cured = again.replace("wait_group.read 0;", "wait_group 0;")
    assert machine.check(*plain(cured)(), schedules=20).ok


def test_an_overwrite_in_another_block_of_the_cluster_names_both() -> None:
    """A multicast into the slot of a block that still multiplies from it."""

    def early(ptx: str) -> str:
        """No block waits for the other's slot; its own arrivals complete the phase."""
        arrival = "@%first mbarrier.arrive.shared.b64 _, [%r30];"
        ptx = without(without(ptx, "release-1"), "release-0")
        return ptx.replace("// @wait-group", f"// @wait-group\n  {arrival} {arrival}")

    remedy = overwritten(tma(early, cluster=2)).remedy
    assert "let CTA (" in remedy and "wgmma.wait_group.sync.aligned 0;" in remedy
    assert "(0, 0, 0)" in remedy and "(1, 0, 0)" in remedy and "shared::cluster" in remedy
