"""`@triton.jit` kernels on the PTX machine: Triton compiles them, without a GPU, and the machine runs the PTX.

Triton queries its driver for the target of a compilation.  While the adapter calls Triton, the driver is one that
answers with the target of the machine, and Triton specializes, compiles and caches as it does for a GPU.  The
launch data (warps, shared memory, clusters, scratch memory, tensor maps) is in the metadata of the result.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from tilemma.dtypes import dtype
from tilemma.errors import CompileError, TilemmaError, ToolError, described, show_sources_below
from tilemma.machine.adapters.tensors import as_array, is_torch_tensor, scratch
from tilemma.machine.arguments import TensorMap, refuse
from tilemma.machine.parser import parse
from tilemma.machine.run import Verdict, check

# Version 3.3 was the first to list constants in the signature.
OLDEST = (3, 3)
_ARCH = re.compile(r"sm_([0-9]{2,3})[af]?")
_FLOATS = {"fp16": "f16", "bf16": "bf16", "fp32": "f32", "f32": "f32", "fp64": "f64"}
# CUtensorMapSwizzle, in bytes.
_SWIZZLES = (0, 32, 64, 128)


class NoTriton(ToolError):
    code = "no-triton"
    found = "Triton cannot be used: {what}"
    expected = "the package `triton`, version 3.3 or later"
    fix = "install it: pip install triton"


class TritonRefused(CompileError):
    """``cause`` is the exception that Triton raised."""

    code = "triton-refused"
    found = "Triton does not compile `{kernel}`: {what}"
    expected = "a kernel and arguments that Triton accepts"
    fix = "correct what Triton names"
    cause: BaseException | None = None


@dataclass
class Settings:
    """Settings of the checks: ``schedules`` adversarial schedules from ``seed`` on, as `machine.check` runs them.

    ``config`` chooses the configuration of an autotuned kernel: a `triton.Config`, or its number.
    """

    arch: str = "sm_90a"
    config: Any = None
    schedules: int = 1
    seed: int = 0
    strict: bool = False
    collect: bool = False


def triton(kernel: Any, **settings: Any) -> TritonKernel:
    """``kernel``, made by `@triton.jit` (also below `@triton.autotune` and `@triton.heuristics`), on the machine.

    ``triton(kernel)[grid](*args, num_warps=4)`` takes NumPy arrays and CPU tensors of PyTorch where Triton takes
    tensors of a GPU, writes them in place, and returns the `Verdict`.  ``settings`` are the fields of `Settings`.
    The launch raises HazardError for the first hazard, unless ``collect`` is set; NoTriton; TritonRefused;
    BadMachineCall for arguments that the machine cannot take.
    """
    known = list(Settings.__dataclass_fields__)
    for name in settings:
        if name not in known:
            refuse(f"`triton` got the option `{name}`", f"one of {', '.join(known)}", "drop or rename it")
    if not callable(getattr(kernel, "run", None)) or not hasattr(kernel, "fn"):
        refuse(f"the kernel is {described(kernel)}", "a function decorated with `@triton.jit`", "decorate it")
    return TritonKernel(kernel, Settings(**settings))


@dataclass(frozen=True)
class TritonKernel:
    """A Triton kernel bound to the machine; ``kernel[grid]`` is called as Triton's own."""

    kernel: Any
    settings: Settings

    def __getitem__(self, grid: Any) -> Callable[..., Verdict]:
        return lambda *args, **kwargs: launch(self.kernel, grid, args, kwargs, self.settings)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        refuse("a Triton kernel is called without a grid", "kernel[grid](...)", "write `kernel[(blocks,)](...)`")


def launch(kernel: Any, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any], settings: Settings) -> Verdict:
    """Compile and run one launch; see `triton`."""
    function, options = _unwrapped(kernel, args, dict(kwargs), settings.config)
    name = function.__name__
    compiled = _compiled(name, function, args, options, settings.arch)
    bound = _bound(name, function, args, options)
    blocks = _grid(grid, bound)
    ptx = compiled.asm["ptx"]
    metadata = compiled.metadata
    clusters = getattr(metadata, "num_ctas", 1)
    values = _Arguments(list(getattr(metadata, "tensordesc_meta", None) or ()))
    for parameter, kind in compiled.src.signature.items():
        values.add(parameter, kind, bound[parameter])
    entry = parse(ptx, f"{metadata.name}.ptx").entries[metadata.name]
    sizes = (getattr(metadata, "global_scratch_size", 0), getattr(metadata, "profile_scratch_size", 0))
    for i, size in zip(range(len(entry.parameters) - len(values.out)), sizes, strict=False):
        total = size * clusters * blocks[0] * blocks[1] * blocks[2]
        values.out[f"scratch memory {i}"] = scratch(total) if size else b"\0" * 8
    plan: dict[str, Any] = {
        "entry": metadata.name,
        "grid": (blocks[0] * clusters, *blocks[1:]),
        "block": metadata.num_warps * 32,
        "shared": metadata.shared,
    }
    if clusters > 1:
        plan["cluster"] = clusters
    _show_sources(function)
    verdict = check(
        ptx, plan, values.out, schedules=settings.schedules, seed=settings.seed, strict=settings.strict,
        name=f"{metadata.name}.ptx",
    )  # fmt: skip
    if verdict.hazards and not settings.collect:
        raise verdict.hazards[0]
    return verdict


def _package() -> Any:
    try:
        import triton as package
    except ImportError as e:
        raise NoTriton(what=str(e)) from None
    version = tuple(int(x) for x in re.findall(r"\d+", package.__version__)[:2])
    if version < OLDEST:
        raise NoTriton(what=f"version {package.__version__} is installed")
    return package


def autotuner_and_function() -> tuple[Any, Any]:
    """Triton's classes of autotuned kernels and of compiled functions."""
    _package()
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    return Autotuner, JITFunction


def _unwrapped(
    kernel: Any, args: Sequence[Any], kwargs: dict[str, Any], config: Any
) -> tuple[Any, dict[str, Any]]:
    """The function below `autotune` and `heuristics`, and the keyword arguments that these give it."""
    _, function = autotuner_and_function()
    while not isinstance(kernel, function):
        named = {**dict(zip(getattr(kernel, "arg_names", ()), args, strict=False)), **kwargs}
        if hasattr(kernel, "configs"):
            chosen = _configuration(kernel, named, kwargs, config)
            twice = sorted(set(chosen.all_kwargs()) & set(kwargs))
            if twice:
                refuse(f"`{twice[0]}` is an argument", "a value from the configuration alone", "drop the argument")
            if getattr(chosen, "pre_hook", None) is not None:
                chosen.pre_hook({**named, **chosen.all_kwargs()})
            kwargs |= chosen.all_kwargs()
        elif hasattr(kernel, "values"):
            for name, value in kernel.values.items():
                kwargs[name] = value({**named, **kwargs})
        elif type(kernel).__name__ == "InterpretedFunction":
            refuse(
                "the kernel is interpreted",
                "a compiled kernel",
                "unset TRITON_INTERPRET before the decorator runs",
            )
        else:
            refuse(f"the kernel is {described(kernel)}", "a function decorated with `@triton.jit`", "decorate it")
        if hasattr(kernel, "configs"):
            config = None
        kernel = kernel.fn
    if config is not None:
        refuse(
            f"`config` is {described(config)} for a kernel without configurations",
            "a kernel decorated with `@triton.autotune`",
            "drop `config`, and pass its values as arguments",
        )
    return kernel, kwargs


def _configuration(kernel: Any, named: Mapping[str, Any], kwargs: Mapping[str, Any], config: Any) -> Any:
    """The configuration of an autotuned kernel: ``config``, or the first that the kernel's own pruning leaves."""
    if hasattr(config, "all_kwargs"):
        return config
    configs = list(kernel.configs)
    if config is None:
        prune = getattr(kernel, "early_config_prune", None)
        return (list(prune(configs, dict(named), **kwargs)) if prune else configs)[0]
    if isinstance(config, bool) or not isinstance(config, int) or not 0 <= config < len(configs):
        wanted = f"a triton.Config, or a number from 0 to {len(configs) - 1}"
        refuse(f"`config` is {described(config)}", wanted, "pass one of the kernel's configurations")
    return configs[config]


class _Driver:
    """A driver for Triton's compiler, which answers with the target of the machine."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> str:
        # A name that no GPU has: Triton caches compiled kernels by device.
        return f"tilemma sm_{self.target.arch}"

    def get_current_stream(self, device: Any) -> int:
        return 0

    def get_device_capability(self, *_: Any) -> tuple[int, int]:
        return self.target.arch // 10, self.target.arch % 10


@contextlib.contextmanager
def _driving(arch: str) -> Iterator[None]:
    """Triton compiles for ``arch``, whatever GPU there is or is not."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    match = _ARCH.fullmatch(arch) if isinstance(arch, str) else None
    if match is None:
        refuse(f"the target is {described(arch)}", "a target such as sm_90a", "correct it")
    before = dict(vars(driver))
    driver.set_active(_Driver(GPUTarget("cuda", int(match[1]), 32)))
    try:
        yield
    finally:
        vars(driver).update(before)


class _Array:
    """A NumPy array with the interface of a tensor that Triton reads: element type and address."""

    def __init__(self, array: Any) -> None:
        self.dtype, self.shape = array.dtype, array.shape
        self.address = int(array.__array_interface__["data"][0])

    def data_ptr(self) -> int:
        return self.address

    def ptr_range(self) -> int:
        return 0


def _compiled(name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], arch: str) -> Any:
    """The kernel that Triton compiles from ``function`` for these arguments."""
    with _driving(arch):
        try:
            passed = [_for_triton(a) for a in args]
            named = {k: _for_triton(v) for k, v in kwargs.items()}
            compiled = function.run(*passed, grid=(1,), warmup=True, **named)
            return compiled.result() if hasattr(compiled, "result") else compiled
        except TilemmaError:
            raise
        except Exception as e:  # Triton's compiler raises its own errors and Python's; tilemma's pass above
            failure = TritonRefused(kernel=name, what=f"{type(e).__name__}: {e}")
            failure.cause = e
            raise failure from e


def _for_triton(value: Any) -> Any:
    if isinstance(value, tuple):
        parts = [_for_triton(v) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    interface = getattr(value, "__array_interface__", None)
    if interface is None or is_torch_tensor(value) or not hasattr(value, "flags"):
        return value
    # A NumPy scalar has the interface too, and is a number.
    return _Array(value) if hasattr(value, "__setitem__") else value.item()


def _bound(name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The value of each parameter of the function."""
    signature: inspect.Signature = function.signature
    try:
        bound = signature.bind(*args, **{k: v for k, v in kwargs.items() if k in signature.parameters})
    except TypeError as e:
        raise TritonRefused(kernel=name, what=str(e)) from None
    bound.apply_defaults()
    return dict(bound.arguments)


def _grid(grid: Any, bound: Mapping[str, Any]) -> tuple[int, int, int]:
    given = grid(dict(bound)) if callable(grid) else grid
    items = list(given) if isinstance(given, (tuple, list)) else [given]
    sizes = []
    for item in items:
        try:
            sizes.append(item.__index__())
        except (AttributeError, TypeError):
            refuse(f"the grid is {described(given)}", "one to three integers", "give the blocks along x, y and z")
    if not 1 <= len(sizes) <= 3 or min(sizes) < 0:
        refuse(f"the grid has the sizes {sizes}", "one to three integers of 0 or more", "correct it")
    x, y, z = [*sizes, 1, 1][:3]
    return x, y, z


class _Arguments:
    """The arguments of a launch in the order of the PTX parameters, from those of the Triton function."""

    def __init__(self, descriptors: list[Any]) -> None:
        self.descriptors = descriptors
        self.out: dict[str, Any] = {}

    def add(self, name: str, kind: Any, value: Any) -> None:
        """An argument of Triton's type ``kind``; constants are compiled in, tuples are passed item by item."""
        if isinstance(kind, tuple):
            for i, (part, item) in enumerate(zip(kind, value, strict=True)):
                self.add(f"{name}.{i}", part, item)
        elif kind == "constexpr":
            pass
        elif kind.startswith("*"):
            self.out[name] = as_array(name, value)
        elif kind.startswith("tensordesc"):
            self._descriptor(name, value)
        else:
            self.out[name] = _number(name, kind, value)

    def _descriptor(self, name: str, value: Any) -> None:
        """A tensor descriptor made on the host: a tensor map where the target has them, then sizes and strides."""
        array = as_array(f"{name}.base", value.base)
        shape, strides = [int(n) for n in value.shape], [int(n) for n in value.strides]
        meta = self.descriptors.pop(0) if self.descriptors else None
        if meta is None:
            self.out[name] = array
            self._sizes(f"{name} (", [*shape, *strides], 8)
            self._sizes(f"{name} [", [value.padding == "nan", bool(value.round_f32_to_tf32)], 1)
        else:
            self.out[name] = _tensor_map(name, value, array, meta)
        self._sizes(f"{name}.shape", shape, 4)
        self._sizes(f"{name}.strides", strides, 8)

    def _sizes(self, name: str, values: Sequence[int], width: int) -> None:
        for i, value in enumerate(values):
            self.out[f"{name}{i}"] = int(value).to_bytes(width, "little", signed=True)


def _tensor_map(name: str, value: Any, array: Any, meta: Mapping[str, Any]) -> TensorMap:
    if meta.get("fp4_padded") or meta.get("is_im2col"):
        refuse(f"`{name}` is a descriptor of 4-bit elements or in im2col mode", "a tiled descriptor", "use a GPU")
    size = array.itemsize
    return TensorMap(
        array,
        tuple(int(n) for n in reversed(meta["block_size"])),
        swizzle=_SWIZZLES[meta["swizzle"]],
        dims=tuple(int(n) for n in reversed(value.shape)),
        strides=tuple(int(n) * size for n in reversed(value.strides[:-1])),
        dtype="tf32" if getattr(value, "round_f32_to_tf32", False) else "",
        oob_nan=getattr(value, "padding", "zero") == "nan",
    )


def _number(name: str, kind: str, value: Any) -> bytes:
    """A number as the bytes of a parameter of Triton's type ``kind``."""
    if kind in _FLOATS:
        return bytes(dtype(_FLOATS[kind]).numpy.type(value).tobytes())
    width = re.fullmatch(r"[iu](\d+)", kind)
    if width is None:
        refuse(f"`{name}` has Triton's type `{kind}`", "a pointer, a number or a tensor descriptor", "use a GPU")
    size = max(1, int(width[1]) // 8)
    return (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _show_sources(function: Any) -> None:
    """Let reports show the lines of the kernel and of Triton's own functions."""
    for thing in (function.fn, _package()):
        file = inspect.getsourcefile(thing)
        if file is not None:
            show_sources_below(os.path.dirname(os.path.abspath(file)))
