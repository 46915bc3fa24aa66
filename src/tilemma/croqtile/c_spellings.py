"""What a kernel in C++ or CUDA says: how Croqtile writes it.  The syntax errors at these words show the form."""

from __future__ import annotations

from collections.abc import Sequence

from tilemma.croqtile.tokens import Token
from tilemma.croqtile.words import FOREIGN_TYPES
from tilemma.errors import Span
from tilemma.ir.builder import element_type

_QUALIFIERS = ("const", "static")
Fused = Sequence[tuple[str, Token]]


def c_spelling(fused: Fused, at: int) -> tuple[Span, str, str] | None:
    """Place, finding and advice for the token number ``at``, if it belongs to a construct of C++; else None."""
    for form in (_pointer, _qualified, _shared, _for):
        if (found := form(fused, at)) is not None:
            return found
    return None


def array_form(storage: str, dtype: str, name: str, extents: Sequence[str]) -> str:
    """The declaration of an array of ``extents``."""
    kind = dtype if dtype in ("void", "auto", *FOREIGN_TYPES) else str(element_type(dtype))
    return f"{storage} {kind} [{', '.join(extents)}] {name}"


def _kind(fused: Fused, i: int) -> str:
    return fused[i][0] if 0 <= i < len(fused) else ""


def _text(fused: Fused, i: int) -> str:
    return fused[i][1].text if 0 <= i < len(fused) else ""


def _pointer(fused: Fused, at: int) -> tuple[Span, str, str] | None:
    """``float* x`` and ``const float* x``."""
    first = at - 1 if _text(fused, at) == "*" else at + 1
    if _kind(fused, first) != "TYPE" or _text(fused, first + 1) != "*":
        return None
    if first > at and _text(fused, at) not in _QUALIFIERS:
        return None
    name = _text(fused, first + 2) if _kind(fused, first + 2) == "NAME" else "x"
    form = array_form("global", _text(fused, first), name, ["N"])
    return (
        fused[first][1].span,
        f"the pointer `{_text(fused, first)}*`",
        f"write `{form}`: an array with its extents",
    )


def _qualified(fused: Fused, at: int) -> tuple[Span, str, str] | None:
    """``const int n = 4``, at ``const`` or at the type after it."""
    at -= _kind(fused, at) == "TYPE"
    if _text(fused, at) not in _QUALIFIERS or _kind(fused, at + 1) != "TYPE":
        return None
    word, kind, name = (_text(fused, at + i) for i in range(3))
    end = next((i for i in range(at + 3, min(at + 20, len(fused))) if _text(fused, i) in (";", ",", ")")), at + 3)
    value = " ".join(["", *(_text(fused, i) for i in range(at + 3, end))]) + ";" * (_text(fused, end) == ";")
    advice = f"write `{kind} {name}{value}`: what is not declared `mutable` is constant"
    return fused[at][1].span, f"`{word}` is not a word of the language", advice


def _shared(fused: Fused, at: int) -> tuple[Span, str, str] | None:
    """``__shared__ float s[16]``, at ``__shared__`` or after it."""
    at -= _text(fused, at - 1) == "__shared__"
    if _text(fused, at) != "__shared__" or _kind(fused, at + 1) != "TYPE":
        return None
    extents, i = [], at + 3
    while _text(fused, i) == "[":
        end = next((k for k in range(i, len(fused)) if fused[k][1].text == "]"), len(fused))
        extents.append(" ".join(token.text for _, token in fused[i + 1 : end]))
        i = end + 1
    form = array_form("shared", _text(fused, at + 1), _text(fused, at + 2), extents or ["1"])
    return fused[at][1].span, "`__shared__` is not a word of the language", f"write `{form};`"


def _for(fused: Fused, at: int) -> tuple[Span, str, str] | None:
    """``for (int i = 0; i < n; ++i)``, wherever its head cannot be read on."""
    start = next((i for i in range(at, max(-1, at - 8), -1) if _text(fused, i) == "for"), None)
    if start is None or _text(fused, start + 1) != "(":
        return None
    i = start + 2 + (_kind(fused, start + 2) == "TYPE")
    name, count = _text(fused, i) if _kind(fused, i) == "NAME" else "i", "n"
    bound = i + 4  # after `i = 0 ;`
    end = next((k for k in range(bound + 2, min(bound + 12, len(fused))) if _text(fused, k) == ";"), None)
    if end and [_text(fused, k) for k in (i + 1, i + 2, i + 3, bound, bound + 1)] == ["=", "0", ";", name, "<"]:
        count = " ".join(_text(fused, k) for k in range(bound + 2, end))
    return (
        fused[start][1].span,
        "`for` is not a word of the language",
        f"write `foreach {name} in {count} {{ ... }}`: the loop counts from 0",
    )
