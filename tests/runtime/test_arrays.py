from __future__ import annotations

import ctypes
import sys
import types
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fake_driver import FakeDriver

from tilemma import dtypes
from tilemma.runtime import describe, dlpack, empty_like_first, host_view, is_array
from tilemma.runtime.arrays import (
    CannotAllocate,
    NotAnArray,
    UnknownElementType,
    UnusableArray,
    stream_source,
)


def test_numpy_of_every_element_type() -> None:
    for name, t in dtypes.BY_NAME.items():
        if name in ("tf32", "b1"):
            continue
        ref = describe(np.zeros((2, 3), t.numpy))
        assert ref.dtype is t and ref.strides == (3, 1) and ref.device == ("cpu", 0) and ref.writable


def test_numpy_views_keep_their_strides() -> None:
    x = np.zeros((6, 8), np.float32)
    assert describe(x.T[1:, ::2]).strides == (1, 16)
    assert describe(x[::-1]).strides == (-8, 1) and describe(x[::-1]).pointer == x.ctypes.data + 5 * 32
    assert describe(np.broadcast_to(x[0], (4, 8))).strides == (0, 1)
    assert not describe(np.broadcast_to(x[0], (4, 8))).writable


class Contrary(np.ndarray):
    """A subclass that computes nothing."""

    __array_ufunc__ = None


def test_the_memory_of_a_subclass_is_seen_as_a_plain_array() -> None:
    x = np.arange(4, dtype=np.float32)
    view = host_view(describe(x.view(Contrary)))
    assert type(view) is np.ndarray and np.shares_memory(view, x) and (view + view).sum() == 12


def test_what_is_no_array_or_not_plain_is_refused() -> None:
    for thing in (1.0, [1, 2], "x", None, object()):
        assert not is_array(thing)
        with pytest.raises(NotAnArray, match=type(thing).__name__):
            describe(thing)
    with pytest.raises(UnusableArray, match="mask"):
        describe(np.ma.masked_array(np.zeros(3)))
    for t in (">f2", "c8", "O", "U3", "M8[s]"):
        with pytest.raises(UnknownElementType):
            describe(np.zeros(2, t))
    field = np.zeros(4, [("a", "f4"), ("b", "u1")])["a"]
    with pytest.raises(UnusableArray, match="no multiples"):
        describe(field)


class OnlyDlpack:
    def __init__(self, x: np.ndarray[Any, Any], versioned: bool) -> None:
        self.x, self.versioned = x, versioned

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        if not self.versioned:
            if "max_version" in options:
                raise TypeError("unexpected keyword argument 'max_version'")
            return self.x.__dlpack__()
        return self.x.__dlpack__(**options)


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("t", ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"])
def test_dlpack_capsules_are_read(t: str, versioned: bool) -> None:
    x = np.zeros((4, 6), t)[1:, ::2]
    ref = describe(OnlyDlpack(x, versioned))
    same = describe(x)
    assert ref.library == "dlpack" and ref.pointer == same.pointer and ref.shape == same.shape
    assert ref.strides == same.strides and ref.dtype is same.dtype and ref.device == same.device
    view = host_view(ref)
    view[1, 1] = 1
    assert x[1, 1] == 1 and x.sum() == 1


@pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="this NumPy exports no read-only array through DLPack"
)
def test_dlpack_says_when_it_may_not_be_written() -> None:
    x = np.zeros(3)
    x.flags.writeable = False
    ref = describe(OnlyDlpack(x, versioned=True))
    assert not ref.writable and not host_view(ref).flags.writeable


def test_a_failing_dlpack_is_an_error_with_its_reason() -> None:
    class Broken:
        def __dlpack_device__(self) -> Any:
            raise RuntimeError("no export today")

        def __dlpack__(self) -> Any: ...

    with pytest.raises(UnusableArray, match="no export today"):
        describe(Broken())


class Interface:
    def __init__(self, **fields: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": (4, 8), "typestr": "<f2", "data": (4096, False), "version": 3, **fields
        }  # fmt: skip


def test_cuda_array_interface(fake: FakeDriver) -> None:
    ref = describe(Interface(stream=7))
    assert ref[:3] == (4096, (4, 8), (8, 1)) and ref.dtype is dtypes.f16
    assert ref.device == ("cuda", 0) and ref.stream == 7 and ref.writable
    assert stream_source(ref)() == 7
    ref = describe(Interface(strides=(32, 4), data=(4096, True)))
    assert ref.strides == (16, 2) and not ref.writable and ref.stream == 0
    with pytest.raises(UnusableArray, match="mask"):
        describe(Interface(mask=object()))


class Tensor:
    """As much of torch.Tensor as is looked at."""

    __module__ = "torch"

    def __init__(self, x: np.ndarray[Any, Any], dtype: str, device: str = "cpu", **more: Any) -> None:
        self.x, self.dtype, self.more = x, f"torch.{dtype}", more
        self.device = types.SimpleNamespace(type=device)
        self.layout = more.get("layout", "strided")
        self.shape = x.shape

    def data_ptr(self) -> int:
        if self.more.get("fake"):
            raise RuntimeError("Cannot access data pointer")
        return self.x.ctypes.data

    def numel(self) -> int:
        return self.x.size

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.x.itemsize for s in self.x.strides)

    def get_device(self) -> int:
        return 1

    def is_neg(self) -> bool:
        return bool(self.more.get("neg"))

    def is_conj(self) -> bool:
        return False


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = types.ModuleType("torch")
    for name, value in {
        "Tensor": Tensor,
        "strided": "strided",
        "bfloat16": "torch.bfloat16",
        "empty": lambda shape, dtype, device: ("torch", shape, dtype, device),
        "_C": types.SimpleNamespace(_cuda_getCurrentRawStream=lambda ordinal: 40 + ordinal),
    }.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def test_torch_tensors(torch: Any) -> None:
    x = np.zeros((4, 6), ml_dtypes.bfloat16)
    ref = describe(Tensor(x.T, "bfloat16", "cuda"))
    assert ref.library == "torch" and ref.dtype is dtypes.bf16 and ref.strides == (1, 6)
    assert ref.device == ("cuda", 1) and ref.stream == 41 and stream_source(ref)() == 41
    ref = describe(Tensor(x, "bfloat16"))
    assert ref.device == ("cpu", 0)
    host_view(ref)[2, 3] = 5
    assert x[2, 3] == 5
    for name in ("float8_e4m3fn", "float8_e5m2"):
        assert describe(Tensor(np.zeros(3, np.uint8), name)).dtype.bits == 8
    made = empty_like_first(describe(Tensor(x, "bfloat16", "cuda")), (3, 2), "bf16")
    assert made[:3] == ("torch", (3, 2), "torch.bfloat16")
    with pytest.raises(CannotAllocate):
        empty_like_first(ref, (3,), "f16")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"neg": True}, "lazy negation"),
        ({"fake": True}, "no memory behind it"),
        ({"layout": "sparse_coo"}, "layout sparse_coo"),
        ({"device": "mps"}, "on the device"),
    ],
)
def test_tensors_that_are_no_plain_memory(torch: Any, more: dict[str, Any], says: str) -> None:
    with pytest.raises(UnusableArray, match=says):
        describe(Tensor(np.zeros((2, 2), np.float16), "float16", **more))
    with pytest.raises(UnknownElementType, match="qint8"):
        describe(Tensor(np.zeros((2, 2), np.int8), "qint8"))


def test_results_are_allocated_by_the_library_of_the_first_array() -> None:
    made = empty_like_first(describe(np.zeros(3)), (2, 5), "f8_e5m2")
    assert made.shape == (2, 5) and made.dtype == ml_dtypes.float8_e5m2
    assert empty_like_first(describe(OnlyDlpack(np.zeros(3), True)), (0,), "tf32").dtype == np.float32
    with pytest.raises(CannotAllocate, match="cai"):
        empty_like_first(describe(np.zeros(3))._replace(library="cai", device=("cuda", 0)), (2,), "f16")


class Forged:
    """Something that hands out a capsule made by hand."""

    def __init__(self, name: bytes = b"dltensor", device: int = 1, **fields: Any) -> None:
        self.tensor, self.name, self.device = dlpack._Tensor(), name, device
        self.tensor.device.type = device
        self.tensor.dtype.code, self.tensor.dtype.bits, self.tensor.dtype.lanes = 2, 32, 1
        self.kept: list[Any] = []
        for field, value in fields.items():
            if isinstance(value, tuple):
                value = (ctypes.c_int64 * max(1, len(value)))(*value)
                self.kept.append(value)
                value = ctypes.cast(value, ctypes.POINTER(ctypes.c_int64))
            setattr(self.tensor, field, value)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)

    def __dlpack__(self, **_: Any) -> Any:
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self.tensor), self.name, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"data": None, "ndim": 1, "shape": (4,)},
        {"data": None, "ndim": 2, "shape": (4, 5), "strides": (5, 1)},
        {"data": 4096, "ndim": 1},
        {"data": 4096, "ndim": -1, "shape": (4,)},
        {"data": 4096, "ndim": -(2**31)},
        {"data": 4096, "ndim": 2**31 - 1, "shape": (4,)},
        {"data": 4096, "ndim": 65, "shape": (1,) * 65},
        {"data": 4096, "ndim": 1, "shape": (-4,)},
        {"data": None, "ndim": 0},
        {"data": 4096, "ndim": 1, "shape": (4,), "name": b"something"},
    ],
    ids=str,
)
def test_a_forged_capsule_is_refused_without_a_crash(fields: dict[str, Any]) -> None:
    with pytest.raises(UnusableArray):
        describe(Forged(**fields))


def test_an_empty_tensor_needs_no_address() -> None:
    assert describe(Forged(data=None, ndim=2, shape=(0, 5))).shape == (0, 5)


@pytest.mark.parametrize(("device", "stream"), [(1, None), (2, 1), (3, None), (13, 1)])
def test_producers_on_a_gpu_make_their_data_ready_for_the_legacy_default_stream(
    device: int, stream: int | None
) -> None:
    """1 in DLPack's terms; memory of the host has no stream."""
    asked = []

    class Producer(Forged):
        def __dlpack__(self, **options: Any) -> Any:
            asked.append(options["stream"])
            return super().__dlpack__()

    found = dlpack.read(Producer(device=device, data=4096, ndim=1, shape=(4,)))
    assert asked == [stream] and found.device == ("cuda" if stream else "cpu", 0)


def test_a_view_keeps_the_memory_of_what_it_shows() -> None:
    class Owner(OnlyDlpack):
        pass

    owner = Owner(np.arange(6.0), versioned=True)
    alive, view = weakref.ref(owner), host_view(describe(owner))
    del owner
    assert alive() is not None and view.sum() == 15
    del view
    assert alive() is None
