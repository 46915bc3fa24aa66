"""The kernels of a file: what `tm.load` returns."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilemma.display import Displayed
from tilemma.errors import (
    CompileError,
    Note,
    TilemmaError,
    WrongArgumentType,
    described,
    nearest,
    warn_of_direction,
)
from tilemma.forking import collection_paused
from tilemma.front_end_cache import File, TextSource
from tilemma.ir.refusals import NoKernel
from tilemma.kernels import Kernel
from tilemma.sources import program_failed, read_source, shows_user_frames


class NoSuchKernel(CompileError):
    code = "no-such-kernel"
    found = "`{file}` has no kernel `{name}`"
    expected = "one of: {known}"
    fix = "{fix_text}"


class SeveralKernels(CompileError):
    code = "several-kernels"
    found = "`{file}` has {count} kernels and none was named"
    expected = "one of: {known}"
    fix = "name it: `module.NAME` in Python, `FILE NAME` on the command line"


def _no_kernel(file: str, problem: str) -> NoKernel:
    wanted = "a function with the decorator `@tm.kernel`"
    return NoKernel(file=file, problem=problem, wanted=wanted, fix_text="write `@tm.kernel` above the function")


class Module(Displayed):
    """The kernels of a file, as attributes and by name.

    A module of one kernel stands for it: it can be called, and has the kernel's methods (`on`, `compile`, ...).
    """

    def __init__(self, file: str, kernels: Mapping[str, Kernel], notes: Sequence[Note] = ()) -> None:
        self.file = file
        self.kernels = dict(kernels)
        self.notes = tuple(notes)

    def __getitem__(self, name: str) -> Kernel:
        if not isinstance(name, str):
            raise WrongArgumentType(
                function="Module[...]", name="name", got=described(name), wanted="a kernel's name"
            )
        if name not in self.kernels:
            near = nearest(name, list(self.kernels))
            raise NoSuchKernel(
                file=self.file,
                name=name,
                known=", ".join(self.kernels) or "none",
                fix_text=f"did you mean `{near}`?" if near else "name one of these",
            )
        return self.kernels[name]

    def __iter__(self) -> Iterator[str]:
        """The kernels' names, in the order of the file."""
        return iter(self.kernels)

    def __len__(self) -> int:
        return len(self.kernels)

    def __contains__(self, name: object) -> bool:
        return name in self.kernels

    def __bool__(self) -> bool:
        """True as for other modules, with or without kernels."""
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        # Names of kernels come first: a kernel may be called `compile`.
        return getattr(self.only(), name) if name not in self.kernels and name in _METHODS else self[name]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the kernel, when there is one; SeveralKernels otherwise."""
        return self.only()(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tilemma module {self.file!r} with {', '.join(self.kernels) or 'no kernels'}>"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.kernels, *(_METHODS if len(self.kernels) == 1 else ())]

    def only(self) -> Kernel:
        """The kernel, when there is one; NoKernel or SeveralKernels otherwise."""
        if not self.kernels:
            raise _no_kernel(self.file, "has no kernel")
        if len(self.kernels) != 1:
            raise SeveralKernels(file=self.file, count=len(self.kernels), known=", ".join(self.kernels) or "none")
        return next(iter(self.kernels.values()))


# The attributes that a module of one kernel forwards to it.
_METHODS = tuple(name for name in (*dir(Kernel), "source") if not name.startswith("_"))


@shows_user_frames
def load(path: str | Path, defines: Mapping[str, Any] | None = None) -> Module:
    """The kernels of a `.co` file; ``defines`` are as ``#define NAME VALUE`` before its first line.

    Raises CannotRead for a file that cannot be read, and the front end's errors.
    """
    if isinstance(path, str) and "\n" in path:
        raise WrongArgumentType(
            function="load", name="path", got="a text of several lines", wanted="the path of a file"
        )
    return _loaded("load", read_source("load", path).decode("utf-8", "strict"), str(path), defines)


@shows_user_frames
def loads(text: str, defines: Mapping[str, Any] | None = None, *, name: str = "text.co") -> Module:
    """The kernels of a `.co` program that is a text, for notebooks: ``name`` stands for its file in errors.

    Raises the front end's errors.
    """
    for argument, value in (("text", text), ("name", name)):
        if not isinstance(value, str):
            raise WrongArgumentType(function="loads", name=argument, got=described(value), wanted="a text")
    return _loaded("loads", text, name, defines)


def _loaded(function: str, text: str, path: str, defines: Mapping[str, Any] | None) -> Module:
    if defines is not None and not (isinstance(defines, Mapping) and all(isinstance(n, str) for n in defines)):
        raise WrongArgumentType(
            function=function, name="defines", got=described(defines), wanted="a mapping from names to values"
        )
    warn_of_direction(path, text)
    with collection_paused():
        file = File(text, path, dict(defines or {}))
    return Module(path, {name: Kernel(TextSource(file, name)) for name in file.kernels}, file.notes)


def load_python(path: str | Path) -> Module:
    """The kernels of a Python file, which is executed.  It can import the modules in its folder, as a script can.

    Raises CannotRead for a file that cannot be read, NoKernel for an empty one, ProgramFailed with the frames of
    the program for its exceptions.
    """
    import runpy

    text = read_source("load_python", path).decode()
    if not text.strip():
        raise _no_kernel(str(path), "is empty")
    warn_of_direction(str(path), text)
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:
        # The entry remains: functions may import when they are traced.
        sys.path.insert(0, folder)
    try:
        names = runpy.run_path(str(path), run_name="tilemma_kernels")
    except (TilemmaError, KeyboardInterrupt):
        raise
    except BaseException as e:
        # The file is the user's program: its exceptions are shown as Python shows them.
        failed = program_failed(e, str(path))
        if failed is None:
            raise
        raise failed from e
    return Module(str(path), {n: k for n, k in names.items() if isinstance(k, Kernel)})
