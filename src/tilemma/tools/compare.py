"""Compares the results of a kernel on the PTX machine with those of the reference executor.

Elements without inexact contributions must be equal.  The others must lie within the bound that is
propagated by `StochasticArithmetic`: `MARGIN` times the largest change that perturbed runs of the reference show,
and one rounding to the array's own type.  Nothing is claimed of elements whose perturbed values are not finite
(they may overflow), and of arrays that depend on the order of atomic operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilemma.errors import TilemmaError
from tilemma.ir import tile as t
from tilemma.ir.usage import written
from tilemma.ir.walk import walk
from tilemma.records import record
from tilemma.targets.cpu import Perturbation, execute
from tilemma.targets.cpu.faults import NotInReference, ProgramFault
from tilemma.testing import half_ulp, to_float64
from tilemma.tools.stochastic import StochasticArithmetic

MARGIN = 4.0
DEPENDENCE_DIRECTIONS = (1, -1, 0)
DIRECTIONS = (1, -1, 0, 0)

Arrays = dict[str, NDArray[Any]]


@record
class Difference:
    """An array whose elements on the machine differ from those of the reference.

    ``count`` of ``size`` elements; the first is at ``index``.  ``bound``: how far it may be from the reference,
    0 if it must be equal.  ``inputs``: the kind of data that shows it.
    """

    array: str
    inputs: str
    count: int
    size: int
    index: tuple[int, ...]
    machine: float
    reference: float
    bound: float

    def to_json(self) -> dict[str, Any]:
        return {
            "array": self.array,
            "inputs": self.inputs,
            "count": self.count,
            "size": self.size,
            "index": list(self.index),
            "machine": _number(self.machine),
            "reference": _number(self.reference),
            "bound": self.bound,
        }

    def render(self) -> str:
        place = f"{self.array}[{', '.join(map(str, self.index))}]"
        rule = f"the bound is {self.bound:.3g}" if self.bound else "they have to be equal"
        return (
            f"{self.count} of {self.size} elements of {self.array} differ on {self.inputs}: {place} is "
            f"{self.machine:g} on the machine and {self.reference:g} in the reference; {rule}"
        )


@record
class Fault:
    """The reference executor refuses to go on, where the machine did not."""

    inputs: str
    error: TilemmaError

    def to_json(self) -> dict[str, Any]:
        return {"inputs": self.inputs, "fault": self.error.to_json()}

    def render(self) -> str:
        return f"the reference stops on {self.inputs}:\n{self.error.render()}"


@record
class Compared:
    """The comparison of the elements of an array."""

    array: str
    inputs: str
    equal: int
    bounded: int
    skipped: int

    def to_json(self) -> dict[str, Any]:
        return {
            "array": self.array,
            "inputs": self.inputs,
            "equal": self.equal,
            "bounded": self.bounded,
            "skipped": self.skipped,
        }


@dataclass
class Comparison:
    """All arrays of one call.  ``notes``: the arrays that were not compared, and the reasons."""

    differences: list[Difference | Fault]
    compared: list[Compared]
    notes: list[str]
    # For each array that differs: the values of the reference, and how far each element may be from them.
    expected: dict[str, tuple[NDArray[Any], NDArray[np.float64]]] = field(default_factory=dict)


class Reference:
    """The reference executor on one problem, any number of times."""

    def __init__(self, kernel: t.Kernel, arrays: Arrays, scalars: Mapping[str, Any], dims: Mapping[str, int]):
        self.kernel, self.arrays, self.scalars, self.dims = kernel, arrays, scalars, dims
        self.outputs = sorted(written(kernel))

    def run(self, seed: int = 0, perturbation: Perturbation | None = None) -> Arrays:
        """The final content of the arrays that the kernel writes."""
        arrays = {n: a.copy() if n in self.outputs else a for n, a in self.arrays.items()}
        execute(
            self.kernel,
            arrays,
            self.scalars,
            dims=self.dims,
            seed=seed,
            out=lambda text: None,
            perturbation=perturbation,
        )
        return {n: arrays[n] for n in self.outputs}

    def perturbed(self, seed: int, direction: int = 0, *, large: bool = False) -> tuple[Arrays | None, bool]:
        """Results of a perturbed run (None: it stopped), and whether some result in it was inexact."""
        arithmetic = StochasticArithmetic(seed, direction, large=large)
        try:
            return self.run(seed, arithmetic), arithmetic.inexact
        except ProgramFault:
            return None, True


def compare(reference: Reference, machine: Arrays, inputs: str, again: Callable[[int], Arrays]) -> Comparison:
    """Compare ``machine``, the arrays that a run on the machine left, with the reference on the same inputs.

    ``inputs`` names them; ``again`` repeats the run on the machine under another schedule.
    """
    found = Comparison([], [], [])
    try:
        wanted = reference.run()
    except NotInReference as e:
        found.notes.append(f"not compared with the reference: {e.message}")
        return found
    except ProgramFault as e:
        found.differences.append(Fault(inputs, e))
        return found
    runs = [reference.perturbed(i + 1, way, large=True) for i, way in enumerate(DEPENDENCE_DIRECTIONS)]
    dependence = [arrays for arrays, _ in runs]
    inexact = any(flag for _, flag in runs)
    moved = [reference.perturbed(i + 1, way)[0] for i, way in enumerate(DIRECTIONS)] if inexact else []
    unordered = _order_dependent(reference.kernel, machine, again)
    for name in reference.outputs:
        if name in unordered:
            found.notes.append(f"{name} is not compared: it depends on the order of atomic operations")
            continue
        variants = [None if run is None else run[name] for run in dependence]
        changes = [None if run is None else run[name] for run in moved]
        allowed = _allowed(wanted[name], variants, changes, reference.kernel, name)
        _judge(found, name, inputs, machine[name], wanted[name], allowed)
    return found


def _order_dependent(kernel: t.Kernel, machine: Arrays, again: Callable[[int], Arrays]) -> set[str]:
    """Arrays that differ between schedules of the machine because old values of atomic operations are used."""
    atomics = [op for op in walk(kernel.body) if isinstance(op, t.Atomic)]
    if not any(op.result is not None or op.name in ("exch", "cas") for op in atomics):
        return set()
    others = [again(seed) for seed in (1, 2, 3)]
    return {n for n, a in machine.items() for other in others if a.tobytes() != other[n].tobytes()}


def _same(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    """Elements that are equal, or both NaN."""
    return np.asarray((a == b) | ((a != a) & (b != b)))


def _allowed(
    wanted: NDArray[Any],
    variants: list[NDArray[Any] | None],
    changes: list[NDArray[Any] | None],
    kernel: t.Kernel,
    name: str,
) -> NDArray[np.float64]:
    """The largest allowed distance of each element from ``wanted``: 0 where nothing inexact reaches it, infinity
    where nothing is claimed."""
    if any(v is None for v in (*variants, *changes)):
        return np.full(wanted.shape, np.inf)
    dependent = np.zeros(wanted.shape, bool)
    for v in variants:
        assert v is not None
        dependent |= ~_same(v, wanted)
    if not changes or not dependent.any():
        return np.where(dependent, np.inf, 0.0)
    center = to_float64(wanted)
    with np.errstate(invalid="ignore"):
        distance = np.max([np.abs(to_float64(c) - center) for c in changes], axis=0)
    distance = np.where(np.isnan(distance), np.inf, distance)
    element = next(p.buffer.dtype for p in kernel.arrays if p.buffer.name == name)
    reach = np.abs(center) + distance
    step = 2 * half_ulp(np.where(np.isfinite(reach), reach, 0.0), element) if element.is_float else 1.0
    return np.where(dependent, MARGIN * distance + step, 0.0)


def _judge(
    found: Comparison,
    name: str,
    inputs: str,
    machine: NDArray[Any],
    wanted: NDArray[Any],
    allowed: NDArray[np.float64],
) -> None:
    skipped, exact = np.isinf(allowed), allowed == 0
    with np.errstate(invalid="ignore"):
        near = np.abs(to_float64(machine) - to_float64(wanted)) <= allowed
    wrong = ~(_same(machine, wanted) | skipped | (near & ~exact))
    found.compared.append(
        Compared(name, inputs, int(exact.sum()), int((~exact & ~skipped).sum()), int(skipped.sum()))
    )
    if wanted.size and skipped.all():
        found.notes.append(f"no element of {name} is compared on {inputs}: its values may overflow")
    if wrong.any():
        found.expected[name] = wanted, allowed
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        found.differences.append(
            Difference(
                name,
                inputs,
                int(wrong.sum()),
                wrong.size,
                at,
                float(machine[at]),
                float(wanted[at]),
                float(allowed[at]),
            )
        )


def _number(x: float) -> float | str:
    """JSON has no infinities and no NaN."""
    return x if np.isfinite(x) else str(x)
