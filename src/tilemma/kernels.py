"""Kernels as callable objects: what `@tm.kernel` returns, and the members of a `Module`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

from tilemma import runtime
from tilemma.assemble import NoPtxas, driver_image
from tilemma.atoms import catalogue
from tilemma.bounded import Bounded
from tilemma.call_signature import CallSignature
from tilemma.compiler import Compiled, Ready, decide, identity, ready, uncollected
from tilemma.display import Drawn
from tilemma.environment import Environment, content
from tilemma.errors import WrongArgument, WrongArgumentType, debugging, described
from tilemma.forking import ForkSafeLock
from tilemma.front_end_cache import Signature, TextSource, known_signature, signature
from tilemma.ir import tile as t
from tilemma.ir.specialise import as_variant, specialise
from tilemma.launch import APART, better_variant
from tilemma.measure.tuning import Tuned, tune
from tilemma.passes import FRONT_PASSES, Decision
from tilemma.records import record
from tilemma.runtime import arrays, binding, packed
from tilemma.runtime.allocation import with_allocated
from tilemma.sources import shows_user_frames
from tilemma.targets import check_choice, registered
from tilemma.targets.ptx.target import Target, targets

if TYPE_CHECKING:
    from tilemma.lang.pipeline import Pipeline

# The values of dimensions that a kernel is compiled for.
Sizes = tuple[tuple[str, int], ...]
# How many results a kernel keeps, of each kind, and for how many environments; the oldest go first.
KEPT, ENVIRONMENTS = 256, 16


class Source(Protocol):
    """One kernel as a front end provides it."""

    @property
    def name(self) -> str: ...

    @property
    def constants(self) -> Mapping[str, Any]:
        """Compile-time parameters with their defaults."""

    def build(self, given: Mapping[str, Any] | None = None) -> t.Kernel:
        """The kernel's tile IR for given compile-time values."""


class Results:
    """The results for one kernel in one environment, with one set of declared instructions, by key."""

    def __init__(self, version: int, declared: str = "") -> None:
        self.version, self.declared = version, declared
        self.traced: Bounded[Any, t.Kernel] = Bounded(KEPT)
        # After the front passes, with their decisions.
        self.built: Bounded[Any, tuple[t.Kernel, list[Decision]]] = Bounded(KEPT)
        self.signatures: Bounded[Any, Signature] = Bounded(KEPT)
        self.ready: Bounded[Any, Ready] = Bounded(KEPT)
        # Each is held while the result in ``ready`` of that key is made.
        self.locks: Bounded[Any, ForkSafeLock] = Bounded(KEPT)
        self.compiled: Bounded[Any, Compiled] = Bounded(KEPT)
        # Prepared launches of earlier calls on CUDA arrays, for each set of compile-time values.
        self.warm: Bounded[Any, runtime.CallCache] = Bounded(KEPT)


class Kernel(Drawn):
    """A kernel of either front end.  Calling it runs it where its arrays are.

    NumPy arrays (and CPU tensors) run on the CPU reference, CUDA arrays on their GPU, on their library's
    current stream.  Keywords that are not parameters are compile-time values.
    """

    __signature__ = CallSignature()

    def __init__(self, source: Source) -> None:
        self.source = source
        self.__name__ = source.name
        # A `.co` kernel has none that Python knows.
        function = getattr(source, "function", None)
        self.__doc__ = None
        if isinstance(function, FunctionType):
            self.__doc__ = function.__doc__
            self.__wrapped__ = function
            self.__module__, self.__qualname__ = function.__module__, function.__qualname__
        self._lock = ForkSafeLock()
        # The outside values that a function reads; None for a `.co` kernel, which reads none.
        self._environment: Environment | None = getattr(source, "environment", None)
        self._results = Results(0)
        self._by_environment: Bounded[tuple[int, str], Results] = Bounded(ENVIRONMENTS)

    @property
    def name(self) -> str:
        return self.source.name

    def __repr__(self) -> str:
        return f"<tilemma kernel {self.name}>"

    def __get__(self, instance: object, owner: type | None = None) -> Kernel:
        """Itself, as the attribute of a class too.  With this method, `help` shows a kernel as a function."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Kernel:
        """Itself: a kernel does not change."""
        return self

    def __copy__(self) -> Kernel:
        return self

    def __reduce__(self) -> Any:
        """Pickled by name, as functions are; a kernel of a `.co` file by its file, definitions and name."""
        if isinstance(self.source, TextSource):
            return _unpickled, (self.source,)
        return self.__qualname__

    @property
    def _known(self) -> Results:
        """The results for the present outside values of the function, and the present declared instructions."""
        environment, results = self._environment, self._results
        declared = catalogue.declared_key
        if results.declared == declared and (
            environment is None or (environment.unchanged() and results.version == environment.version)
        ):
            return results
        with self._lock:
            version = 0 if environment is None else environment.key()
            found = self._by_environment.get((version, declared))
            if found is None:
                found = self._by_environment[version, declared] = Results(version, declared)
            self._results = found
            return found

    def traced(self, **constants: Any) -> t.Kernel:
        """The tile IR as the front end gives it, before any pass."""
        key, known = _key(constants), self._known.traced
        with self._lock:
            found = known.get(key)
            if found is None:
                with uncollected():
                    found = known[key] = self.source.build(constants)
                if self._environment is not None:
                    self._environment.accept()
            return found

    def signature(self, **constants: Any) -> Signature:
        """The parameters of a call."""
        key, known = _key(constants), self._known.signatures
        with self._lock:
            found = known.get(key)
            if found is None:
                source = self.source
                found = known[key] = (
                    known_signature(lambda: source.identity(constants), lambda: self.traced(**constants))
                    if isinstance(source, TextSource)
                    else signature(self.traced(**constants))
                )
            return found

    def _identity(self, constants: Mapping[str, Any]) -> str | None:
        """The key of the IR where it is known without building it."""
        return self.source.identity(constants) if isinstance(self.source, TextSource) else None

    @shows_user_frames
    def build(self, *, sizes: Mapping[str, int] | None = None, **constants: Any) -> t.Kernel:
        """The tile IR as the program says it, checked but not specialised for any target.

        ``sizes``: the dimensions of the arrays, for a kernel with buffers of run-time extents (SizesWanted).
        """
        return self._fronted(constants, self._sizes(sizes, constants))[0]

    def _sizes(self, sizes: Mapping[str, int] | None, constants: Mapping[str, Any]) -> Sizes:
        """Those of ``sizes`` that the kernel is compiled for."""
        if sizes is None:
            return ()
        wanted = self.signature(**constants).sizes
        given = {n: sizes[n] for n in wanted if n in sizes} if isinstance(sizes, Mapping) else {}
        for name, n in given.items():
            if isinstance(n, int) and not 0 <= n < 2**31:
                bounds = "at least 0 and below 2^31: the kernel is compiled for it"
                raise WrongArgument(function=self.name, name=name, got=str(n), wanted=bounds)
        if not isinstance(sizes, Mapping) or not all(isinstance(n, int) for n in given.values()):
            raise WrongArgumentType(
                function="compile",
                name="sizes",
                got=described(sizes),
                wanted="a mapping from dimensions to extents",
            )
        return tuple(given.items())

    def _fronted(self, constants: Mapping[str, Any], sizes: Sizes) -> tuple[t.Kernel, list[Decision]]:
        key, known = (_key(constants), sizes), self._known.built
        with self._lock:
            found = known.get(key)
            if found is None:
                kernel = specialise(self.traced(**constants), dict(sizes))
                log: list[Decision] = []
                for step in FRONT_PASSES:
                    kernel = step.run(kernel, log)
                found = known[key] = kernel, log
            return found

    @shows_user_frames
    def compile(
        self,
        arch: str = "sm_90a",
        *,
        facts: Mapping[str, t.ArrayFacts] | None = None,
        sizes: Mapping[str, int] | None = None,
        variant: Sequence[str] = (),
        **constants: Any,
    ) -> Compiled:
        """Compile for ``arch``; ``facts`` default to contiguous aligned arrays (16 B); ``sizes``: see `build`.

        ``variant``: indices of the grid along which every launch has one tile, and `launch.APART` for blocks that
        are not joined.
        """
        compiled = self._decided(arch, facts, constants, self._sizes(sizes, constants), tuple(variant))
        _ = compiled.kernel  # verified
        return compiled

    def _decided(
        self,
        arch: str,
        facts: Mapping[str, t.ArrayFacts] | None,
        constants: Mapping[str, Any],
        sizes: Sizes,
        variant: tuple[str, ...],
    ) -> Compiled:
        _check_target("compile", arch, facts)
        key = (arch, _key(constants), sizes, variant, tuple(sorted((facts or {}).items(), key=lambda kv: kv[0])))
        known = self._known.compiled
        with self._lock:
            found = known.get(key)
            if found is None:
                kernel, front = self._fronted(constants, sizes)
                found = known[key] = decide(as_variant(kernel, variant), arch, facts, front)
            return found

    def ready(
        self,
        arch: str,
        facts: Mapping[str, t.ArrayFacts],
        *,
        assemble_for: str | None = None,
        sizes: Mapping[str, int] | None = None,
        **constants: Any,
    ) -> Ready:
        """PTX and launch plans, from the cache on disk if the kernel was compiled before; ``sizes`` as in `build`.

        ``assemble_for``: the architecture it will be `Ready.assembled` for, where that is known.  Where ``sizes``
        give one tile along an index in which the blocks of clusters differ, it is the variant for that.
        """
        _check_target("ready", arch, facts)
        chosen = self._sizes(sizes, constants)
        known, locks = self._known.ready, self._known.locks

        def compiled(variant: tuple[str, ...]) -> Ready:
            key = (arch, _key(constants), chosen, variant, tuple(sorted(facts.items(), key=lambda kv: kv[0])))
            with self._lock:
                lock = locks.get(key)
                if lock is None:
                    lock = locks[key] = ForkSafeLock()
            # Other variants are compiled while ptxas works on this one.
            with lock:
                found = known.get(key)
                if found is None:
                    values = "".join(f" {n}={v}" for n, v in chosen) + "".join(f" {n}=1" for n in variant)
                    found = known[key] = ready(
                        cache(lambda: (self._identity(constants) or identity(self.traced(**constants))) + values),
                        arch,
                        facts,
                        lambda: as_variant(self._fronted(constants, chosen)[0], variant),
                        lambda: self._decided(arch, facts, constants, chosen, variant),
                        assemble_for,
                        lambda launches: not better_variant(launches, sizes),
                    )
                return found

        return _for_grid(compiled, sizes)

    def schedule(self, arch: str = "sm_90a", **options: Any) -> Any:
        """The schedule on the PTX machine as a timeline: see `tilemma.tools.schedule.of_kernel`."""
        # The tools stand above the kernels that they show.
        return importlib.import_module("tilemma.tools.schedule").of_kernel(self, arch, **options)

    def on(self, target: str, **options: Any) -> Runner:
        """The kernel bound to a target: "cpu", "machine", "cuda", "auto" (the arrays decide), or the name of one
        that `tm.targets.register` was given.

        Options: ``arch`` for machine and cuda; those of `tm.machine.run` for the machine; ``stream`` for cuda.
        Raises UnknownTarget, WrongArgumentType for another option.
        """
        check_choice(target, options)
        return Runner(self, target, options)

    def tune(self, *args: Any, space: Any, **options: Any) -> Tuned:
        """The kernel with the values of ``space`` that run it fastest on ``args``; see `tilemma.measure.tune`."""
        return tune(self, *args, space=space, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        warm = self._known.warm.get(_key(kwargs) if kwargs else ())
        if warm is not None and warm.run(args):
            return None
        __tracebackhide__ = not debugging()
        return Runner(self, "auto", {})(*args, **kwargs)

    def remember(
        self,
        constants: Mapping[str, Any],
        order: Sequence[str],
        args: tuple[Any, ...],
        launches: Sequence[runtime.PreparedLaunch],
    ) -> None:
        """Start ``launches`` directly at the next call with the same arguments, named by ``order``."""
        key, known = _key(constants), self._known.warm
        with self._lock:
            cache = known.get(key)
            if cache is None:
                cache = known[key] = runtime.CallCache(order)
        cache.put(args, *launches)


def _unpickled(source: TextSource) -> Kernel:
    return Kernel(source)


@record(slots=False)
class _Call:
    """The arguments of a call in the kernel's order; ``created`` names those allocated for it.

    ``given``: what the caller passed, if arrays of elements narrower than a byte may have been converted."""

    args: Sequence[Any]
    order: Sequence[str]
    created: frozenset[str]
    given: Sequence[Any] | None = None


class Runner:
    """A kernel on a target; call it with arrays."""

    def __init__(self, kernel: Kernel, target: str, options: Mapping[str, Any]) -> None:
        self.kernel = kernel
        self.target = target
        self.options = dict(options)

    @shows_user_frames
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        constants, bound, call = self._bind(args, kwargs)
        target = bound.device[0] if self.target == "auto" else self.target
        run = {"cpu": _run_cpu, "machine": _run_machine, "cuda": _run_cuda}.get(target, _run_registered)
        outcome = run(self, constants, bound, call)
        if call.given is not None:
            packed.copy_back(self.kernel.signature(**constants).plan.arrays, call.order, call.given, call.args)
        returns = self.kernel.signature(**constants).returns
        return outcome if returns is None else call.args[call.order.index(returns)]

    def prepare(self, *args: Any, **kwargs: Any) -> list[runtime.PreparedLaunch]:
        """The launches of a call with CUDA arrays, ready to start.  Raises the same errors as the call."""
        constants, bound, call = self._bind(args, kwargs)
        return _prepare(self, bound, constants, call, runtime.cuda_device(bound.device[1]))

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], binding.Bound, _Call]:
        constants = {k: v for k, v in kwargs.items() if k in self.kernel.source.constants}
        named = {k: v for k, v in kwargs.items() if k not in constants}
        # Only the reference executor needs the checked IR here; compiling checks by itself, or did before.
        passed = self.kernel.signature(**constants)
        order, plan, given = passed.order, passed.plan, None
        values, named, created = with_allocated(plan.arrays, order, passed.returns, passed.scratch, args, named)
        if not created.issuperset(passed.scratch):
            # The arguments do not fit: the error names the parameters of the call.
            order = tuple(n for n in order if n not in passed.scratch)
        if any(packed.is_packed(a) for a in plan.arrays):
            given = [*values, *(named.pop(n) for n in order[len(values) :] if n in named)]
            plan, values = packed.stored(plan, order, given, self.target)
        names = tuple(self.kernel.source.constants)
        bound = binding.bind(
            plan, values, named, order=order, kernel=self.kernel.name, created=created, constants=names
        )
        values = [*values, *(named[n] for n in order[len(values) :])]
        return constants, bound, _Call(values, order, created, given)


def _run_cpu(runner: Runner, constants: Mapping[str, Any], bound: binding.Bound, call: _Call) -> None:
    from tilemma.targets.cpu import execute

    views = {a.name: arrays.host_view(bound.array(a.name)) for a in bound.launch.arrays}
    scalars = {s.name: bound.values[s.name] for s in bound.launch.scalars}
    execute(runner.kernel.build(sizes=bound.names, **constants), views, scalars, dims=bound.names)


def _run_registered(runner: Runner, constants: Mapping[str, Any], bound: binding.Bound, call: _Call) -> Any:
    views = {a.name: arrays.host_view(bound.array(a.name)) for a in bound.launch.arrays}
    scalars = {s.name: bound.values[s.name] for s in bound.launch.scalars}
    target = registered()[runner.target]
    return target.run(
        runner.kernel.build(sizes=bound.names, **constants), views, scalars, bound.names, **runner.options
    )


def _run_machine(runner: Runner, constants: Mapping[str, Any], bound: binding.Bound, call: _Call) -> Any:
    from tilemma import machine

    options = dict(runner.options)
    arch, facts = options.pop("arch", "sm_90a"), _facts(bound)

    def made(variant: tuple[str, ...]) -> Compiled:
        return runner.kernel.compile(arch, facts=facts, sizes=bound.names, variant=variant, **constants)

    compiled = _for_grid(made, bound.names, joined=True)
    values: dict[str, Any] = {a.name: arrays.host_view(bound.array(a.name)) for a in bound.launch.arrays}
    values |= {s.name: bound.values[s.name] for s in bound.launch.scalars}
    reports = [machine.run(compiled.ptx, launch, values, **options) for launch in compiled.launches]
    return reports[0] if len(reports) == 1 else reports


_Variant = TypeVar("_Variant", Ready, Compiled)


def _for_grid(
    compiled: Callable[[tuple[str, ...]], _Variant], sizes: Mapping[str, int] | None, joined: bool = False
) -> _Variant:
    """The variant for a launch of ``sizes``.  ``joined``: with joined blocks, as large launches have them, however
    few there are."""
    variant: tuple[str, ...] = ()
    found = compiled(variant)
    while more := tuple(x for x in better_variant(found.launches, sizes) if not (joined and x == APART)):
        variant += more
        found = compiled(variant)
    return found


def _prepare(
    runner: Runner, bound: binding.Bound, constants: Mapping[str, Any], call: _Call, device: runtime.Device
) -> list[runtime.PreparedLaunch]:
    """The launches of a call whose arrays are on ``device``, compiled, loaded, their arguments packed."""
    target = runner.options.get("arch") or best_arch(device.compute_capability)
    Target.of(target)  # raises UnknownArch before the device is asked
    where = runtime.assembly_arch(target, device, runner.kernel.name)
    compiled = runner.kernel.ready(target, _facts(bound), assemble_for=where, sizes=bound.names, **constants)
    assembled: str | None = where
    try:
        image = compiled.assembled(where).bytes
    except NoPtxas:
        # Without ptxas the driver assembles, more slowly, and a crash of its compiler would crash this process.
        image, assembled = driver_image(compiled.ptx), None
    prepared = []
    for plan in compiled.launches:
        checked = binding.bind(plan, call.args, order=call.order, kernel=runner.kernel.name, created=call.created)
        loaded = runtime.LoadedKernel(image, plan, device, arch=assembled, kernel=runner.kernel.name)
        prepared.append(loaded.prepare(checked))
    return prepared


def _run_cuda(runner: Runner, constants: Mapping[str, Any], bound: binding.Bound, call: _Call) -> None:
    device = runtime.cuda_device(bound.device[1] if bound.device[0] == "cuda" else 0)
    if bound.device[0] != "cuda":
        staged = runtime.to_device(call.args, device)
        moved = _Call(staged, call.order, frozenset())
        _run_cuda(runner, constants, binding.bind(bound.launch, staged, order=call.order), moved)
        writes = {a.name for a in bound.launch.arrays if a.written}
        runtime.copy_back(call.args, staged, [n in writes for n in call.order])
        return
    prepared = _prepare(runner, bound, constants, call, device)
    stream = runner.options.get("stream")
    for launch in prepared:
        launch(stream)
    if runner.target == "auto" and not call.created:
        runner.kernel.remember(constants, call.order, tuple(call.args), prepared)


def best_arch(capability: tuple[int, int]) -> str:
    """The target with the most features that runs on a device of ``capability``: sm_90a on an H200, the newest
    plain target on a GPU newer than all of them."""
    return [a for a in targets() if runtime.runs_on(a, capability)][-1]


def facts_of(values: Mapping[str, Any]) -> dict[str, t.ArrayFacts]:
    """The facts about each array: contiguous dimension, alignment class, and whether it has elements."""
    return {name: _array_facts(arrays.describe(a)) for name, a in values.items()}


def _array_facts(ref: arrays.ArrayRef) -> t.ArrayFacts:
    found = arrays.facts(ref)
    return t.ArrayFacts(found.contiguous, found.alignment, found.nonempty, found.ragged)


def _facts(bound: binding.Bound) -> dict[str, t.ArrayFacts]:
    return {a.name: _array_facts(bound.array(a.name)) for a in bound.launch.arrays}


def _check_target(function: str, arch: object, facts: object) -> None:
    if not isinstance(arch, str):
        raise WrongArgumentType(
            function=function, name="arch", got=described(arch), wanted="a target such as 'sm_90a'"
        )
    if facts is not None and not (
        isinstance(facts, Mapping)
        and all(isinstance(n, str) and isinstance(f, t.ArrayFacts) for n, f in facts.items())
    ):
        wanted = "a mapping from names of arrays to ArrayFacts"
        raise WrongArgumentType(function=function, name="facts", got=described(facts), wanted=wanted)


def _key(constants: Mapping[str, Any]) -> Any:
    return tuple(sorted([(name, content(v)) for name, v in constants.items()], key=lambda item: item[0]))


@overload
def kernel(function: Callable[..., Any]) -> Kernel: ...
@overload
def kernel(
    *, source: str | None = None, pipeline: Pipeline | Literal[False] | None = None
) -> Callable[[Callable[..., Any]], Kernel]: ...
@shows_user_frames
def kernel(function: Callable[..., Any] | None = None, *, source: str | None = None, pipeline: Any = None) -> Any:
    """Decorator: a Python function as a kernel.  The function is read and checked now, traced when called.

    ``source``: the text that defines it, for a function that `exec` made of a text that the program does not keep.
    ``pipeline``: how its loops are pipelined, a `Pipeline`; False: they are not.
    """
    settings = None
    if pipeline is not None:
        from tilemma.lang.pipeline import kernel_settings

        settings = kernel_settings(pipeline)
    if function is None:
        return lambda decorated: _read(decorated, source, settings)
    return _read(function, source, settings)


@shows_user_frames
def _read(function: Callable[..., Any], source: str | None, settings: t.PipelineSettings | None) -> Kernel:
    with uncollected():
        from tilemma.lang.source import read_kernel

        return Kernel(read_kernel(function, source, settings))


__all__ = ["Kernel", "Runner", "Signature", "kernel"]
