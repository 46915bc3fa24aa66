"""`--expect`: the float64 result of a kernel as one line of text, and the bound on the kernel's error.

mk,nk->mn                 an einsum over the array parameters in order, the output last
relu(mk,nk->mn + bias)    arrays (and scalar parameters) named as addends, broadcast as in NumPy; an activation
alpha * mk,nk->mn + beta * c
mk,k->m                   results of any rank; one or several inputs
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilemma.dtypes import DType, dtype
from tilemma.errors import LaunchError, nearest
from tilemma.records import record
from tilemma.testing import ACTIVATIONS, _epilogue_bound, accumulation_bound, grain_of, reference, to_float64

Arrays = Mapping[str, NDArray[Any]]
F64 = NDArray[np.float64]


class BadExpectation(LaunchError):
    code = "bad-expectation"
    found = "`--expect {text}`: {problem}"
    expected = (
        'an einsum over the array parameters in order, the output last, such as "mk,nk->mn"; then `+ ARRAY` for '
        "each addend, and around all of it {activations}"
    )
    fix = "{fix_text}"


@record
class Expectation:
    """``activation(alpha * einsum(inputs) + sum of factor * addend)``, to be found in ``output``."""

    einsum: str
    inputs: tuple[str, ...]
    output: str
    alpha: float
    addends: tuple[tuple[float, str], ...]
    activation: str | None


@record
class _Reader:
    """Reads one expectation ``text`` for a kernel with the parameters ``arrays``."""

    text: str
    arrays: Sequence[str]
    values: Arrays
    scalars: Mapping[str, Any]

    def bad(self, problem: str, fix: str) -> BadExpectation:
        known = ", ".join(f"`{name}(...)`" for name in ACTIVATIONS)
        return BadExpectation(text=self.text, problem=problem, activations=known, fix_text=fix)

    def activation(self) -> tuple[str | None, str]:
        """The activation, if any, and the text that it is applied to."""
        body = self.text.strip()
        around = re.fullmatch(r"(\w+)\s*\((.*)\)", body, re.DOTALL)
        if around is None:
            return None, body
        if around[1] not in ACTIVATIONS:
            near = nearest(around[1], list(ACTIVATIONS))
            fix = f"did you mean `{near}`?" if near else "compare without it, or in Python (docs/language.md)"
            raise self.bad(f"no bound is known for `{around[1]}`", fix)
        return around[1], around[2]

    def factor(self, word: str) -> float:
        try:
            return float(self.scalars.get(word, word))
        except (TypeError, ValueError):
            raise self.bad(f"`{word}` is no number and no scalar parameter", "multiply by a number") from None

    def addend(self, part: str) -> tuple[float, str]:
        """``factor * name``."""
        *factors, name = (x.strip() for x in part.split("*"))
        if name not in self.arrays:
            near = nearest(name, self.arrays)
            fix = f"did you mean `{near}`?" if near else f"name one of {', '.join(self.arrays)}"
            raise self.bad(f"`{name}` is not an array parameter", fix)
        return math.prod(map(self.factor, factors)), name

    def check_einsum(self, einsum: str, names: Sequence[str]) -> None:
        """``names``: the arrays of the einsum, the output last."""
        left, arrow, right = einsum.partition("->")
        groups = left.split(",")
        if not arrow or not re.fullmatch(r"[a-zA-Z]*(,[a-zA-Z]*)*", left) or not re.fullmatch(r"[a-zA-Z]*", right):
            raise self.bad(f"`{einsum}` is not an einsum", "write one group of letters for each input: mk,nk->mn")
        if len(groups) + 1 != len(names):
            rest = " besides the addends" if len(names) < len(self.arrays) else ""
            problem = f"{len(groups)} inputs and an output, for the arrays {', '.join(names)}{rest}"
            raise self.bad(problem, "give one group of letters for each input, and name the addends: `+ bias`")
        extents: dict[str, int] = {}
        for name, letters in zip(names, [*groups, right], strict=True):
            shape = self.values[name].shape
            if len(shape) != len(letters):
                problem = f"`{letters}` for {name}, which has {len(shape)} dimension{'s' * (len(shape) != 1)}"
                raise self.bad(problem, f"give {name} one letter for each of its dimensions")
            for letter, extent in zip(letters, shape, strict=True):
                if extents.setdefault(letter, extent) != extent:
                    problem = f"`{letter}` is {extents[letter]} and, for {name}, {extent}"
                    fix = "give equal letters to equal dimensions only, in the order of each array"
                    raise self.bad(problem, fix)
        if len(set(right)) < len(right) or not set(right) <= set(left):
            problem = f"the output `{right}` needs letters of the inputs, each once"
            raise self.bad(problem, "correct the output's letters")

    def check_addend(self, name: str, output: str) -> None:
        shape, whole = self.values[name].shape, self.values[output].shape
        try:
            fits = np.broadcast_shapes(shape, whole) == whole
        except ValueError:
            fits = False
        if not fits:
            problem = f"{name} is {shape}, which does not broadcast to {whole}"
            raise self.bad(problem, "add arrays that broadcast to the output, as in NumPy")


def read(text: str, arrays: Sequence[str], values: Arrays, scalars: Mapping[str, Any]) -> Expectation:
    """The expectation in ``text`` for a kernel with the parameters ``arrays``.  Raises BadExpectation."""

    r = _Reader(text, arrays, values, scalars)
    activation, body = r.activation()
    first, *rest = (part.strip() for part in body.split("+"))
    *before, einsum = (part.strip() for part in first.split("*"))
    alpha, einsum = math.prod(map(r.factor, before)), einsum.replace(" ", "")
    addends = tuple(map(r.addend, rest))
    names = [n for n in arrays if n not in {name for _, name in addends}]
    r.check_einsum(einsum, names)
    *inputs, output = names
    for _, name in addends:
        r.check_addend(name, output)
    return Expectation(einsum, tuple(inputs), output, alpha, addends, activation)


def evaluate(
    wanted: Expectation,
    arrays: Arrays,
    types: Mapping[str, DType],
    acc: str | None = None,
    narrowest: DType | None = None,
) -> tuple[F64, F64]:
    """The float64 result, and the bound on the error of a kernel with arrays of ``types`` that sums in ``acc``.

    The bound is that of `tm.testing.error_bound` for a contraction of any number of inputs: each product sums as
    many terms as the letters that the output lacks count together.  ``acc`` None: f64 for f64 results, s32 for
    integers of integers, else f32.  ``narrowest`` is the narrowest floating type in which the kernel computes with
    elements: each of its operations may round to it.
    """
    inputs = [arrays[name] for name in wanted.inputs]
    product = reference(wanted.einsum, *inputs)
    total = reference(wanted.einsum, *(np.abs(to_float64(x)) for x in inputs))
    left, _, right = wanted.einsum.partition("->")
    groups = left.split(",")
    extents = {c: n for g, x in zip(groups, inputs, strict=True) for c, n in zip(g, x.shape, strict=True)}
    depth = math.prod(n for c, n in extents.items() if c not in right)
    out = types[wanted.output]
    exact = out.is_integer and all(types[name].is_integer for name in wanted.inputs)
    kind = dtype(acc or ("f64" if out.name == "f64" else "s32" if exact else "f32"))
    operands = types[wanted.inputs[0]].name
    error = accumulation_bound(total, depth, kind, operands, math.prod(map(grain_of, inputs)))
    if len(inputs) > 2 and not kind.is_integer:
        # The product of two elements is exact or rounded once (see `accumulation_bound`), each further one rounds.
        error = error + total * (len(inputs) - 2) * (2.0**-52 if kind.name == "f64" else 2.0**-23)
    added = sum((f * to_float64(arrays[name]) for f, name in wanted.addends), np.zeros(()))
    magnitude = sum((abs(f) * np.abs(to_float64(arrays[name])) for f, name in wanted.addends), np.zeros(()))
    with np.errstate(invalid="ignore", over="ignore"):
        bias = added if wanted.addends else None
        bound = _epilogue_bound(product, error, kind, out, wanted.alpha, 0.0, None, bias, wanted.activation)
        # Several addends may cancel: each addition rounds at the size of what it adds.
        bound = bound + len(wanted.addends) * (2.0**-53 if kind.name == "f64" else 2.0**-23) * magnitude
        if narrowest is not None and narrowest.bits < 32:
            steps = depth + len(inputs) + len(wanted.addends)
            bound = bound + steps * 2.0**-narrowest.floating.mantissa * (abs(wanted.alpha) * total + magnitude)
        value = wanted.alpha * product + added
    return (ACTIVATIONS[wanted.activation].value(value) if wanted.activation else value), bound
