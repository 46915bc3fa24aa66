"""A concrete problem for a kernel: sizes for its dimensions, inputs, the expected result.

`tilemma run` and `tilemma check` take their problems from here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilemma.dtypes import DType
from tilemma.errors import LaunchError, Span, WrongArgument, nearest
from tilemma.ir import tile as t
from tilemma.ir.expr import Binary, Call, Dim, Unary, value_of, walk
from tilemma.ir.usage import read, size, written
from tilemma.ir.walk import declarations, expressions
from tilemma.ir.walk import walk as operations
from tilemma.kernels import Kernel
from tilemma.launch import MAX_EXTENT, evaluate
from tilemma.modules import Module, load, load_python
from tilemma.testing import random_array, share_of_bound
from tilemma.tools import expectation
from tilemma.tools.steering import draw_metadata, metadata, steering

DEFAULT_EXTENT = 1024


class BadShape(LaunchError):
    code = "bad-shape"
    found = "`--shape {text}`: {problem}"
    expected = "all dimensions of {kernel} ({dims}), each a number of at least 0, as M=64,N=64,K=64"
    fix = "{fix_text}"


class BadArgument(LaunchError):
    code = "bad-argument"
    found = "`--{option}{said}`: {problem}"
    expected = "{wanted}"
    fix = "{fix_text}"

    def __init__(self, span: Span | None = None, *, text: str = "", **facts: Any) -> None:
        super().__init__(span, **{"text": text, "said": f" {text}" if text else "", **facts})


def read_module(file: str, defines: Mapping[str, Any]) -> Module:
    """The kernels of a `.co` or `.py` file."""
    if Path(file).suffix == ".py":
        return load_python(file)
    return load(file, defines)


def pick(module: Module, name: str | None) -> Kernel:
    return module[name] if name else module.only()


def whole_number(text: str) -> int | None:
    """The number of at least 0 that ``text`` is, of up to 18 ASCII digits; None otherwise.

    `str.isdigit` also accepts digits that `int` does not.
    """
    return int(text) if re.fullmatch(r"\s*+[0-9]{1,18}\s*+", text) else None


def parse_pairs(option: str, text: str | Sequence[str]) -> dict[str, str]:
    """``A=1,B=2`` (or several ``A=1``) as a dict.  BadArgument for what is no pair, or a name given twice."""
    parts = [p for chunk in ([text] if isinstance(text, str) else text) for p in chunk.split(",") if p.strip()]
    pairs = {}
    for part in parts:
        name, equals, value = (x.strip() for x in part.partition("="))
        problem, fix = "not NAME=VALUE", f"write --{option} NAME=VALUE"
        if name in pairs:
            problem, fix = f"`{name}` has a value already", f"give `{name}` once"
        if not equals or not name or not value or name in pairs:
            wanted = "pairs such as M=64,N=64"
            raise BadArgument(option=option, text=part, problem=problem, wanted=wanted, fix_text=fix)
        pairs[name] = value
    return pairs


def literal(text: str) -> int | float | str:
    """``text`` as a number if it is one, else as text."""
    try:
        return int(text, 0)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def dimensions(kernel: t.Kernel) -> list[str]:
    """Names of the run-time dimensions, in order of appearance."""
    names: dict[str, None] = {}
    for p in kernel.arrays:
        for extent in p.buffer.shape:
            names |= {x.name: None for x in walk(extent) if isinstance(x, Dim)}
    return list(names)


def parse_shape(kernel: t.Kernel, text: str | None) -> dict[str, int]:
    """Extents of all run-time dimensions; 1024 each when ``text`` is None.  BadShape otherwise."""
    dims = dimensions(kernel)
    if text is None:
        return dict.fromkeys(dims, DEFAULT_EXTENT)

    def bad(problem: str, fix: str) -> BadShape:
        return BadShape(
            text=text, problem=problem, kernel=kernel.name, dims=", ".join(dims) or "none", fix_text=fix
        )

    given = parse_pairs("shape", text)
    sizes = {}
    for name, value in given.items():
        if name not in dims:
            near = nearest(name, dims)
            hint = f"did you mean `{near}`?" if near else f"remove {name}"
            raise bad(f"{kernel.name} has no dimension `{name}`", hint)
        size = whole_number(value)
        if size is None:
            raise bad(f"{name} = {value} is not a number of at least 0", f"give {name} a size")
        if size > MAX_EXTENT:
            raise bad(
                f"{name} is more than {MAX_EXTENT}, the most along a dimension", f"give {name} a smaller size"
            )
        sizes[name] = size
    missing = [d for d in dims if d not in sizes]
    if missing:
        raise bad(f"no size for {', '.join(missing)}", f"add {','.join(f'{d}=...' for d in missing)}")
    return sizes


def parse_scalars(kernel: t.Kernel, args: Sequence[str]) -> dict[str, Any]:
    """The values of all scalar parameters, from `NAME=VALUE`.  BadArgument for one too many, too few or wrong."""
    known = {p.scalar.name: p.scalar.dtype for p in kernel.params if not isinstance(p, t.ArrayParameter)}

    def bad(text: str, problem: str, fix: str) -> BadArgument:
        wanted = f"the scalar parameters of {kernel.name}: {', '.join(known) or 'it has none'}"
        return BadArgument(option="arg", text=text, problem=problem, wanted=wanted, fix_text=fix)

    values: dict[str, Any] = {}
    for name, text in parse_pairs("arg", list(args)).items():
        if name not in known:
            near = nearest(name, list(known))
            hint = f"did you mean `{near}`?" if near else f"remove {name}"
            raise bad(f"{name}={text}", f"{kernel.name} has no scalar parameter `{name}`", hint)
        value = {"true": 1, "false": 0}.get(text.lower(), literal(text))
        whole = known[name].kind not in ("float", "bfloat")
        if isinstance(value, str) or (whole and not isinstance(value, int)):
            raise bad(f"{name}={text}", f"`{name}` takes a number of type {known[name]}", f"write --arg {name}=1")
        values[name] = value
    missing = [name for name in known if name not in values]
    if missing:
        raise bad(missing[0], f"no value for {', '.join(missing)}", f"add --arg {missing[0]}=...")
    return values


def _check_memory(kernel: t.Kernel, names: Mapping[str, int], expect: str | None) -> None:
    """BadShape where the arrays would take more than half of the memory of this computer."""
    needed = 0
    for p in kernel.arrays:
        count = 1
        for e in p.buffer.shape:
            count *= max(0, evaluate(size(e), names))
        # The expected result is computed in float64.
        needed += count * (p.buffer.dtype.numpy.itemsize + (8 if expect is not None else 0))
    limit = memory_limit()
    if needed > limit:
        shape = ",".join(f"{k}={v}" for k, v in names.items())
        problem = (
            f"the arrays would take {needed >> 20} MiB; the limit is {limit >> 20} MiB, half of the memory here"
        )
        dims = ", ".join(dimensions(kernel)) or "none"
        raise BadShape(text=shape, problem=problem, kernel=kernel.name, dims=dims, fix_text="give smaller sizes")


def memory_limit() -> int:
    """Bytes that the arrays of a problem may take: half of the memory of this computer."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, OSError, ValueError):
        return 8 << 30


@dataclass
class Problem:
    """Arrays and scalars for one call, and (with ``expect``) the float64 result and its bound."""

    kernel: t.Kernel
    dims: dict[str, int]
    arrays: dict[str, NDArray[Any]]
    scalars: dict[str, Any]
    expect: str | None = None
    output: str | None = None
    wanted: NDArray[np.float64] | None = None
    bound: NDArray[np.float64] | None = None
    inputs: list[str] = field(default_factory=list)

    def arguments(self) -> list[Any]:
        return [
            self.arrays[p.buffer.name] if isinstance(p, t.ArrayParameter) else self.scalars[p.scalar.name]
            for p in self.kernel.params
        ]

    def share(self) -> float:
        """The largest error of the output as a share of its bound."""
        assert self.output is not None and self.wanted is not None and self.bound is not None
        return share_of_bound(self.arrays[self.output], self.wanted, self.bound)


def make_problem(
    kernel: t.Kernel,
    dims: Mapping[str, int],
    scalars: Mapping[str, Any],
    seed: int,
    expect: str | None = None,
    kind: str = "randn",
) -> Problem:
    """Random inputs (of a ``kind`` of `random_array`) for every array that is read, subscripts among them inside
    their bounds (`steering`); what is only written starts as NaN (or the largest integer)."""
    writes = written(kernel) - read(kernel)
    made: dict[str, NDArray[Any]] = {}
    names = {**dims, **{k: int(v) for k, v in scalars.items() if isinstance(v, int)}}
    if not 0 <= seed < 2**62:
        raise WrongArgument(function="--seed", name="seed", got=seed, wanted="a number from 0 to 2^62")
    _check_memory(kernel, names, expect)
    for i, p in enumerate(kernel.arrays):
        b = p.buffer
        shape = tuple(evaluate(size(e), names) for e in b.shape)
        if b.name in writes:
            made[b.name] = poisoned(shape, b.dtype.numpy)
        else:
            made[b.name] = random_array(shape, b.dtype, seed + i, kind)
    rng = np.random.default_rng(seed)
    for found in steering(kernel):
        found.draw(made[found.array], names, rng)
    for name in metadata(kernel):
        draw_metadata(made[name], rng)
    problem = Problem(kernel, dict(dims), made, dict(scalars), expect)
    if expect is not None:
        types = {p.buffer.name: p.buffer.dtype for p in kernel.arrays}
        rounded = {
            p.scalar.name: np.asarray(scalars[p.scalar.name]).astype(p.scalar.dtype.numpy)
            for p in kernel.params
            if not isinstance(p, t.ArrayParameter)
        }
        wanted = expectation.read(expect, list(types), made, rounded)
        problem.output, problem.inputs = wanted.output, list(wanted.inputs)
        problem.wanted, problem.bound = expectation.evaluate(
            wanted, made, types, accumulator(kernel), narrowest_arithmetic(kernel)
        )
    return problem


def poisoned(shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
    """An array filled with a pattern that no result has."""
    if kind.kind in "iu":
        return np.full(shape, np.iinfo(kind).max, kind)
    return np.full(shape, np.nan).astype(kind) if kind.kind != "b" else np.zeros(shape, kind)


def accumulator(kernel: t.Kernel) -> str | None:
    """The element type that the kernel accumulates in."""
    table = declarations(kernel)
    for op in operations(kernel.body):
        if isinstance(op, t.Mma):
            declared = table.get(op.acc.name)
            if isinstance(declared, t.DeclareFragment) and declared.dtype is not None:
                return declared.dtype.name
    return None


def narrowest_arithmetic(kernel: t.Kernel) -> DType | None:
    """The narrowest floating type in which the kernel computes with elements; None where it does not."""
    computed = (Binary, Unary, Call)
    found = [
        x.type
        for op in operations(kernel.body)
        for e in expressions(op)
        for x in walk(e)
        if isinstance(x, computed) and x.type.is_float
    ]
    return min(found, key=lambda d: d.bits, default=None)


__all__ = ["Problem", "make_problem", "parse_pairs", "parse_shape", "pick", "read_module", "value_of"]
