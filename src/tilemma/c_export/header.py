"""The C header of an exported kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilemma.c_export.sizes import SUPPORT, c_size
from tilemma.dtypes import DType, dtype
from tilemma.errors import LaunchError
from tilemma.forking import cached_property
from tilemma.launch import (
    MAX_EXTENT,
    ArrayParam,
    Launch,
    PointerArgument,
    ScalarParam,
    Size,
    TensorMapArgument,
    ValueArgument,
    divided_dimension,
)
from tilemma.records import record
from tilemma.runtime.tensormap import data_type, swizzle_code

# Dimensions of an array in C.
RANK = 8
# Beyond this a kernel asks for dynamic shared memory by attribute (CUDA programming guide).
_PLAIN_SHARED = 48 * 1024
_PORTABLE_CLUSTER = 8
_C_TYPES = {
    **{f"{k}{n}": f"{'u' * (k == 'u')}int{n}_t" for k in "us" for n in (8, 16, 32, 64)},
    "f32": "float",
    "f64": "double",
    "bool": "bool",
}
_LIMITS = {"u8": (0, 255), "s8": (-128, 127), "u16": (0, 65535), "s16": (-(2**15), 2**15 - 1)}
_LIMITS |= {"u32": (0, 2**32 - 1), "s32": (-(2**31), 2**31 - 1)}
_KEYWORDS = frozenset([
    "auto", "bool", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum",
    "extern", "float", "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short",
    "signed", "sizeof", "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile",
    "while", "true", "false", "kernel", "stream", "why", "asm", "typeof", "main", "class", "new", "delete",
    "this", "template", "operator", "namespace", "k", "device", "context", "argc", "argv", "status", "launched",
    "arguments",
])  # fmt: skip


class CannotExport(LaunchError):
    code = "cannot-export"
    found = "export: parameter `{name}` of {kernel} is a scalar of {type}"
    expected = "scalars of integers, f32, f64 and bool: C has no type for others"
    fix = "declare it as f32 and convert it in the kernel"


@record(slots=False)
class Exported:
    """A compiled kernel, as the header needs it."""

    name: str
    arch: str
    launches: tuple[Launch, ...]
    cubin: bytes

    @cached_property
    def arrays(self) -> tuple[ArrayParam, ...]:
        """The array parameters of all launches; written if one launch writes it."""
        found: dict[str, ArrayParam] = {}
        for launch in self.launches:
            for a in launch.arrays:
                if a.name not in found or a.written:
                    found[a.name] = a
        return tuple(found.values())

    @cached_property
    def scalars(self) -> tuple[ScalarParam, ...]:
        found = {s.name: s for launch in self.launches for s in launch.scalars}
        for s in found.values():
            if s.dtype not in _C_TYPES:
                raise CannotExport(name=s.name, kernel=self.name, type=s.dtype)
        return tuple(found.values())

    @property
    def names(self) -> list[str]:
        """The names of `parameters`."""
        return [c_name(a.name) for a in self.arrays] + [c_name(s.name) for s in self.scalars]

    @property
    def parameters(self) -> list[str]:
        """The parameters of the launch function after kernel and stream."""
        arrays = [f"tilemma_array {c_name(a.name)}" for a in self.arrays]
        return arrays + [f"{_C_TYPES[s.dtype]} {c_name(s.name)}" for s in self.scalars]


def c_name(name: str) -> str:
    """``name`` where C can use it."""
    return f"{name}_" if name in _KEYWORDS else name


def c_scalar(t: str) -> str:
    """C's type for scalars of element type ``t``."""
    return _C_TYPES[t]


_HEAD = """\
/* {name}: machine code for {arch}, and its launch.  Written by tilemma.
   Link with the CUDA driver: -lcuda.  A context has to be current in the calling thread.

     {name}_kernel k;
     {name}_load(&k);
     {name}_launch(&k, stream, {arguments});

   Each function returns CUDA_SUCCESS or an error of the driver.  Where a launch returns CUDA_ERROR_INVALID_VALUE,
   k.why says which argument the kernel cannot take.  The launch starts no kernel then.  Arrays that the kernel
   writes must not share memory with others; this is not checked. */
#ifndef TILEMMA_{guard}_H
#define TILEMMA_{guard}_H
#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifndef TILEMMA_ARRAY
#define TILEMMA_ARRAY
/* An array in device memory: its address, and for each dimension its extent and its stride in elements. */
typedef struct {{
  CUdeviceptr data;
  int64_t shape[{rank}];
  int64_t stride[{rank}];
}} tilemma_array;

{support}
/* Why an array of rank dimensions does not fit, or NULL.  Strides that no address depends on are replaced by ones
   that fit. */
static inline const char *tilemma_fit(tilemma_array *x, int rank, int contiguous, int64_t bytes, int64_t alignment,
                                      bool nonempty) {{
  int64_t span = 1;
  bool empty = false;
  for (int i = 0; i < rank; i++) {{
    if (x->shape[i] < 0 || x->shape[i] > INT64_C({max_extent})) return "an extent is out of range";
    empty |= x->shape[i] == 0;
    span += (x->shape[i] > 1 ? x->shape[i] - 1 : 0) * (x->stride[i] < 0 ? -x->stride[i] : x->stride[i]);
  }}
  if (empty && nonempty) return "it has no elements, and the kernel was compiled for at least one";
  for (int i = 0; i < rank; i++) {{
    if (i == contiguous) {{
      if (x->shape[i] > 1 && !empty && x->stride[i] != 1)
        return "the kernel was compiled for stride 1 in one dimension";
      x->stride[i] = 1;
    }} else if (x->shape[i] <= 1 || empty) {{
      x->stride[i] = (span / 128 + 1) * 128;
    }} else if (x->stride[i] * bytes % alignment) {{
      return "a stride is not aligned as the kernel was compiled for";
    }}
  }}
  return empty || x->data % (uint64_t)alignment == 0 ? NULL : "its address is not aligned as the kernel needs";
}}
#endif

"""


def header(k: Exported) -> str:
    """The header's text."""
    head = _HEAD.format(
        name=k.name,
        guard=k.name.upper(),
        arch=k.arch,
        arguments=", ".join(k.names),
        rank=RANK,
        support=SUPPORT,
        max_extent=MAX_EXTENT,
    )
    return "\n".join([head, *_machine_code(k), *_load(k), *_launch_function(k), "#endif", ""])


def _machine_code(k: Exported) -> Iterator[str]:
    yield f"static const unsigned char {k.name}_cubin[] = {{"
    for at in range(0, len(k.cubin), 24):
        yield "  " + ",".join(map(str, k.cubin[at : at + 24])) + ","
    yield "};\n"
    yield f"typedef struct {{\n  CUmodule module;\n  CUfunction function[{len(k.launches)}];"
    yield f"  const char *why;\n}} {k.name}_kernel;\n"


def _load(k: Exported) -> Iterator[str]:
    yield f"static inline CUresult {k.name}_load({k.name}_kernel *k) {{"
    yield "  memset(k, 0, sizeof *k);"
    yield f"  CUresult status = cuModuleLoadData(&k->module, {k.name}_cubin);"
    for i, launch in enumerate(k.launches):
        yield f'  if (!status) status = cuModuleGetFunction(&k->function[{i}], k->module, "{launch.entry}");'
        if launch.shared > _PLAIN_SHARED:
            attribute = "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
            yield f"  if (!status) status = cuFuncSetAttribute(k->function[{i}], {attribute}, {launch.shared});"
        if launch.cluster and math.prod(launch.cluster) > _PORTABLE_CLUSTER:
            attribute = "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED"
            yield f"  if (!status) status = cuFuncSetAttribute(k->function[{i}], {attribute}, 1);"
    yield "  return status;\n}\n"
    yield f"static inline CUresult {k.name}_unload({k.name}_kernel *k) {{ return cuModuleUnload(k->module); }}\n"


def _launch_function(k: Exported) -> Iterator[str]:
    parameters = ", ".join([f"{k.name}_kernel *k", "CUstream stream", *k.parameters])
    yield f"static inline CUresult {k.name}_launch({parameters}) {{"
    yield "  CUresult status = CUDA_SUCCESS;\n  k->why = NULL;"
    for i, launch in enumerate(k.launches):
        yield "  {"
        yield from ("    " + line for line in _one_launch(launch, i, {s.name: s for s in k.scalars}))
        yield "  }"
    yield "  return status;\n}\n"


def _refusal(condition: str, why: str) -> str:
    said = why.replace("\\", "\\\\").replace('"', '\\"')
    return f'if ({condition}) {{ k->why = "{said}"; return CUDA_ERROR_INVALID_VALUE; }}'


def _one_launch(launch: Launch, index: int, scalars: dict[str, ScalarParam]) -> Iterator[str]:
    names = {s: f"(int64_t){c_name(s)}" for s in scalars}
    for a in launch.arrays:
        x = c_name(a.name)
        for axis, dim in enumerate(a.dims):
            if isinstance(dim, str) and dim not in names:
                names[dim] = f"d_{dim}"
                yield f"const int64_t d_{dim} = {x}.shape[{axis}];"
    for a in launch.arrays:
        x = c_name(a.name)
        for axis, dim in enumerate(a.dims):
            divided = divided_dimension(dim)
            if divided is not None and divided[0] not in names:
                names[divided[0]] = f"d_{divided[0]}"
                yield f"const int64_t d_{divided[0]} = {x}.shape[{axis}] * {divided[1]};"
    for a in launch.arrays:
        x = c_name(a.name)
        for axis, dim in enumerate(a.dims):
            names[f"{a.name}.stride{axis}"] = f"{x}.stride[{axis}]"
            if names.get(str(dim)) != f"d_{dim}" or f"{x}.shape[{axis}]" != _first_use(launch, dim):
                wrong = f"{x}.shape[{axis}] != {c_size(dim, names)}"
                yield _refusal(wrong, f"dimension {axis} of {a.name} does not agree with the other arguments")
        t = dtype(a.dtype)
        aligned = max(a.alignment, t.bytes)
        contiguous = -1 if a.contiguous is None else a.contiguous
        fit = f"tilemma_fit(&{x}, {len(a.dims)}, {contiguous}, {t.bytes}, {aligned}, {str(a.nonempty).lower()})"
        yield f"if ((k->why = {fit})) return CUDA_ERROR_INVALID_VALUE;"
    for condition, message in launch.checks:
        yield _refusal(f"!({c_size(condition, names)})", message)
    extents = (f"g{axis} = {_extent(g, names)}" for axis, g in zip("xyz", launch.grid, strict=True))
    yield f"const int64_t {', '.join(extents)};"
    limit = "gx > INT64_C(2147483647) || gy > 65535 || gz > 65535"
    yield _refusal(limit, "the grid would be larger than 2147483647 x 65535 x 65535 blocks")
    for j, argument in enumerate(launch.arguments):
        yield from _argument(argument, j, launch, names, scalars)
    addresses = ", ".join(f"&a{j}" for j in range(len(launch.arguments))) or "NULL"
    yield f"void *arguments[] = {{{addresses}}};"
    yield "if (gx && gy && gz) {"
    yield from ("  " + line for line in _start(launch, index))
    yield "  if (status) return status;"
    yield "}"


def _first_use(launch: Launch, dim: Size) -> str:
    """The extent that gives ``dim`` its value."""
    for a in launch.arrays:
        for axis, d in enumerate(a.dims):
            if d == dim:
                return f"{c_name(a.name)}.shape[{axis}]"
    return ""


def _extent(size: Size, names: dict[str, str]) -> str:
    return f"tilemma_max(0, {c_size(size, names)})"


def _argument(
    argument: PointerArgument | ValueArgument | TensorMapArgument,
    j: int,
    launch: Launch,
    names: dict[str, str],
    scalars: dict[str, ScalarParam],
) -> Iterator[str]:
    if isinstance(argument, PointerArgument):
        yield f"CUdeviceptr a{j} = {c_name(argument.array)}.data;"
        return
    if isinstance(argument, ValueArgument):
        yield from _value(argument, j, names, scalars)
        return
    x, rank = c_name(argument.array), len(argument.dims)
    element: DType = dtype(argument.dtype)
    extents = ", ".join(c_size(d, names) for d in argument.dims)
    strides = ", ".join(c_size(s, names) for s in argument.strides)
    yield f"CUtensorMap a{j};"
    yield "{"
    yield f"  cuuint64_t extents[] = {{{extents}}}, strides[] = {{{strides or '0'}}};"
    yield f"  cuuint32_t box[] = {{{_list(argument.box)}}}, steps[] = {{{_list(argument.element_strides)}}};"
    yield f"  CUdeviceptr base = {x}.data;"
    yield "  bool empty = false;"
    yield f"  for (int i = 0; i < {rank}; i++) empty |= extents[i] == 0;"
    # The driver takes neither null nor an extent of 0: the map of one element, which no kernel reads.
    yield "  if (empty) {"
    yield "    base = 4096;"
    yield f"    for (int i = 0; i < {rank}; i++) extents[i] = 1;"
    yield f"    for (int i = 0; i + 1 < {rank}; i++) strides[i] = 16;"
    yield "  }"
    fill = (
        "FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA" if argument.oob_nan and element.is_float else "FLOAT_OOB_FILL_NONE"
    )
    yield (
        f"  status = cuTensorMapEncodeTiled(&a{j}, CU_TENSOR_MAP_DATA_TYPE_{data_type(element)}, {rank}, "
        f"(void *)(uintptr_t)base, extents, strides, box, steps, (CUtensorMapInterleave){argument.interleave}, "
        f"(CUtensorMapSwizzle){swizzle_code(argument.swizzle)}, (CUtensorMapL2promotion){argument.l2_promotion}, "
        f"CU_TENSOR_MAP_{fill});"
    )
    yield f'  if (status) {{ k->why = "the copy engine (TMA) cannot reach {argument.array}"; return status; }}'
    yield "}"


def _value(
    argument: ValueArgument, j: int, names: dict[str, str], scalars: dict[str, ScalarParam]
) -> Iterator[str]:
    value = argument.value
    if isinstance(value, str) and value in scalars:
        own = scalars[value].dtype
        yield f"{_C_TYPES[own if own != 'bool' else 'u8']} a{j} = {c_name(value)};"
        return
    kind = argument.type.replace("b", "u") if argument.type[0] == "b" else argument.type
    yield f"const int64_t v{j} = {c_size(value, names)};"
    if kind in _LIMITS:
        low, high = _LIMITS[kind]
        wrong = f"v{j} < ({low}LL) || v{j} > {high}LL"
        yield _refusal(wrong, "a size or an offset of this call is too large for the kernel")
    yield f"{_C_TYPES[kind]} a{j} = ({_C_TYPES[kind]})v{j};"


def _list(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))


def _start(launch: Launch, index: int) -> Iterator[str]:
    block = ", ".join(map(str, launch.block))
    if launch.cluster in (None, (1, 1, 1)) and not launch.overlap:
        yield (
            f"status = cuLaunchKernel(k->function[{index}], (unsigned)gx, (unsigned)gy, (unsigned)gz, {block}, "
            f"{launch.shared}, stream, arguments, NULL);"
        )
        return
    yield "CUlaunchAttribute attributes[2];"
    yield "memset(attributes, 0, sizeof attributes);"
    yield "unsigned count = 0;"
    if launch.cluster:
        yield "attributes[count].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;"
        for axis, extent in zip("xyz", launch.cluster, strict=True):
            yield f"attributes[count].value.clusterDim.{axis} = {extent};"
        yield "count++;"
    if launch.overlap:
        yield "attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;"
        yield "attributes[count++].value.programmaticStreamSerializationAllowed = 1;"
    yield "CUlaunchConfig config;"
    yield "memset(&config, 0, sizeof config);"
    yield "config.gridDimX = (unsigned)gx; config.gridDimY = (unsigned)gy; config.gridDimZ = (unsigned)gz;"
    for axis, extent in zip("XYZ", launch.block, strict=True):
        yield f"config.blockDim{axis} = {extent};"
    yield f"config.sharedMemBytes = {launch.shared};"
    yield "config.hStream = stream;"
    yield "config.attrs = attributes;"
    yield "config.numAttrs = count;"
    yield f"status = cuLaunchKernelEx(&config, k->function[{index}], arguments, NULL);"
