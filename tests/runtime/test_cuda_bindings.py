"""cuda-bindings against a recording libcuda.so.1: arguments and structures of all calls."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COMPILER = shutil.which("cc") or shutil.which("gcc")

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no C compiler for the stub"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the stub is a Linux library"),
    pytest.mark.skipif(
        importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None,
        reason="cuda-bindings is not installed",
    ),
]

PRELUDE = """
import ctypes
from tilemma.launch import *
from tilemma.runtime import *
stub = ctypes.CDLL("libcuda.so.1")
stub.stub_log.restype = ctypes.c_char_p
device = cuda_device()
def plan(**changes):
    fields = dict(
        entry="scale", arch="sm_90a", scalars=(),
        grid=(("cdiv", "M", 128), 3, 1), block=(128, 1, 1), shared=102400,
        arrays=(ArrayParam("a", "f16", ("M", "K"), False, alignment=16, contiguous=1),
                ArrayParam("out", "f16", ("M", "K"), True, contiguous=1)),
        arguments=(PointerArgument("out"),
                   TensorMapArgument("a", "bf16", ("K", "M"), (("mul", "a.stride0", 2),), (64, 128), (1, 1),
                                     swizzle=128)))
    return Launch(**{**fields, **changes})
a, out = DeviceArray(device, (200, 64), "f16"), DeviceArray(device, (200, 64), "f16")
def run(launch, **options):
    LoadedKernel(b"CUBIN", launch, device, arch="sm_90a").prepare(bind(launch, [a, out]))(**options)
print(f"{a.pointer:#x} {out.pointer:#x}")
"""


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stub")
    library = folder / "libcuda.so.1"
    assert COMPILER is not None
    command = [COMPILER, "-shared", "-fPIC", "-w", "-o", str(library), str(HERE / "stub_libcuda.c"), "-ldl"]
    subprocess.run(command, check=True)
    return folder


def run(stub: Path, code: str) -> list[str]:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(stub)}
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_launch_arrives_with_its_tensor_map(stub: Path) -> None:
    lines = run(stub, "run(plan(), stream=0x77)\nprint(stub.stub_log().decode())")
    a, out = lines[0].split()
    (encoded,) = [x for x in lines if x.startswith("map")]
    assert encoded == (
        f"map align 0 type 9 rank 2 base {a} dim 64 box 64 step 1 dim 200 box 128 step 1 stride 128 0 3 0 0"
    )
    (launch,) = [x for x in lines if x.startswith("launch")]
    assert launch == (
        f"launch 0x3000 2 3 1 128 1 1 102400 stream 0x77 context 0x1000 first {out.removeprefix('0x')} extra (nil)"
    )
    assert "set 0x3000 8 102400" in lines  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    loading = lines.index("load CUBIN")
    assert lines[loading - 1] == "mode 2" and lines[loading + 1] == "mode 0"  # CU_STREAM_CAPTURE_MODE_RELAXED
    assert lines.count("pop") == sum(x.startswith("push") for x in lines)


def test_a_cluster_is_an_attribute_of_the_launch(stub: Path) -> None:
    lines = run(stub, "run(plan(cluster=(2, 1, 1)))\nprint(stub.stub_log().decode())")
    (launch,) = [x for x in lines if x.startswith("launchex")]
    assert launch.startswith("launchex 0x3000 2 3 128 102400 stream (nil) attrs 1 id 4 2 1 1 first")


def test_overlap_with_the_launch_before_is_an_attribute(stub: Path) -> None:
    code = "for _ in range(2): run(plan(overlap=True), stream=0x77)\nprint(stub.stub_log().decode())"
    launches = [x for x in run(stub, code) if x.startswith("launchex")]
    wanted = "launchex 0x3000 2 3 128 102400 stream 0x77 attrs 1 id 6 1 0 0 first"
    assert len(launches) == 2 and all(x.startswith(wanted) for x in launches)
    lines = run(stub, "run(plan(overlap=True, cluster=(2, 1, 1)))\nprint(stub.stub_log().decode())")
    assert [x for x in lines if "attrs 2 id 4 2 1 1" in x]


def test_a_failure_has_the_drivers_words(stub: Path) -> None:
    code = "try: run(plan(shared=666))\nexcept DriverError as error: print(error)"
    text = "\n".join(run(stub, code))
    assert "cuLaunchKernel: CUDA_ERROR_LAUNCH_FAILED: stubbed failure" in text and "start a new process" in text


def test_memory_goes_there_and_back(stub: Path) -> None:
    code = """
import numpy as np
x = np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2]
staged, three = to_device([x, 3], device)
print(np.array_equal(staged.to_host(), x), three)
"""
    assert run(stub, code)[1] == "True 3"


def test_without_a_driver_the_error_says_so() -> None:
    code = "from tilemma.runtime import *\nprint(gpu_unavailable_reason())\ncuda_device()"
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"} | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout.startswith("no CUDA GPU can be used here")
    assert "NoGPU" in done.stderr and "error[no-gpu]" in done.stderr
