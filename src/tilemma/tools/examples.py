"""`tilemma examples`: the example kernels, from the checkout or from the installed package."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from tilemma.errors import ToolError
from tilemma.tools.output import CannotWrite, cannot_write, write_file

SUFFIXES = (".co", ".py", ".ptx")


class NoExamples(ToolError):
    code = "no-examples"
    found = "the examples are not installed: {folder} does not exist"
    expected = "the files that come with the package"
    fix = "reinstall tilemma from its wheel, or use a checkout of its repository"


def folder() -> Path:
    """The folder of the examples.  Raises NoExamples."""
    checkout = Path(__file__).resolve().parents[3] / "examples"
    installed = Path(sysconfig.get_path("data")) / "share" / "tilemma" / "examples"
    for found in (checkout, installed):
        if (found / "co").is_dir():
            return found
    raise NoExamples(folder=installed)


def names() -> list[str]:
    """The examples as paths below `folder`, in order."""
    root = folder()
    return sorted(p.relative_to(root).as_posix() for p in root.glob("*/*") if p.suffix in SUFFIXES)


def write(target: str, *, force: bool = False) -> list[str]:
    """Write the examples below the folder ``target``, which is made; the paths written.  Raises CannotWrite."""
    if not target:
        raise CannotWrite(file=target, reason="it is no name", fix_text="name a folder, `.` for this one")
    root, written = folder(), []
    for name in names():
        path = Path(target) / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise cannot_write(str(path), error) from None
        write_file(str(path), (root / name).read_bytes(), source=str(root / name), force=force)
        written.append(str(path))
    return written
