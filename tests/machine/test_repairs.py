"""The advice for a hazard cures it: it is the first candidate after which the machine finds the program clean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from ptx_programs import change, cluster, cp_async, drop, exchange, tma, wgmma

from tilemma import machine
from tilemma.cli import main
from tilemma.machine.parser import parse
from tilemma.machine.repairs.listing import without_other_entries

ROOT = Path(__file__).resolve().parents[2]
BROKEN = (ROOT / "examples" / "ptx" / "block_sum.ptx").read_text(encoding="utf-8")


def opcodes(ptx: str) -> list[str]:
    return [ins.opcode for entry in parse(ptx).entries.values() for ins in entry.instructions]


def is_subsequence(some: list[str], all_: list[str]) -> bool:
    rest = iter(all_)
    return all(x in rest for x in some)


BUGS: list[tuple[Callable[..., Any], Callable[[str], str], str]] = [
    (exchange, drop("barrier"), "bar.sync 0;"),
    (cp_async, drop("wait"), "cp.async.wait_group"),
    (cp_async, change("wait", " 0;", " 1;"), "wait for all but 0 groups"),
    (cp_async, drop("barrier"), "bar.sync 0;"),
    (wgmma, drop("wait"), "wgmma.wait_group"),
    (wgmma, drop("commit"), "wgmma.commit_group"),
    (tma, drop("fence-store"), "fence.proxy.async"),
    (tma, change("wait-group", " 0;", " 1;"), "wait for all but 0 groups"),
    (cluster, lambda p: drop("end-wait")(drop("end-arrive")(p)), "barrier.cluster"),
]


def flipped(ptx: str) -> str:
    old = "mbarrier.try_wait.parity.shared.b64 %p4, [%r11], %phase"
    return change("wait-full", old, f"xor.b32 %r50, %phase, 1; {old.replace('%phase', '%r50')}")(ptx)


BUGS.append((tma, flipped, "the other parity"))


@pytest.mark.parametrize(("build", "edit", "said"), BUGS, ids=range(len(BUGS)))
def test_the_advice_cures_and_removes_nothing(build: Any, edit: Any, said: str) -> None:
    ptx, launch, args = build(edit)
    verdict = machine.check(ptx, launch, args, schedules=20)
    assert not verdict.ok
    advice = machine.advise(ptx, launch, build(edit)[2], verdict, schedules=5)
    assert advice is not None and said in advice.text, advice
    assert advice.text in verdict.hazards[0].render() and verdict.to_json()["advice"] == advice.text
    assert is_subsequence(opcodes(ptx), opcodes(advice.ptx))
    _, _, again = build(edit)
    assert machine.check(advice.ptx, launch, again, schedules=5).ok
    sound, _, right = build(lambda p: p)
    machine.check(sound, launch, right, schedules=1)
    for name, value in again.items():
        array, wanted = getattr(value, "array", value), getattr(right[name], "array", right[name])
        if isinstance(array, np.ndarray):
            assert np.allclose(array.astype(float), wanted.astype(float), atol=1e-2), name


def test_a_bug_that_no_synchronisation_cures_keeps_its_fix() -> None:
    launch = {"grid": 4, "block": 256}
    args = {"values": np.zeros(1000, np.float32), "sums": np.zeros(4, np.float32)}
    fixed = BROKEN.replace("  @%p1 bra NEXT;\n", "")
    verdict = machine.check(fixed, launch, args)
    assert [h.code for h in verdict.hazards] == ["out-of-bounds"]
    assert machine.advise(fixed, launch, args, verdict, schedules=2, trials=20) is None
    assert "predicate the access" in verdict.hazards[0].remedy and not verdict.advice


def test_a_repair_that_leaves_wrong_results_is_no_cure() -> None:
    launch = {"grid": 4, "block": 256}

    def args() -> dict[str, Any]:
        return {"values": np.arange(1024, dtype=np.float32), "sums": np.zeros(4, np.float32)}

    verdict = machine.check(BROKEN, launch, args())
    wrong = {"sums": np.ones(4, np.float32)}
    assert machine.advise(BROKEN, launch, args(), verdict, wanted=wrong, schedules=2, trials=10) is None
    assert machine.advise(BROKEN, launch, args(), verdict, schedules=2) is not None


def test_other_entries_are_blanked_in_place() -> None:
    other = "\n.visible .entry other(.param .u64 p)\n{\n { ret; }\n}\n"
    two = BROKEN + other
    short = without_other_entries(two, "block_sum")
    assert len(short) == len(two) and short.startswith(BROKEN) and not short[len(BROKEN) :].strip()
    assert without_other_entries(two, "other").rstrip().endswith(other.strip())
    assert list(parse(without_other_entries(two, "other")).entries) == ["other"]


def test_the_command_line_advises_a_fix_that_works(tmp_path: Path) -> None:
    path = tmp_path / "k.ptx"
    path.write_text(BROKEN)
    options = [
        "--grid",
        "4",
        "--block",
        "256",
        "--arg",
        "f32[1024]=random",
        "--arg",
        "f32[4]=out",
        "--schedules",
        "5",
    ]
    result = CliRunner().invoke(main, ["check", str(path), *options])
    assert result.exit_code == 1 and "with it, 5 schedules find no hazard" in result.output
    result = CliRunner().invoke(main, ["check", str(path), *options, "--no-advice"])
    assert result.exit_code == 1 and "schedules find no hazard" not in result.output
