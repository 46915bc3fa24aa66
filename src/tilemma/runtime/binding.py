"""Checks the arguments of a call against the launch plan and derives the values of its sizes.

The CPU reference, the PTX machine and CUDA go through the same checks, before anything runs.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .. import dtypes
from ..arithmetic.convert import constant
from ..errors import LaunchError, Note, nearest
from ..launch import MAX_EXTENT, ArrayParam, Launch, Size, divided_dimension, evaluate
from ..records import record
from .arrays import CPU, ArrayRef, describe
from .overlap import overlap, overlaps_itself


class WrongCall(LaunchError):
    code = "wrong-call"
    found = "{kernel}: {what}"
    expected = "{kernel}({signature})"
    fix = "pass every parameter once, arrays and numbers in this order or by name"


class WrongElementType(LaunchError):
    code = "array-dtype"
    found = "{kernel}: `{name}` holds {type}"
    expected = "an array of {expected_type}"
    fix = "pass `{conversion}`, or declare `{name}` with elements of {type} in the kernel"


class WrongRank(LaunchError):
    code = "array-rank"
    found = "{kernel}: `{name}` has {rank} dimension(s), shape {shape}"
    expected = "{expected_rank} dimension(s): [{dims}]"
    fix = "reshape or index it to [{dims}]"


class WrongDimension(LaunchError):
    code = "array-dimension"
    found = "{kernel}: dimension {axis} of `{name}` is {extent}; its shape is {shape}"
    expected = "{wanted}"
    fix = "pass {remedy}"


class WrongStrides(LaunchError):
    code = "array-strides"
    found = "{kernel}: `{name}` has stride {stride} in dimension {axis}; shape {shape}, strides {strides}"
    expected = "stride 1 in dimension {axis}: this variant was compiled for it"
    fix = "pass a contiguous copy, or compile the kernel for these strides"


class WrongAlignment(LaunchError):
    code = "array-alignment"
    found = "{kernel}: {what} of `{name}` is {value} bytes, a multiple of {alignment} only"
    expected = "a multiple of {needed} bytes: {reason}"
    fix = "pass an aligned copy, or compile the kernel for an alignment of {alignment}"


class EmptyArray(LaunchError):
    code = "array-empty"
    found = "{kernel}: `{name}` has no elements; its shape is {shape}"
    expected = "at least one: this variant was compiled for it"
    fix = "compile the kernel for arrays that may be empty: facts without `nonempty`, as they are by default"


class MixedDevices(LaunchError):
    code = "array-devices"
    found = "{kernel}: `{name}` is on {device}, `{other}` on {other_device}"
    expected = "all arrays on one device"
    fix = "move `{name}` to {other_device}"


class ReadOnlyArray(LaunchError):
    code = "array-read-only"
    found = "{kernel}: `{name}` is written by the kernel, and this array of {library} cannot be"
    expected = "an array that may be written"
    fix = "{remedy}"


class OverlappingArrays(LaunchError):
    code = "array-overlap"
    found = "{kernel}: `{name}`, which the kernel writes, shares memory with `{other}`"
    expected = "arrays that are written to have their memory for themselves"
    fix = "pass a copy of `{other}`, or another array for `{name}`"


class SelfOverlappingArray(LaunchError):
    code = "array-self-overlap"
    found = "{kernel}: several elements of `{name}` share an address (shape {shape}, strides {strides})"
    expected = "one address for each element of an array that is written"
    fix = "pass a contiguous array for `{name}`"


class WrongScalar(LaunchError):
    code = "scalar-type"
    found = "{kernel}: `{name}` is {value!r}, {type}"
    expected = "{wanted}"
    fix = "{remedy}"


class LaunchCheckFailed(LaunchError):
    code = "launch-check"
    found = "{kernel}: {message}"
    expected = "a call that meets this condition of the kernel (here {values})"
    fix = "change the arguments, or the kernel's compile-time sizes"


class ExtentTooLarge(LaunchError):
    code = "extent-too-large"
    found = "{kernel}: `{name}` has {extent} elements along dimension {axis} (shape {shape})"
    expected = "at most {limit} along each dimension: indices are 32-bit numbers"
    fix = "reshape it to more dimensions, or split the call"


class GridTooLarge(LaunchError):
    code = "grid-too-large"
    found = "{kernel}: the grid would be {grid} blocks"
    expected = "at most 2147483647 x 65535 x 65535 (CUDA programming guide, compute capabilities)"
    fix = "use larger tiles, or put the largest extent first"


_GRID_LIMIT = (2**31 - 1, 65535, 65535)


@record
class Bound:
    """A call whose arguments fit the launch plan.

    ``values`` has an `ArrayRef` for each array parameter and a number for each scalar; ``names`` the values that
    sizes
    are computed from (dimensions, scalars, `array.stride0` in elements).  Strides of dimensions with one
    element are set to the values that the plan assumes: generated code multiplies them by 0 only.
    """

    launch: Launch
    kernel: str
    values: dict[str, ArrayRef | int | float]
    names: dict[str, int]
    grid: tuple[int, int, int]
    device: tuple[str, int]

    @property
    def arrays(self) -> tuple[ArrayRef, ...]:
        return tuple(self.array(p.name) for p in self.launch.arrays)

    def array(self, name: str) -> ArrayRef:
        value = self.values[name]
        assert isinstance(value, ArrayRef)
        return value

    def moved(self, pointers: Mapping[str, int]) -> Bound:
        """The same call with its arrays at other addresses, which must have the old ones' alignment.

        Raises OverlappingArrays: the other checks of `bind` do not depend on addresses.
        """
        refs = {p.name: self.array(p.name)._replace(pointer=pointers[p.name]) for p in self.launch.arrays}
        _check_overlap(self.launch, self.kernel, refs)
        return replace(self, values={**self.values, **refs})

    def without_owners(self) -> Bound:
        """The same call, keeping no array alive."""
        refs = {p.name: self.array(p.name)._replace(owner=None) for p in self.launch.arrays}
        return replace(self, values={**self.values, **refs})

    @property
    def is_empty(self) -> bool:
        """Whether the launch has no blocks: some extent of the grid is 0."""
        return 0 in self.grid

    def size(self, size: Size) -> int:
        """The value of a size of the plan for this call."""
        return evaluate(size, self.names)


def _collect(
    kernel: str, order: Sequence[str], constants: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    signature = ", ".join([*order, *(["*", *constants] if constants else [])])
    if len(args) > len(order):
        what = f"{len(args)} arguments were passed, it takes {len(order)}"
        raise WrongCall(kernel=kernel, what=what, signature=signature)
    given = dict(zip(order, args, strict=False))
    for name, value in kwargs.items():
        if name not in order or name in given:
            close = nearest(name, [*order, *constants])
            what = f"`{name}` was passed twice" if name in given else f"there is no parameter `{name}`"
            what += f" (did you mean `{close}`?)" if close is not None and name not in given else ""
            raise WrongCall(kernel=kernel, what=what, signature=signature)
        given[name] = value
    if missing := [n for n in order if n not in given]:
        what = f"no value for {', '.join(f'`{n}`' for n in missing)}"
        raise WrongCall(kernel=kernel, what=what, signature=signature)
    return given


def dims_text(param: ArrayParam) -> str:
    """The shape of a parameter as a person writes it: `M, K`."""
    return ", ".join(_size_text(d) for d in param.dims)


_INFIX = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "floormod": "%"}


def _size_text(size: Size) -> str:
    if not isinstance(size, tuple):
        return str(size)
    op, *operands = size
    texts = [_size_text(x) for x in operands]
    if op in _INFIX and len(texts) == 2:
        return f"({texts[0]} {_INFIX[op]} {texts[1]})"
    return f"{op}({', '.join(texts)})"


def _describe(kernel: str, name: str, value: Any) -> ArrayRef:
    try:
        return describe(value)
    except LaunchError as error:
        place = Note(f"it was passed as `{name}` of {kernel}")
        raise type(error)(error.span, notes=(*error.notes, place), **error.facts) from None


def _check_type(kernel: str, param: ArrayParam, ref: ArrayRef) -> None:
    wanted = dtypes.dtype(param.dtype)
    if ref.dtype.name not in (wanted.name, wanted.stored):
        theirs = wanted.numpy.name
        method = f"to(torch.{theirs})" if ref.library == "torch" else f"astype({theirs!r})"
        conversion = f"{param.name}.{method}"
        raise WrongElementType(
            kernel=kernel, name=param.name, type=ref.dtype, expected_type=wanted, conversion=conversion
        )
    if ref.rank != len(param.dims):
        raise WrongRank(
            kernel=kernel,
            name=param.name,
            rank=ref.rank,
            shape=list(ref.shape),
            expected_rank=len(param.dims),
            dims=dims_text(param),
        )


def _bind_dimensions(
    launch: Launch, kernel: str, refs: Mapping[str, ArrayRef], scalars: Mapping[str, Any]
) -> dict[str, Any]:
    """Names of dimensions and scalars with their values; every dimension checked against every array."""
    names: dict[str, Any] = dict(scalars)
    first: dict[str, str] = {}
    for param in launch.arrays:
        for axis, dim in enumerate(param.dims):
            if isinstance(dim, str) and dim not in names:
                names[dim] = refs[param.name].shape[axis]
                first[dim] = f", by dimension {axis} of `{param.name}`"
    for param in launch.arrays:
        for axis, dim in enumerate(param.dims):
            divided = divided_dimension(dim)
            if divided is not None and divided[0] not in names:
                names[divided[0]] = refs[param.name].shape[axis] * divided[1]
                first[divided[0]] = f", by dimension {axis} of `{param.name}`"
    for param in launch.arrays:
        shape = refs[param.name].shape
        for axis, dim in enumerate(param.dims):
            if shape[axis] > MAX_EXTENT:
                raise ExtentTooLarge(
                    kernel=kernel,
                    name=param.name,
                    extent=shape[axis],
                    axis=axis,
                    shape=list(shape),
                    limit=MAX_EXTENT,
                )
            wanted = evaluate(dim, names)
            if shape[axis] != wanted:
                because = first.get(dim, "") if isinstance(dim, str) else ""
                size = _size_text(dim)
                expected, remedy = f"{size} = {wanted}{because}", f"arrays that agree on {size}"
                if isinstance(dim, int):
                    expected = f"{dim}, which the kernel declares"
                    remedy = f"an array whose dimension {axis} is {dim}"
                raise WrongDimension(
                    kernel=kernel, name=param.name, axis=axis, extent=shape[axis], shape=list(shape),
                    wanted=expected, remedy=remedy,
                )  # fmt: skip
    return names


def _fit_strides(kernel: str, param: ArrayParam, ref: ArrayRef) -> ArrayRef:
    """``ref`` with strides that nothing depends on replaced by fitting ones; the others checked."""
    aligned = max(16, param.alignment) // math.gcd(16, ref.itemsize)
    low, high = ref.span()
    # Larger than any distance between elements, and aligned as any plan requires: valid as a stride of a tensor
    # map.
    unused = -(-max((high - low) // ref.itemsize, 1) // aligned) * aligned
    strides = list(ref.strides)
    for axis, extent in enumerate(ref.shape):
        if axis == param.contiguous:
            if extent > 1 and not ref.is_empty and strides[axis] != 1:
                raise WrongStrides(
                    kernel=kernel,
                    name=param.name,
                    stride=strides[axis],
                    axis=axis,
                    shape=list(ref.shape),
                    strides=list(ref.strides),
                )
            strides[axis] = 1
        elif extent <= 1 or ref.is_empty:
            strides[axis] = unused
    return ref._replace(strides=tuple(strides))


def _power_of_two(value: int) -> int:
    return value & -value if value else 2**30


def _check_alignment(kernel: str, param: ArrayParam, ref: ArrayRef) -> None:
    on_gpu = ref.device != CPU
    needed = max(param.alignment, ref.itemsize) if on_gpu else param.alignment
    reason = "this variant was compiled for it" if param.alignment > 1 else "the hardware needs whole elements"
    if ref.is_empty or needed == 1:
        return
    parts = [("the address", ref.pointer)]
    for axis, extent in enumerate(ref.shape):
        if extent > 1 and axis != param.contiguous:
            parts.append((f"the stride of dimension {axis}", ref.strides[axis] * ref.itemsize))
    for what, value in parts:
        if value % needed:
            raise WrongAlignment(
                kernel=kernel,
                name=param.name,
                what=what,
                value=hex(value) if what == "the address" else value,
                alignment=_power_of_two(value),
                needed=needed,
                reason=reason,
            )


def _check_devices(kernel: str, refs: Mapping[str, ArrayRef]) -> tuple[str, int]:
    (first, ref), *others = refs.items()
    for name, other in others:
        if other.device != ref.device:
            raise MixedDevices(
                kernel=kernel,
                name=name,
                device=device_text(other.device),
                other=first,
                other_device=device_text(ref.device),
            )
    return ref.device


def device_text(device: tuple[str, int]) -> str:
    return "the CPU" if device == CPU else f"{device[0]}:{device[1]}"


def _check_written(launch: Launch, kernel: str, refs: Mapping[str, ArrayRef]) -> None:
    for param in launch.arrays:
        ref = refs[param.name]
        if not param.written or ref.is_empty:
            continue
        if not ref.writable:
            immutable = "JAX arrays never change: let the kernel return the array (`return x`)"
            remedy = immutable if ref.library == "jax" else "pass a copy of it"
            raise ReadOnlyArray(kernel=kernel, name=param.name, library=ref.library, remedy=remedy)
        if overlaps_itself(ref):
            raise SelfOverlappingArray(
                kernel=kernel, name=param.name, shape=list(ref.shape), strides=list(ref.strides)
            )
    _check_overlap(launch, kernel, refs)


def _check_overlap(launch: Launch, kernel: str, refs: Mapping[str, ArrayRef]) -> None:
    for param in launch.arrays:
        if param.written:
            for name, other in refs.items():
                if name != param.name and overlap(refs[param.name], other):
                    raise OverlappingArrays(kernel=kernel, name=param.name, other=name)


def _scalar(kernel: str, name: str, type_name: str, value: Any) -> int | float:
    element = dtypes.dtype(type_name)

    def refuse(wanted: str, remedy: str) -> WrongScalar:
        kind = type(value).__name__
        type_ = f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"
        return WrongScalar(kernel=kernel, name=name, value=value, type=type_, wanted=wanted, remedy=remedy)

    if element.kind == "bool":
        if not isinstance(value, (bool, np.bool_)):
            raise refuse("a bool", f"pass `bool({name})`")
        return int(value)
    if element.is_integer:
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
            is_number = isinstance(value, (bool, np.bool_, numbers.Real, np.floating))
            remedy = f"pass `int({name})`" if is_number else "pass a Python or NumPy integer"
            raise refuse(f"an integer ({element})", remedy)
        low = -(2 ** (element.bits - 1)) if element.kind == "int" else 0
        high = 2 ** (element.bits - (element.kind == "int")) - 1
        if not low <= int(value) <= high:
            wider = f", or declare `{name}` as a 64-bit integer" if element.bits < 64 else ""
            raise refuse(f"an integer of {element}: {low} to {high}", f"pass a number of this range{wider}")
        return int(value)
    number = f"a number ({element})", "pass a Python or NumPy number"
    # ml_dtypes' scalars are no numbers.Real.
    other = (bool, np.bool_, np.complexfloating, str, bytes)
    if isinstance(value, other) or not isinstance(value, (numbers.Real, np.generic)):
        raise refuse(*number)
    try:
        exact = int(value) if isinstance(value, numbers.Integral) else float(value)
        # Rounded here, so that every target is given the same number.
        found = float(constant(exact, element))
    except (TypeError, ValueError, OverflowError):
        raise refuse(*number) from None
    if math.isinf(found) and not (isinstance(exact, float) and math.isinf(exact)):
        largest = element.floating.largest
        raise refuse(
            f"a number of {element}: at most {largest:.6g}",
            f"declare `{name}` as a wider float, or pass an infinity",
        )
    return found


def bind(
    launch: Launch,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    order: Sequence[str] | None = None,
    kernel: str | None = None,
    created: frozenset[str] = frozenset(),
    constants: Sequence[str] = (),
) -> Bound:
    """Check a call against its launch plan and name its sizes; nothing is run or copied.

    ``args`` and ``kwargs`` are what the user passed; ``order`` is the order of the parameters (default: the
    plan's arrays, then its scalars); ``kernel`` the name used in errors (default: the entry).  ``created``
    names arrays allocated for this call, which may be written even if their library calls them immutable;
    ``constants`` the kernel's compile-time parameters, which a call names.
    Raises a LaunchError that names the kernel, the parameter, and what was found and expected.
    """
    kernel = kernel or launch.entry
    if order is None:
        order = [*(a.name for a in launch.arrays), *(s.name for s in launch.scalars)]
    given = _collect(kernel, order, constants, args, kwargs or {})
    refs = {p.name: _describe(kernel, p.name, given[p.name]) for p in launch.arrays}
    refs |= {name: refs[name]._replace(writable=True) for name in created & refs.keys()}
    for param in launch.arrays:
        _check_type(kernel, param, refs[param.name])
    device = _check_devices(kernel, refs) if refs else CPU
    scalars = {s.name: _scalar(kernel, s.name, s.dtype, given[s.name]) for s in launch.scalars}
    names = _bind_dimensions(launch, kernel, refs, scalars)
    refs = {p.name: _fit_strides(kernel, p, refs[p.name]) for p in launch.arrays}
    for param in launch.arrays:
        ref = refs[param.name]
        if param.nonempty and ref.is_empty:
            raise EmptyArray(kernel=kernel, name=param.name, shape=list(ref.shape))
        _check_alignment(kernel, param, ref)
        for axis, stride in enumerate(ref.strides):
            names[f"{param.name}.stride{axis}"] = stride
    _check_written(launch, kernel, refs)
    for condition, message in launch.checks:
        if not evaluate(condition, names):
            values = ", ".join(f"{n} = {v}" for n, v in names.items() if "." not in n)
            raise LaunchCheckFailed(kernel=kernel, message=message, values=values)
    x, y, z = (max(0, evaluate(g, names)) for g in launch.grid)
    if any(extent > limit for extent, limit in zip((x, y, z), _GRID_LIMIT, strict=True)):
        raise GridTooLarge(kernel=kernel, grid=[x, y, z])
    return Bound(launch, kernel, {**refs, **scalars}, names, (x, y, z), device)
