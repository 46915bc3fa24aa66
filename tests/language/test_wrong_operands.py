"""Each construct of the table with a wrong operand in each place: one verdict and one code in both languages."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import numpy as np
import pytest
from test_operands import co, py

from tilemma.errors import CompileError, LaunchError
from tilemma.ir.canonical import canonical
from tilemma.ir.constructs import CONSTRUCTS, KINDS, Construct
from tilemma.kernels import Kernel
from tilemma.targets.cpu.faults import ProgramFault

# Operand -> (Croqtile, Python).
OPERANDS = {
    "tile": ("b", "b"),
    "array of tiles": ("sa", "sa"),
    "tile not chosen": ("b.chunk(2, 2)", "b.chunk(2, 2)"),
    "first tile": ("b.subspan(4, 4)", "b.subspan(4, 4)"),
    "window not placed": ("b.view(4, 4)", "b.view(4, 4)"),
    "element of floats": ("c.at(0, 0)", "c[0, 0]"),
    "element of integers": ("ks.at(0)", "ks[0]"),
    "index": ("i0", "i0"),
    "integer": ("n", "n"),
    "constant integer": ("1", "1"),
    "float": ("x", "x"),
    "constant float": ("1.5f", "1.5"),
    "condition": ("(n > 0)", "(n > 0)"),
    "truth value": ("true", "True"),
    "event": ("e", "e"),
    "array of events": ("ea", "ea"),
    "event of an array": ("ea[0]", "ea[0]"),
    "future": ("f", "f"),
    "synchronous copy": ("g", "g"),
    "future of a multiply": ("fm", "fm"),
    "register tile": ("m", "m"),
    "array of register tiles": ("ra", "ra"),
    "shape": ("b.span", "b.shape"),
    "tuple": ("{1, 2}", "(1, 2)"),
    "string": ('"text"', '"text"'),
    "whole dimension": ("_", "full"),
}
# What stands for the operands of a kind that is right.
RIGHT = {
    "scalar": "integer", "integer": "integer", "condition": "condition", "index": "index", "element": "element of integers",
    "tile": "tile", "scale": "float", "operand": "tile", "register tile": "register tile", "event": "event", "future": "future",
    "event or future": "event", "copy": "synchronous copy", "extent": "constant integer",
}  # fmt: skip
# Names -> what declares them in Croqtile and in Python, the futures among them awaited after the construct.
DECLARED = {
    "s": ("shared f16 [64, 64] s;", "s = shared('f16', 64, 64)"),
    "sa": ("shared f16 [4, 4] sa[2];", "sa = shared('f16', 4, 4, copies=2)"),
    "ks": ("shared s32 [4] ks;", "ks = shared('s32', 4)"),
    "v": ("mutable s32 v = n;", "v = var(n)"),
    "e": ("shared event e = ready;", "e = event(ready=True)"),
    "ea": ("shared event ea[2];", "ea = event(2)"),
    "f": ("f = dma.copy.async b => shared;", "f = dma.copy(b, to='shared', async_=True)"),
    "g": ("g = dma.copy b => shared;", "g = dma.copy(b, to='shared')"),
    "m": ("frag f32[64, 64] m {0.0f};", "m = mma.frag('f32', 64, 64, init=0.0)"),
    "ra": ("frag f32[64, 64] ra[2] {0.0f};", "ra = mma.frag('f32', 64, 64, copies=2, init=0.0)"),
    "h": ("h = mma.load b;", "h = mma.load(b)"),
    "fm": ("m = mma.fill.f32 0.0f; fm = mma.row.row.async m, b, b;",
           "m = mma.fill(0.0, 'f32'); fm = mma.row.row(m, b, b, async_=True)"),
}  # fmt: skip


def programs(c: Construct, operands: list[str]) -> tuple[str, str]:
    """The statements of both languages."""
    texts = []
    for language, form in enumerate((c.croqtile, c.python)):
        letters = dict(zip("ABCD", (OPERANDS[o][language] for o in operands), strict=False))
        text = re.sub(r"\b[ABCD]\b", lambda m: letters[m[0]], form)
        used = [
            n for n in DECLARED if re.search(rf"\b{n}\b", text) and not (n == "m" and re.search(r"\bfm\b", text))
        ]
        before = [DECLARED[n][language] for n in used]
        expression = not c.croqtile.endswith((";", "}"))
        if expression and c.croqtile.startswith("b."):
            text = f"z = {text}"
        elif expression:
            text = f"c.at(0, 0) = {text}" if language == 0 else f"c[0, 0] = {text}"
        if language == 0:
            text = text.replace("{ }", "{ break; }" if "while" in text else "{ c.at(1, 0) = 1.0f; }")
            text = (
                "foreach i0 in 2 { "
                + " ".join([*before, text if text.endswith("}") else text.rstrip(";") + ";"])
                + " }"
            )
        else:
            body = "break_()" if "while" in text else "c[1, 0] = 1.0"
            lines = [*before, text, *([f"    {body}"] if text.endswith(":") else [])]
            text = "for i0 in foreach(2):\n" + "\n".join("    " + line for line in lines)
        texts.append(text)
    return texts[0], texts[1]


def outcome(make: Any, text: str) -> Any:
    try:
        return canonical(make(text).traced())
    except CompileError as e:
        assert e.span is not None and e.remedy and e.expectation, e.render()
        return e.code


def outcomes(c: Construct, operands: list[str]) -> tuple[Any, Any]:
    texts = programs(c, operands)
    return outcome(co, texts[0]), outcome(py, texts[1])


# What a language's own operators do with its own values, and forms that only one language has.
PYTHONS_OWN = {"shape", "tuple", "string", "constant float"}
ONE_LANGUAGE = {("~A", "condition"), ("~A", "truth value"), ("tma.copy.async<A> b => s;", "truth value")}


def comparable(c: Construct, operand: str) -> bool:
    unary = c.croqtile in ("-A", "~A")
    # `a + {1, 2}`: the grammar has a tuple only as the first operand, where it is an operation on tuples.
    tuples = operand == "tuple" and (c.croqtile.startswith("A ") or c.croqtile == "#A")
    return (c.croqtile, operand) not in ONE_LANGUAGE and not (unary and operand in PYTHONS_OWN) and not tuples


ARCHS = ("sm_80", "sm_90a")
# Rules of an architecture: (code, architecture) -> the reason.
OF_AN_ARCHITECTURE = {("tma-refused", "sm_80"): "no tensor copy engine before sm_90"}


def refusals(kernel: Kernel) -> dict[str, str]:
    """Target -> the code of its refusal, "" where it accepts the program.

    Faults and checks of a launch depend on the arguments: they refuse no program.
    """
    found = dict.fromkeys(("cpu", *ARCHS), "")
    try:
        kernel.on("cpu")(np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float32), 1, 1.0)
    except (ProgramFault, LaunchError):
        pass
    except CompileError as e:
        found["cpu"] = e.code
    for arch in ARCHS:
        try:
            assert kernel.compile(arch).ptx
        except CompileError as e:
            found[arch] = "" if (e.code, arch) in OF_AN_ARCHITECTURE else e.code
    return found


def accepted(cases: list[tuple[Construct, int, str]]) -> dict[Any, Kernel]:
    """Those programs that the front ends accept, by their tile IR."""
    found: dict[Any, Kernel] = {}
    for c, place, operand in cases:
        operands = [RIGHT[k] for k in c.kinds]
        operands[place] = operand
        for make, text in zip((co, py), programs(c, operands), strict=True):
            kernel = make(text)
            try:
                found.setdefault(canonical(kernel.traced()), kernel)
            except CompileError:
                continue  # Refused before any target.
    return found


def check_targets(cases: list[tuple[Construct, int, str]]) -> None:
    for program, kernel in accepted(cases).items():
        codes = refusals(kernel)
        assert len(set(codes.values())) == 1, (program, codes)


def wrong(count: int | None) -> list[tuple[Construct, int, str]]:
    """(construct, place, operand): for each place ``count`` operands of a fixed random choice, or all."""
    chosen = []
    for c in CONSTRUCTS:
        for place in range(len(c.kinds)):
            operands = [o for o in OPERANDS if comparable(c, o)]
            if count is not None:
                operands = Random(f"{c.croqtile} {place}").sample(operands, count)
            chosen += [(c, place, o) for o in operands]
    return chosen


def check(c: Construct, place: int, operand: str) -> None:
    operands = [RIGHT[k] for k in c.kinds]
    operands[place] = operand
    one, other = outcomes(c, operands)
    codes = [x if isinstance(x, str) else "accepted" for x in (one, other)]
    assert codes[0] == codes[1], (programs(c, operands), codes)


def test_every_kind_is_in_the_table() -> None:
    assert {k for c in CONSTRUCTS for k in c.kinds} == set(KINDS) == set(RIGHT)


@pytest.mark.parametrize("c", CONSTRUCTS, ids=lambda c: c.croqtile)
def test_the_right_operands_are_accepted(c: Construct) -> None:
    """By both languages, so that a refusal below is one of the wrong operand."""
    for found in outcomes(c, [RIGHT[k] for k in c.kinds]):
        assert not isinstance(found, str), (programs(c, [RIGHT[k] for k in c.kinds]), found)


@pytest.mark.parametrize("part", range(4))
def test_one_verdict_and_one_code(part: int) -> None:
    for case in wrong(5)[part::4]:
        check(*case)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_one_verdict_and_one_code_for_all_operands(part: int) -> None:
    for case in wrong(None)[part::20]:
        check(*case)


def test_one_verdict_and_one_code_on_every_target() -> None:
    """What the front ends accept: the constructs of events and copies, and one operand of each place else."""
    effects = [case for case in wrong(None) if re.match(r"wait|trigger|tma|swap", case[0].croqtile)]
    check_targets(effects + wrong(1))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_one_verdict_on_every_target_for_all_operands(part: int) -> None:
    check_targets(wrong(None)[part::20])


CALLS = [
    c
    for c in CONSTRUCTS
    if re.fullmatch(r"(select|cdiv|tm.math\.\w+|atomic\.\w+|mma\.(row.row|store|scale))\(A.*\)", c.python)
]


@pytest.mark.parametrize("c", CALLS, ids=lambda c: c.croqtile)
def test_the_number_of_arguments(c: Construct) -> None:
    """One too few and one too many are refused with one code, in Python too, where Python itself finds it."""
    last = "ABCD"[len(c.kinds) - 1]
    for old, new in ((f", {last}" if last != "A" else "A", ""), (last, f"{last}, {last}")):
        fewer = Construct(
            *(
                form[: form.rindex(old)] + new + form[form.rindex(old) + len(old) :]
                for form in (c.croqtile, c.python)
            ),
            c.kinds,
        )
        assert outcomes(fewer, [RIGHT[k] for k in c.kinds]) == ("wrong-arity", "wrong-arity"), fewer
