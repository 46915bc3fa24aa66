"""The symbol table: nested scopes of names, and errors of undefined or repeated names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Any

from tilemma.croqtile.values import Value
from tilemma.errors import CompileError, Note, Span, nearest
from tilemma.ir.spellings import formula
from tilemma.records import record


class UnknownName(CompileError):
    code = "unknown-name"
    found = "`{name}` is not defined here"
    expected = "a parameter, a dimension of a parameter's type, or a variable in scope"
    fix = "{suggestion}"


class Redefinition(CompileError):
    code = "redefinition"
    found = "`{name}` is defined twice in the same {where}"
    expected = "one definition of a name in a {where}"
    fix = "{remedy}"

    def __init__(self, span: Span | None = None, *, where: str = "block", **facts: Any) -> None:
        remedy = "choose another name"
        if where == "block":
            remedy += ", or assign to the one that is there (declared `mutable`)"
        super().__init__(span, **{"where": where, "remedy": remedy, **facts})


@record
class Binding:
    value: Value
    span: Span


_VARIABLES = ("threadIdx", "blockIdx", "blockDim", "gridDim")
# Names of C++ and Python for values: what Croqtile writes.
_CONSTANTS = {
    "M_PI": "3.14159265358979f", "PI": "3.14159265358979f", "INFINITY": "inf", "HUGE_VALF": "inf",
    "nan": "inf - inf",
    "FLT_MAX": "3.4028235e38f", "FLT_MIN": "1.17549435e-38f", "INT_MAX": "2147483647", "NAN": "inf - inf",
    "True": "true", "False": "false", "warpSize": "32",
}  # fmt: skip
_CONSTANTS = {name: f"write `{value}`" for name, value in _CONSTANTS.items()}
_CONSTANTS |= dict.fromkeys(
    ("math", "np", "tm", "torch", "tl"), "write `__exp(x)`, or another function of docs/language.md"
)


@record(frozen=False, eq=False)
class Scopes:
    """A stack of blocks, the innermost last."""

    blocks: list[dict[str, Binding]] = field(default_factory=lambda: [{}])

    @contextmanager
    def block(self) -> Iterator[None]:
        self.blocks.append({})
        try:
            yield
        finally:
            self.blocks.pop()

    def find(self, name: str) -> Binding | None:
        return next((b[name] for b in reversed(self.blocks) if name in b), None)

    def define(self, name: str, value: Value, span: Span) -> None:
        """Bind ``name`` in the innermost block; Redefinition when it is bound there already."""
        known = self.blocks[-1].get(name)
        if known is not None:
            raise Redefinition(span, name=name, notes=[Note("the first definition", known.span)])
        self.blocks[-1][name] = Binding(value, span)

    def names(self) -> list[str]:
        return [n for block in self.blocks for n in block]

    def unknown(self, name: str, span: Span, more: tuple[str, ...] = (), *, called: bool = False) -> UnknownName:
        """The error for a name that is nowhere, with the nearest name that is; ``called``: as a function."""
        known = formula(name, croqtile=True) if called or name in _VARIABLES else _CONSTANTS.get(name, "")
        if known:
            return UnknownName(span, name=name, suggestion=known)
        near = nearest(name, [*self.names(), *more])
        suggestion = f"did you mean `{near}`?" if near else f"define `{name}` before this line"
        if called and not near:
            suggestion = f"write it as a macro, `#define {name}(...)`: a function of C++ is not called"
        return UnknownName(span, name=name, suggestion=suggestion)
