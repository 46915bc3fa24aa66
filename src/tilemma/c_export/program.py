"""A C program that calls an exported kernel on numbers from -1 to 2 and prints checksums."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilemma.c_export.header import Exported, c_name, c_scalar
from tilemma.c_export.sizes import c_size
from tilemma.dtypes import dtype
from tilemma.launch import ArrayParam, divided_dimension

# The numbers that the arrays hold; unsigned types hold the first four of 0, 1, 2, 3.
VALUES = (-1, 0, 1, 2)
_EXTENT = 256


def pattern(count: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Which of the four numbers each element holds."""
    found: np.ndarray[tuple[int], np.dtype[np.uint32]] = (
        np.arange(count, dtype=np.uint32) * np.uint32(2654435761) >> np.uint32(13)
    ) & np.uint32(3)
    return found


def encodings(t: str) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
    """The four numbers in element type ``t``."""
    numbers = np.arange(4) if dtype(t).kind in ("uint", "bits", "bool") else np.array(VALUES)
    found: np.ndarray[tuple[int], np.dtype[np.generic]] = numbers.astype(dtype(t).numpy)
    return found


def program(k: Exported) -> str:
    """The text of the program."""
    return "\n".join([*_head(k), *_main(k), ""])


def dimensions(k: Exported) -> list[str]:
    """The dimensions that the program takes, in order of first use."""
    names = {s.name for s in k.scalars}
    found = [(divided_dimension(d) or (d, 1))[0] for a in k.arrays for d in a.dims]
    return list(dict.fromkeys(d for d in found if isinstance(d, str) and d not in names))


def _head(k: Exported) -> Iterator[str]:
    arguments = " ".join([*dimensions(k), *(s.name for s in k.scalars)])
    yield f"/* cc -o {k.name} {k.name}_main.c -lcuda && ./{k.name} {arguments}".rstrip() + " */"
    yield f'#include "{k.name}.h"'
    yield "#include <stdio.h>\n#include <stdlib.h>\n"
    yield "static void check(CUresult status, const char *what, const char *why) {"
    yield "  if (!status) return;"
    yield "  const char *text = NULL;"
    yield "  cuGetErrorString(status, &text);"
    yield '  fprintf(stderr, "%s: %s%s%s\\n", what, text ? text : "error", why ? ": " : "", why ? why : "");'
    yield "  exit(1);\n}\n"


def _main(k: Exported) -> Iterator[str]:
    dims, scalars = dimensions(k), k.scalars
    yield "int main(int argc, char **argv) {"
    for i, name in enumerate(dims, 1):
        yield f"  const int64_t {c_name(name)}_ = argc > {i} ? atoll(argv[{i}]) : {_EXTENT};"
    for i, s in enumerate(scalars, 1 + len(dims)):
        t = c_scalar(s.dtype)
        parse = "atof" if t in ("float", "double") else "atoll"
        yield f"  const {t} {c_name(s.name)} = argc > {i} ? ({t}){parse}(argv[{i}]) : 1;"
    yield "  CUdevice device;\n  CUcontext context;"
    yield '  check(cuInit(0), "cuInit", NULL);'
    yield '  check(cuDeviceGet(&device, 0), "cuDeviceGet", NULL);'
    yield '  check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain", NULL);'
    yield '  check(cuCtxSetCurrent(context), "cuCtxSetCurrent", NULL);'
    yield f"  static {k.name}_kernel k;"
    yield f'  check({k.name}_load(&k), "{k.name}_load", NULL);'
    for a in k.arrays:
        yield from ("  " + line for line in _array(k, a))
    yield f"  const CUresult launched = {k.name}_launch(&k, NULL, {', '.join(k.names)});"
    yield f'  check(launched, "{k.name}_launch", k.why);'
    yield '  check(cuCtxSynchronize(), "cuCtxSynchronize", NULL);'
    for a in k.arrays:
        if a.written:
            x = c_name(a.name)
            yield f'  check(cuMemcpyDtoH({x}_host, {x}.data, {x}_bytes), "cuMemcpyDtoH", NULL);'
            yield f"  uint64_t {x}_sum = UINT64_C(14695981039346656037);"
            yield f"  for (size_t i = 0; i < {x}_bytes; i++)"
            yield f"    {x}_sum = ({x}_sum ^ {x}_host[i]) * UINT64_C(1099511628211);"
            yield f'  printf("{a.name} %016llx\\n", (unsigned long long){x}_sum);'
    yield "  return 0;\n}"


def _array(k: Exported, a: ArrayParam) -> Iterator[str]:
    x, t = c_name(a.name), dtype(a.dtype)
    bytes_ = encodings(a.dtype).view(np.uint8).reshape(4, -1)
    rows = ", ".join("{" + ", ".join(map(str, row)) + "}" for row in bytes_)
    names = {d: f"{c_name(d)}_" for d in dimensions(k)} | {s.name: f"(int64_t){c_name(s.name)}" for s in k.scalars}
    yield f"tilemma_array {x} = {{0}};"
    yield f"size_t {x}_count = 1;"
    for axis, dim in enumerate(a.dims):
        yield f"{x}.shape[{axis}] = {c_size(dim, names)};"
    # Dense, the dimension whose stride the kernel takes for 1 innermost.
    inner = len(a.dims) - 1 if a.contiguous is None else a.contiguous
    order = [*(i for i in range(len(a.dims)) if i != inner), *([inner] if a.dims else [])]
    for axis in reversed(order):
        yield f"{x}.stride[{axis}] = (int64_t){x}_count;"
        yield f"{x}_count *= (size_t){x}.shape[{axis}];"
    yield f"const size_t {x}_bytes = {x}_count * {t.bytes};"
    yield f"unsigned char *{x}_host = malloc({x}_bytes ? {x}_bytes : 1);"
    yield f"static const unsigned char {x}_values[4][{t.bytes}] = {{{rows}}};"
    yield f"for (size_t i = 0; i < {x}_count; i++)"
    yield f"  memcpy({x}_host + i * {t.bytes}, {x}_values[(uint32_t)i * 2654435761u >> 13 & 3], {t.bytes});"
    yield f'check(cuMemAlloc(&{x}.data, {x}_bytes ? {x}_bytes : 1), "cuMemAlloc", NULL);'
    yield f'check(cuMemcpyHtoD({x}.data, {x}_host, {x}_bytes), "cuMemcpyHtoD", NULL);'
