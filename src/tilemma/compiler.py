"""The compilation pipeline: source -> tile IR -> passes -> lane IR -> PTX -> cubin."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import field, replace
from math import prod
from pathlib import Path
from typing import Any

from tilemma.assemble import (
    Ahead,
    Assembly,
    Cubin,
    DiskCache,
    NoPtxas,
    Stored,
    assemble,
    begin,
    disassemble,
    seek,
    stated_options,
)
from tilemma.atoms import catalogue
from tilemma.display import Displayed
from tilemma.dtypes import registered_key
from tilemma.errors import CompileError, TilemmaError, ToolError
from tilemma.explain import Explanation, explain
from tilemma.fingerprint import fingerprint
from tilemma.forking import cached_property, collect_young, collection_paused
from tilemma.ir import tile as t
from tilemma.ir.printer import print_kernel, print_lane
from tilemma.ir.usage import waits_for_events
from tilemma.ir.verifier import verify, verify_lane
from tilemma.ir.walk import walk
from tilemma.launch import Launch
from tilemma.passes import Decision
from tilemma.records import record
from tilemma.targets.ptx import print_module
from tilemma.targets.ptx.lower import Lowered, expected_option, lower
from tilemma.targets.ptx.passes import PASSES, TARGET_PASSES, run
from tilemma.targets.ptx.passes.insertions import insertions

Facts = Mapping[str, t.ArrayFacts]


class CompilerFailure(CompileError):
    """``cause`` is the internal exception, with its traceback."""

    code = "compiler-failure"
    found = "tilemma failed while {stage} for `{name}`: {what} ({where})"
    expected = "a compiled kernel, or an error that says what is wrong with the program"
    fix = "this is a mistake in tilemma, not in your program: please report it with the program"
    cause: BaseException | None = None


@contextmanager
def internal_error_guard(kernel: t.Kernel, stage: str) -> Iterator[None]:
    """Any other exception than an error for users is reported as a failure of the compiler."""
    try:
        yield
    except TilemmaError:
        raise
    except Exception as e:  # an internal error, reported as one; `cause` keeps it
        last = traceback.extract_tb(e.__traceback__)[-1]
        what = f"{type(e).__name__}: {e}".rstrip(": ")
        where = f"{Path(last.filename).name}:{last.lineno}"
        failure = CompilerFailure(kernel.span, stage=stage, name=kernel.name, what=what, where=where)
        failure.cause = e
        raise failure from None


@record
class Draft:
    """The generated code of a kernel, as `CHECKS` take it: lane IR, launch plans, and one PTX module.

    ``source`` is the kernel as the front end gave it.
    """

    source: t.Kernel
    kernel: t.Kernel
    units: tuple[Lowered, ...]
    ptx: str


def lanes_hold(draft: Draft) -> None:
    for unit in draft.units:
        verify_lane(unit.lane)


def events_end(draft: Draft) -> Decision | None:
    if not waits_for_events(draft.source):
        return None
    # Imported where events are waited for: most compilations have no use for the reference executor.
    from tilemma.targets.cpu.event_simulation import simulate_events

    try:
        found = simulate_events(draft.source)
    except TilemmaError:
        raise
    except Exception as e:
        # The simulation reports errors of the program; an internal error of its own must not replace them.
        text = f"not simulated, because of an internal error of tilemma: {type(e).__name__}: {e}"
        return Decision("event simulation", "events", text, warning=True, span=draft.source.span)
    shapes = [dict(shape) for shape in found.shapes]
    return Decision(
        "event simulation", "events", str(found), {"shapes": shapes, "reason": found.reason}, span=found.span
    )


# The checks that code passes before it is cached, returned or launched.  They run while ptxas works.  A check
# raises an error, or returns a decision to report.
CHECKS: tuple[Callable[[Draft], Decision | None], ...] = (lanes_hold, events_end)


@record(slots=False, eq=False)
class Compiled(Displayed):
    """A kernel compiled for one architecture and one set of facts; later stages run when asked for.

    ``source`` is the tile IR as the front end gave it, ``decided`` the same with every decision filled in, both
    not yet verified.  ``seconds`` collects the time of each stage.  Every result is checked before it is returned.
    """

    source: t.Kernel
    decided: t.Kernel
    arch: str
    decisions: tuple[Decision, ...]
    seconds: dict[str, float] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return self.source.name

    def __repr__(self) -> str:
        return f"<tilemma {self.name} compiled for {self.arch}>"

    @cached_property
    def kernel(self) -> t.Kernel:
        """The tile IR with every decision filled in.  Raises InvalidIR, for ``source`` too."""
        verify(self.source)
        verify(self.decided)
        return self.decided

    @cached_property
    def ir(self) -> str:
        """The tile IR after all passes, as text."""
        return print_kernel(self.kernel)

    @cached_property
    def _draft(self) -> Draft:
        try:
            with self._timed("lower"), internal_error_guard(self.source, "generating code"):
                units = lower(self.decided, self.arch)
            with self._timed("print"), internal_error_guard(self.source, "printing PTX"):
                ptx = print_module([u.lane for u in units], self.arch)
        except Exception:
            _ = self.kernel  # an invalid one is the cause
            raise
        return Draft(self.source, self.decided, units, ptx)

    @cached_property
    def _seen(self) -> tuple[Decision, ...]:
        """The decisions that the checks report."""
        draft, _ = self._draft, self.kernel
        with self._timed("check"), internal_error_guard(self.source, "checking the code"):
            said = [check(draft) for check in CHECKS]
        return tuple(x for x in said if x is not None)

    @property
    def _checked(self) -> Draft:
        _ = self._seen
        return self._draft

    @property
    def lowered(self) -> tuple[Lowered, ...]:
        """Lane IR and launch plan of each launch, in order."""
        return self._checked.units

    @cached_property
    def lane_ir(self) -> str:
        return "\n".join(print_lane(u.lane) for u in self.lowered)

    @property
    def ptx(self) -> str:
        """The PTX of all launches as one module."""
        return self._checked.ptx

    @property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(u.launch for u in self.lowered)

    @property
    def unchecked_launches(self) -> tuple[Launch, ...]:
        """`launches` before the checks have run."""
        return tuple(u.launch for u in self._draft.units)

    @property
    def launch(self) -> dict[str, Any]:
        """The launch plan as JSON-ready data; a list under "launches" when the kernel starts several."""
        plans = [x.to_json() for x in self.launches]
        plan: dict[str, Any] = plans[0] if len(plans) == 1 else {"launches": plans}
        data: dict[str, Any] = json.loads(json.dumps(plan))
        return data

    def assembled(self, arch: str | None = None) -> Cubin:
        """Machine code for ``arch`` (default: the target itself), from ptxas or its cache."""
        with self.assembling(arch or self.arch) as assembly:
            return assembly.result()

    @contextmanager
    def assembling(self, arch: str, ahead: Ahead | None = None) -> Iterator[Assembly | Stored]:
        """Runs ptxas during the checks and the body of the `with` statement; a failing check stops it.

        ``ahead``: a run that was started before there was PTX."""
        ptx = self._draft.ptx
        with self._timed("assemble"), begin(ptx, arch, ahead=ahead) as assembly:
            _ = self._seen
            yield assembly

    @cached_property
    def cubin(self) -> bytes:
        return self.assembled().bytes

    def sass(self) -> str:
        """The machine code as text."""
        return disassemble(self.assembled())

    def explain(self) -> Explanation:
        """The plan, with register counts if ptxas is installed."""
        stated = stated_options(self.ptx)  # none unless all launches agree
        launches = [
            {
                "entry": x.entry,
                "threads": prod(x.block),
                "shared": x.shared,
                "option": unit.lane.option if unit.lane.option in stated else "",
            }
            for unit in self.lowered
            for x in (unit.launch,)
        ]
        try:
            registers = self.assembled().registers
        except ToolError:
            registers = None
        inserted = [{"text": str(x), **x.to_json()} for x in insertions(self.kernel, self.source)]
        return explain(self.kernel, self.arch, (*self.decisions, *self._seen), launches, inserted, registers)

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start


@record(slots=False)
class Ready:
    """PTX and launch plans of a kernel, and its ``cubin`` if compiling produced one."""

    ptx: str
    launches: tuple[Launch, ...]
    cubin: Cubin | None = field(default=None, compare=False, repr=False)

    def assembled(self, arch: str) -> Cubin:
        """Machine code for ``arch``, from ptxas or its cache."""
        if self.cubin is not None and self.cubin.arch == arch:
            return self.cubin
        return assemble(self.ptx, arch)


@contextmanager
def uncollected() -> Iterator[None]:
    """Pauses Python's cyclic garbage collection: compiling creates few cycles, and one full collection of the
    imported modules costs as much as a pass."""
    with collection_paused():
        yield


def identity(source: t.Kernel) -> str:
    """The key of a front end's tile IR: its text, and its source positions, which are in the PTX."""
    places = tuple(str(op.span) for op in walk(source.body))
    return DiskCache.key(fingerprint(), print_kernel(source), places)


def ready(
    identity: Callable[[], str],
    arch: str,
    facts: Facts,
    front: Callable[[], t.Kernel],
    compile_now: Callable[[], Compiled],
    assemble_for: str | None = None,
    is_wanted: Callable[[Sequence[Launch]], bool] = lambda launches: True,
) -> Ready:
    """PTX and launch plans of the kernel with that key, from the cache on disk or compiled now.

    ``identity`` gives the key of everything that they depend on except target and facts, with the compiler's
    fingerprint in it; where the cache is empty, it is asked for while ptxas works.  With ``assemble_for``, the
    architecture of the present GPU, ptxas is started as soon as ``front`` has given the tile IR that
    ``compile_now`` starts from, and gets the PTX when it is printed, and the checks run at the same time, if the
    launches are those that ``is_wanted``.
    """
    rest = arch, repr(sorted(facts.items())), registered_key(), catalogue.declared_key
    store = DiskCache("ptx")
    if not store.is_empty():
        found = store.read(DiskCache.key(identity(), *rest), _read_ready)
        if found is not None:
            return found
    if assemble_for is None:
        seek("ptxas")
    with uncollected(), ExitStack() as open_ones:
        ahead = None if assemble_for is None else open_ones.enter_context(Ahead(assemble_for))
        if ahead is not None:
            option = expected_option(with_facts(front(), facts), arch)
            ahead.expect((option,) if option else ())
        compiled, assembly = compile_now(), None
        if assemble_for is not None and is_wanted(compiled.unchecked_launches):
            with suppress(NoPtxas):  # the driver has an assembler too
                assembly = open_ones.enter_context(compiled.assembling(assemble_for, ahead))
        result = Ready(compiled.ptx, compiled.launches)
        content = {"ptx": result.ptx, "launches": [x.to_json() for x in result.launches]}
        store.put(DiskCache.key(identity(), *rest), json.dumps(content).encode())
        if assembly is None:
            return result
        collect_young()  # ptxas still runs
        return replace(result, cubin=assembly.result())


def _read_ready(data: bytes) -> Ready:
    """Decodes an entry that `ready` wrote."""
    kept = json.loads(data)
    if type(kept["ptx"]) is not str:
        raise ValueError
    return Ready(kept["ptx"], tuple(Launch.from_json(x) for x in kept["launches"]))


def default_facts(kernel: t.Kernel) -> dict[str, t.ArrayFacts]:
    """The last dimension is contiguous, all is aligned to 16 bytes; extents may be 0."""
    return {p.buffer.name: t.ArrayFacts(p.buffer.rank - 1 if p.buffer.rank else None, 16) for p in kernel.arrays}


def with_facts(kernel: t.Kernel, facts: Facts) -> t.Kernel:
    """``kernel`` with the facts filled into its array parameters."""
    params = tuple(
        replace(p, facts=facts[p.buffer.name]) if isinstance(p, t.ArrayParameter) else p for p in kernel.params
    )
    return replace(kernel, params=params)


def decide(
    source: t.Kernel, arch: str, facts: Facts | None = None, front: Sequence[Decision] | None = None
) -> Compiled:
    """Run the passes over ``source`` for ``arch``; facts default to `default_facts`.

    ``front``: the decisions of FRONT_PASSES, if they have already run on ``source``.
    """
    start = time.perf_counter()
    log = list(front or ())
    kernel = with_facts(source, {**default_facts(source), **(facts or {})})
    try:
        with internal_error_guard(source, "deciding"):
            kernel = run(kernel, PASSES(arch) if front is None else TARGET_PASSES(arch), log)
    except Exception:
        verify(source)  # an invalid kernel is the cause
        raise
    return Compiled(source, kernel, arch, tuple(log), {"passes": time.perf_counter() - start})


def compile_kernel(source: t.Kernel, arch: str, facts: Facts | None = None) -> Compiled:
    """`decide`, then verify the decided kernel."""
    compiled = decide(source, arch, facts)
    _ = compiled.kernel
    return compiled
