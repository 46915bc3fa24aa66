"""Text templates of operations, keywords of expressions, and names, shared by the printer and the parser.

An operation's text is its class's ``syntax`` with ``$field`` replaced; fields that it does not mention follow
as ``{name = value, ..}`` where they differ from their defaults.  How a field reads depends on its declared
type alone, so a new operation needs no code here.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cache
from typing import Any

from tilemma.ir import expr as e
from tilemma.ir import lane, pipeline, plans, tile
from tilemma.ir import types as ty
from tilemma.ir.effects import MARKERS
from tilemma.records import record

# Operator signs with their binding strength, weakest first; all associate to the left.
SIGNS: dict[str, tuple[str, int]] = {
    "lor": ("||", 1),
    "land": ("&&", 2),
    "eq": ("==", 3), "ne": ("!=", 3),
    "lt": ("<", 4), "le": ("<=", 4), "gt": (">", 4), "ge": (">=", 4),
    "or": ("|", 5),
    "xor": ("^", 6),
    "and": ("&", 7),
    "shl": ("<<", 8), "shr": (">>", 8),
    "add": ("+", 9), "sub": ("-", 9),
    "mul": ("*", 10), "div": ("/", 10), "floordiv": ("//", 10), "mod": ("%", 10),
    "floormod": ("%%", 10),
}  # fmt: skip
FUNCTIONS = ("cdiv", "min", "max")
UNARY = ("neg", "not", "lnot")
MATH = "math."
RESERVED = frozenset(
    (*FUNCTIONS, *UNARY, "select", "dim", "true", "false", "inf", "nan", "as", "at", "to", "step", "else",
     "copies", "order", "threads", "ready")
)  # fmt: skip

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*", re.ASCII)
QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
BACKQUOTED = re.compile(r"`(?:[^`\\]|\\.)*`")
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.:]*", re.ASCII)
NONE = "_"


@record(slots=False)
class Template:
    """``syntax`` of a class, cut into literal text and fields; ``extras`` are the fields it does not mention."""

    cls: type[Any]
    parts: tuple[tuple[str, str | None], ...]  # (literal, field after it)
    extras: tuple[str, ...]

    @property
    def head(self) -> str:
        return self.parts[0][0]


def _template(cls: Any) -> Template:
    syntax: str = cls.syntax
    parts: list[tuple[str, str | None]] = []
    position = 0
    for m in re.finditer(r"\$(\w+)", syntax):
        parts.append((syntax[position : m.start()], m.group(1)))
        position = m.end()
    if position < len(syntax) or not parts:
        parts.append((syntax[position:], None))
    named = {field for _, field in parts}
    extras = tuple(f.name for f in fields(cls) if f.name not in named and f.name != "span")
    return Template(cls, tuple(parts), extras)


def _hints(cls: Any) -> dict[str, Any]:
    """The declared types of a dataclass's fields, resolved; class variables are not among them."""
    return {f.name: _resolved(str(f.type)) for f in fields(cls) if f.name != "span"}


@cache
def _resolved(annotation: str) -> Any:
    """The type that an annotation denotes in the modules of the IR, without its effects.

    `typing.get_type_hints` would resolve the annotations of a class's bases again for each class.
    """
    return eval(annotation, _names())


class _Unmarked:
    """Replaces `Reads` and the other markers of effects: ``Reads[View]`` is `View`."""

    def __class_getitem__(cls, hint: Any) -> Any:
        return hint


@cache
def _names() -> dict[str, Any]:
    return {**vars(plans), **vars(e), **vars(ty), **vars(tile), **vars(lane), **dict.fromkeys(MARKERS, _Unmarked)}


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the type alone."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(a for h in typing.get_args(hint) for a in alternatives(h))
    return (hint,)


def default(cls: Any, name: str) -> Any:
    """A field's default; MISSING when it has none."""
    f = cls.__dataclass_fields__[name]
    return f.default_factory() if f.default_factory is not MISSING else f.default


def _operations(base: Any) -> tuple[type[Any], ...]:
    """The operations derived from ``base``, those with the longest fixed head first."""
    if base is tile.Op:
        found = tile.OPERATIONS
    else:
        found = tuple(
            c for c in vars(lane).values() if isinstance(c, type) and issubclass(c, base) and c is not base
        )
    return tuple(sorted(found, key=lambda c: -len(template(c).head)))


@cache
def records() -> dict[str, type]:
    """Plain dataclasses that fields hold (plans, facts), by name; printed as ``Name(field = value, ..)``."""
    own_forms = (tile.FragmentRef, tile.Kernel, tile.ArrayParameter, tile.ScalarParameter)
    return {
        c.__name__: c
        for c in (*vars(tile).values(), *vars(plans).values(), lane.LaneLocal)
        if isinstance(c, type)
        and c.__module__ in (tile.__name__, plans.__name__, pipeline.__name__, lane.__name__)
        and hasattr(c, "__dataclass_fields__")
        and not issubclass(c, tile.Op)
        and c not in own_forms
    }


def is_body(hint: Any, base: type) -> bool:
    return typing.get_origin(hint) is tuple and typing.get_args(hint)[:1] == (base,)


template: Callable[[Any], Template] = cache(_template)
hints: Callable[[Any], dict[str, Any]] = cache(_hints)
operations: Callable[[Any], tuple[type[Any], ...]] = cache(_operations)
