"""Every regular expression of the source, and every scan over untrusted text, takes linear time.

Inputs that make a pattern try the same characters again are made from its own syntax tree: each repeat is fed many
times what it repeats, behind what comes before it, and before what it does not expect.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import os
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from re import _constants as sre
from re import _parser as parser
from typing import Any

import pytest

import tilemma
from tilemma.assemble import ptxas, sass, toolchain
from tilemma.croqtile.tokens import tokens
from tilemma.errors import TilemmaError

ROOT = Path(tilemma.__file__).parent
METHODS = {"match", "search", "fullmatch", "findall", "finditer", "sub", "subn", "split"}
# Seconds from which a scan's growth is measured: more by night, where a small quadratic part shows as well.
FLOOR = 0.05 if os.environ.get("HYPOTHESIS_PROFILE") == "explore" else 0.01
ALPHABET = "0a1 \"'\\/*.(){}%-_+RPeE:;,\n\t\r<>=#@!$~"


# -- the patterns of the source


def constant(node: ast.expr) -> str | None:
    """The text of an expression of constants."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def flags_of(node: ast.Call) -> int:
    names = [n.attr for a in (*node.args, *(k.value for k in node.keywords)) for n in ast.walk(a)
             if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "re"]  # fmt: skip
    return int(sum(getattr(re, name) for name in names))


def is_re(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and (
        isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
    )  # fmt: skip


def patterns() -> Iterator[tuple[str, str, int, set[str]]]:
    """Place, text, flags and methods of every regular expression in the source."""
    texts = {path: path.read_text() for path in sorted(ROOT.rglob("*.py"))}
    used: dict[str, set[str]] = {}
    for text in texts.values():
        for name, method in re.findall(rf"(\w+)\.({'|'.join(METHODS)})\b", text):
            used.setdefault(name, set()).add(method)
    # Collecting the tests pays for each file that is parsed here.
    for path, text in texts.items():
        nodes = list(ast.walk(ast.parse(text))) if re.search(r"\bre\.\w+\(", text) else []
        names = {id(n.value): getattr(n.targets[0], "id", "") for n in nodes if isinstance(n, ast.Assign)}
        for node in nodes:
            if not is_re(node):
                continue
            assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            method = node.func.attr
            if method not in METHODS | {"compile"}:
                continue
            pattern = constant(node.args[0])
            place = f"{path.relative_to(ROOT)}:{node.lineno}"
            assert pattern is not None, f"{place}: a pattern made at run time cannot be tested"
            methods = {method} if method != "compile" else used.get(names.get(id(node), ""), METHODS)
            yield place, pattern, flags_of(node), methods


PATTERNS = list(patterns())


REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT)


def parts(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Each operator of a pattern's syntax tree, with its value."""
    for op, value in tree:
        yield op, value
        if op in REPEATS:
            yield from parts(value[2])
        elif op is sre.SUBPATTERN:
            yield from parts(value[3])
        elif op is sre.BRANCH:
            for branch in value[1]:
                yield from parts(branch)
        elif op is sre.ATOMIC_GROUP:
            yield from parts(value)
        elif op in (sre.ASSERT, sre.ASSERT_NOT):
            yield from parts(value[1])


def lost(text: str, flags: int) -> bool:
    """Whether a possessive repeat has a repeat or a look-around in it: where an item fails there, Python 3.11.0 to
    3.11.4 go on from that place, and not from the item's start (CPython issue 106052)."""
    moves = {*REPEATS, sre.ASSERT, sre.ASSERT_NOT}
    repeats = (value[2] for op, value in parts(parser.parse(text, flags)) if op is sre.POSSESSIVE_REPEAT)
    return any(op in moves for body in repeats for op, _ in parts(body))


@pytest.mark.parametrize("text", [r"(?:[^*]|\*(?!/)x)*+", r"(?:\.\d++)?+"])
def test_lost_places_are_seen(text: str) -> None:
    assert lost(text, 0)


@pytest.mark.parametrize("place, text, flags", [p[:3] for p in PATTERNS], ids=[p[0] for p in PATTERNS])
def test_no_place_is_lost_by_an_older_python(place: str, text: str, flags: int) -> None:
    assert not lost(text, flags), f"{place}: write the outer repeat without `+`"


# -- inputs against a pattern


def accepts(items: list[Any], c: str, flags: int) -> bool:
    """Whether a set of the syntax tree has the character."""
    inside, negate = False, False
    for op, value in items:
        if op is sre.NEGATE:
            negate = True
        elif op is sre.LITERAL:
            inside |= ord(c) == value
        elif op is sre.RANGE:
            inside |= value[0] <= ord(c) <= value[1]
        elif op is sre.CATEGORY:
            inside |= {
                sre.CATEGORY_DIGIT: c.isdigit(), sre.CATEGORY_NOT_DIGIT: not c.isdigit(),
                sre.CATEGORY_SPACE: c.isspace(), sre.CATEGORY_NOT_SPACE: not c.isspace(),
                sre.CATEGORY_WORD: c.isalnum() or c == "_", sre.CATEGORY_NOT_WORD: not (c.isalnum() or c == "_"),
            }[value]  # fmt: skip
    return inside != negate


def samples(tree: Any, flags: int) -> list[str]:
    """A few texts that the tree matches, up to three for a place with a choice."""
    texts = [""]
    for op, value in tree:
        texts = [t + more for t in texts[:3] for more in of_one(op, value, flags)[:3]][:6]
    return texts


def of_one(op: Any, value: Any, flags: int) -> list[str]:
    if op is sre.LITERAL:
        return [chr(value)]
    if op is sre.NOT_LITERAL:
        return [c for c in ALPHABET if ord(c) != value][:3]
    if op is sre.ANY:
        return ['"', "a", "0"]
    if op is sre.IN:
        return [c for c in ALPHABET if accepts(value, c, flags)] or [chr(0x100)]
    if op is sre.BRANCH:
        return [t for branch in value[1] for t in samples(branch, flags)[:2]]
    if op is sre.SUBPATTERN:
        return samples(value[3], flags)
    if op is sre.ATOMIC_GROUP:
        return samples(value, flags)
    if op in REPEATS:
        low, _, body = value
        return [t * max(low, 1) for t in samples(body, flags)] + ([""] if low == 0 else [])
    return [""]  # anchors, look-around, back references


def repeats(tree: Any, flags: int, before: str = "") -> Iterator[tuple[str, str]]:
    """(what comes before, what is repeated) of every repeat in the tree without a small bound."""
    at = before
    for op, value in tree:
        inner = []
        if op in REPEATS:
            if value[1] > 64:
                choices = [c for text in samples(value[2], flags) for c in {text, *of_first(value[2], flags)}]
                yield from ((at, text) for text in dict.fromkeys(choices) if text)
            inner = [value[2]]
        elif op is sre.SUBPATTERN:
            inner = [value[3]]
        elif op is sre.ATOMIC_GROUP:
            inner = [value]
        elif op is sre.BRANCH:
            inner = value[1]
        for one in inner:
            yield from repeats(one, flags, at)
        at += of_one(op, value, flags)[0]


def of_first(body: Any, flags: int) -> list[str]:
    """All of the alphabet that a repeat of one set takes."""
    items = list(body)
    return of_one(*items[0], flags)[:12] if len(items) == 1 else []


def attacks(text: str, flags: int) -> Iterator[Callable[[int], str]]:
    """Texts of about n characters against a pattern."""
    tree = parser.parse(text, flags)
    seen = set()
    for whole in samples(tree, flags):
        for piece in (whole, whole[:-1], whole + "\0"):
            seen.add(("", piece, ""))
    for before, body in list(repeats(tree, flags))[:60]:
        for end in ("", "\0", "\n", "a"):
            seen.add((before, body, end))
            seen.add(("", before + body, end))
        seen.add(("", before, body))
    for first, middle, last in sorted(seen):
        if middle:
            yield lambda n, a=first, b=middle, c=last: a + b * (n // len(b) + 1) + c
    for before, body in list(repeats(tree, flags))[:60]:
        if before:
            yield lambda n, a=before, b=body: a * (n // 2 // len(a) + 1) + b * (n // 2 // len(b) + 1)


# -- time


@pytest.fixture(autouse=True, scope="module")
def _objects_of_other_tests() -> Iterator[None]:
    """Leave what the tests of other files have left in memory out of each collection."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def seconds(work: Callable[[], object], times: int) -> float:
    """The least processor time; without the garbage collector, whose passes over many tokens are not linear."""
    best = float("inf")
    gc.collect()
    gc.disable()
    try:
        for _ in range(times):
            start = time.thread_time()
            work()
            best = min(best, time.thread_time() - start)
    finally:
        gc.enable()
    return best


def grows(
    work: Callable[[str], object], make: Callable[[int], str], most: int, floor: float = FLOOR
) -> str | None:
    """None where the processor time grows with the text, about; measured again before anything is said."""
    n = 10
    while n <= most:
        text = make(n)
        start = time.thread_time()
        work(text)
        if time.thread_time() - start > floor and (one := seconds(partial(work, text), 2)) > floor:
            if n < 100:
                return f"{floor} s for {n} characters: {text[:60]!r}"
            # Four times the text takes 4 times as long, and 16 times where the time is quadratic.
            for attempt in range(6):
                four = seconds(partial(work, make(4 * n)), 2 if attempt else 1)
                if four < 9 * one:
                    return None
                one = seconds(partial(work, text), 3)
            return f"{one:.3f} s, and {four:.3f} s for four times the text, of {n} characters: {text[:60]!r}"
        n = n * 2 if n >= 500 else n * 5 // 4 if n < 40 else 500
    return None


def run(pattern: re.Pattern[str], methods: set[str]) -> Callable[[str], object]:
    anywhere = methods & {"search", "findall", "finditer", "sub", "subn", "split"}

    def work(text: str) -> None:
        pattern.match(text)
        if "fullmatch" in methods:
            pattern.fullmatch(text)
        if "search" in methods:
            pattern.search(text)
        if anywhere - {"search"}:
            for _ in pattern.finditer(text):
                pass

    return work


def test_the_patterns_are_found() -> None:
    places = {place.rsplit(":", 1)[0] for place, *_ in PATTERNS}
    assert {"croqtile/tokens.py", "machine/exec/calls.py", "assemble/ptxas.py", "assemble/sass.py"} <= places


@pytest.mark.parametrize("place, text, flags, methods", PATTERNS, ids=[p[0] for p in PATTERNS])
def test_a_pattern_is_linear(place: str, text: str, flags: int, methods: set[str]) -> None:
    pattern = re.compile(text, flags)
    work = run(pattern, methods)
    for make in attacks(text, flags):
        slow = grows(work, make, 16_000)
        assert slow is None, slow


@pytest.mark.parametrize("text", [r"(a+)+b", r'"(?:\\.|[^"\\\n])*"', r"x[^;{]*\{", r"%0*\d*d", r"R\([\s\S]*?\)R"])
def test_the_harness_sees_what_is_not_linear(text: str) -> None:
    work = run(re.compile(text), {"search", "finditer"})
    assert any(grows(work, make, 4_000, 0.005) is not None for make in attacks(text, 0))


# -- scans that are no single pattern


def quietly(work: Callable[[str], object]) -> Callable[[str], object]:
    def run(text: str) -> None:
        with contextlib.suppress(TilemmaError):
            work(text)

    return run


def ptx(text: str) -> None:
    from tilemma.machine.parser import parse

    parse(text, "hostile.ptx")


def one_instruction(text: str) -> None:
    from tilemma.machine.program import decode_program

    module = __import__("tilemma.machine.parser", fromlist=["parse"]).parse(
        f".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry f() {{\n {text} \n ret;\n}}\n", "h.ptx"
    )
    decode_program(module, module.entries["f"], "sm_80")


SCANS: dict[str, tuple[Callable[[str], object], list[str]]] = {
    "tokens of .co": (
        quietly(lambda t: list(tokens(t, "h.co"))),
        ['R"(', 'R"x(', 'R"x()x', '"\\"', '"a', "'", "/*", "\\\n", "1.", "0x", "1e", "group-", "print!", '"\\\n'],
    ),
    "ptxas's messages": (
        ptxas.parse_messages,
        ["ptxas ", ", line 1", "ptxas x, line 1; ", " ", "ptxas x, line 1; error\n", "ptxas info : (C"],
    ),
    "ptxas's usage": (
        ptxas.parse_usage,
        ["Used ", "Used 1", "1 bytes", "Function properties for ", "Used 1 registers\n"],
    ),
    "registers of wgmma": (
        ptxas.register_a_in_flight,
        ["wgmma.mma_async ", "wgmma.mma_async {", "wgmma.mma_async {}, ", "{", "wgmma.wait_group.sync.aligned 0"],
    ),
    "source positions": (
        lambda t: ptxas.source_position(t, t.count("\n")),
        ['.file 1 "', '.file 1 "\\', "\n", " ", ".file ", '.file 1 "x"\n', ".loc 1 1 1\n"],
    ),
    "opcodes in SASS": (
        sass.sass_counts,
        ["/*0000", "/*0000*/ ", "/*0000*/ @P0 ", "/*0000*/ A.", " ", "/*0000*/ FADD ;\n"],
    ),
    "versions": (toolchain.parse_version, ["V1", "V1.", "V1.1", "release 1", " V1.1.1"]),
    "PTX": (
        quietly(ptx),
        ["/* ", '"', ".a", "a::", "0x", "1.0e", "{", "(", ".reg .b32 r<9>;\n", '.file 1 "x"\n', "//\n", "-", "@"],
    ),
    "an instruction": (
        quietly(one_instruction),
        ["mov.", "mov.b32::", "add.s32 ", "x.", "-", "!", "{", "[", "%r."],
    ),
}


@pytest.mark.parametrize("name", SCANS)
def test_a_scan_is_linear(name: str) -> None:
    work, steps = SCANS[name]
    for step in steps:
        for end in ("", '"'):
            slow = grows(work, lambda n, s=step, e=end: s * (n // len(s)) + e, 64_000, FLOOR)
            assert slow is None, f"{step!r}: {slow}"
