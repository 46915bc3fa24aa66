"""Plans that are compiled for a measurement, by child processes or by threads."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from tilemma import dtypes
from tilemma.errors import TilemmaError
from tilemma.kernels import Kernel, best_arch
from tilemma.ops.children import cores
from tilemma.ops.kept_children import KeptChildren
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.plan import Plan
from tilemma.ops.problem import Problem
from tilemma.ops.steps import steps, workspaces
from tilemma.ops.transfer import Made, adopt, make
from tilemma.ops.workspace import allocate, rooms
from tilemma.runtime import PreparedLaunch, assembly_arch, cuda_device
from tilemma.runtime.arrays import ArrayRef, describe, row_major

# Child processes that compile, at most and at least; threads otherwise, which wait for the assembler.
CHILDREN, FEWEST_CHILDREN, WAITING = 24, 3, 4
# Plans that wait besides those that children compile: a plan that is sent later is chosen by more times.
AHEAD = 3
# Where children see the arrays that only a plan needs: at multiples of this, each at its own.
NOWHERE = 1 << 40

# Arrays that plans work in, by name, shape and type.
Rooms = dict[tuple[str, tuple[int, ...], str], Any]
Calls = list[tuple[Kernel, tuple[Any, ...], dict[str, Any]]]


@dataclass(frozen=True)
class Compiled:
    """A plan, the arrays that it works in, and a function for its launches: it raises the plan's error."""

    plan: Plan
    work: Mapping[str, Any] = field(default_factory=dict)
    launches: Callable[[], list[PreparedLaunch]] = list
    # What is wrong with the plan.
    error: str = ""


def calls_of(
    problem: Problem, plan: Plan, work: Mapping[str, Any] | None = None
) -> tuple[Calls, Mapping[str, Any]]:
    """The kernel calls of a plan for the problem's own arrays, and the arrays it works in, to be kept alive."""
    planned = transposed_product(problem) if plan.swap else problem
    work = allocate(planned, plan, problem.lhs) if work is None else work
    found = []
    for step in steps(planned, plan, {n: x if isinstance(x, ArrayRef) else describe(x) for n, x in work.items()}):
        args = tuple(x._replace(writable=True) if isinstance(x, ArrayRef) else x for x in step.args)
        found.append((step.kernel, args, step.constants))
    return found, work


def launches_of(calls: Calls) -> list[PreparedLaunch]:
    return [x for kernel, args, values in calls for x in kernel.on("cuda").prepare(*args, **values)]


class Forked:
    """Children of this process compile, ``plans`` first; this one goes on."""

    # Whether this process can do other things meanwhile.
    apart: ClassVar[bool] = True

    def __init__(self, problem: Problem, count: int, deadline: float, plans: Sequence[Plan]) -> None:
        device = cuda_device(problem.lhs.device[1])
        target = best_arch(device.compute_capability)
        work = partial(_make, _unowned(problem), target, assembly_arch(target, device))
        self._problem, self._room, self._rooms = problem, count + AHEAD, Rooms()
        self._children = _children.take(work, count, deadline, plans)

    @property
    def room(self) -> int:
        """Plans that can be sent now."""
        return self._room - self._children.waiting if self._children.alive else 0

    @property
    def waiting(self) -> int:
        """Plans that were sent and will come."""
        return self._children.waiting

    def send(self, plan: Plan) -> None:
        self._children.send(plan)

    def receive(self, until: float) -> list[Compiled]:
        """The plans that are ready; waits for one until ``until`` (perf_counter)."""
        found = []
        for plan, made in self._children.receive(until):
            if isinstance(made, str):
                found.append(Compiled(plan, error=made))
                continue
            calls, work, error = _with_work(self._problem, plan, self._rooms)
            for (kernel, *_), each in zip(calls, made, strict=not error):
                adopt(kernel, each)
            found.append(Compiled(plan, work, partial(launches_of, calls), error))
        return found

    def stop(self) -> None:
        """Compile no more: what children have not begun would be late."""

    def close(self) -> None:
        _children.keep(self._children)


def _unowned(problem: Problem) -> Problem:
    """``problem`` without the objects that keep its arrays alive."""

    def unowned(x: ArrayRef | None) -> ArrayRef | None:
        return None if x is None else x._replace(owner=None)

    found: dict[str, Any] = {
        x: unowned(getattr(problem, x)) for x in ("lhs", "rhs", "out", "c", "bias", "offsets")
    }
    for name, scale in (("left", problem.left), ("right", problem.right)):
        found[name] = replace(scale, array=unowned(scale.array))
    return replace(problem, **found)


def _make(problem: Problem, target: str, where: str, plan: Plan) -> list[Made] | str:
    """The kernels of a plan, compiled in a child process, or why that fails."""
    try:
        planned = transposed_product(problem) if plan.swap else problem
        work = {
            name: problem.lhs._replace(
                pointer=i * NOWHERE, shape=shape, strides=row_major(shape), dtype=dtypes.dtype(dtype), owner=None
            )
            for i, (name, (shape, dtype)) in enumerate(workspaces(planned, plan).items(), 1)
        }
        return [make(target, where, *call) for call in calls_of(problem, plan, work)[0]]
    except Exception as e:
        return _reason(e)


_children: KeptChildren[Plan, list[Made] | str] = KeptChildren()


def _with_work(problem: Problem, plan: Plan, known: Rooms) -> tuple[Calls, Mapping[str, Any], str]:
    """`calls_of`, and what is wrong with the plan: the device may have no room for its arrays, besides those of
    other plans, which are ``known``: plans run one after another, and write the arrays before they read them.
    Libraries raise a RuntimeError or a MemoryError then."""
    planned = transposed_product(problem) if plan.swap else problem
    try:
        for name, spec in workspaces(planned, plan).items():
            if (name, *spec) not in known:
                known[name, *spec] = rooms({name: spec}, problem.lhs)[name]
        work = {name: known[name, *spec] for name, spec in workspaces(planned, plan).items()}
        return *calls_of(problem, plan, work), ""
    except (TilemmaError, RuntimeError, MemoryError) as e:
        return [], {}, _reason(e)


def _reason(e: Exception) -> str:
    # Some exceptions have no text.
    return str(getattr(e, "message", e)) or type(e).__name__


@dataclass
class Threads:
    """Threads of this process compile, `WAITING` plans at a time: they wait for the assembler, which runs in
    processes of its own.  None is left running, since measurements would wait for its thread."""

    problem: Problem
    deadline: float
    apart: ClassVar[bool] = False
    _sent: deque[Plan] = field(default_factory=deque)
    _longest: float = 0.0
    _rooms: Rooms = field(default_factory=Rooms)

    @property
    def room(self) -> int:
        return WAITING - len(self._sent)

    @property
    def waiting(self) -> int:
        return len(self._sent) if time.perf_counter() + self._longest < self.deadline else 0

    def send(self, plan: Plan) -> None:
        self._sent.append(plan)

    def receive(self, until: float) -> list[Compiled]:
        """The next plans of those sent that will be ready by the deadline if they take as long as others."""
        found: list[tuple[Plan, Mapping[str, Any], list[Future[list[PreparedLaunch]]], str]] = []
        with ThreadPoolExecutor(WAITING) as pool:
            begin = time.perf_counter()
            while self.waiting and len(found) < WAITING:
                plan = self._sent.popleft()
                calls, work, error = _with_work(self.problem, plan, self._rooms)
                found.append((plan, work, [pool.submit(launches_of, [call]) for call in calls], error))
            for _, _, each, _ in found:
                futures.wait(each)
            self._longest = max(self._longest, time.perf_counter() - begin)
        return [Compiled(plan, work, partial(_together, each), error) for plan, work, each, error in found]

    def stop(self) -> None:
        self._sent.clear()

    def close(self) -> None:
        self.stop()


def _together(found: list[Future[list[PreparedLaunch]]]) -> list[PreparedLaunch]:
    return [x for each in found for x in each.result()]


def compiler(problem: Problem, deadline: float, wanted: Iterator[Plan]) -> Forked | Threads:
    """What compiles plans until ``deadline`` (perf_counter): the first of those that are ``wanted``."""
    count, plans = min(CHILDREN, cores() - 1), deque[Plan]()
    if count >= FEWEST_CHILDREN and hasattr(os, "fork"):
        plans.extend(itertools.islice(wanted, count + AHEAD))
        with contextlib.suppress(OSError):  # the system allows no more processes or open files
            return Forked(problem, count, deadline, plans)
    return Threads(problem, deadline, plans)
