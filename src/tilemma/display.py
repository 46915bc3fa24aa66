"""HTML of objects in notebooks."""

from __future__ import annotations

import importlib


class Displayed:
    """A class with ``_repr_html_``, the method that IPython asks for a result's HTML.

    The rendering lies in the tools, above every class that it shows, and is imported when something is displayed.
    """

    __slots__ = ()

    def _repr_html_(self) -> str:
        html: str = importlib.import_module("tilemma.tools.notebook").html(self)
        return html
