"""Binds a launch plan to arguments: names, sizes, arrays and parameter bytes of a machine run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilemma.dtypes import dtype
from tilemma.launch import (
    MAX_EXTENT,
    Launch,
    PointerArgument,
    SharedName,
    TensorMapArgument,
    ValueArgument,
    divided_dimension,
    evaluate,
)
from tilemma.machine import placement
from tilemma.machine.arguments import array_argument, bind_argument, described, refuse, scalar_bytes
from tilemma.machine.call import simple_launch, triple
from tilemma.machine.isa import tensormap
from tilemma.machine.limits import MAX_CLUSTER, MAX_GRID
from tilemma.machine.memory import PARAM_WINDOW, BoundMap, GlobalMemory
from tilemma.machine.placement import Group, Placed
from tilemma.machine.syntax import Entry

# Dynamic plus static shared memory of one CTA, in bytes (CUDA C++ Programming Guide, "Compute Capabilities").
SHARED_LIMIT = {
    75: 64 << 10, 80: 163 << 10, 86: 99 << 10, 87: 163 << 10, 89: 99 << 10, 90: 227 << 10, 120: 99 << 10,
    121: 99 << 10,
}  # fmt: skip


@dataclass
class Binding:
    """One launch bound to arguments: sizes are numbers, arrays are named."""

    entry: str
    arch: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared: int
    arrays: dict[str, Any]
    written: dict[str, bool]
    # For each parameter of the entry, the result of ``bind_argument``.
    parameters: list[tuple[str, Any]] = field(default_factory=list)
    shared_names: Sequence[SharedName] = ()
    # The arrays by the memory that they share, found at the first run.
    groups: list[Group] | None = None


def bind(launch: Launch | Mapping[str, Any], entry: Entry, args: Mapping[str, Any], target: str) -> Binding:
    """Bind ``args`` to the launch; raises BadMachineCall for arguments that do not fit."""
    if isinstance(launch, Mapping) and "arguments" in launch:
        launch = Launch.from_json(launch)
    if isinstance(launch, Launch):
        return _bind_plan(launch, entry, args)
    return _bind_simple(launch, entry, args, target)


def names_of(launch: Launch, args: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, Any]]:
    """The values of a plan's names, and its arrays; checks shapes, types and the plan's own conditions."""
    names: dict[str, int] = {}
    arrays: dict[str, Any] = {}
    known = {a.name for a in launch.arrays} | {s.name for s in launch.scalars}
    for given in args:
        if given not in known:
            refuse(f"`{given}` is no parameter", f"the parameters {', '.join(sorted(known))}", "drop or rename it")
    for scalar in launch.scalars:
        if scalar.name not in args:
            refuse(f"`{scalar.name}` is missing", f"a number of type {scalar.dtype}", f"pass `{scalar.name}=...`")
        names[scalar.name] = args[scalar.name]
    for a in launch.arrays:
        if a.name not in args:
            refuse(f"the array `{a.name}` is missing", f"an array of {a.dtype}", f"pass `{a.name}=...`")
        array = arrays[a.name] = array_argument(a.name, args[a.name])
        want = dtype(a.dtype)
        if array.dtype != want.numpy:
            refuse(f"`{a.name}` holds {array.dtype}", f"{want.numpy} ({a.dtype})", "convert it with `.astype`")
        if array.ndim != len(a.dims):
            refuse(f"`{a.name}` has {array.ndim} dimensions", f"{len(a.dims)}", "reshape it")
        for i, (extent, dim) in enumerate(zip(array.shape, a.dims, strict=True)):
            if extent > MAX_EXTENT:
                refuse(f"`{a.name}` has {extent} along dimension {i}", f"at most {MAX_EXTENT}", "split the call")
            names[f"{a.name}.stride{i}"] = array.strides[i] // array.itemsize
            if isinstance(dim, str) and names.setdefault(dim, extent) != extent:
                refuse(
                    f"`{a.name}` has {extent} along {dim}",
                    f"{names[dim]}, as another array has",
                    "make them agree",
                )
        _facts(a, array)
    for a in launch.arrays:
        for extent, dim in zip(arrays[a.name].shape, a.dims, strict=True):
            if (divided := divided_dimension(dim)) is not None:
                names.setdefault(divided[0], extent * divided[1])
    for a in launch.arrays:
        for extent, dim in zip(arrays[a.name].shape, a.dims, strict=True):
            value = _evaluate(dim, names)
            if value != extent:
                refuse(f"`{a.name}` has {extent} elements along a dimension", f"{value}", "make the shapes agree")
    return names, arrays


def _facts(a: Any, array: Any) -> None:
    """Check the facts that the code was compiled for: elements, a contiguous dimension, alignment of base and
    strides."""
    if array.size == 0:
        if a.nonempty:
            refuse(
                f"`{a.name}` has no elements",
                "what the kernel was compiled for: at least one",
                "compile for these arrays (their facts)",
            )
        return
    if (
        a.contiguous is not None
        and array.shape[a.contiguous] > 1
        and array.strides[a.contiguous] != array.itemsize
    ):
        refuse(
            f"dimension {a.contiguous} of `{a.name}` is not contiguous",
            "what the kernel was compiled for",
            "copy the array with `np.ascontiguousarray`, or compile for its strides",
        )
    outer = [s for i, s in enumerate(array.strides) if i != a.contiguous and array.shape[i] > 1]
    for what, value in [("base", array.__array_interface__["data"][0]), *(("row stride", s) for s in outer)]:
        if value % a.alignment:
            refuse(
                f"the {what} of `{a.name}` is no multiple of {a.alignment} bytes",
                "what the kernel was compiled for",
                "compile for the alignment of these arrays (its facts), or pad the rows",
            )


def _evaluate(size: Any, names: Mapping[str, int]) -> int:
    try:
        return int(evaluate(size, names))
    except KeyError as e:
        refuse(
            f"the launch plan uses the name {e}, which no argument gives a value",
            "a known name",
            "correct the plan",
        )


def _bind_plan(launch: Launch, entry: Entry, args: Mapping[str, Any]) -> Binding:
    names, arrays = names_of(launch, args)
    for condition, message in launch.checks:
        if not _evaluate(condition, names):
            refuse(
                message,
                "the condition that the launch plan states",
                "pass arrays that fit, or compile another variant",
            )
    if len(launch.arguments) != len(entry.parameters):
        refuse(
            f"the plan has {len(launch.arguments)} arguments, `{entry.name}` {len(entry.parameters)} parameters",
            "one argument for each parameter",
            "use the plan that belongs to this PTX",
        )
    parameters: list[tuple[str, Any]] = []
    for argument in launch.arguments:
        if isinstance(argument, PointerArgument):
            parameters.append(("pointer", argument.array))
        elif isinstance(argument, ValueArgument):
            parameters.append(("bytes", scalar_bytes(_evaluate_value(argument.value, names), argument.type)))
        elif isinstance(argument, TensorMapArgument):
            if argument.array not in arrays:
                refuse(
                    f"there is no tensor map for `{argument.array}`: no such array",
                    "an array of the plan",
                    "pass it",
                )
            for size in (*argument.dims, *argument.strides):
                _evaluate(size, names)
            parameters.append(("map", (argument.array, tensormap.from_launch(argument, names))))
    grid = tuple(max(0, _evaluate(g, names)) for g in launch.grid)
    return Binding(
        launch.entry, launch.arch, (grid[0], grid[1], grid[2]), launch.block, launch.cluster or (1, 1, 1),
        launch.shared, arrays, {a.name: a.written for a in launch.arrays}, parameters,
        launch.shared_names,
    )  # fmt: skip


def _evaluate_value(size: Any, names: Mapping[str, Any]) -> Any:
    return names[size] if isinstance(size, str) and size in names else _evaluate(size, names)


def _bind_simple(launch: Mapping[str, Any], entry: Entry, args: Mapping[str, Any], target: str) -> Binding:
    said = simple_launch(launch)
    if len(args) != len(entry.parameters):
        refuse(
            f"{len(args)} arguments for {len(entry.parameters)} parameters",
            f"one for each of {', '.join(p.name for p in entry.parameters)}, in order",
            "pass a dict in the order of the parameters; on the command line, an `--arg` for each",
        )
    arrays: dict[str, Any] = {}
    parameters: list[tuple[str, Any]] = []
    for (name, value), parameter in zip(args.items(), entry.parameters, strict=True):
        parameters.append(bind_argument(name, value, parameter, arrays))
    if unknown := said["read_only"] - {*arrays, *args}:
        refuse(
            f"`read_only` names `{min(unknown)}`",
            f"arrays among {', '.join(args) or 'no arguments'}",
            "correct the name",
        )
    required = entry.directives.get("reqnctapercluster")
    cluster = said.get("cluster") or (triple("cluster", list(required)) if required else (1, 1, 1))
    return Binding(
        entry.name, said["arch"] or target, said["grid"], said["block"], cluster, said["shared"], arrays,
        {n: n not in said["read_only"] and a.flags.writeable for n, a in arrays.items()}, parameters,
    )  # fmt: skip


def check_limits(b: Binding, entry: Entry, static_shared: int, arch_number: int) -> None:
    """Refuse a launch beyond the limits of every device."""
    threads = b.block[0] * b.block[1] * b.block[2]
    if not 1 <= threads <= 1024 or b.block[2] > 64 or min(b.block) < 1:
        refuse(f"a block of {threads} threads", "1 to 1024", "use fewer threads")
    for directive in ("maxntid", "reqntid"):
        if directive in entry.directives:
            limit = 1
            for n in entry.directives[directive]:
                limit *= n
            if threads > limit or (directive == "reqntid" and threads != limit):
                refuse(f"a block of {threads} threads", f"{limit}, by `.{directive}`", "launch as the PTX says")
    if any(g > most for g, most in zip(b.grid, MAX_GRID, strict=True)):
        refuse(f"the grid {b.grid}", "at most 2147483647 blocks along x and 65535 along y and z", "use fewer")
    if b.cluster[0] * b.cluster[1] * b.cluster[2] > MAX_CLUSTER:
        refuse(f"clusters of {b.cluster}", f"at most {MAX_CLUSTER} CTAs", "use smaller clusters")
    if arch_number < 90 and b.cluster != (1, 1, 1):
        refuse(
            f"clusters of {b.cluster} on sm_{arch_number}",
            "a target from sm_90 on",
            "leave out the cluster, or name another target",
        )
    if any(g < 0 for g in b.grid):
        refuse(f"the grid {b.grid}", "extents of 0 or more", "correct the grid")
    if any(c < 1 for c in b.cluster) or any(g % c for g, c in zip(b.grid, b.cluster, strict=True)):
        refuse(
            f"the grid {b.grid} in clusters of {b.cluster}",
            "a multiple of the cluster in each dimension",
            "round the grid up",
        )
    required = entry.directives.get("reqnctapercluster")
    if required and triple("cluster", list(required)) != b.cluster:
        refuse(
            f"clusters of {b.cluster}",
            f"{triple('cluster', list(required))}, by `.reqnctapercluster`",
            "launch as the PTX says",
        )
    limit = SHARED_LIMIT.get(arch_number, 227 << 10)
    if b.shared < 0 or b.shared + static_shared > limit:
        refuse(
            f"{b.shared} bytes of dynamic and {static_shared} of static shared memory",
            f"at most {limit} together on sm_{arch_number}",
            "use smaller tiles or fewer stages",
        )


def fill_parameters(
    b: Binding, entry: Entry, program: Any, memory: GlobalMemory
) -> tuple[dict[str, Placed], dict[int, BoundMap]]:
    """Place the arrays, write the parameter bytes, and bind the tensor maps by their parameter's address."""
    if b.groups is None:
        b.groups = placement.groups_of(b.arrays)
    placed = placement.place(memory, b.arrays, b.written, b.groups)
    maps: dict[int, BoundMap] = {}
    for parameter, (kind, value) in zip(entry.parameters, b.parameters, strict=True):
        if kind == "pointer" and parameter.size != 8:
            refuse(f"an array for `{parameter.name}`", f"a value of {described(parameter)}", "pass a number")
        if kind == "bytes" and len(value) != parameter.size:
            refuse(f"{len(value)} bytes for `{parameter.name}`", described(parameter), "correct the size")
        if kind == "map" and parameter.size < 128:
            refuse(f"a tensor map for `{parameter.name}`", f"a value of {described(parameter)}", "pass a number")
        program.parameter_bytes[parameter.offset : parameter.offset + parameter.size] = 0
        for offset, (part, content) in value if kind == "struct" else [(0, (kind, value))]:
            at = parameter.offset + offset
            raw = _encoded(part, content, at, placed, maps)
            program.parameter_bytes[at : at + len(raw)] = np.frombuffer(raw, np.uint8)
    return placed, maps


def _encoded(kind: str, value: Any, at: int, placed: Mapping[str, Placed], maps: dict[int, BoundMap]) -> bytes:
    """The bytes of a value at offset ``at`` of the parameters; a tensor map is entered into ``maps``."""
    if kind == "bytes":
        return bytes(value)
    if kind == "pointer":
        return placed[value].address.to_bytes(8, "little")
    name, image = value
    array = placed[name]
    # An array without elements has a map that no kernel reads: the runtime writes one of one element.
    problems = [] if 0 in image.dims else tensormap.problems(image, array.address)
    if problems:
        refuse(
            f"the tensor map of `{name}` cannot be encoded: {problems[0]}",
            "a map within the driver's limits",
            "copy the array to an aligned, contiguous one",
        )
    if at % 64:
        refuse(
            f"a tensor map at offset {at} of the parameters",
            "an offset that is a multiple of 64",
            "move the field",
        )
    maps[PARAM_WINDOW + at] = BoundMap(image, array.allocation, array.start)
    return tensormap.encoded(image, array.address)
