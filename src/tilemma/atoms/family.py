"""Families of records of the instruction catalogue, which are made on the first access."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tilemma.atoms.atom import MmaAtom
from tilemma.dtypes import DType
from tilemma.records import record


@record
class Family:
    """Multiplying records that differ in their shape alone, created together on the first access to one of
    them.

    ``n``: the N that all of them have; None: several.  ``by_name``: all are taken by name only.
    """

    a: DType
    b: DType
    d: DType
    a_from: Literal["registers", "shared"]
    make: Callable[[], tuple[MmaAtom, ...]]
    n: int | None = None
    by_name: bool = False

    def has(self, columns: int | None = None, width: int | None = None, **wanted: object) -> bool:
        """Whether its records have the ``wanted`` ``a``, ``b``, ``d``, ``a_from`` and ``by_name``, None: any, may
        divide a tile of ``columns``, and may be those of N = ``width``."""
        if self.n is not None and ((columns or 0) % self.n or width not in (None, self.n)):
            return False
        return all(value is None or getattr(self, name) == value for name, value in wanted.items())
