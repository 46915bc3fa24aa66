"""The base of tile operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, ClassVar

from tilemma.errors import Span
from tilemma.ir.effects import Effective
from tilemma.records import record


@record
class Op(Effective):
    """Base of all tile operations; `tilemma.ir.effects` derives the effects of each on its operands."""

    syntax: ClassVar[str] = ""
    span: Span | None = field(default=None, compare=False, kw_only=True, repr=False)


Body = tuple[Op, ...]
# The handle of an asynchronous copy or multiply, and of a register tile, by name.
Future = str
FragmentName = str


def require_all(table: Mapping[Any, object], classes: Iterable[type], what: str) -> None:
    """Fail at import if ``table`` has no entry for one of ``classes``."""
    missing = [c.__name__ for c in classes if c not in table]
    if missing:
        raise TypeError(f"{what} has no entry for {', '.join(missing)}")
