"""HTML of objects in notebooks."""

from __future__ import annotations

import importlib
from typing import Any


class Displayed:
    """A class with ``_repr_html_``, the method that IPython asks for a result's HTML.

    The rendering lies in the tools, above every class that it shows, and is imported when something is displayed.
    """

    __slots__ = ()

    def _repr_html_(self) -> str:
        html: str = importlib.import_module("tilemma.tools.notebook").html(self)
        return html


class Drawn(Displayed):
    """A displayed class, a kernel, that has a picture of its own."""

    __slots__ = ()

    def show(self, arch: str = "sm_90a", **options: Any) -> Any:
        """The kernel as a page: a notebook displays it, ``.save("kernel.html")`` writes it.

        ``options``: ``shape`` (all dimensions, `{"M": 144, ...}`; default: the smallest that reach every path),
        ``scalars`` (by name), ``seed``, and compile-time values.
        """
        return importlib.import_module("tilemma.tools.picture").show(self, arch, **options)
