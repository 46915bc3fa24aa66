"""The pipelined examples with one of their own waits, triggers, swaps or commits left out.

The compiler refuses the program, or the machine convicts it.  The exceptions are remarks: `mma.commit`, whose
wait the compiler places anyway, and the trigger of an event that its copies complete by themselves; without them
the program means the same, and has to stay right.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from configurations import EXAMPLES
from pipeline_runs import close, problem

from tilemma import compiler, machine
from tilemma.compiler import compile_kernel, default_facts, with_facts
from tilemma.errors import TilemmaError
from tilemma.ir.printer import print_op
from tilemma.ir.tile import (
    Commit,
    Copy,
    Kernel,
    MmaWait,
    Op,
    SwapFutures,
    Sync,
    TriggerEvent,
    WaitEvent,
    WaitFuture,
)
from tilemma.ir.walk import rewrite, walk
from tilemma.modules import load_python
from tilemma.targets.cpu.event_simulation import simulate_events

SYNCHRONISES = (WaitEvent, TriggerEvent, WaitFuture, SwapFutures, Commit, MmaWait, Sync)
SMALL = {"STAGES": 2, "TILE_N": 128, "GRID": 1}
# Several turns of each ring, and several tiles where blocks stay.
EXAMPLE = [
    ("double_buffer", {}, "sm_80", (64, 136, 328)),
    ("double_buffer", {}, "sm_90a", (64, 136, 328)),
    ("multistage", {}, "sm_80", (64, 136, 328)),
    ("event_pipeline", {}, "sm_80", (64, 128, 200)),
    ("event_pipeline", {}, "sm_90a", (64, 128, 328)),
    ("tma_pipeline", {}, "sm_90a", (128, 128, 328)),
    ("warp_specialized", {"STAGES": 2, "CONSUMERS": 2, "TILE_N": 128}, "sm_90a", (128, 128, 328)),
    ("persistent", {**SMALL, "CONSUMERS": 2, "CLUSTER": 1, "RASTER": 2}, "sm_90a", (128, 256, 200)),
    ("multicast", {**SMALL, "CONSUMERS": 1}, "sm_90a", (128, 256, 200)),
    ("pingpong", SMALL, "sm_90a", (136, 264, 200)),
]


def source(name: str, settings: dict[str, int]) -> Kernel:
    kernel = load_python(EXAMPLES / "py" / f"{name}.py").only().source.build(settings)
    return with_facts(kernel, default_facts(kernel))


def remark(op: Op, kernel: Kernel) -> bool:
    """Whether the program means the same without ``op``."""
    if isinstance(op, Commit):
        return True
    bound = {x.event.event.name for x in walk(kernel.body) if isinstance(x, Copy) and x.event is not None}
    return isinstance(op, TriggerEvent) and op.event.event.name in bound


def verdict(kernel: Kernel, arch: str, shape: tuple[int, int, int], schedules: list[tuple[str, int]]) -> str:
    """Empty when nothing was found; otherwise who found what."""
    try:
        compiled = compile_kernel(kernel, arch)
    except TilemmaError as error:
        assert error.span is not None and error.code != "compiler-failure", error
        return f"refused: {error.code}"
    (launch,) = compiled.launches
    for schedule, seed in schedules:
        arrays, want = problem(kernel, shape)
        try:
            report = machine.run(compiled.ptx, launch, arrays, seed=seed, schedule=schedule, strict=True)
        except TilemmaError as error:
            return f"convicted: {error.code}"
        if not report.ok or report.letter:
            return f"convicted: {report}"
        assert close(arrays["output"], want), "wrong, and nobody noticed"
    return ""


def alarm(kernel: Kernel) -> str:
    """What the event simulation refuses."""
    try:
        simulate_events(kernel)
    except TilemmaError as error:
        return error.code
    return ""


@pytest.mark.parametrize(("name", "settings", "arch", "shape"), EXAMPLE, ids=[f"{e[0]}-{e[2]}" for e in EXAMPLE])
def test_nothing_can_be_left_out(name, settings, arch, shape, monkeypatch):
    # The machine convicts by itself what the event simulation refuses.
    monkeypatch.setattr(compiler, "CHECKS", tuple(c for c in compiler.CHECKS if c is not compiler.events_end))
    kernel = source(name, settings)
    found = {}
    for op in [x for x in walk(kernel.body) if isinstance(x, SYNCHRONISES)]:
        without = replace(kernel, body=rewrite(kernel.body, lambda x, op=op: () if x is op else x))
        same = remark(op, kernel)
        schedules = [("random", 1)] if same else [("late", 1), ("random", 2), ("early", 3), ("random", 4)]
        found[f"{op.span}: {print_op(op)}"] = (said := verdict(without, arch, shape, schedules), same)
        assert said or not alarm(without), "a false alarm"
    assert len(found) >= 3
    assert {k: v for k, (v, same) in found.items() if not v and not same} == {}
    # Operations that only annotate the program may be missing; an event may then never complete.
    odd = {k: v for k, (v, same) in found.items() if v and same and ": event-" not in v and ": deadlock" not in v}
    assert odd == {}
