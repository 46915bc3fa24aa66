"""Objects of the language that hold functions: `mma`, `dma`, `atomic` and their like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from tilemma.ir.refusals import WrongMember, WrongValue, wrong_member
from tilemma.ir.spellings import python_form
from tilemma.lang.spans import caller_span


class NoSuchMember(WrongMember, AttributeError):
    """`hasattr` of a member that an object has not is False."""


class Namespace:
    """``_spelled`` is its name in a program, and ``_forms`` says how its functions are called."""

    _spelled: str
    _forms: ClassVar[str]

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise WrongValue(
            caller_span(),
            what=f"`{self._spelled}`",
            got="a call",
            wanted="one of its functions",
            fix_text=f"write {self._forms}",
        )

    def _form_of(self, name: str) -> str:
        """`write ...` for a function of ``tm`` that is not found here; empty for other names."""
        form = python_form(name)
        return form if "tm." in form else ""

    if not TYPE_CHECKING:  # a type checker knows the members itself

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            known = [n for n in dir(self) if not n.startswith("_")]
            e = wrong_member(caller_span(), f"`{self._spelled}`", name, known, f"write {self._forms}")
            form = self._form_of(name)
            raise NoSuchMember(e.span, **(e.facts | ({"suggestion": form} if form else {})))
