"""The caller's arrays: address, shape, strides, element type, device, and its library's current stream.

No array library is imported here that the caller has not imported: an object is recognised by the module
of its type.  Libraries known by name are read by their own attributes, fast and exactly; every other array through
`__cuda_array_interface__` or DLPack.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .. import dtypes
from ..dtypes import DType
from ..errors import LaunchError
from . import dlpack


class NotAnArray(LaunchError):
    code = "not-an-array"
    found = "a `{type}` was passed where an array is needed"
    expected = "a NumPy, PyTorch, CuPy or JAX array, or an object with __dlpack__ or __cuda_array_interface__"
    fix = "pass an array, for example numpy.asarray(x, dtype=...)"


class UnknownElementType(LaunchError):
    code = "array-element-type"
    found = "an array of {library} holds elements of type {type}"
    expected = "an element type that kernels know: {known}"
    fix = "convert the array, for example x.astype('float16') or x.to(torch.float16)"


class UnusableArray(LaunchError):
    code = "array-unusable"
    found = "an array of {library} {what}"
    expected = "plain strided elements in the memory of the CPU or of one CUDA device"
    fix = "{remedy}"


class CannotAllocate(LaunchError):
    code = "cannot-allocate"
    found = "the kernel returns an array, and {library} cannot allocate {what}"
    expected = "a first array argument of NumPy, PyTorch, CuPy or JAX, whose library then allocates the result"
    fix = "pass arrays of such a library, or a kernel that writes to an array you pass"


CPU = ("cpu", 0)


class ArrayRef(NamedTuple):
    """A caller's array.

    ``strides`` are in elements; ``device`` is ("cpu", 0) or ("cuda", ordinal); ``owner`` keeps the memory
    alive.  ``stream`` is the caller's current stream for that library and device (a CUstream as int, 0 the
    legacy default).  ``synchronous``: the library has no stream that callers share, so that work on the
    array must be finished before a call returns (JAX).
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: tuple[str, int]
    owner: Any
    library: str
    stream: int = 0
    writable: bool = True
    synchronous: bool = False

    @property
    def itemsize(self) -> int:
        return self.dtype.numpy.itemsize

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape

    def span(self) -> tuple[int, int]:
        """The addresses [low, high) that the elements lie in; low = high for an empty array."""
        if self.is_empty:
            return self.pointer, self.pointer
        low = high = self.pointer
        for extent, stride in zip(self.shape, self.strides, strict=True):
            reach = (extent - 1) * stride * self.itemsize
            low, high = low + min(reach, 0), high + max(reach, 0)
        return low, high + self.itemsize


# Bytes.  No access of a thread is wider, and TMA requires no larger alignment of bases and strides.
LARGEST_ALIGNMENT = 16


class ArrayFacts(NamedTuple):
    """Facts for specialisation: the dimension whose stride is 1, the alignment class in bytes, that there are
    elements, and that an extent or unused stride is less aligned than the rest."""

    dtype: DType
    rank: int
    contiguous: int | None
    alignment: int
    nonempty: bool
    ragged: bool


def facts(ref: ArrayRef) -> ArrayFacts:
    """The facts of an array that choose the variant of a kernel.

    ``contiguous`` is the last dimension with stride 1 or extent <= 1; None when there is none.
    ``alignment`` is 16, 8, 4, 2 or 1: it divides the address and, in bytes, the stride of every other
    dimension with an extent above 1 (the stride of a dimension of one element is never used).  An array without
    elements counts as row-major and aligned: its strides are never used, and NumPy reports 0.
    ``ragged``: the alignment is 16, and the bytes of the contiguous dimension, or a stride that is never used, are
    no multiple of it.
    """
    last = reversed(range(ref.rank))
    if ref.is_empty:
        row = next(last, None)
        return ArrayFacts(ref.dtype, ref.rank, row, LARGEST_ALIGNMENT, False, _ragged(ref, row))
    contiguous = next((d for d in last if ref.shape[d] <= 1 or ref.strides[d] == 1), None)
    bits = ref.pointer | LARGEST_ALIGNMENT
    for d, (extent, stride) in enumerate(zip(ref.shape, ref.strides, strict=True)):
        if extent > 1 and d != contiguous:
            bits |= stride * ref.itemsize
    alignment = bits & -bits
    ragged = alignment == LARGEST_ALIGNMENT and _ragged(ref, contiguous)
    return ArrayFacts(ref.dtype, ref.rank, contiguous, alignment, True, ragged)


def _ragged(ref: ArrayRef, contiguous: int | None) -> bool:
    """Whether TMA refuses a stride, or a store to a row would write beyond its end."""
    steps = [ref.shape[d] if d == contiguous else ref.strides[d] for d in range(ref.rank)]
    return any(n * ref.itemsize % LARGEST_ALIGNMENT for n in steps)


def _element_type(found: DType | None, library: str, type_: object) -> DType:
    if found is None:
        raise UnknownElementType(library=library, type=type_, known=", ".join(sorted(dtypes.library_names())))
    return found


def _whole_strides(strides: tuple[int, ...], itemsize: int, library: str) -> tuple[int, ...]:
    if any(s % itemsize for s in strides):
        raise UnusableArray(
            library=library,
            what=f"has strides of {strides} bytes, no multiples of its elements' {itemsize}",
            remedy="copy it, for example numpy.ascontiguousarray(x)",
        )
    return tuple(s // itemsize for s in strides)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a contiguous row-major array."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def _describe_numpy(x: Any) -> ArrayRef:
    if isinstance(x, np.ma.MaskedArray):
        raise UnusableArray(
            library="numpy", what="is masked, and a kernel would read below the mask", remedy="use x.filled(0)"
        )
    found = _element_type(dtypes.from_numpy(x.dtype), "numpy", x.dtype)
    return ArrayRef(
        pointer=x.__array_interface__["data"][0],
        shape=x.shape,
        strides=_whole_strides(x.strides, x.itemsize, "numpy"),
        dtype=found,
        device=CPU,
        owner=x,
        library="numpy",
        writable=bool(x.flags.writeable),
    )


def _describe_torch(x: Any) -> ArrayRef:
    torch = sys.modules["torch"]
    kind = x.device.type
    if kind not in ("cpu", "cuda"):
        raise UnusableArray(library="torch", what=f"is on the device `{x.device}`", remedy="move it: x.to('cuda')")
    if x.layout is not torch.strided:
        raise UnusableArray(library="torch", what=f"has the layout {x.layout}", remedy="use x.to_dense()")
    try:
        pointer = x.data_ptr()
    except RuntimeError:  # inside torch.func transforms and for fake tensors
        pointer = 0
    if not pointer and x.numel():
        raise UnusableArray(
            library="torch",
            what="has no memory behind it (a fake tensor, or inside torch.func)",
            remedy="pass a real tensor",
        )
    name = str(x.dtype).removeprefix("torch.")
    found = _element_type(dtypes.from_library(name), "torch", x.dtype)
    if x.is_neg() or x.is_conj():
        raise UnusableArray(
            library="torch", what="is a lazy negation or conjugate", remedy="use x.resolve_neg().resolve_conj()"
        )
    ordinal = x.get_device() if kind == "cuda" else 0
    return ArrayRef(
        pointer=pointer,
        shape=tuple(x.shape),
        strides=tuple(x.stride()),
        dtype=found,
        device=(kind, ordinal),
        owner=x,
        library="torch",
        stream=_torch_stream(ordinal) if kind == "cuda" else 0,
    )


def _torch_stream(ordinal: int) -> int:
    torch = sys.modules["torch"]
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(raw(ordinal) if raw else torch.cuda.current_stream(ordinal).cuda_stream)


def _cupy_stream(ordinal: int) -> int:
    return int(sys.modules["cupy"].cuda.get_current_stream(ordinal).ptr)


def _describe_cupy(x: Any) -> ArrayRef:
    found = _element_type(dtypes.from_numpy(x.dtype), "cupy", x.dtype)
    ordinal = int(x.device.id)
    return ArrayRef(
        pointer=int(x.data.ptr),
        shape=tuple(x.shape),
        strides=_whole_strides(tuple(x.strides), x.dtype.itemsize, "cupy"),
        dtype=found,
        device=("cuda", ordinal),
        owner=x,
        library="cupy",
        stream=_cupy_stream(ordinal),
    )


def _describe_jax(x: Any) -> ArrayRef:
    if any(base.__name__ == "Tracer" for base in type(x).__mro__):
        raise UnusableArray(
            library="jax",
            what="is traced, not computed",
            remedy="call the kernel outside jax.jit, jax.grad and jax.vmap",
        )
    found = _element_type(dtypes.from_numpy(x.dtype), "jax", x.dtype)
    places = list(x.devices())
    if len(places) != 1:
        raise UnusableArray(
            library="jax", what=f"is spread over {len(places)} devices", remedy="pass one shard of it"
        )
    place = places[0]
    if place.platform not in ("cpu", "gpu", "cuda"):
        raise UnusableArray(library="jax", what=f"is on `{place}`", remedy="move it: jax.device_put")
    x.block_until_ready()
    shape = tuple(x.shape)
    strides = row_major(shape)
    # Types that DLPack has no code for are kept in row-major order.
    with contextlib.suppress(dlpack.Unreadable):
        strides = dlpack.strides_of(x) or strides
    on_cpu = place.platform == "cpu"
    return ArrayRef(
        pointer=int(x.unsafe_buffer_pointer()),
        shape=shape,
        strides=strides,
        dtype=found,
        device=CPU if on_cpu else ("cuda", int(getattr(place, "local_hardware_id", place.id))),
        owner=x,
        library="jax",
        writable=False,
        synchronous=not on_cpu,
    )


def _describe_interface(x: Any) -> ArrayRef:
    """CUDA Array Interface, version 3 (numba's manual)."""
    from .cudadriver import driver

    fields = x.__cuda_array_interface__
    element = np.dtype(fields["typestr"])
    found = _element_type(dtypes.from_numpy(element), "cai", fields["typestr"])
    if fields.get("mask") is not None:
        raise UnusableArray(library="cai", what="has a mask", remedy="fill the masked elements first")
    pointer, read_only = fields["data"]
    shape = tuple(int(n) for n in fields["shape"])
    given = fields.get("strides")
    strides = row_major(shape) if given is None else _whole_strides(tuple(given), element.itemsize, "cai")
    pointer = int(pointer or 0)
    return ArrayRef(
        pointer=pointer,
        shape=shape,
        strides=strides,
        dtype=found,
        device=("cuda", driver().pointer_device(pointer) if pointer else 0),
        owner=x,
        library="cai",
        stream=int(fields.get("stream") or 0),
        writable=not read_only,
    )


def _describe_dlpack(x: Any) -> ArrayRef:
    try:
        tensor = dlpack.read(x)
    except dlpack.Unreadable as error:
        raise UnusableArray(
            library="dlpack", what=f"cannot be read ({error})", remedy="pass an array of a library listed above"
        ) from None
    found = _element_type(dtypes.BY_NAME.get(tensor.dtype), "dlpack", tensor.dtype)
    if tensor.device[0] not in ("cpu", "cuda"):
        raise UnusableArray(library="dlpack", what=f"is on {tensor.device}", remedy="move it to the GPU")
    return ArrayRef(
        pointer=tensor.pointer,
        shape=tensor.shape,
        strides=tensor.strides if tensor.strides is not None else row_major(tensor.shape),
        dtype=found,
        device=tensor.device,
        owner=(x, tensor.capsule),
        library="dlpack",
        writable=not tensor.read_only,
    )


def library_of(x: Any) -> str:
    """The library that ``x`` belongs to: numpy, torch, cupy, jax, tilemma, cai, dlpack, or "" for no array."""
    if isinstance(x, np.ndarray):
        return "numpy"
    for base in type(x).__mro__:
        root = base.__module__.partition(".")[0]
        if root == "torch" and base.__name__ == "Tensor":
            return "torch"
        if root == "cupy" and base.__name__ == "ndarray":
            return "cupy"
        if (root == "jaxlib" and base.__name__ == "ArrayImpl") or (root == "jax" and base.__name__ == "Tracer"):
            return "jax"
    if hasattr(type(x), "__tilemma_array__"):
        return "tilemma"
    if hasattr(x, "__cuda_array_interface__"):
        return "cai"
    return "dlpack" if hasattr(x, "__dlpack__") else ""


_DESCRIBE: dict[str, Callable[[Any], ArrayRef]] = {
    "numpy": _describe_numpy,
    "torch": _describe_torch,
    "cupy": _describe_cupy,
    "jax": _describe_jax,
    "tilemma": lambda x: x.__tilemma_array__(),
    "cai": _describe_interface,
    "dlpack": _describe_dlpack,
}


def is_array(x: Any) -> bool:
    """Whether `describe` has a way to read ``x``."""
    return isinstance(x, ArrayRef) or bool(library_of(x))


def describe(x: Any) -> ArrayRef:
    """The description of ``x``, which is not copied.

    Raises NotAnArray, UnknownElementType, UnusableArray (masked, sparse, traced, on another kind of device).
    """
    if isinstance(x, ArrayRef):
        return x
    library = library_of(x)
    if not library:
        raise NotAnArray(type=type(x).__name__)
    return _DESCRIBE[library](x)


def stream_source(ref: ArrayRef) -> Callable[[], int]:
    """A function that returns the caller's current stream for the library and device of ``ref``."""
    ordinal = ref.device[1]
    if ref.library == "torch":
        raw = getattr(sys.modules["torch"]._C, "_cuda_getCurrentRawStream", None)
        return functools.partial(raw or _torch_stream, ordinal)
    if ref.library == "cupy":
        return functools.partial(_cupy_stream, ordinal)
    return functools.partial(int, ref.stream)


def host_view(ref: ArrayRef) -> np.ndarray[Any, Any]:
    """The memory of a CPU array as NumPy's, without copying; writable exactly if the array is."""
    assert ref.device == CPU, ref.device
    if isinstance(ref.owner, np.ndarray):
        # A subclass may compute otherwise, or not at all.
        return np.ndarray.view(ref.owner, np.ndarray)
    low, high = ref.span()
    if low == high:
        return np.empty(ref.shape, ref.dtype.numpy)
    memory = (ctypes.c_char * (high - low)).from_address(low)
    memory._owner = ref.owner  # type: ignore[attr-defined]  # keeps the memory alive as long as the view
    strides = tuple(s * ref.itemsize for s in ref.strides)
    view: np.ndarray[Any, Any] = np.ndarray(
        ref.shape,
        ref.dtype.numpy,
        buffer=memory,  # type: ignore[arg-type]  # any object with a buffer serves
        offset=ref.pointer - low,
        strides=strides,
    )
    view.flags.writeable = ref.writable
    return view


def empty_like_first(ref: ArrayRef, shape: tuple[int, ...], dtype: DType | str) -> Any:
    """A new array of ``shape`` and ``dtype``, made by the library and on the device of ``ref``.

    Its elements are undefined (JAX: zero).  Raises CannotAllocate.
    """
    element = dtypes.dtype(dtype)
    name = element.library_name
    library = ref.library
    if library in ("numpy", "dlpack") and ref.device == CPU:
        return np.empty(shape, element.numpy)
    if library == "torch":
        torch = sys.modules["torch"]
        if (made := getattr(torch, name, None)) is not None:
            return torch.empty(shape, dtype=made, device=ref.owner.device)
    elif library == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(ref.device[1]):
            try:
                return cupy.empty(shape, element.numpy)
            except (TypeError, ValueError):
                pass
    elif library == "jax":
        jax = sys.modules["jax"]
        made = jax.numpy.empty(shape, element.numpy, device=next(iter(ref.owner.devices())))
        return made.block_until_ready()
    elif library == "tilemma":
        return ref.owner.empty_like(shape, element)
    raise CannotAllocate(library=library, what=f"{element} on {ref.device[0]}")
