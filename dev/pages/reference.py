"""The references of the site: public names from their docstrings, commands from their help."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import click

import tilemma as tm
from tilemma.cli import main as command_line

# Public names whose members are the interface.
NAMESPACES = ("mma", "dma", "tma", "sync", "atomic", "lane", "ops", "testing", "sparse")


def _described(name: str, value: Any, level: int) -> Iterator[str]:
    """A heading with the signature, and the docstring."""
    try:
        signature = str(inspect.signature(value)) if callable(value) else ""
    except (TypeError, ValueError):
        signature = ""
    yield f"{'#' * level} {name}\n"
    if signature:
        yield f"```text\n{name}{signature}\n```\n"
    doc = inspect.getdoc(value)
    own = doc and (inspect.isclass(value) or callable(value) or isinstance(value, ModuleType))
    if own and doc != inspect.getdoc(type(value)):
        yield f"```text\n{doc}\n```\n"


def _members(value: Any) -> list[str]:
    found = getattr(value, "__all__", None) or [n for n in dir(value) if not n.startswith("_")]
    return [n for n in found if callable(getattr(value, n))]


def python() -> str:
    """All names of `tilemma.__all__`."""
    lines = ["# Python\n", "The public names of `import tilemma as tm`, from their docstrings.\n"]
    for name in sorted(tm.__all__, key=str.lower):
        value = getattr(tm, name)
        lines += _described(f"tm.{name}", value, 2)
        for member in _members(value) if name in NAMESPACES else ():
            lines += _described(f"tm.{name}.{member}", getattr(value, member), 3)
    return "\n".join(lines)


def commands() -> str:
    """The help of each command."""
    parent = click.Context(command_line, info_name="tilemma", terminal_width=100)
    lines = ["# Command line\n", f"```text\n{command_line.get_help(parent)}\n```\n"]
    for name, command in sorted(command_line.commands.items()):
        context = click.Context(command, info_name=name, parent=parent, terminal_width=100)
        lines.append(f"## tilemma {name}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(lines)
