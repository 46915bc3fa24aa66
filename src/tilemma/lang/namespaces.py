"""Objects of the language that hold functions: `mma`, `dma`, `atomic` and their like."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from tilemma.ir.refusals import WrongMember, WrongValue, wrong_member
from tilemma.lang.spans import caller_span


class NoSuchMember(WrongMember, AttributeError):
    """`hasattr` of a member that an object has not is False."""


class Namespace:
    """``_spelled`` is its name in a program, and ``_forms`` says how its functions are called."""

    _spelled: str
    _forms: ClassVar[str]
    # Names that are answered by `_forms`; others of other libraries by the form of the language.
    _own_names: ClassVar[Container[str]] = ()

    @property
    def article(self) -> str:
        return f"`{self._spelled}`"

    def __dir__(self) -> list[str]:
        """Its functions: `article` describes it in errors."""
        return [n for n in super().__dir__() if n != "article"]

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise WrongValue(
            caller_span(),
            what=f"`{self._spelled}`",
            got="a call",
            wanted="one of its functions",
            fix_text=f"write {self._forms}",
        )

    if not TYPE_CHECKING:  # a type checker knows the members itself

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            known = [n for n in dir(self) if not n.startswith("_")]
            forms, subject = f"write {self._forms}", None if name in self._own_names else "a"
            e = wrong_member(caller_span(), f"`{self._spelled}`", name, known, forms, subject)
            raise NoSuchMember(e.span, **e.facts)
