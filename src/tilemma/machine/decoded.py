"""Parsed PTX and decoded programs of this process, kept for the next job with the same text and launch.

A program belongs to one job at a time: `take` removes it, `give_back` returns it.  It comes back only for arrays
of the same types, shapes and strides, a launch of the same size, the same use of the native library and the same
declared instructions, so that a further job is to it what a further schedule is.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from tilemma.machine import declared
from tilemma.machine.binding import Binding
from tilemma.machine.native import library
from tilemma.machine.parser import parse
from tilemma.machine.program import Program, decode_program
from tilemma.machine.syntax import Entry, Module

# What is kept of each: the last ones used, of texts of at most so many characters.
_MOST = 8
_TEXT = 1 << 20

_modules: OrderedDict[Any, Module] = OrderedDict()
_programs: OrderedDict[Any, Program] = OrderedDict()


def parsed(ptx: str, name: str, only: str | None) -> Module:
    """`parse`, or what it has returned for the same arguments."""
    key = ptx, name, only, declared.state()
    module = _modules.pop(key, None) or parse(ptx, name, only=only)
    _keep(_modules, key, module, len(ptx))
    return module


def key_of(ptx: str, name: str, arch: str, binding: Binding) -> Any:
    """All that a program may depend on, beside the native library."""
    b = binding
    arrays = tuple(
        (name, str(a.dtype), a.shape, a.strides, a.flags.writeable, b.written.get(name))
        for name, a in b.arrays.items()
    )
    parameters = tuple((kind, len(value) if kind == "bytes" else "") for kind, value in b.parameters)
    return ptx, name, arch, b.entry, b.grid, b.block, b.cluster, b.shared, arrays, parameters, declared.state()


def take(key: Any, module: Module, entry: Entry, arch: str) -> Program:
    """The program of ``entry``: one that was given back, or a new one."""
    found = _programs.pop((key, library.enabled(), library.loaded() is not None), None)
    return found if found is not None and found.module is module else decode_program(module, entry, arch)


def give_back(key: Any, program: Program) -> None:
    """No job uses ``program`` any more."""
    program.restart()
    _keep(_programs, (key, library.enabled(), program.native), program, len(key[0]))


def _keep(table: OrderedDict[Any, Any], key: Any, value: Any, size: int) -> None:
    if size > _TEXT:
        return
    table[key] = value
    while len(table) > _MOST:
        table.popitem(last=False)
