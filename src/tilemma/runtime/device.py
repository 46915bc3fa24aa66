"""CUDA devices: their properties and contexts, and the code that runs on them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from tilemma.forking import ForkSafeLock

from ..errors import ToolError
from ..records import record
from .cudadriver import Driver, NoGPU, driver


class KernelArchMismatch(ToolError):
    code = "kernel-arch"
    found = "{kernel} is code for {arch}, and {device} has compute capability {capability}"
    expected = "{rule}"
    fix = "compile it for this device: arch='{suggestion}'"


@record
class Device:
    """A CUDA device with its primary context retained; sizes in bytes."""

    ordinal: int
    name: str
    compute_capability: tuple[int, int]
    sm_count: int
    shared_per_block: int
    shared_per_sm: int
    l2_bytes: int
    clock_khz: int
    context: int
    driver: Driver

    @property
    def arch(self) -> str:
        """The plain PTX target of this device: `sm_90`."""
        major, minor = self.compute_capability
        return f"sm_{major}{minor}"

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """The device's context current in this thread, and the caller's again afterwards."""
        if self.driver.current_context() == self.context:
            yield
            return
        self.driver.push_context(self.context)
        try:
            yield
        finally:
            self.driver.pop_context()

    def __str__(self) -> str:
        return f"{self.name} (cuda:{self.ordinal})"


_lock = ForkSafeLock()
_devices: dict[int, Device] = {}


def cuda_device(ordinal: int = 0) -> Device:
    """The CUDA device ``ordinal``; made once.  Raises NoCudaPackage, NoGPU."""
    found = _devices.get(ordinal)
    if found is not None:
        return found
    d = driver()
    with _lock:
        if ordinal in _devices:
            return _devices[ordinal]
        count = d.device_count()
        if not 0 <= ordinal < count:
            raise NoGPU(reason=f"there is no device {ordinal}, only {count}")

        def ask(name: str) -> int:
            return d.device_attribute(ordinal, name)

        made = Device(
            ordinal=ordinal,
            name=d.device_name(ordinal),
            compute_capability=(ask("COMPUTE_CAPABILITY_MAJOR"), ask("COMPUTE_CAPABILITY_MINOR")),
            sm_count=ask("MULTIPROCESSOR_COUNT"),
            shared_per_block=ask("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            shared_per_sm=ask("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            l2_bytes=ask("L2_CACHE_SIZE"),
            clock_khz=ask("CLOCK_RATE"),
            context=d.primary_context(ordinal),
            driver=d,
        )
        _devices[ordinal] = made
        return made


def forget() -> None:
    """Drop all cached devices: the driver was replaced."""
    _devices.clear()


_ARCH = re.compile(r"sm_(\d+)(\d)([af]?)$")


def parse_arch(arch: str) -> tuple[tuple[int, int], str]:
    """`sm_90a` as ((9, 0), "a")."""
    match = _ARCH.match(arch)
    assert match, f"no architecture: {arch}"
    return (int(match[1]), int(match[2])), match[3]


def runs_on(target: str, capability: tuple[int, int]) -> bool:
    """Whether PTX for ``target`` can be assembled for a device of ``capability``.

    PTX ISA, Compilation directives, .target: plain targets run on every later device, `a` targets on their
    own only, `f` targets on later devices of the same family (major version).
    """
    lowest, suffix = parse_arch(target)
    if suffix == "a":
        return capability == lowest
    if suffix == "f":
        return capability[0] == lowest[0] and capability >= lowest
    return capability >= lowest


def assembly_arch(target: str, where: Device, kernel: str = "the kernel") -> str:
    """The architecture to assemble PTX for ``target`` for, to run on ``where``: `sm_80` on an H200 gives `sm_90`.

    Raises KernelArchMismatch when such PTX cannot run there.
    """
    if not runs_on(target, where.compute_capability):
        raise _mismatch(kernel, target, where)
    return target if parse_arch(target)[1] == "a" else where.arch


def check_cubin_arch(arch: str, where: Device, kernel: str) -> None:
    """Refuse machine code that ``where`` cannot run.

    CUDA C++ programming guide, Binary compatibility: a cubin runs on devices of its own major and the same
    or a higher minor version; one for an `a` target only on exactly that.
    """
    lowest, suffix = parse_arch(arch)
    capability = where.compute_capability
    fits = capability == lowest if suffix == "a" else capability[0] == lowest[0] and capability >= lowest
    if not fits:
        raise _mismatch(kernel, arch, where)


def _mismatch(kernel: str, arch: str, where: Device) -> KernelArchMismatch:
    (major, minor), suffix = parse_arch(arch)
    rule = (
        f"compute capability {major}.{minor} exactly, which `{arch}` code needs"
        if suffix == "a"
        else f"compute capability {major}.{minor} or later (machine code: {major}.x)"
    )
    have = where.compute_capability
    suggestion = "sm_90a" if have == (9, 0) else where.arch
    return KernelArchMismatch(
        kernel=kernel, arch=arch, device=where, capability=f"{have[0]}.{have[1]}", rule=rule, suggestion=suggestion
    )
