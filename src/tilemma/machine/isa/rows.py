"""One row of the tables of forms: types and modifiers that go together, from which architecture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True, slots=True)
class Row:
    """Forms of an instruction that share modifiers, from architecture ``sm``.

    ``types``: alternatives separated by spaces, each a list of types separated by dots (``f16|f32.s32``: two
    lists); none for instructions without a type.  ``modifiers``: ``a|b`` is one of them, ``[a|b]`` at most one,
    ``a.b`` both.  ``accelerated``: only targets such as ``sm_100a`` have them.  ``operands``: their number, 0 for
    any.
    """

    types: str
    modifiers: str = ""
    sm: int = 0
    accelerated: bool = False
    operands: int = 0

    def type_lists(self) -> Iterator[tuple[str, ...]]:
        for alternative in self.types.split() or [""]:
            yield from product(*(part.split("|") for part in alternative.split(".") if part))

    def modifier_sets(self) -> Iterator[frozenset[str]]:
        choices = []
        for word in self.modifiers.split():
            options: list[tuple[str, ...]] = [tuple(x.split(".")) for x in word.strip("[]").split("|")]
            choices.append([(), *options] if word[0] == "[" else options)
        for chosen in product(*choices):
            yield frozenset(x for group in chosen for x in group)
