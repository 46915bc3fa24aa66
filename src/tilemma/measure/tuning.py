"""The fastest compile-time values of a kernel for given arrays: measured once, kept on disk."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from tilemma.assemble import DiskCache
from tilemma.bounded import Bounded
from tilemma.checked import FLAG, checked, function, optional, real
from tilemma.errors import LaunchError, TilemmaError, WrongArgument, WrongArgumentType, described
from tilemma.fingerprint import fingerprint
from tilemma.measure.timing import bench
from tilemma.records import record
from tilemma.runtime.arrays import ArrayRef, describe, facts, library_of

# Configurations that a space may have: more than anybody waits for.
MAX_CONFIGURATIONS = 10_000
# By how much another configuration has to be faster than the kernel's defaults: shorter runs differ by less.
MARGIN = 0.02

Values = Mapping[str, Any]
Measure = Callable[[Callable[..., Any]], float]


class NoGpuArrays(LaunchError):
    code = "tune-needs-gpu"
    found = "tune: {kernel} with arrays on the CPU"
    expected = "CUDA arrays: the time of the CPU reference says nothing about a GPU"
    fix = "pass CUDA arrays, or `measure=`, a function that returns the seconds of a kernel that it is given"


class NothingRuns(LaunchError):
    code = "tune-nothing-runs"
    found = "tune: none of the {count} configurations of {kernel} runs; the first ({first}): {why}"
    expected = "a space with at least one configuration that compiles for these arrays"
    fix = "add values that the kernel can be compiled with"


class UnknownConstant(LaunchError, KeyError):
    code = "tune-unknown-constant"
    found = "tune: {kernel} has no compile-time parameter `{name}`"
    expected = "{known}"
    fix = "use the names of the kernel's compile-time parameters"


class Tunable(Protocol):
    """A kernel that is tuned."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> Any: ...

    def traced(self, **constants: Any) -> Any: ...

    def on(self, target: str, **options: Any) -> Any: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


@record
class Attempt:
    """One configuration: its time, or the error that refused it."""

    values: tuple[tuple[str, Any], ...]
    seconds: float | None = None
    refused: str | None = None

    def __str__(self) -> str:
        said = ", ".join(f"{n}={v!r}" for n, v in self.values) or "the defaults"
        return f"{said}: {self.refused}" if self.seconds is None else f"{said}: {self.seconds * 1e6:.1f} us"


class Tuned:
    """A kernel with its fastest compile-time values; call it as the kernel.

    ``values``: those values; ``attempts``: every configuration that was tried; ``complete``: whether the budget
    was enough for all of them; ``stored``: whether the result was read from the disk.
    """

    def __init__(
        self, kernel: Tunable, values: Values, attempts: Sequence[Attempt], complete: bool, stored: bool
    ) -> None:
        self.kernel, self.values = kernel, dict(values)
        self.attempts, self.complete, self.stored = tuple(attempts), complete, stored
        self.__name__, self.__doc__ = kernel.name, getattr(kernel, "__doc__", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.kernel(*args, **(self.values | kwargs))

    def __repr__(self) -> str:
        return (
            f"<tuned {self.kernel.name}: {', '.join(f'{n}={v!r}' for n, v in self.values.items()) or 'defaults'}>"
        )

    def __str__(self) -> str:
        lines = [repr(self), *(f"  {a}" for a in sorted(self.attempts, key=lambda a: a.seconds or float("inf")))]
        return "\n".join(lines if self.complete else [*lines, "  the budget ended before all were tried"])


OPTIONS = {
    "budget_s": real(1e-9, 1e9, "seconds"),
    "measure": optional(function("a function that returns the seconds of a kernel that it is given")),
    "quiet": FLAG,
    "store": FLAG,
}


@checked(**OPTIONS)
def tune(
    kernel: Tunable,
    *args: Any,
    space: Values | Iterable[Values],
    budget_s: float = 30.0,
    measure: Measure | None = None,
    quiet: bool = False,
    store: bool = True,
) -> Tuned:
    """The configuration of ``space`` that runs fastest with the arguments ``args``.

    ``space``: compile-time values as a mapping from names to lists (all combinations), or an iterable of mappings.
    Each configuration is compiled before it is timed; one that is refused is recorded with its error.  The
    defaults are always among them and win unless another is faster by more than 2 %.  Timing ends after
    ``budget_s`` seconds.  ``measure(run)`` returns the seconds of one call of ``run(*args)``; by default `bench`
    measures single calls with a cold L2 cache.  A result is kept on disk under device, arrays, compiler and the
    kernel's own code for every configuration, unless ``store`` is False or ``measure`` is given; that of a budget
    that ended early is used again for budgets up to its own.

    The arrays are used: a kernel that adds to its output adds once for each measured call.
    Raises NoGpuArrays, UnknownConstant, NothingRuns, WrongArgumentType, WrongArgument.
    """
    configurations = _configurations(kernel, space)
    refs = [describe(x) for x in args if library_of(x)]
    if measure is None and not any(r.device[0] == "cuda" for r in refs):
        raise NoGpuArrays(kernel=kernel.name)
    key = _key(kernel, configurations, args, refs) if store and measure is None else None
    found = None if key is None else DiskCache("tuned").read(key, json.loads)
    if found is not None and (found["complete"] or found["budget_s"] >= budget_s):
        return Tuned(kernel, found["values"], (), found["complete"], True)
    attempts, complete = _attempts(kernel, configurations, args, measure, budget_s, quiet)
    timed = [a for a in attempts if a.seconds is not None]
    if not timed:
        first = attempts[0]
        raise NothingRuns(count=len(attempts), kernel=kernel.name, first=first.values, why=first.refused)
    best = min(timed, key=lambda a: a.seconds or 0.0)
    default = next((a for a in timed if not a.values), None)
    if default is not None and (default.seconds or 0.0) <= (1 + MARGIN) * (best.seconds or 0.0):
        best = default
    if key is not None:
        kept = {"values": dict(best.values), "complete": complete, "budget_s": budget_s}
        DiskCache("tuned").put(key, json.dumps(kept).encode())
    return Tuned(kernel, dict(best.values), attempts, complete, False)


def _wrong_space(space: Any) -> WrongArgumentType:
    wanted = "a mapping from compile-time parameters to lists of values, or a list of such configurations"
    return WrongArgumentType(function="tune", name="space", got=described(space), wanted=wanted)


def _is_list(x: Any) -> bool:
    return isinstance(x, Sequence | set | frozenset | range | Iterator) and not isinstance(x, (str, bytes))


def _configurations(kernel: Tunable, space: Any) -> list[dict[str, Any]]:
    if isinstance(space, Mapping):
        if not all(map(_is_list, space.values())):
            raise _wrong_space(space)
        combined = itertools.product(*(list(v) for v in space.values()))
        found: Iterable[Any] = (dict(zip(space, values, strict=True)) for values in combined)
    elif _is_list(space):
        found = space
    else:
        raise _wrong_space(space)
    listed = [{}, *itertools.islice(found, MAX_CONFIGURATIONS + 1)]
    if len(listed) > MAX_CONFIGURATIONS + 1:
        raise WrongArgument(
            function="tune",
            name="space",
            got=f"more than {MAX_CONFIGURATIONS} configurations",
            wanted=f"at most {MAX_CONFIGURATIONS}",
        )
    known = kernel.source.constants
    for values in listed:
        if not isinstance(values, Mapping):
            raise _wrong_space(space)
        for name in values:
            if name not in known:
                raise UnknownConstant(
                    kernel=kernel.name, name=name, known=", ".join(known) or "it has no compile-time parameters"
                )
    return [dict(values) for values in listed]


def _attempts(
    kernel: Tunable,
    configurations: Sequence[Values],
    args: Sequence[Any],
    measure: Measure | None,
    budget_s: float,
    quiet: bool,
) -> tuple[list[Attempt], bool]:
    from rich.console import Console
    from rich.progress import Progress

    end = time.monotonic() + budget_s
    attempts: list[Attempt] = []
    console = Console(file=sys.stderr, quiet=quiet)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        for values in progress.track(configurations, description=f"tuning {kernel.name}"):
            if attempts and time.monotonic() > end:
                return attempts, False
            attempts.append(_attempt(kernel, values, args, measure))
    return attempts, True


def _attempt(kernel: Tunable, values: Values, args: Sequence[Any], measure: Measure | None) -> Attempt:
    named = tuple(values.items())

    def run(*given: Any) -> Any:
        return kernel(*(given or args), **values)

    try:
        if measure is not None:
            seconds = measure(run)
            # A user's function returned it.
            real(0, float("inf"), "seconds").check("tune", "the result of measure", seconds)
            return Attempt(named, float(seconds))
        kernel.on("cuda").prepare(*args, **values)
        return Attempt(named, bench(run, *args, steady=0, repeats=11).median)
    except TilemmaError as error:
        return Attempt(named, None, f"{error.code}: {error.message}")


def _key(
    kernel: Tunable, configurations: Sequence[Values], args: Sequence[Any], refs: Sequence[ArrayRef]
) -> str | None:
    """All that a result depends on; None where values cannot be written down or a trace fails."""
    device = next(r.device for r in refs if r.device[0] == "cuda")
    try:
        codes = [_code(kernel, values) for values in configurations]
        written = json.dumps([dict(c) for c in configurations])
    except (TilemmaError, TypeError):
        return None
    arrays = [(r.library, str(r.dtype), r.shape, facts(r).contiguous, facts(r).alignment) for r in refs]
    scalars = [repr(x) for x in args if not library_of(x)]
    from tilemma.runtime import cuda_device

    where = cuda_device(device[1])
    return DiskCache.key(
        fingerprint(), kernel.name, written, codes, arrays, scalars, where.name, where.sm_count, where.clock_khz
    )


def _code(kernel: Tunable, values: Values) -> str:
    from tilemma.ir.printer import print_kernel

    try:
        return print_kernel(kernel.traced(**values))
    except TilemmaError as error:
        return error.code


class Autotuned:
    """A kernel that is tuned at the first call for each kind of arguments; see `autotune`."""

    def __init__(self, kernel: Tunable, space: Values | Sequence[Values], options: Values) -> None:
        self.kernel, self.space, self.options = kernel, space, dict(options)
        self.__name__, self.__doc__ = kernel.name, getattr(kernel, "__doc__", None)
        self.__wrapped__ = kernel
        self._tuned: Bounded[Any, Tuned] = Bounded(1024)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        refs = [describe(x) for x in args if library_of(x)]
        on_gpu = any(r.device[0] == "cuda" for r in refs)
        if kwargs or not (on_gpu or self.options.get("measure")):
            # Compile-time values were chosen by the caller, or nothing can be measured here.
            return self.kernel(*args, **kwargs)
        key = tuple((r.device, r.library, r.dtype, r.shape, facts(r)) for r in refs)
        found = self._tuned.get(key)
        if found is None:
            found = self._tuned[key] = tune(self.kernel, *args, space=self.space, **self.options)
        return found(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)

    def __repr__(self) -> str:
        return f"<autotuned kernel {self.kernel.name}>"


def autotune(space: Values | Iterable[Values], **options: Any) -> Callable[[Tunable], Autotuned]:
    """A decorator above `@tm.kernel`: the first call with CUDA arrays of new shapes, types or layouts tunes.

    ``space`` and ``options`` (``budget_s``, ``measure``, ``quiet``, ``store``) as in `tune`.  Calls with arrays on
    the CPU, or with compile-time values given, run the kernel as it is.
    """
    if not (isinstance(space, Mapping) or _is_list(space)):
        raise _wrong_space(space)
    kept = space if isinstance(space, Mapping) else list(itertools.islice(space, MAX_CONFIGURATIONS + 1))
    for name, value in options.items():
        if name not in OPTIONS:
            wanted = "one of " + ", ".join(OPTIONS)
            raise WrongArgument(function="autotune", name="keyword", got=f"`{name}`", wanted=wanted)
        OPTIONS[name].check("autotune", name, value)

    def decorate(kernel: Tunable) -> Autotuned:
        wanted = "a kernel: put `@tm.autotune(...)` above `@tm.kernel`"
        if not hasattr(kernel, "traced"):
            raise WrongArgumentType(function="autotune", name="kernel", got=described(kernel), wanted=wanted)
        return Autotuned(kernel, kept, options)

    return decorate
