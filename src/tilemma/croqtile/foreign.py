"""Text of other languages inside kernels: register counts are recognised, other text is refused by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from tilemma.croqtile.tokens import Kind, Token
from tilemma.croqtile.words import FOREIGN
from tilemma.ir.refusals import NotBuiltYet

_ASSEMBLY = ("__asm__", "asm")
# One `setmaxnreg` (PTX ISA, "Miscellaneous Instructions"), and the same in an `asm` statement of C++.
_PTX = re.compile(r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32\s++(\d{1,9}+)\s*+;?+(?:\\n|\\t|\s)*+")
_CPP = re.compile(
    r'(?:asm|__asm__)\s*+(?:volatile|__volatile__)?+\s*+\(\s*+\\?+"\s*+'
    r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32\s++(\d{1,9}+)\s*+;?+(?:\\n|\\t|\s)*+"
    r'\\?+"[:\s]*+(?:\\?+"memory\\?+"\s*+)?\)\s*+;?+\s*+'
)


def register_count(tokens: Sequence[Token], start: int) -> tuple[list[Token], int]:
    """``__cpp__("...")`` or ``asm volatile("...")`` at ``start`` as ``setreg.inc N``, and where its text ends.

    NotBuiltYet where its text is anything but one `setmaxnreg`.
    """
    word = tokens[start]
    refused = NotBuiltYet(word.span, what=FOREIGN[word.text], fix_text="write it in the language itself")
    if word.text not in ("__cpp__", *_ASSEMBLY):
        raise refused
    at = start + 1
    if word.text in _ASSEMBLY and at < len(tokens) and tokens[at].text in ("volatile", "__volatile__"):
        at += 1
    end = next((i for i in range(at, len(tokens)) if tokens[i].text == ")" and tokens[i].kind == "op"), None)
    if end is None or tokens[at].text != "(":
        raise refused
    inside = tokens[at + 1 : end]
    texts = [t.text for t in inside if t.kind == "string"]
    others = [t.text for t in inside if t.kind != "string"]
    if word.text != "__cpp__" and others:
        # Clobbers after colons: `::: "memory"`.
        if set(others) - {":", "::"} or texts[1:] not in ([], ['"memory"']):
            raise refused
        texts, others = texts[:1], []
    text = "".join(t[t.index("(") + 1 : t.rindex(")")] if t.startswith("R") else t[1:-1] for t in texts)
    text = text.strip()
    found = _CPP.fullmatch(text) if word.text == "__cpp__" else _PTX.fullmatch(text)
    if found is None or others:
        raise refused
    way, count = found.groups()
    made: tuple[tuple[str, Kind], ...] = (("setreg", "name"), (".", "op"), (way, "name"), (count, "int"))
    return [replace(word, text=t, kind=kind, glued=True) for t, kind in made], end + 1
