"""Bad input: an error of the family with the line, never a hang or a traceback."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernels import header
from test_kernels import ampere, hopper

from tilemma import machine
from tilemma.errors import TilemmaError
from tilemma.launch import ArrayParam, BadPlan, Launch, PointerArgument, ScalarParam, ValueArgument
from tilemma.machine import call as machine_call
from tilemma.machine.catalogue import NotInTarget
from tilemma.machine.lexer import PtxSyntax
from tilemma.machine.parser import parse
from tilemma.machine.problems import BadMachineCall, BadOperand, UnsupportedInstruction

BODY = """.visible .entry k(.param .u64 x, .param .u32 n)
{
  .reg .b32 %r<4>; .reg .b64 %d; .reg .pred %p;
  ld.param.u64 %d, [x];
  mov.u32 %r0, %ntid.x;
  st.global.b32 [%d], %r0;
  ret;
}
"""


def program(old: str = "", new: str = "") -> str:
    assert old in BODY
    return header("7.0", "sm_80") + BODY.replace(old, new, 1)


SYNTAX = [
    ("mov.u32 %r0, %ntid.x;", "mov.u32 %r0 %ntid.x;", 8, "expected `,` or `;`"),
    ("mov.u32 %r0, %ntid.x;", "mov.u32 %r9, %ntid.x;", 8, "`%r9` is not declared"),
    ("mov.u32 %r0, %ntid.x;", "bra NOWHERE;", 8, "no label `NOWHERE`"),
    ("mov.u32 %r0, %ntid.x;", "@%r0 bra X;", 8, "no predicate register"),
    ("ret;\n}", "ret;\n", 12, "never ends"),
    ("mov.u32", "mov.u32 \x01", 8, "starts no PTX token"),
    ("mov.u32", "/* never", 8, "comment that never ends"),
    (".reg .b32", ".reg .q32", 6, "no PTX type"),
]


@pytest.mark.parametrize(("old", "new", "line", "what"), SYNTAX)
def test_malformed_text_names_the_line(old: str, new: str, line: int, what: str) -> None:
    with pytest.raises(PtxSyntax) as caught:
        machine.run(program(old, new), {"grid": 1, "block": 32}, {"d": np.zeros(32, np.float32)})
    assert caught.value.span is not None
    assert caught.value.span.line == line
    assert what in caught.value.message


def test_text_without_a_target() -> None:
    with pytest.raises(PtxSyntax, match="lacks"):
        parse(BODY)


REFUSED = [
    ("mov.u32 %r0, %ntid.x;", "tcgen05.fence::before_thread_sync;", UnsupportedInstruction),
    ("mov.u32 %r0, %ntid.x;", "mov.u32 %r0, %ntid.x, %r1;", BadOperand),
    ("mov.u32 %r0, %ntid.x;", "add.u32 %r0, %d, %r1;", BadOperand),
    ("mov.u32 %r0, %ntid.x;", "st.global.v8.b32 [%d], {%r0, %r1};", NotInTarget),
    ("mov.u32 %r0, %ntid.x;", "ld.global.b32 %r0, %r1;", BadOperand),
    ("mov.u32 %r0, %ntid.x;", "call.uni f;", UnsupportedInstruction),
    ("mov.u32 %r0, %ntid.x;", "ld.global.v4.u32 {%r0, %r1, %r0}, [%d];", BadOperand),
    ("mov.u32 %r0, %ntid.x;", "cvt.u64.u32 %r0, %r1;", BadOperand),
    ("mov.u32 %r0, %ntid.x;", "ld.global.u32 {%r0, %r1}, [%d];", BadOperand),
    ("mov.u32 %r0, %ntid.x;", "st.global.v2.u32 [%d], %r0;", BadOperand),
    ("mov.u32 %r0, %ntid.x;", "tex.2d.v4.f32.s32 {%r0, %r1, %r0, %r1}, [%d, {%r0, %r1}];", UnsupportedInstruction),
    ("mov.u32 %r0, %ntid.x;", "elect.sync %r0|%p, -1;", machine.HazardError),
]


@pytest.mark.parametrize(("old", "new", "kind"), REFUSED, ids=[r[1] for r in REFUSED])
def test_what_is_not_modelled_is_refused_by_name(old: str, new: str, kind: type[TilemmaError]) -> None:
    with pytest.raises(kind) as caught:
        machine.run(program(old, new), {"grid": 1, "block": 32}, {"x": np.zeros(32, np.uint32), "n": 1})
    assert caught.value.span is not None
    assert caught.value.span.line == 8
    assert new.split()[0].rstrip(";") in caught.value.message


PLAIN = {"grid": 1, "block": 32}
ARRAY = np.zeros(32, np.uint32)
CALLS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"grid": 1}, {"x": ARRAY, "n": 1}, "lacks `grid` or `block`"),
    ({**PLAIN, "blocks": 1}, {"x": ARRAY, "n": 1}, "no field `blocks`"),
    ({**PLAIN, "block": 2000}, {"x": ARRAY, "n": 1}, "2000 threads"),
    ({**PLAIN, "shared": 1 << 20}, {"x": ARRAY, "n": 1}, "shared memory"),
    ({**PLAIN, "entry": "other"}, {"x": ARRAY, "n": 1}, "no entry `other`"),
    ({**PLAIN, "cluster": (2, 1, 1), "arch": "sm_90"}, {"x": ARRAY, "n": 1}, "in clusters of"),
    ({**PLAIN, "cluster": (2, 1, 1)}, {"x": ARRAY, "n": 1}, "on sm_80"),
    (PLAIN, {"x": ARRAY}, "1 argument for 2 parameters"),
    (PLAIN, {"x": 1, "n": ARRAY}, "an array for `n`"),
    (PLAIN, {"x": machine.TensorMap(ARRAY, (32,)), "n": 1}, "is a tensor map"),
]


@pytest.mark.parametrize(("launch", "args", "what"), CALLS, ids=[c[2] for c in CALLS])
def test_a_call_that_does_not_fit(launch: dict[str, Any], args: dict[str, Any], what: str) -> None:
    with pytest.raises(BadMachineCall) as caught:
        machine.run(program(), launch, args)
    assert what in caught.value.message


WRONG: list[Any] = [
    None, 1, 1.5, "x", [], [1, 2], (), {}, {"a": 1}, object(), np.float64(1), np.zeros(3), np.zeros(3, complex),
    np.array("a"), np.array([object()]), np.zeros(4, "M8[s]"), np.zeros(0, np.float32), np.array(1.0, np.float32),
    True, b"ab", "k.ptx", float("nan"), 10**30, -1, machine.TensorMap(np.zeros(4), (4,)),
    machine.TensorMap(None, (4,)),
    machine.Struct({}), machine.Struct({"a": 1}),  # type: ignore[dict-item]
    np.zeros(2, [("a", "i4")]), lambda: 0, {1, 2},
]  # fmt: skip
OPTIONS = ["arch", "seed", "schedule", "strict", "collect", "max_steps", "trace"]
PLACES = ["ptx", "launch", "args", *machine_call.FIELDS, "x", "n", *OPTIONS]


@pytest.mark.parametrize("place", PLACES)
def test_whatever_is_passed_is_answered_in_our_words(place: str) -> None:
    for wrong in WRONG:
        given: dict[str, Any] = {"ptx": program(), "launch": PLAIN, "args": {"x": ARRAY.copy(), "n": 1}}
        options: dict[str, Any] = {"max_steps": 20_000}
        if place in given:
            given[place] = wrong
        elif place in machine_call.FIELDS:
            given["launch"] = {**PLAIN, place: wrong}
        elif place in ("x", "n"):
            given["args"][place] = wrong
        else:
            options[place] = wrong
        try:
            machine.run(*given.values(), **options)
        except TilemmaError as error:
            assert error.render()


FLOATS = """.version 7.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y) {
  .reg .b64 %d<4>; .reg .b32 %r<4>;
  ld.param.u64 %d0, [x]; ld.param.u64 %d1, [y]; mov.u32 %r0, %tid.x; mul.wide.u32 %d2, %r0, 4;
  add.s64 %d0, %d0, %d2; add.s64 %d1, %d1, %d2; ld.global.b32 %r1, [%d0]; add.rn.f32 %r2, %r1, %r1;
  st.global.b32 [%d1], %r2; ret;
}
"""


@pytest.mark.parametrize("wrong", ["x", "y"])
def test_float64_where_the_kernel_computes_in_float32(wrong: str) -> None:
    args = {n: np.zeros(32, np.float64 if n == wrong else np.float32) for n in "xy"}
    with pytest.raises(BadMachineCall, match="holds float64") as caught:
        machine.run(FLOATS, PLAIN, args)
    assert f"`{wrong}`" in caught.value.message
    assert machine.run(FLOATS, PLAIN, {"x": ARRAY, "y": np.zeros(32, np.float32)}).ok


def plan(**changes: Any) -> Launch:
    fields: dict[str, Any] = {
        "entry": "k",
        "arch": "sm_80",
        "arrays": (ArrayParam("x", "u32", ("N",), True, alignment=4, contiguous=0),),
        "scalars": (ScalarParam("n", "u32"),),
        "arguments": (PointerArgument("x"), ValueArgument("n", "u32")),
        "grid": (("cdiv", "N", 32), 1, 1),
        "block": (32, 1, 1),
    }
    return Launch(**{**fields, **changes})


def test_a_launch_plan_and_its_json_are_the_same() -> None:
    for launch in (plan(), plan().to_json()):
        x = np.zeros(32, np.uint32)
        assert machine.run(program(), launch, {"x": x, "n": 1}).ok


PLANS = [
    (plan(), {"x": np.zeros(32, np.float32), "n": 1}, "holds float32"),
    (plan(), {"x": np.zeros((4, 8), np.uint32), "n": 1}, "2 dimensions"),
    (plan(), {"x": np.zeros(32, np.uint32)}, "`n` is missing"),
    (plan(), {"n": 1}, "`x` is missing"),
    (plan(), {"x": ARRAY, "n": 1, "m": 2}, "`m` is no parameter"),
    (plan(), {"x": np.zeros(64, np.uint32)[::2], "n": 1}, "not contiguous"),
    (plan(grid=("Q", 1, 1)), {"x": ARRAY, "n": 1}, "the name 'Q'"),
    (plan(checks=((("lt", "n", 4), "n must be below 4"),)), {"x": ARRAY, "n": 9}, "n must be below 4"),
    (plan(arguments=(PointerArgument("x"),)), {"x": ARRAY, "n": 1}, "1 argument"),
]


@pytest.mark.parametrize(("launch", "args", "what"), PLANS, ids=[p[2] for p in PLANS])
def test_arguments_that_do_not_fit_the_plan(launch: Launch, args: dict[str, Any], what: str) -> None:
    with pytest.raises(BadMachineCall) as caught:
        machine.run(program(), launch, args)
    assert what in caught.value.message


def test_unreadable_plan() -> None:
    good = plan().to_json()
    for broken in (
        {"arguments": [{"kind": "nothing"}]},
        {**good, "grid": [["mul", 2], 1, 1]},
        {**good, "grid": [True, 1, 1]},
        {**good, "arrays": [{"name": "x"}]},
        {**good, "more": 1},
    ):
        with pytest.raises(BadPlan, match="cannot be read"):
            machine.run(program(), broken, {})


def test_tensor_map_that_the_driver_would_refuse() -> None:
    ptx, launch, args = hopper(64, 64, 64)
    args["a"] = machine.TensorMap(np.zeros((64, 63), np.float16), (64, 64), 128)
    with pytest.raises(BadMachineCall, match="cannot be encoded"):
        machine.run(ptx, launch, args)


def test_missing_tensor_map() -> None:
    ptx, launch, args = hopper(64, 64, 64)
    # The kernel's own address arithmetic goes wrong: it takes the second parameter's address plus 8.
    broken = ptx.replace("cvta.param.u64 %tb, %tb;", "cvta.param.u64 %tb, %tb; add.s64 %tb, %tb, 8;")
    with pytest.raises(machine.HazardError) as caught:
        machine.run(broken, launch, args)
    assert "no tensor map" in caught.value.message


@pytest.mark.parametrize("seed", range(60))
def test_damaged_text_never_gives_a_traceback(seed: int) -> None:
    """Delete, double or swap pieces of working kernels: whatever comes is of the error family, or runs."""
    rng = random.Random(seed)
    ptx, launch, args = hopper(64, 64, 128) if seed % 2 else ampere(16, 16, 40)
    pieces = ptx.split(" ")
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(pieces))
        kind = rng.randrange(3)
        if kind == 0:
            del pieces[at]
        elif kind == 1:
            pieces.insert(at, pieces[rng.randrange(len(pieces))])
        else:
            pieces[at] = str(rng.choice([0, 1, -1, 7, 64, 1 << 40]))
    try:
        machine.check(" ".join(pieces), launch, args, schedules=1, max_steps=30_000)
    except TilemmaError as error:
        assert error.render()


def test_the_entry_that_is_wanted_is_read_as_among_all_others() -> None:
    """Bodies of other entries are passed over; one that never ends, or has directives of the module, is read."""
    text = (Path(__file__).parent / "corpus" / "ptx" / "matrix.ptx").read_text(encoding="utf-8")
    every = parse(text, "k")
    assert len(every.entries) > 1
    for name, entry in every.entries.items():
        module = parse(text, "k", only=name)
        assert module.entries[name] == entry
        assert module.entries.keys() == every.entries.keys()
        assert module.variables == every.variables
    head = ".version 8.0\n.target sm_80\n.address_size 64\n"
    with pytest.raises(TilemmaError, match="never ends"):
        parse(head + ".entry a() { ret; }\n.entry b() { {\n ret; }\n", "k", only="a")
    other = '.entry a() {\n.file 1 "a.cu"\n ret; }\n'
    located = parse(f"{head}{other}.entry b() {{\n.loc 1 7 1\n ret; }}\n", "k", only="b")
    location = located.entries["b"].instructions[0].location
    assert location is not None
    assert (location.file, location.line) == ("a.cu", 7)


@pytest.mark.parametrize("name", [3, {1: 2}, np.zeros(3)])
def test_the_name_of_the_text_is_text(name: Any) -> None:
    with pytest.raises(TilemmaError):
        machine.check("", {}, {}, name=name)


def test_an_error_of_the_callers_function_is_the_callers() -> None:
    ptx = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k() { .reg .b32 %r0; .reg .pred %p0; mov.u32 %r0, 0;
L: add.u32 %r0, %r0, 1; bar.sync 0; setp.lt.u32 %p0, %r0, 20000; @%p0 bra L; ret; }"""

    def progress(done: float, total: int) -> None:
        raise ZeroDivisionError("of the caller")

    with pytest.raises(ZeroDivisionError, match="of the caller"):
        machine.check(ptx, {"grid": 1, "block": 32}, {}, schedules=1, progress=progress)
