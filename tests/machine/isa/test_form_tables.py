"""The tables of modifiers and types against ptxas: both accept and refuse the same forms.

Every run draws some forms of each family; `-m slow`, by night, asks for all of them.
"""

from __future__ import annotations

import itertools
import random
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import form_candidates
import numpy as np
import pytest
from form_candidates import expanded
from harness import execute, ptx_for

from tests.toolchain import tool
from tilemma import machine
from tilemma.errors import TilemmaError
from tilemma.machine.isa import opcodes
from tilemma.machine.isa.opcodes import FORMS, refusal
from tilemma.machine.isa.rows import Row
from tilemma.machine.isa.synchronising import SYNCHRONISING
from tilemma.machine.parser import parse
from tilemma.machine.program import decode_program

HEAD = """.version 9.0
.target {arch}
.address_size 64
.visible .entry k()
{{
.reg .b16 %h<40>; .reg .b32 %r<40>; .reg .b64 %d<40>; .reg .pred %p<40>; .reg .b128 %q<40>;
"""
BITS = {"pred": 1, "tf32": 32}
BITS |= dict.fromkeys(("e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2", "ue8m0x2"), 16)
LETTERS = {1: "p", 8: "h", 16: "h", 32: "r", 64: "d", 128: "q"}
TYPES = (
    "b8", "b16", "b32", "b64", "b128", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f16", "bf16",
    "f16x2", "bf16x2", "f32", "f32x2", "f64", "u16x2", "s16x2", "pred",
)  # fmt: skip
FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64")
INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
ROUNDINGS = ("rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi")
TESTS = ("eq", "ne", "lt", "ge", "lo", "hs", "equ", "geu", "num", "nan")
# Instructions on registers, and how many sources they have.
SOURCES = {
    **dict.fromkeys(("add", "sub", "mul", "div", "min", "max", "rem", "copysign", "and", "or", "xor"), 2),
    **dict.fromkeys(("fma", "mad", "sad"), 3),
    **dict.fromkeys(("rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh", "neg", "abs", "not", "mov"), 1),
}  # fmt: skip


def width(kind: str) -> int:
    if kind in BITS:
        return BITS[kind]
    digits = re.findall(r"\d+", kind)
    return int(digits[0]) * (int(digits[1]) if len(digits) > 1 else 1)


def register(kind: str, number: int) -> str:
    return f"%{LETTERS[width(kind)]}{number}"


def vector(kind: str, length: int, first: int) -> str:
    names = [register(kind, first + i) for i in range(length)]
    return names[0] if length == 1 else "{" + ", ".join(names) + "}"


def subsets(items: tuple[str, ...], most: int) -> Iterator[tuple[str, ...]]:
    return itertools.chain.from_iterable(itertools.combinations(items, n) for n in range(most + 1))


def dotted(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def arithmetic() -> Iterator[str]:
    flags = ("approx", "full", "ftz", "sat", "relu", "NaN", "xorsign.abs")
    for (op, sources), kind in itertools.product(SOURCES.items(), TYPES):
        operands = ", ".join(register(kind, i) for i in range(sources + 1))
        choices = subsets(flags, 3) if kind in FLOATS else subsets(("sat", "relu", "hi", "lo"), 1)
        for chosen in choices:
            for rounding in ("", *ROUNDINGS[:5]) if kind in FLOATS else ("",):
                yield f"{dotted(op, rounding, *chosen, kind)} {operands};"


def conversions() -> Iterator[str]:
    scalars = (*INTEGERS, "f16", "bf16", "tf32", "f32", "f64")
    kinds = (*scalars, "f16x2", "bf16x2", "e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2", "ue8m0x2")
    for to, source in itertools.product(kinds, kinds):
        pair = to.endswith("x2") and source == "f32"
        operands = [register(source, 1)] * (2 if pair else 1)
        for rounding in ("", *ROUNDINGS):
            for chosen in subsets(("ftz", "sat", "relu", "satfinite"), 2):
                yield f"{dotted('cvt', rounding, *chosen, to, source)} {register(to, 0)}, {', '.join(operands)};"


def comparisons() -> Iterator[str]:
    for kind, test, ftz in itertools.product(TYPES, TESTS, ("", "ftz")):
        sources = f"{register(kind, 1)}, {register(kind, 2)}"
        yield f"{dotted('setp', test, ftz, kind)} %p0, {sources};"
        yield f"{dotted('setp', test, 'xor', ftz, kind)} %p0, {sources}, %p3;"
        for to in ("u32", "s32", "f32", "f16", "bf16", "u16", "f16x2", "bf16x2", "f64"):
            yield f"{dotted('set', test, ftz, to, kind)} {register(to, 0)}, {sources};"


def accesses() -> Iterator[str]:
    spaces = ("", "global", "shared", "shared::cluster", "local", "const")
    orders = ("", "weak", "volatile", "relaxed.gpu", "acquire.cta", "release.cluster", "relaxed", "acq_rel.sys",
              "relaxed.cluster", "mmio.relaxed.sys")  # fmt: skip
    kinds = [kind for kind in TYPES if kind not in ("pred", "f32x2")]
    for kind, space, order in itertools.product(kinds, spaces, orders):
        # ptxas crashes on vectors of eight 16-bit elements.
        for length in (1, 2, 4, 8) if width(kind) == 32 else (1, 2, 4):
            of = f"v{length}" if length > 1 else ""
            value = vector(kind, length, 0)
            yield f"{dotted('ld', order, space, of, kind)} {value}, [%d39];"
            yield f"{dotted('st', order, space, of, kind)} [%d39], {value};"


def atomics() -> Iterator[str]:
    operations = ("add", "min", "max", "and", "xor", "inc", "dec", "exch", "cas")
    kinds = [kind for kind in TYPES if kind not in ("pred", "f32x2")]
    for kind, operation, noftz, length in itertools.product(kinds, operations, ("", "noftz"), (1, 2, 4)):
        of = f"v{length}" if length > 1 else ""
        value, old = vector(kind, length, 8), vector(kind, length, 0)
        third = f", {vector(kind, length, 16)}" if operation == "cas" else ""
        for order in ("", "relaxed.gpu", "acquire.cta", "weak", "relaxed.cluster"):
            yield f"{dotted('atom', order, 'global', operation, noftz, of, kind)} {old}, [%d39], {value}{third};"
            yield f"{dotted('red', order, 'shared', operation, noftz, of, kind)} [%d39], {value}{third};"
        for space in ("shared::cluster", "shared::cta"):
            yield f"{dotted('atom', space, operation, noftz, of, kind)} {old}, [%d39], {value}{third};"
            yield f"{dotted('red.relaxed.cta', space, operation, noftz, of, kind)} [%d39], {value}{third};"
        for order in ("", "relaxed", "relaxed.cluster", "cluster", "relaxed.gpu"):
            if length == 1:
                name = dotted("red.async", order, "mbarrier::complete_tx::bytes", operation, kind)
                yield f"{name} [%r38], {value}, [%r39];"


@cache
def candidates(family: Callable[[], Iterator[str]]) -> tuple[str, ...]:
    return tuple(family())


FAMILIES = (arithmetic, conversions, comparisons, accesses, atomics)


def refused_by_ptxas(texts: list[str], arch: str, folder: Path) -> set[int]:
    """Positions of the instructions for which ptxas has an error; all of them share one kernel."""
    ptxas = tool("ptxas")
    head = HEAD.format(arch=arch)
    left, refused = list(range(len(texts))), set()
    # ptxas may name the errors of a later stage only once those of the first are gone.
    while True:
        path = folder / "forms.ptx"
        path.write_text(head + "\n".join(texts[i] for i in left) + "\nret;\n}\n")
        run = subprocess.run(
            [ptxas, "-O0", f"-arch={arch}", "-o", "/dev/null", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        lines = {int(x) - head.count("\n") - 1 for x in re.findall(r"line (\d+); (?:error|fatal)", run.stderr)}
        found = {left[line] for line in lines}
        refused |= found
        left = [i for i in left if i not in found]
        if run.returncode == 0:
            return refused
        assert found, run.stderr


@cache
def parsed(text: str) -> tuple[tuple[str, ...], int]:
    """Parts of the opcode and number of operands."""
    opcode, _, rest = text.rstrip(";").partition(" ")
    return tuple(opcode.split(".")), re.sub(r"\{[^}]*\}", "{}", rest).count(",") + bool(rest)


def compare(texts: list[str], arch: str, folder: Path, refused: set[int] | None = None) -> None:
    """``refused``: what ptxas refuses, where that is known."""
    refused = refused_by_ptxas(texts, arch, folder) if refused is None else refused
    verdicts = [refusal(*parsed(text), arch) for text in texts]
    wrong = [(text, i in refused) for i, text in enumerate(texts) if (verdicts[i] is not None) != (i in refused)]
    assert not wrong, "\n".join(map(str, wrong[:20]))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("family", FAMILIES)
def test_ptxas_agrees_on_some(family: Callable[[], Iterator[str]], arch: str, tmp_path: Path) -> None:
    draw = random.Random(f"{family.__name__} {arch}")
    texts = draw.sample(candidates(family), 1500)
    # Few of all combinations exist: half of the sample are some that the table has.
    known = [text for text in texts if refusal(*parsed(text), arch) is None]
    compare(draw.sample(known, min(len(known), 150)) + draw.sample(texts, 150), arch, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("family", FAMILIES)
def test_ptxas_agrees_on_all(family: Callable[[], Iterator[str]], arch: str, tmp_path: Path) -> None:
    compare(list(candidates(family)), arch, tmp_path)


# Forms that ptxas takes and the machine refuses by name.
NOT_EXECUTED = re.compile(r"(add|sub)c\.sat|^(ld|st)\S*\.(v8|v4\.[a-z]64)|^cvt\S*\.ue8m0x2|^fma\S*\.oob")


def compare_decoded(texts: list[str], arch: str, folder: Path, refused: set[int] | None = None) -> None:
    refused = refused_by_ptxas(texts, arch, folder) if refused is None else refused
    wrong = []
    for i, text in enumerate(texts):
        try:
            decode(text, arch)
            found = i in refused
        except TilemmaError:
            found = i not in refused and not NOT_EXECUTED.search(text)
        wrong += [(text, i in refused)] * found
    assert not wrong, "\n".join(map(str, wrong[:20]))


@cache
def statements(family: str) -> list[str]:
    return list(dict.fromkeys(t for template in form_candidates.FAMILIES[family] for t in expanded(template)))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("family", form_candidates.FAMILIES)
def test_ptxas_agrees_on_some_without_a_table(family: str, arch: str, tmp_path: Path) -> None:
    texts = random.Random(f"{family} {arch}").sample(statements(family), 150)
    compare_decoded(texts, arch, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("family", form_candidates.FAMILIES)
def test_ptxas_agrees_on_all_without_a_table(family: str, arch: str, tmp_path: Path) -> None:
    compare_decoded(statements(family), arch, tmp_path)


# Targets on both sides of each one that brings instructions.
TARGETS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_120a")


def rows_of(text: str) -> list[Row]:
    """The rows of the tables that have the form of a statement."""
    parts, operands = parsed(text)
    op, modifiers = opcodes._split(parts)
    if op not in FORMS:
        return []
    n, found = opcodes._rows_of(op, modifiers)
    rest = modifiers[: len(modifiers) - n]
    return [row for row, sets in found if row.operands in (0, operands) and frozenset(rest) in sets]


def test_every_row_begins_with_the_target_that_ptxas_says(tmp_path: Path) -> None:
    """One statement of each row that some target lacks, where it has one among the candidates."""
    draw = random.Random(7)
    every = [draw.sample(c, min(len(c), 8_000)) for c in map(candidates, FAMILIES)]
    texts = [text for some in (*every, *map(statements, form_candidates.FAMILIES)) for text in some]
    found: dict[object, list[str]] = {}
    for text in texts:
        rows = rows_of(text)
        for row in rows:
            if row.sm > 70:
                found.setdefault(id(row), []).append(text)
        if not rows and text.startswith("wmma."):
            # Without a table: by shape and type.
            found.setdefault(parsed(text)[0][5:], []).append(text)
    some = list(dict.fromkeys(text for of in found.values() for text in of[:5]))
    nowhere = set.intersection(*(refused_by_ptxas(some, a, tmp_path) for a in ("sm_90a", "sm_100a", "sm_120a")))
    valid = {text for i, text in enumerate(some) if i not in nowhere}
    chosen = list(dict.fromkeys(next((t for t in of if t in valid), "") for of in found.values()))
    # The decoders have limits of their own: the tables are right without them, but for features of single targets.
    of_targets = ("tensormap.replace", "wmma", "wgmma", "redux.sync.min")
    chosen = sorted((text for text in chosen if text), key=lambda text: text.startswith(of_targets))
    by_table = [text for text in chosen if not text.startswith(of_targets)]
    for arch in TARGETS:
        refused = refused_by_ptxas(chosen, arch, tmp_path)
        compare_decoded(chosen, arch, tmp_path, refused)
        compare(by_table, arch, tmp_path, {i for i in refused if i < len(by_table)})


@pytest.mark.parametrize("op", FORMS)
def test_every_row_has_a_form(op: str) -> None:
    """Every modifier set of every row is taken where the row says, and not before."""
    for row in FORMS[op]:
        first = max(row.sm, 90) if op.endswith(".async") else row.sm
        for types, modifiers in itertools.product(row.type_lists(), row.modifier_sets()):
            words = op.split(".") if op in SYNCHRONISING else op.split(".")[:1]
            parts = (*words, *sorted(modifiers, key=lambda m: m != "async"), *types)
            suffix = "a" if first >= 90 else ""
            assert refusal(parts, row.operands, f"sm_{max(first, 80)}{suffix}") is None, parts


def decode(text: str, arch: str) -> None:
    module = parse(HEAD.format(arch=arch) + text + "\nret;\n}\n", "k.ptx")
    (entry,) = module.entries.values()
    if entry.refused is not None:
        raise entry.refused
    decode_program(module, entry, arch)


@pytest.mark.parametrize(
    "text,code,words",
    [
        ("add.rz.f16 %h0, %h1, %h2;", "no-such-form", "add of .f16 takes `{.rn}{.ftz}{.sat}`"),
        ("sin.approx.f64 %d0, %d1;", "no-such-form", "its last part is a type, one of .f32"),
        ("fma.rn.sat.f64 %d0, %d1, %d2, %d3;", "no-such-form", "fma of .f64 takes"),
        ("cvt.rn.f32.f16 %r0, %h1;", "no-such-form", "cvt of .f32.f16 takes `{.ftz}{.sat}`, not .rn"),
        ("red.async.mbarrier::complete_tx::bytes.add.u32 [%r0], %r1, [%r2];", "no-such-form", ".relaxed.cluster"),
        ("ld.v8.b32 {%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}, [%d0];", "not-in-target", "sm_100"),
        ("cvt.rn.satfinite.e2m1x2.f32 %h0, %r1, %r2;", "not-in-target", "sm_100a"),
    ],
)
def test_the_refusal_names_the_rule(text: str, code: str, words: str) -> None:
    with pytest.raises(TilemmaError) as caught:
        decode(text, "sm_90a")
    assert caught.value.code == code and words in str(caught.value), str(caught.value)


@pytest.mark.parametrize("text,words", [
    ("cvt.rn.bf16x2.ue8m0x2 %r0, %h1;", "exponents of .ue8m0x2"),
    ("cvt.rs.f16x2.f32 %r0, %r1, %r2, %r3;", "random bits"),
])  # fmt: skip
def test_what_is_not_executed_is_named(text: str, words: str) -> None:
    with pytest.raises(TilemmaError) as caught:
        decode(text, "sm_100a")
    assert caught.value.code == "ptx-unsupported" and words in str(caught.value), str(caught.value)


LANES = np.arange(32, dtype=np.uint32)
VALUES = ((LANES.astype(np.float32) - 16) / 4).copy()
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


@pytest.mark.parametrize("kind,grid", [
    ("e2m1x2", E2M1),
    ("e2m3x2", np.array([m / 8 if e == 0 else (8 + m) * 2.0 ** (e - 4) for e in range(4) for m in range(8)])),
    ("e3m2x2", np.array([m / 16 if e == 0 else (4 + m) * 2.0 ** (e - 5) for e in range(8) for m in range(4)])),
])  # fmt: skip
def test_narrow_floats(kind: str, grid: Any, assembles: Callable[[str, str], None]) -> None:
    """The nearest number of the format, by search; NaN is the largest; conversion back is exact."""
    x = np.where(LANES == 3, np.float32(np.nan), VALUES * np.float32(1.75)).astype(np.float32)
    byte = kind == "e2m1x2"
    narrow = "{ .reg .b8 %n; " if byte else "{ .reg .b16 %n; "
    code = f"{narrow} cvt.rn.satfinite.{kind}.f32 %n, %i0, %i1; cvt.rn.f16x2.{kind} %o0, %n; }}"
    assembles(ptx_for(code, ["b32"], ["f32", "f32"], "sm_100a", "9.0"), "sm_100a")
    (out,) = execute(code, ["b32"], {"f32/a": x, "f32/b": -VALUES}, "sm_100a", "9.0")
    halves = out.view(np.float16).reshape(32, 2).astype(np.float64)
    for got, given in ((halves[:, 1], x), (halves[:, 0], -VALUES)):
        for value, source in zip(got, given, strict=True):
            wanted = grid[-1] if np.isnan(source) else np.abs(grid - abs(float(source))).min()
            error = value if np.isnan(source) else abs(value - float(source)) if abs(source) <= grid[-1] else None
            assert abs(value) in grid
            assert error is None or error == wanted, (source, value)


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("flags", ["", ".abs", ".NaN", ".abs.NaN"])
def test_reduction_of_f32(op: str, flags: str, assembles: Callable[[str, str], None]) -> None:
    code = f"redux.sync.{op}{flags}.f32 %o0, %i0, 0xffffffff;"
    assembles(ptx_for(code, ["b32"], ["f32"], "sm_100a", "9.0"), "sm_100a")
    x = np.where(LANES == 7, np.float32(np.nan), VALUES).astype(np.float32)
    (out,) = execute(code, ["b32"], {"f32/a": x}, "sm_100a", "9.0")
    given = np.abs(x) if "abs" in flags else x
    function = {"min": np.min, "max": np.max}[op] if "NaN" in flags else {"min": np.nanmin, "max": np.nanmax}[op]
    assert np.array_equal(out.view(np.float32), np.full(32, function(given), np.float32), equal_nan=True)


@pytest.mark.parametrize("kind,registers,letter", [("v8.b32", 8, "t"), ("v4.b64", 4, "d")])
def test_accesses_of_32_bytes(
    kind: str, registers: int, letter: str, assembles: Callable[[str, str], None]
) -> None:
    """A lane copies 32 bytes of the first array to the second output."""
    names = ", ".join(f"%{letter}{i + 4}" for i in range(registers))
    ptx = f""".version 9.0
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b) {{
  .reg .b64 %p<4>; .reg .b32 %r<4>; .reg .b32 %t<16>; .reg .b64 %d<16>;
  ld.param.u64 %p0, [a]; ld.param.u64 %p1, [b]; mov.u32 %r0, %tid.x;
  mad.wide.u32 %p2, %r0, 32, %p0; mad.wide.u32 %p3, %r0, 32, %p1;
  ld.global.{kind} {{{names}}}, [%p2]; st.global.{kind} [%p3], {{{names}}};
  ret;
}}"""
    assembles(ptx, "sm_100a")
    a, b = np.arange(256, dtype=np.uint32), np.zeros(256, np.uint32)
    launch = {"grid": 1, "block": 32, "read_only": ["a"]}
    assert machine.check(ptx, launch, {"a": a, "b": b}, schedules=2).ok
    assert (b == a).all()
    odd = ptx.replace("[%p2]", "[%p2+16]")
    verdict = machine.check(odd, launch, {"a": a, "b": b}, schedules=1)
    assert [h.code for h in verdict.hazards] == ["misaligned"]
