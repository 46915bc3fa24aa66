"""Compiled kernels as files that C programs include: the cubin, its launch plans and a header."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilemma.c_export.header import Exported, header
from tilemma.c_export.program import program
from tilemma.checked import instance
from tilemma.errors import LaunchError, WrongArgumentType, described
from tilemma.kernels import Kernel

__all__ = ["export"]


class CannotWrite(LaunchError, OSError):
    code = "export-cannot-write"
    found = "export: `{path}` cannot be written: {reason}"
    expected = "a folder that exists or can be made, with permission to write"
    fix = "choose another folder"


def export(
    kernel: Kernel,
    folder: str | os.PathLike[str],
    arch: str = "sm_90a",
    *,
    facts: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
    **constants: Any,
) -> tuple[Path, ...]:
    """Write ``kernel``, compiled for ``arch``, to ``folder``; returns the files.

    - NAME.cubin: the machine code;
    - NAME.json: the launch plans;
    - NAME.h: a header with the machine code and the functions ``NAME_load``, ``NAME_launch``, ``NAME_unload``.
      It needs the CUDA driver API and no Python: the launch checks its arguments, computes the grid and encodes
      the tensor maps, as a call from Python does;
    - NAME_main.c: a program that calls the kernel and prints a checksum of each array that it writes.

    ``facts``, ``sizes`` and constants: as for `Kernel.compile`.  Raises what compiling raises, NoPtxas,
    CannotWrite, CannotExport for a parameter that C programs cannot pass.
    """
    if not isinstance(kernel, Kernel):
        wanted = "a kernel: what `@tm.kernel` or a member of `tm.load` is"
        raise WrongArgumentType(function="export", name="kernel", got=described(kernel), wanted=wanted)
    instance("a path", str, os.PathLike).check("export", "folder", folder)
    compiled = kernel.compile(arch, facts=facts, sizes=sizes, **constants)
    made = Exported(kernel.name, arch, compiled.launches, compiled.cubin)
    files = {
        f"{made.name}.cubin": made.cubin,
        f"{made.name}.json": (json.dumps(compiled.launch, indent=1) + "\n").encode(),
        f"{made.name}.h": header(made).encode(),
        f"{made.name}_main.c": program(made).encode(),
    }
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            _write(place / name, content)
    except (OSError, ValueError) as error:
        raise CannotWrite(path=str(folder), reason=getattr(error, "strerror", None) or error) from None
    return tuple(place / name for name in files)


def _write(path: Path, content: bytes) -> None:
    """Written beside the file and renamed, so that no reader finds half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
