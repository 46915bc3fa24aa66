"""`tilemma check k.ptx`: PTX of any compiler on the PTX machine, with arguments spelled on the command line."""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilemma import machine
from tilemma.dtypes import DType, dtype, from_numpy, names
from tilemma.errors import nearest, show_sources_below, singular
from tilemma.machine.run import schedule_of
from tilemma.sources import CannotRead, read_regular, read_source
from tilemma.testing import random_array, to_float64
from tilemma.tools.check import progress_bar, verdict_lines
from tilemma.tools.compare import Difference
from tilemma.tools.explain_run import Answers, Questions, answer
from tilemma.tools.numpy_text import NotComputed, value_of
from tilemma.tools.problem import BadArgument, memory_limit, whole_number

_ARGUMENT = re.compile(r"(?P<type>\w++)(?:\[(?P<shape>[^\]]*+)\])?=(?P<value>.+)", re.DOTALL)
_TENSOR_MAP = re.compile(r"tma\((?P<inside>.*)\)$", re.DOTALL)
_WANTED = (
    "TYPE[SHAPE]=VALUE with VALUE `random`, `out`, `zeros`, an .npy file or NumPy text; TYPE=NUMBER; or "
    "tma(a0, box=64x64, swizzle=128)"
)
# Outputs hold these bytes before the run: NaN in every floating-point type.
_POISON, _POISON_INTEGER = 0xFF, 0xA5
# The largest deviation of a result from `--expect`, as a share of the largest expected value, by the bits of the
# mantissa: sums in another order differ by some roundings.
_TOLERANCE = {"f64": 1e-12, "f32": 1e-5, "tf32": 1e-2, "f16": 1e-2, "bf16": 5e-2}
_TOLERANCE_OTHERS = 0.2
# A check holds each array several times: as given, before the run, in the machine, and as the first result.
_COPIES = 4
# Dimensions of an array: NumPy's limit.
_MAX_RANK = 32
# The header of an .npy file.
_MAX_HEADER = 64 << 10


def bad(text: str, problem: str, fix: str, *, option: str = "arg", wanted: str = _WANTED) -> BadArgument:
    return BadArgument(option=option, text=text, problem=problem, wanted=wanted, fix_text=fix)


@dataclass
class Arguments:
    """The arguments in order, ``a0``, ``a1``, ...; ``outputs`` are the arrays that start poisoned."""

    values: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Any] = field(default_factory=dict)
    outputs: set[str] = field(default_factory=set)

    def add(self, text: str, seed: int) -> None:
        """One ``--arg``."""
        name = f"a{len(self.values)}"
        tensor_map = _TENSOR_MAP.match(text.strip())
        if tensor_map:
            self.values[name] = self._tensor_map(name, text, tensor_map["inside"], seed)
            return
        value = self._value(name, text, seed)
        self.values[name] = value
        if isinstance(value, np.ndarray):
            self.arrays[name] = value

    def _value(self, name: str, text: str, seed: int) -> Any:
        match = _ARGUMENT.fullmatch(text.strip())
        if match is None:
            raise bad(text, "not TYPE[SHAPE]=VALUE", "write for example 'f32[1024]=random' or 's32=7'")
        if match["type"] not in names():
            near = nearest(match["type"], names())
            hint = f"did you mean `{near}`?" if near else f"use one of {', '.join(names())}"
            raise bad(text, f"`{match['type']}` is no element type", hint)
        element = dtype(match["type"])
        if match["shape"] is None:
            number = evaluated(text, match["value"], self.arrays)
            if not isinstance(number, (int, float, np.generic)):
                raise bad(text, "not a number", "write 's32=7' or 'f32=0.5'")
            return converted(text, np.asarray(number), element)[()]
        shape = self._shape(text, match["shape"], element.numpy.itemsize)
        return self._array(name, text, element, shape, match["value"].strip(), seed)

    def _shape(self, text: str, inside: str, itemsize: int) -> tuple[int, ...]:
        """The sizes in brackets; refuses an array that does not fit into memory together with those before it."""
        parts = [x.strip() for x in inside.split(",") if x.strip()]
        if len(parts) > _MAX_RANK or any(not re.fullmatch("[0-9]+", p) for p in parts):
            raise bad(text, f"`[{inside:.40}]` is no shape", f"write up to {_MAX_RANK} sizes: f32[4,8]")
        limit = array_limit()
        shape = tuple(n for p in parts if (n := whole_number(p)) is not None)
        # A size of 0 does not make the others fit: NumPy computes strides from them.
        needed = math.prod(max(n, 1) for n in shape) * itemsize
        if len(shape) == len(parts) and needed + sum(a.nbytes for a in self.arrays.values()) <= limit:
            return shape
        raise bad(
            text,
            f"the arrays would take more than the limit of {limit >> 20} MiB",
            f"give smaller sizes: all arrays together may take 1/{2 * _COPIES} of this computer's memory",
        )

    def _array(self, name: str, text: str, element: Any, shape: tuple[int, ...], value: str, seed: int) -> Any:
        if value == "out":
            self.outputs.add(name)
            array = np.empty(shape, element.numpy)
            array.reshape(-1).view(np.uint8)[...] = _POISON if element.is_float else _POISON_INTEGER
            return array
        if value == "random":
            return random_array(shape, element, seed + len(self.values))
        if value == "zeros":
            return np.zeros(shape, element.numpy)
        if value.endswith(".npy"):
            array = _saved(text, value)
        else:
            array = evaluated(text, value, self.arrays)
        try:
            array = np.asarray(array)
            if array.dtype.kind == "V" and array.itemsize == element.bytes:
                array = array.view(element.numpy)
            array = np.broadcast_to(array, shape)
        except (TypeError, ValueError) as e:
            raise bad(text, f"the value has shape {np.shape(array)}, not {shape}", "correct the shape") from e
        return np.array(converted(text, array, element), order="C")

    def _tensor_map(self, name: str, text: str, inside: str, seed: int) -> machine.TensorMap:
        parts = _split(inside)
        source, options = parts[0], dict(p.partition("=")[::2] for p in parts[1:])
        if source in self.arrays:
            array = self.arrays[source]
        elif "=" in source:
            array = self.arrays[name] = self._value(name, source, seed)
        else:
            raise bad(text, f"`{source}` is no array before this argument", "name one: tma(a0, box=64x64)")
        unknown = sorted(set(options) - {"box", "swizzle", "steps", "fill"})
        wrong = [f"`{n}` is unknown" for n in unknown] + ["the box is missing"] * ("box" not in options)
        wrong += ["an option is given twice"] * (len(options) < len(parts) - 1)
        swizzle, fill = whole_number(options.get("swizzle", "0")), options.get("fill", "zero")
        wrong += ["`swizzle` is no number"] * (swizzle is None) + [f"`fill={fill:.20}`"] * (
            fill not in ("nan", "zero")
        )
        if wrong or swizzle is None:
            fix = "give box=64x64 (innermost dimension first) and, where needed, swizzle=, steps=, fill=nan"
            raise bad(text, wrong[0], fix)
        return machine.TensorMap(
            array,
            extents(text, options["box"], "arg"),
            swizzle=swizzle,
            element_strides=extents(text, options["steps"], "arg") if "steps" in options else (),
            oob_nan=fill == "nan",
        )


def converted(text: str, array: Any, element: DType) -> Any:
    """``array`` as elements of a type; an integer type takes only the values that it holds exactly."""
    if array.dtype.kind not in "biufO" and from_numpy(array.dtype) is None:
        raise bad(text, f"the values are of NumPy's type {array.dtype}", "give numbers")
    low, high = {"int": (-1 << element.bits - 1, (1 << element.bits - 1) - 1), "bool": (0, 1)}.get(
        element.kind, (0, (1 << element.bits) - 1)
    )
    with np.errstate(all="ignore"):
        if not element.is_float:
            values = array.astype(np.float64) if array.dtype.kind == "V" else array
            whole = values.dtype.kind != "f" or bool(
                np.all(values == np.trunc(values)) and np.isfinite(values).all()
            )
            if not whole or (values.size and not low <= int(values.min()) <= int(values.max()) <= high):
                fix = f"give whole numbers from {low} to {high}"
                raise bad(text, f"`{element}` does not hold these values exactly", fix)
        return array.astype(element.numpy)


def array_limit() -> int:
    """Bytes that all array arguments of a check may take together: an eighth of the memory of this computer."""
    return memory_limit() // _COPIES


def _saved(text: str, file: str) -> Any:
    """The array in an .npy file: a regular file of bounded size, whose header agrees with its size."""
    try:
        data = read_regular(file, array_limit() + _MAX_HEADER)
        stream = io.BytesIO(data)
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"version {version} of the format")
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, element = header(stream)
        if element.hasobject or element.names is not None:
            raise ValueError(f"elements of type {element} are no numbers")
        count, left = math.prod(shape), len(data) - stream.tell()
        if min(shape, default=0) < 0 or count * element.itemsize != left:
            raise ValueError(f"its shape {shape} needs {count * element.itemsize} bytes; it has {left}")
        flat = np.frombuffer(data, element, count, stream.tell()) if count else np.empty(0, element)
        return flat.reshape(shape, order="F" if fortran else "C")
    except CannotRead as e:
        raise bad(text, e.message, "name a file that np.save has written") from None
    except Exception as e:  # NumPy parses the header as Python text: tokens, syntax, numbers may all be wrong
        raise bad(text, f"`{file}` cannot be read ({e!s:.200})", "name a file that np.save has written") from e


def _split(text: str) -> list[str]:
    """``text`` at its commas outside brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [p.strip() for p in parts]


def extents(text: str, value: str, option: str) -> tuple[int, ...]:
    """``4x2`` or ``4,2`` as integers."""
    parts = [whole_number(p) for p in re.split(r"[x,]", value.strip())]
    sizes = tuple(p for p in parts if p is not None)
    if not 1 <= len(parts) <= 5 or len(sizes) < len(parts):
        raise bad(
            text, f"`{value:.40}` is no list of sizes", f"write --{option} 4 or 4x2", option=option, wanted="4x2"
        )
    return sizes


def evaluated(text: str, value: str, names: dict[str, Any], option: str = "arg") -> Any:
    """NumPy text as a number or an array; see `value_of`."""
    try:
        return value_of(value, names, array_limit())
    except NotComputed as e:
        raise bad(
            text,
            f"`{value:.200}` cannot be computed ({e})",
            "use numbers, np, and the arrays before: a0, a1",
            option=option,
        ) from e


@dataclass
class PtxOutcome:
    """The machine's verdict on an entry of a PTX file, and how its results compare with `--expect`."""

    kernel: str
    arch: str
    schedules: int
    verdict: machine.Verdict
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    compared: int = 0
    explained: Answers = field(default_factory=Answers)

    @property
    def ok(self) -> bool:
        return self.verdict.ok and not self.differences

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "kernel": self.kernel,
            "arch": self.arch,
            "dims": {},
            "schedules": self.schedules,
            "launches": [self.verdict.to_json()],
            "differences": [d.to_json() for d in self.differences],
            "compared": self.compared,
            "notes": self.notes,
            **self.explained.data,
        }

    def render(self) -> str:
        head = f"{self.kernel} on {self.arch}: {singular(f'{self.schedules} schedules')}, "
        head += "no hazard" if self.verdict.ok else "HAZARDS"
        if self.verdict.sample is not None:
            head += ", {} of {} CTAs in each".format(*self.verdict.sample)
        if self.compared:
            head += ", DIFFERS from what is expected" if self.differences else ", as expected"
        lines = [*verdict_lines(self.verdict), *(f"  {d.render()}" for d in self.differences)]
        return "\n".join([head, *lines, *(f"  note: {n}" for n in self.notes), *self.explained.lines])


def required(option: str, value: str | None) -> str:
    """The value of an option that PTX needs."""
    if value is None:
        fix = f"add --{option} 4 (or 4x2)"
        raise bad("", f"a PTX file does not say its {option}", fix, option=option, wanted="one to three integers")
    return value


def whole_grid(ctas: str) -> None:
    """Refuse a sample of the grid of a kernel whose results are compared."""
    if ctas != "all":
        raise bad(
            ctas, "the results of a kernel of this language are compared, and a sample leaves some unwritten",
            "leave it out", option="ctas", wanted="`all`",
        )  # fmt: skip


def not_of_a_program(**options: Any) -> None:
    """Refuse options that say how to launch PTX: a program of this language says it itself."""
    for option, value in options.items():
        if value:
            text = " ".join(value) if isinstance(value, tuple) else str(value)
            raise bad(text, "this is no file of PTX", "leave it out", option=option, wanted="a `.ptx` file")


@dataclass(frozen=True)
class PtxLaunch:
    """The options of `tilemma check k.ptx` about the launch."""

    grid: str
    block: str
    entry: str | None = None
    cluster: str | None = None
    shared: int = 0

    def to_dict(self) -> dict[str, Any]:
        launch: dict[str, Any] = {
            "grid": extents(self.grid, self.grid, "grid"),
            "block": extents(self.block, self.block, "block"),
            "shared": self.shared,
        }
        if not all(launch["grid"]):
            problem = "a grid without blocks executes nothing"
            raise bad(self.grid, problem, "write --grid 1, or more", option="grid", wanted="at least one block")
        if self.entry is not None:
            launch["entry"] = self.entry
        if self.cluster is not None:
            launch["cluster"] = extents(self.cluster, self.cluster, "cluster")
        return launch


def check_ptx(
    file: str,
    launch: PtxLaunch,
    *,
    args: Sequence[str] = (),
    expect: Sequence[str] = (),
    arch: str | None = None,
    ctas: str = "all",
    schedules: int = 20,
    strict: bool = False,
    seed: int = 0,
    progress: bool = False,
    questions: Questions | None = None,
    advice: bool = True,
) -> PtxOutcome:
    """Run an entry of the PTX ``file`` under ``schedules`` schedules; compare with ``expect`` (``a1=a0 + 1``).

    With ``advice``, repairs of a hazard are tried, and the first that removes the hazard becomes its fix.
    ``questions`` are answered from one more run: of the schedule that found a hazard, else of the first.
    """
    ptx = read_source("check", file).decode()
    show_sources_below(os.path.dirname(os.path.abspath(file)))
    arguments = Arguments()
    for text in args:
        arguments.add(text, seed)
    before = {n: a.copy() for n, a in arguments.arrays.items()}
    wanted = [_expectation(text, before) for text in expect]
    options: dict[str, Any] = {"schedules": schedules, "seed": seed, "strict": strict, "arch": arch, "name": file}
    options["ctas"] = ctas
    if ctas != "all" and expect:
        raise bad(
            ctas, "the blocks that do not run leave their results unwritten", "leave out --expect or --ctas",
            option="ctas", wanted="`all`, to compare results",
        )  # fmt: skip
    job = (ptx, launch.to_dict(), arguments.values)
    if progress:
        with progress_bar(schedules, launch.entry or file) as tick:
            verdict = machine.check(*job, progress=tick, **options)
    else:
        verdict = machine.check(*job, **options)
    outcome = PtxOutcome(verdict.entry, verdict.arch, schedules, verdict)
    if advice and not verdict.ok:
        results = {n: a.copy() for n, a in arguments.arrays.items()}
        _restore(arguments.arrays, before)
        options = {"wanted": dict(wanted), "schedules": schedules, "strict": strict, "arch": arch}
        machine.advise(*job, verdict, **options)
        _restore(arguments.arrays, results)
    for name in sorted(arguments.outputs):
        array = arguments.arrays[name]
        left = int((array.view(f"u{array.itemsize}") == before[name].view(f"u{array.itemsize}")).sum())
        if left and verdict.sample is None:
            outcome.notes.append(f"{left} of {array.size} elements of {name} have not been written")
    if verdict.ok:
        for name, values in wanted:
            outcome.compared += values.size
            outcome.differences += _compared(name, arguments.arrays[name], values)
    if questions or outcome.differences:
        _restore(arguments.arrays, before)
        tried, how = verdict.found_by[0] if verdict.found_by else (seed, schedule_of(0))
        bounds = {d.array: d.bound for d in outcome.differences}
        outcome.explained = answer(
            questions or Questions(), *job, seed=tried, schedule=how, strict=strict, arch=arch,
            differing={name: (values, bounds[name]) for name, values in wanted if name in bounds},
        )  # fmt: skip
    return outcome


def _restore(arrays: dict[str, Any], values: dict[str, Any]) -> None:
    for name, array in arrays.items():
        array[...] = values[name]


def _expectation(text: str, arrays: dict[str, Any]) -> tuple[str, Any]:
    """``a1=a0 + 1``: the array and the values that it should have, in float64."""
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals or name not in arrays:
        fix = f"name one of {', '.join(arrays) or 'the arrays'}"
        raise bad(text, "not ARRAY=VALUE with an array of the arguments", fix, option="expect", wanted="a1=a0 + 1")
    inputs = {n: to_float64(a) if a.dtype.kind not in "iu" else a for n, a in arrays.items()}
    values = np.asarray(evaluated(text, value, inputs, "expect"))
    if values.dtype.kind not in "iub":
        values = to_float64(values)
    try:
        return name, np.broadcast_to(values, arrays[name].shape)
    except ValueError as e:
        fix = "correct the expression"
        what = f"the value has shape {values.shape}, {name} {arrays[name].shape}"
        raise bad(text, what, fix, option="expect", wanted="the array's shape") from e


def _compared(name: str, got: Any, wanted: Any) -> list[Difference]:
    element = from_numpy(got.dtype)
    values, want = to_float64(got), to_float64(np.asarray(wanted))
    if got.dtype.kind in "iub":
        bound, wrong = 0.0, got.astype(object) != np.asarray(wanted).astype(object)
    else:
        finite = np.abs(want[np.isfinite(want)])
        bound = _TOLERANCE.get(element.name if element else "", _TOLERANCE_OTHERS) * float(
            finite.max(initial=1e-30)
        )
        with np.errstate(invalid="ignore"):
            wrong = ~((np.abs(values - want) <= bound) | (values == want) | (np.isnan(values) & np.isnan(want)))
    if not np.any(wrong):
        return []
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return [
        Difference(
            name,
            "these arguments",
            int(np.sum(wrong)),
            int(got.size),
            at,
            float(values[at]),
            float(want[at]),
            bound,
        )
    ]
