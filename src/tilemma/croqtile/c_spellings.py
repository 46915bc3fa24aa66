"""Words of C++ and CUDA, each with the form of Croqtile.  Syntax errors at these words show the form."""

from __future__ import annotations

from collections.abc import Sequence

from tilemma.croqtile.tokens import Token
from tilemma.croqtile.words import FOREIGN_TYPES
from tilemma.dtypes import named_elsewhere
from tilemma.errors import Span
from tilemma.ir.builder import element_type

Fused = Sequence[tuple[str, Token]]


def c_spelling(fused: Fused, at: int) -> tuple[Span, str, str] | None:
    """Place, finding and advice for the token number ``at``, if it belongs to a construct of C++; else None."""
    for form in (_pointer, _static, _shared, _for, _cast, _operator, _declaration, _statement):
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
    if first > at and _text(fused, at) != "static":
        return None
    name = _text(fused, first + 2) if _kind(fused, first + 2) == "NAME" else "x"
    form = array_form("global", _text(fused, first), name, ["N"])
    return (
        fused[first][1].span,
        f"the pointer `{_text(fused, first)}*`",
        f"write `{form}`: an array with its extents",
    )


def _static(fused: Fused, at: int) -> tuple[Span, str, str] | None:
    """``static int n = 4``, at ``static`` or at the type after it."""
    at -= _kind(fused, at) == "TYPE"
    if _text(fused, at) != "static" or _kind(fused, at + 1) != "TYPE":
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


def _inside(fused: Fused, opening: int) -> str:
    """The text in the brackets that open at ``opening``, if it is short; otherwise `x`."""
    depth = 0
    texts: list[str] = []
    for terminal, token in fused[opening : opening + 20]:
        depth += (token.text == "(") - (token.text == ")")
        if not depth:
            return "".join(texts[1:]) or "x"
        texts.append(f".{token.text}" if terminal in ("MEMBER", "MAPPED") else token.text)
    return "x"


def _cast(fused: Fused, at: int) -> tuple[Span, str, str] | None:
    """``(float)x``, ``float(x)``, ``static_cast<float>(x)`` and ``x.to(f16)``, at the type."""
    if _kind(fused, at) != "TYPE":
        return None
    before, after = _text(fused, at - 1), _text(fused, at + 1)
    if before == "(" and after == ")":
        x = _text(fused, at + 2) if _kind(fused, at + 2) == "NAME" else "x"
        x = _text(fused, at - 3) if _text(fused, at - 2) == "to" else x
    elif after == "(":
        x = _inside(fused, at + 1)
    elif before == "<" and after == ">" and _kind(fused, at - 2) == "NAME":
        x = _inside(fused, at + 2)
    else:
        return None
    kind = _text(fused, at)
    form = f"__to<{kind if kind in FOREIGN_TYPES else element_type(kind)}>({x})"
    return fused[at][1].span, f"a cast to `{kind}`", f"write `{form}`"


_OPERATORS = {"and": "&&", "or": "||", "not": "!"}


def _operator(fused: Fused, at: int) -> tuple[Span, str, str] | None:
    """``a and b``, ``not a``, ``a ** b``, ``p->x``, at the token that cannot be read."""
    for i in (at, at - 1):
        if _kind(fused, i) == "NAME" and (sign := _OPERATORS.get(_text(fused, i))):
            return fused[i][1].span, f"`{_text(fused, i)}` is not an operator of the language", f"write `{sign}`"
    pair = _text(fused, at - 1) + _text(fused, at)
    copied = any(_kind(fused, i) in ("DMA", "TMA") for i in range(at - 8, at))
    arrow = "write `=>` between source and destination" if copied else "write `.`: `x.at(i)`"
    advice = {"**": "write `__pow(a, b)`", "->": arrow}.get(pair)
    return None if advice is None else (fused[at][1].span, f"`{pair}` is not an operator of the language", advice)


def _declaration(fused: Fused, at: int) -> tuple[Span, str, str] | None:
    """``uint32_t n``, ``unsigned int n``, ``let x``, at the second word."""
    word = _text(fused, at - 1)
    if _kind(fused, at - 1) != "NAME" or _kind(fused, at) not in ("NAME", "TYPE"):
        return None
    name = _text(fused, at if _kind(fused, at) == "NAME" else at + 1)
    if word in ("let", "var", "register", "volatile", "val"):
        return (
            fused[at - 1][1].span,
            f"`{word}` is not a word of the language",
            (f"write `{name} = ...;`, or `mutable {name} = ...;` for a value that changes"),
        )
    if kind := named_elsewhere(word):
        return fused[at - 1][1].span, f"`{word}` is not an element type", f"write `{kind} {name}`"
    return None


def _statement(fused: Fused, at: int) -> tuple[Span, str, str] | None:
    """``do { } while``, ``switch (x) { }`` and a comment of Python."""
    if _text(fused, at) == "#":
        return fused[at][1].span, "`#` cannot stand here", "write `// ...` for a comment"
    start = next((i for i in range(at, max(-1, at - 12), -1) if _text(fused, i) in ("do", "switch")), None)
    if _text(fused, at) != "{" or start is None:
        return None
    word = _text(fused, start)
    form = "while (c) { ... }" if word == "do" else "if (x == 0) { ... } else { ... }"
    return fused[start][1].span, f"`{word}` is not a word of the language", f"write `{form}`"
