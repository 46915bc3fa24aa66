"""Resource limits of a machine run, and refused arguments."""

from __future__ import annotations

import gc
import random
import tracemalloc
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.effort import calls
from tilemma import machine
from tilemma.errors import TilemmaError
from tilemma.machine import finished, limits, scheduler
from tilemma.machine.hazards import HazardError
from tilemma.machine.problems import MachineLimit

HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"
EMPTY = HEAD + ".visible .entry f() { ret; }"
ONE = {"grid": (1, 1, 1), "block": (32, 1, 1)}


def body(text: str, parameters: str = "", module: str = "") -> str:
    return f"{HEAD}{module}\n.visible .entry f({parameters}) {{\n{text}\nret;\n}}\n"


def peak(work: Any) -> int:
    """The most memory that ``work`` needs, where garbage is collected as often as Python does by itself."""
    often = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        gc.set_threshold(*often)


def test_finished_ctas_are_freed() -> None:
    def run(ctas: int) -> int:
        return peak(lambda: machine.run(EMPTY, {**ONE, "grid": (ctas, 1, 1)}, {}))

    run(10)
    assert run(1000) < run(200) + 450_000


ADDRESS = ".reg .b64 %p<3>; .reg .b32 %r<4>; ld.param.u64 %p1, [out]; mov.u32 %r1, %ctaid.x;"
OWN = ADDRESS + "mul.wide.u32 %p2, %r1, 4; add.u64 %p1, %p1, %p2;"
FLAG = ".shared .b32 s; st.shared.u32 [s], %r1; atom.acq_rel.cta.shared.add.u32 %r2, [s], 1;"
LOOP = """mov.u32 %r2, 0; .reg .pred %q;
    L: ld.global.u32 %r3, [%p1]; add.u32 %r2, %r2, 1; setp.lt.u32 %q, %r2, 50; @%q bra L;"""
# Bytes of each finished CTA beside the shadow of global memory, at most.
TOUCHES = {
    "regions of their own": (OWN + "st.global.u32 [%p1], %r1;", 2500),
    "regions of their own, often": (OWN + LOOP + "st.global.u32 [%p1], %r1;", 3000),
    "one region, read": (ADDRESS + "ld.global.u32 %r2, [%p1];", 200),
    "one region, read often": (ADDRESS + LOOP, 200),
    "one counter": (ADDRESS + "atom.global.add.u32 %r2, [%p1], 1;", 200),
    "one counter that orders": (ADDRESS + "atom.acq_rel.gpu.global.add.u32 %r2, [%p1], 1;", 200),
    "flags in shared memory": (ADDRESS + FLAG + "ld.global.u32 %r2, [%p1];", 200),
}


@pytest.mark.parametrize("touch", TOUCHES)
def test_what_races_need_of_finished_ctas_is_small(touch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finished, "_FIRST", 10_000)
    monkeypatch.setattr(scheduler, "RESIDENT", 64)
    code, most = TOUCHES[touch]
    text = body(code, ".param .u64 out")

    def run(ctas: int) -> int:
        launch = {**ONE, "grid": (ctas, 1, 1), "block": (1, 1, 1)}
        return peak(lambda: machine.run(text, launch, {"out": np.zeros(900, np.uint32)}, schedule="starve"))

    run(10)
    assert (run(400) - run(150)) / 250 < most


@pytest.mark.parametrize("order", ["acq_rel", "relaxed"])
def test_what_is_known_of_finished_ctas_is_known_after_collections(
    order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each CTA writes a result of its own; the last to draw a ticket reads all of them."""
    monkeypatch.setattr(finished, "_FIRST", 0)
    monkeypatch.setattr(finished, "_SHADOW", 1 << 40)
    monkeypatch.setattr(scheduler, "RESIDENT", 64)
    code = (
        OWN
        + f"""st.global.u32 [%p1+4], 7; ld.param.u64 %p1, [out];
    atom.{order}.gpu.global.add.u32 %r2, [%p1], 1;
    .reg .pred %q; setp.ne.u32 %q, %r2, 39; @%q bra E; mov.u32 %r1, 0;
    L: ld.global.u32 %r3, [%p1+4]; add.u64 %p1, %p1, 4; add.u32 %r1, %r1, %r3; add.u32 %r2, %r2, -1;
    setp.ge.s32 %q, %r2, 0; @%q bra L; ld.param.u64 %p1, [out]; st.global.u32 [%p1+164], %r1; E:"""
    )
    out = np.zeros(42, np.uint32)

    def run() -> None:
        launch = {**ONE, "grid": (40, 1, 1), "block": (1, 1, 1)}
        machine.run(body(code, ".param .u64 out"), launch, {"out": out})

    if order == "acq_rel":
        run()
        assert out[41] == 7 * 40
    else:
        with pytest.raises(HazardError, match="race") as caught:
            run()
        assert "CTA" in str(caught.value)


@pytest.mark.parametrize("room", [0, 1 << 30])
def test_races_with_finished_ctas_are_still_found(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finished, "_FIRST", room)
    monkeypatch.setattr(finished, "_SHADOW", 1 << 40)
    text = body(".reg .b64 %p; ld.param.u64 %p, [out]; st.global.u32 [%p], 7;", ".param .u64 out")
    with pytest.raises(HazardError, match="race"):
        machine.run(text, {**ONE, "grid": (300, 1, 1)}, {"out": np.zeros(1, np.uint32)})


def test_large_grids_are_not_listed() -> None:
    for grid in ((2**31 - 1, 1, 1), (2**31 - 1, 65535, 65535)):
        with pytest.raises(HazardError):
            calls(partial(machine.run, EMPTY, {**ONE, "grid": grid}, {}, max_steps=500), 3_000_000)


@pytest.mark.parametrize("total", [1, 2, 7, limits.SHUFFLED, limits.SHUFFLED + 1, limits.SHUFFLED * 2 + 3])
def test_every_cluster_starts_once(total: int) -> None:
    for shuffle in (False, True):
        found = np.array(list(limits.cluster_order(total, shuffle, random.Random(3))))
        assert (np.sort(found) == np.arange(total)).all()


TOO_MUCH = {
    "local": body(".local .b8 x[1000000000000];"),
    "local array of arrays": body(".local .b8 x[1000000][1000000];"),
    "much local in all": body("".join(f".local .b8 x{i}[500000];" for i in range(300))),
    "param": body("", ".param .b8 x[1000000000000]"),
    "params": body("", ", ".join(f".param .b8 x{i}[30000]" for i in range(3))),
    "global": body("", "", ".global .b8 x[1000000000000];"),
    "const": body("", "", ".const .b8 x[1000000];"),
    "shared": body(".shared .b8 x[1000000000000];"),
    "negative": body(".local .b8 x[-5];"),
    "alignment": body(".local .align 1099511627776 .b8 x[5];"),
    "no alignment": body(".local .align 0 .b8 x[5];"),
    "odd alignment": body("", ".param .align 3 .b8 x[5]"),
    "digits": body(".local .b8 x[" + "9" * 100_000 + "];"),
    "braces": body("", "", ".global .b32 x[2] = " + "{" * 100_000 + "1" + "}" * 100_000 + ";"),
    "blocks": body("{" * 100_000 + "}" * 100_000),
    "vectors": body("mov.b32 " + "{" * 100_000 + ";"),
    "signs": body("mov.b32 r, " + "-" * 100_000 + "1;"),
    "parentheses": body("", "", ".global .b32 x = " + "(" * 100_000 + "1" + ")" * 100_000 + ";"),
    "text": " " * (limits.MAX_TEXT + 1),
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_MUCH)
def test_too_much_is_refused(name: str) -> None:
    launch = {**ONE, "block": (1024, 1, 1)} if name == "much local in all" else ONE
    with pytest.raises(TilemmaError) as caught:
        machine.run(TOO_MUCH[name], launch, {})
    assert "mistake in tilemma" not in str(caught.value)


PRINT = """.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.global .align 1 .b8 text[{size}] = {{{bytes}}};"""


@pytest.mark.parametrize(
    "text", ["%999999999d", "%.999999999f", "%0" + "0" * 50_000 + "d", "%" + "9" * 5000 + "d"]
)
def test_widths_of_prints_are_limited(text: str) -> None:
    raw = text.encode() + b"\0"
    module = PRINT.format(size=len(raw), bytes=", ".join(map(str, raw)))
    code = """.local .align 8 .b8 room[8]; .reg .b64 %p<4>; .reg .b32 %r<2>;
    mov.u64 %p1, room; cvta.local.u64 %p1, %p1; mov.u64 %p2, text; cvta.global.u64 %p2, %p2;
    mov.b64 %p3, 1; st.local.b64 [room], %p3;
    { .param .b64 a; st.param.b64 [a], %p2; .param .b64 b; st.param.b64 [b], %p1; .param .b32 r;
      call.uni (r), vprintf, (a, b); ld.param.b32 %r1, [r]; }"""
    try:
        report = machine.run(body(code, "", module), {**ONE, "block": (1, 1, 1)}, {})
    except MachineLimit as limit:
        assert "vprintf" in limit.message
    else:
        assert len(report.printed) < 100_000 and text.startswith("%00")


@pytest.mark.parametrize(
    "launch",
    [
        {"grid": (1, 1, 1), "block": (-32, -1, 1)},
        {"grid": (1, 1, 1), "block": (2, -1, -16)},
        {"grid": (1, 1, 1), "block": (0, 1, 1)},
        {"grid": (2**31, 1, 1), "block": 32},
        {"grid": (1, 65536, 1), "block": 32},
        {"grid": (-1, 1, 1), "block": 32},
        {"grid": (32, 1, 1), "block": 32, "cluster": (32, 1, 1)},
        {"grid": "123", "block": 32},
        {"grid": None, "block": 32},
        {"grid": (1, 1, 1, 1), "block": 32},
        {"grid": (), "block": 32},
        {"grid": 1.5, "block": 32},
        {"grid": True, "block": 32},
        {"grid": [1, [2]], "block": 32},
        {"grid": range(10**12), "block": 32},
        {"grid": 1, "block": 32, "shared": -1},
        {"grid": 1, "block": 32, "shared": "x"},
        {"grid": 1, "block": 32, "shared": 10**30},
        {"grid": 1, "block": 32, "cluster": "x"},
        {"grid": 1, "block": 32, "arch": 5},
        {"grid": 1, "block": 32, "arch": "x"},
        {"grid": 1, "block": 32, "arch": "sm_" + "9" * 5000},
        {"grid": 1, "block": 32, "entry": 5},
        {"grid": 1, "block": 32, "entry": []},
        {"grid": 1, "block": 32, "read_only": 5},
        {"grid": 1, "block": 32, "read_only": [[]]},
        {"arguments": []},
        {"arguments": 5, "entry": "f"},
        {5: 6, "grid": 1, "block": 32},
        {},
    ],
    ids=str,
)  # fmt: skip
def test_odd_launches_are_refused(launch: dict[Any, Any]) -> None:
    with pytest.raises(TilemmaError):
        machine.run(EMPTY, launch, {})


@pytest.mark.parametrize(
    "ptx, launch, args, options",
    [
        (None, ONE, {}, {}),
        (b"x", ONE, {}, {}),
        (EMPTY, None, {}, {}),
        (EMPTY, [], {}, {}),
        (EMPTY, ONE, None, {}),
        (EMPTY, ONE, [], {}),
        (EMPTY, ONE, {1: 2}, {}),
        (EMPTY, ONE, {}, {"seed": "x"}),
        (EMPTY, ONE, {}, {"seed": 1.5}),
        (EMPTY, ONE, {}, {"schedule": 5}),
        (EMPTY, ONE, {}, {"schedule": []}),
        (EMPTY, ONE, {}, {"max_steps": None}),
        (EMPTY, ONE, {}, {"max_steps": 0}),
        (EMPTY, ONE, {}, {"strict": "no"}),
        (EMPTY, ONE, {}, {"arch": 90}),
        (EMPTY, ONE, {}, {"arch": "sm_90a; rm"}),
    ],
)
def test_wrong_types_are_refused_as_python_expects(
    ptx: Any, launch: Any, args: Any, options: dict[str, Any]
) -> None:
    for function in (machine.run, machine.check):
        if function is machine.check and "schedule" in options:
            continue
        with pytest.raises((TypeError, ValueError)) as caught:
            function(ptx, launch, args, **options)
        assert isinstance(caught.value, TilemmaError)


@pytest.mark.parametrize("schedules", [0, -1, None, "3", 1.5, True])
def test_a_check_runs_at_least_once(schedules: Any) -> None:
    with pytest.raises(ValueError, match="schedules"):
        machine.check(EMPTY, ONE, {}, schedules=schedules)


@pytest.mark.parametrize(
    "access", ["ld.global.u32 %r1, [%p2];", "st.u32 [%p2], %r1;", "ld.global.v4.u32 {%r1, %r2, %r3, %r1}, [%p2];"]
)
@pytest.mark.parametrize(
    "first, step", [(-1, 0), (-4, 0), (-128, 4), (-(2**63), 4), (2**63 - 64, 4), (-64, 2**40)]
)
def test_addresses_are_unsigned_and_wrap(access: str, first: int, step: int) -> None:
    code = f"""{{ .reg .b64 %p<3>; .reg .b32 %r<4>; ld.param.u64 %p1, [at]; mov.u32 %r1, %tid.x;
        cvt.u64.u32 %p2, %r1; mul.lo.u64 %p2, %p2, {step}; add.u64 %p2, %p1, %p2; {access} }}"""
    found = machine.run(body(code, ".param .u64 at"), ONE, {"at": first % 2**64}, collect=True).hazards
    assert {h.code for h in found} <= {"out-of-bounds", "misaligned"} and found
