"""Exported kernels on the GPU: the C program's checksums are those of the kernel's results in Python."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest

import tilemma as tm
from tilemma import runtime
from tilemma.c_export.program import encodings, pattern
from tilemma.dtypes import dtype
from tilemma.launch import evaluate

REASON = runtime.gpu_unavailable_reason()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(REASON is not None, reason=str(REASON))]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "co"
PACKAGES = Path(sysconfig.get_paths()["purelib"])
PLACES = ("nvidia/*/include", "triton/backends/nvidia/include")
FOLDERS = [Path("/usr/local/cuda/include"), *(f for p in PLACES for f in PACKAGES.glob(p))]
INCLUDE = next((f for f in FOLDERS if (f / "cuda.h").is_file()), None)
COMPILER = shutil.which("cc") or shutil.which("gcc")
# Only a machine with a GPU is searched: that takes a second.
PATTERNS = () if REASON else ("lib/**/libcuda.so.1", "local/**/libcuda.so.1")
LIBRARIES = [found for p in PATTERNS for found in Path("/usr").glob(p)]


@pytest.mark.skipif(not (INCLUDE and COMPILER and LIBRARIES), reason="no C compiler, cuda.h or libcuda here")
@pytest.mark.parametrize("name", ["multicast", "persistent", "double_buffer", "matmul_wgmma_2group"])
@pytest.mark.parametrize("extents", [(256, 320, 192), (100, 72, 40)])
def test_a_c_program_computes_the_same(name: str, extents: tuple[int, int, int], tmp_path: Path) -> None:
    kernel = next(iter(tm.load(EXAMPLES / f"{name}.co").kernels.values()))
    tm.export(kernel, tmp_path, "sm_90a")
    program = tmp_path / "program"
    source = tmp_path / f"{kernel.name}_main.c"
    command = [COMPILER, "-std=c11", f"-I{INCLUDE}", "-o", program, source, LIBRARIES[0]]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    m, n, k = extents
    plan = kernel.compile("sm_90a").launches[0]
    names = {"M": m, "N": n, "K": k}
    order = list(dict.fromkeys(d for a in plan.arrays for d in a.dims if isinstance(d, str)))
    run = subprocess.run([program, *(str(names[d]) for d in order)], check=True, capture_output=True, text=True)
    said = dict(line.split() for line in run.stdout.splitlines())
    arrays = []
    for a in plan.arrays:
        shape = [evaluate(d, names) for d in a.dims]
        arrays.append(encodings(a.dtype)[pattern(int(np.prod(shape)))].reshape(shape).astype(dtype(a.dtype).numpy))
    device = runtime.to_device(arrays, runtime.cuda_device(0))
    kernel(*device)
    runtime.copy_back(arrays, device, [a.written for a in plan.arrays])
    for a, x in zip(plan.arrays, arrays, strict=True):
        if a.written:
            total = 14695981039346656037
            for byte in x.tobytes():
                total = (total ^ byte) * 1099511628211 % 2**64
            assert said[a.name] == f"{total:016x}"
