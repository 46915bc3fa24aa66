"""Valid statements with another operand, or without one: what ptxas refuses of them, the machine refuses."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import form_candidates
import pytest
from test_form_tables import FAMILIES, candidates, decode, refused_by_ptxas, statements

from tilemma.errors import TilemmaError

# Operands that the machine does not read, or takes in more forms than ptxas; ptxas crashes on some of the last.
_LENIENT = re.compile(
    r"(prefetch|applypriority|createpolicy|pmevent|v\w+[24]\.|cvt\.pack|setmaxnreg|trap|brkpt|exit|wgmma|stmatrix"
    r"|movmatrix|\S*b128|cp\.(reduce\.)?async\.bulk\.tensor|mbarrier\.\w+_wait\.parity)"
)
_OTHER = {"h": "%r20", "r": "%d20", "d": "%r20", "p": "%r20", "q": "%d20"}


def operands_of(text: str) -> tuple[str, list[str]]:
    """The opcode and the operands, which commas outside braces and brackets part."""
    opcode, _, rest = text.rstrip(";").partition(" ")
    found, depth = [""], 0
    for c in rest:
        depth += (c in "{[") - (c in "}]")
        if c == "," and depth == 0:
            found.append("")
        else:
            found[-1] += c
    return opcode, [x.strip() for x in found if x.strip()]


def edited(text: str) -> Iterator[str]:
    """``text`` without its last operand, and with each operand of another class or length."""
    opcode, operands = operands_of(text)
    yield f"{opcode} {', '.join(operands[:-1])};"
    for i, operand in enumerate(operands):
        others = []
        if register := re.fullmatch(r"%([hrdpq])\d+", operand):
            others = [_OTHER[register[1]], "%h5" if register[1] == "p" else "%p5"]
        elif operand.startswith("{"):
            items = operand[1:-1].split(", ")
            others = ["{" + ", ".join([*items, items[-1]]) + "}"]
            # The machine takes one register without braces, too.
            others += ["{" + ", ".join(items[:-1]) + "}", items[0]] if len(items) > 1 else []
        elif operand.isdigit() or operand.startswith("["):
            others = ["%r20"]
        for other in others:
            yield f"{opcode} {', '.join([*operands[:i], other, *operands[i + 1 :]])};"


def is_decoded(text: str, arch: str) -> bool:
    try:
        decode(text, arch)
    except TilemmaError:
        return False
    return True


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_ptxas_agrees_on_edited_operands(arch: str, tmp_path: Path) -> None:
    draw = random.Random(arch)
    pools = [*map(statements, form_candidates.FAMILIES), *map(candidates, FAMILIES)]
    texts = [text for pool in pools for text in draw.sample(pool, 70) if not _LENIENT.match(text)]
    refused = refused_by_ptxas(texts, arch, tmp_path)
    valid = [text for i, text in enumerate(texts) if i not in refused and is_decoded(text, arch)]
    every = list(dict.fromkeys(other for text in valid for other in edited(text)))
    some = draw.sample(every, min(len(every), 400))
    refused = refused_by_ptxas(some, arch, tmp_path)
    wrong = [text for i, text in enumerate(some) if is_decoded(text, arch) != (i not in refused)]
    assert not wrong, "\n".join(wrong)
    assert len(valid) > 50 and len(refused) > 100
