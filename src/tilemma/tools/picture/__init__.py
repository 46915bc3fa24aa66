"""A kernel as one HTML page: grid, warps and roles, shared memory, fragments, timeline, linked to its code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tilemma.checked import Condition, checked, instance, integer
from tilemma.errors import ToolError
from tilemma.kernels import Kernel
from tilemma.records import record
from tilemma.sources import shows_user_frames
from tilemma.tools.output import write_file

# Characters of a page; lines of each listing in it.
MAX_PAGE = 24 << 20


class PictureTooLarge(ToolError):
    code = "picture-too-large"
    found = "the picture of `{kernel}` has {size} {unit}"
    expected = "at most {limit} {unit}"
    fix = "{fix_text}"


@record(slots=False)
class Picture:
    """The page of one kernel; a notebook shows it, `save` writes it."""

    kernel: str
    html: str

    def __repr__(self) -> str:
        return f"<picture of {self.kernel}, {len(self.html) >> 10} KiB of HTML; .save(path) writes it>"

    def _repr_html_(self) -> str:
        # A frame of its own, so that the page's styles and script stay apart from the notebook's.
        title = escape(f"picture of {self.kernel}")
        return (
            f'<iframe title="{title}" sandbox="allow-scripts" '
            f'style="width:100%;height:640px;border:1px solid #9aa5b1" srcdoc="{escape(self.html)}"></iframe>'
        )

    def save(self, path: str | Path, *, force: bool = False, source: str = "") -> str:
        """Write the page to ``path`` (`-`: standard output); what was written, in words.

        Raises CannotWrite.  ``force`` replaces a file that tilemma did not write, but never ``source``.
        """
        write_file(str(path), self.html.encode("utf-8", "replace"), source=source, force=force)
        return "" if str(path) == "-" else f"{path}: {len(self.html) >> 10} KiB, for any browser"


def _sizes(x: Any) -> bool:
    return x is None or (isinstance(x, Mapping) and all(isinstance(n, int) for n in x.values()))


def draw(
    kernel: Kernel,
    constants: Mapping[str, Any],
    *,
    arch: str = "sm_90a",
    shape: str | None = None,
    args: Sequence[str] = (),
    seed: int = 0,
) -> Picture:
    """The picture of ``kernel`` compiled for ``arch``.

    Without ``shape`` the run on the PTX machine has the smallest sizes that reach every path.  Raises the errors
    of compilation, BadShape, BadArgument, PictureTooLarge.
    """
    from tilemma.tools.picture.model import model
    from tilemma.tools.picture.page import page

    text = page(model(kernel, dict(constants), arch, shape, args, seed))
    if len(text) > MAX_PAGE:
        raise PictureTooLarge(
            kernel=kernel.name, size=len(text), unit="characters", limit=MAX_PAGE,
            fix_text="give smaller sizes with `shape`, or split the kernel",
        )  # fmt: skip
    return Picture(kernel.name, text)


@shows_user_frames
@checked(
    arch=instance("the name of a target, such as 'sm_90a'", str),
    shape=Condition("None, or all dimensions by name: {'M': 144, 'N': 80}", _sizes),
    scalars=Condition("None, or the scalar parameters by name", lambda x: x is None or isinstance(x, Mapping)),
    seed=integer(0, 2**62),
)
def show(
    kernel: Kernel,
    arch: str = "sm_90a",
    *,
    shape: Mapping[str, int] | None = None,
    scalars: Mapping[str, Any] | None = None,
    seed: int = 0,
    **constants: Any,
) -> Picture:
    """`Kernel.show`: as `draw`, with sizes and scalars as numbers."""
    sizes = None if shape is None else ",".join(f"{k}={v}" for k, v in shape.items())
    args = [f"{k}={v}" for k, v in (scalars or {}).items()]
    return draw(kernel, constants, arch=arch, shape=sizes, args=args, seed=seed)


__all__ = ["MAX_PAGE", "Picture", "PictureTooLarge", "draw", "show"]
