"""docs/errors.md: every error that a user can see, from its class.

Run ``python -m dev.pages.errors`` after an error was added or changed.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import string
import sys
from pathlib import Path

import tilemma
from tilemma.errors import CompileError, LaunchError, TilemmaError, ToolError

PATH = Path(__file__).resolve().parents[2] / "docs" / "errors.md"

_GROUPS: tuple[tuple[str, type[TilemmaError], str], ...] = (
    (
        "The program is wrong",
        CompileError,
        "These errors are found when a kernel is loaded or compiled; they do not depend on its arguments.",
    ),
    ("The arguments are wrong", LaunchError, "These errors are found when a kernel is called, before a launch."),
    ("A tool or a device is missing", ToolError, "An assembler, a driver or a GPU is missing or fails."),
    (
        "Hazards and faults",
        TilemmaError,
        "The PTX machine or the CPU reference finds these errors while a kernel runs.",
    ),
)
_INTRODUCTION = """\
# Errors

Every error has a stable code, a place in the source, a message, the expected input and a fix:

```text
{example}
```

`error.json()` returns the error as data: `code`, `kind`, `message`, `expected`, `fix`, `span` (file, lines and
columns from 1, the end exclusive), `refusals` (rejected candidates, each with its rule), `notes`, `exit_status`.
Exit status 2 of the command line means that the program or the arguments are wrong. Exit status 1 means that the
kernel has a hazard or a wrong result.

The message replaces the words in *italics*. `python -m dev.pages.errors` generates this page.
"""


def import_everything() -> None:
    """Import every module of the package, so that every class of error is known.

    `tilemma.torch` has none, and needs torch.
    """
    for module in pkgutil.walk_packages(tilemma.__path__, "tilemma."):
        if not module.name.endswith("__main__") and not module.name.startswith("tilemma.torch"):
            importlib.import_module(module.name)


def text() -> str:
    """The page."""
    import_everything()
    lines = [_INTRODUCTION.format(example=_example())]
    left = _kinds(TilemmaError)
    for title, base, explanation in _GROUPS:
        group = [cls for cls in left if issubclass(cls, base)]
        left = [cls for cls in left if cls not in group]
        lines += [f"## {title}", "", explanation, ""]
        for cls in sorted(group, key=lambda c: (c.code, c.__module__)):
            lines += _entry(cls.code, cls)
    assert not left
    return "\n".join(lines)


def _kinds(base: type[TilemmaError]) -> list[type[TilemmaError]]:
    """The package's kinds of error below ``base``; one code can have several classes."""
    found = [base] if "code" in base.__dict__ and base.__module__.startswith("tilemma.") and base.found else []
    return [*found, *(k for sub in base.__subclasses__() for k in _kinds(sub))]


def _entry(code: str, cls: type[TilemmaError]) -> list[str]:
    module = cls.__module__.removeprefix("tilemma.")
    return [
        f"### {code}",
        "",
        f"{_readable(cls.found)}.",
        "",
        f"- expected: {_readable(cls.expected)}",
        f"- fix: {_readable(cls.fix)}",
        *([f"- fix in Python: {_readable(cls.python_fix)}"] if cls.python_fix else []),
        f"- `{cls.__name__}`, `{module}`",
        "",
    ]


def _readable(template: str) -> str:
    """A template with its fields in italics, outside code quotes."""
    found = ""
    for literal, name, _, _ in string.Formatter().parse(template):
        found += literal
        if name is not None:
            plain = re.split(r"[.\[!:]", name)[0].removesuffix("_text").replace("_", " ")
            found += f"‹{plain}›"
    pieces = found.split("`")
    for i, piece in enumerate(pieces):
        inside = i % 2 == 1 and len(pieces) % 2 == 1
        if not inside:
            piece = re.sub(r"‹([^›]*)›", r"*\1*", piece)
        pieces[i] = piece
    return "`".join(pieces)


def _example() -> str:
    from tilemma.croqtile import load
    from tilemma.errors import register_source

    source = "__co__ void k(global f32 [M, N] a) {\n  parallel {i, j} by [M, N] : block\n    a.at(i) = 0.0f;\n}\n"
    register_source("scale.co", source)
    try:
        load(source, "scale.co").sources["k"].build()
    except CompileError as e:
        return e.render()
    raise AssertionError("the example is right")


def main() -> int:
    PATH.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
