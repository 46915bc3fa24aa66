"""Make the PTX of the corpus anew: ``python regenerate.py cuda``, ``triton`` or ``tilelang``, then names or all.

None of them needs a GPU.  The first and the last need nvcc; NVCC names it, with options (the wheels
nvidia-cuda-nvcc, -crt, -runtime and -cccl are enough).  The first line of each file says what made it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCES, PTX = HERE / "sources", HERE / "ptx"
NVCC = os.environ.get("NVCC", "nvcc").split()
# Source, suffix of the PTX, options of nvcc.
CUDA = [
    ("basics", "", ()),
    ("sync", "", ()),
    ("matrix", "", ()),
    ("language", "", ()),
    ("library", "", ()),
    ("features", "", ()),
    ("engines", "", ()),
    ("basics", "_lines", ("-lineinfo",)),
    ("matrix", "_lines", ("-lineinfo",)),
    ("language", "_debug", ("-G",)),
]


def written(name: str, text: str, maker: str) -> None:
    """Keep PTX without the paths of the machine that made it."""
    text = re.sub(r'(\.file\s+\d+\s+")[^"]*/', r"\1", text)
    text = re.sub(r"\.section\s+\.debug_(?:info|abbrev|line|loc|ranges|frame|aranges)\s*\{[^}]*\}", "", text)
    (PTX / f"{name}.ptx").write_text(f"// Made by {maker}\n{text}", encoding="utf-8")


def release() -> str:
    """The version of nvcc."""
    version = subprocess.run([*NVCC, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"release [\d.]+, (V[\d.]+)", version)
    assert found is not None
    return found[1]


def cuda() -> None:
    for source, suffix, options in (x for x in CUDA if not sys.argv[2:] or x[0] in sys.argv[2:]):
        command = [*NVCC, "-arch=sm_90a", "-std=c++17", "-ptx", *options, "-o", "-", f"{source}.cu"]
        made = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, check=True)
        written(
            source + suffix, made.stdout, f"nvcc {release()} {' '.join(command[len(NVCC) : -3])} from {source}.cu"
        )


def triton() -> None:
    sys.path.insert(0, str(SOURCES))
    import triton as package  # type: ignore[import-not-found]
    import triton_models  # type: ignore[import-not-found]  # noqa: F401
    from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found]
    from triton.compiler import ASTSource, compile  # type: ignore[import-not-found]
    from triton_kernels import KERNELS  # type: ignore[import-not-found]

    chosen = sys.argv[2:] or KERNELS
    for name, (function, types, constants, warps, stages, arch) in ((n, KERNELS[n]) for n in chosen):
        names = [n for n in function.arg_names if n not in constants]
        signature: dict[str, Any] = dict(zip(names, types.split(), strict=True))
        signature |= dict.fromkeys(constants, "constexpr")
        attributes = {
            (i,): [["tt.divisibility", 16]] for i, n in enumerate(function.arg_names) if signature[n][0] == "*"
        }
        source = ASTSource(function, signature, constants, attributes)
        options = {"num_warps": warps, "num_stages": stages}
        made = compile(source, target=GPUTarget("cuda", arch, 32), options=options)
        facts = f"shared {made.metadata.shared}, threads {32 * warps}"
        written(f"triton_{name}", made.asm["ptx"], f"Triton {package.__version__}; {facts}")


def tensor_map(numbers: list[str]) -> dict[str, Any]:
    """The fields of a tensor map from TileLang's call that encodes it: type, rank, array, dimensions, ..."""
    im2col, rank, array = "im2col" in numbers[0], int(numbers[3]), numbers[4]
    values = [int(x) for x in numbers[5:]]

    def take(n: int) -> list[int]:
        taken, values[:n] = values[:n], []
        return taken

    fields: dict[str, Any] = {"array": array, "dims": take(rank), "strides": take(rank)[1:]}
    if im2col:
        fields["element_strides"] = take(rank)
        fields["im2col"] = [take(rank - 2), take(rank - 2)]
        pixels, channels = take(2)
        fields["box"] = [channels, pixels]
    else:
        fields["box"], fields["element_strides"] = take(rank), take(rank)
    return {**fields, "swizzle": (0, 32, 64, 128)[values[1]], "oob_nan": bool(values[3])}


def tilelang() -> None:
    sys.path.insert(0, str(SOURCES))
    import tilelang as package  # type: ignore[import-not-found]
    from tilelang.engine.lower import lower  # type: ignore[import-not-found]
    from tilelang_kernels import KERNELS  # type: ignore[import-not-found]

    root = Path(package.__file__).parent
    includes = [f"-I{root / 'src'}", f"-I{root / '3rdparty/cutlass/include'}"]
    chosen = sys.argv[2:] or KERNELS
    for name, (function, arch) in ((n, KERNELS[n]) for n in chosen):
        with package.tvm.target.Target({"kind": "cuda", "arch": arch}) as target:
            made = lower(function, target=target, enable_device_compile=False)
        ((_, kernel),) = made.device_mod.functions.items()
        extent = {k: int(v) for k, v in kernel.attrs["thread_extent"].items()}
        launch: dict[str, Any] = {
            what: [extent.get(f"{index}.{axis}", 1) for axis in "xyz"]
            for what, index in (("grid", "blockIdx"), ("block", "threadIdx"))
        }
        launch["shared"] = int(kernel.attrs.get("dyn_shared_memory_buf", 0))
        calls = [
            [x.strip(' "') for x in call.split(",")]
            for call in re.findall(r"T\.call_packed\((.*)\)", made.host_mod.script())
        ]
        launch["maps"] = {call[1]: tensor_map(call) for call in calls if "tensormap_create" in call[0]}
        launch["args"] = [x for call in calls if call[0] == "main_kernel" for x in call[1:] if not x.isdigit()]
        source = Path(os.environ.get("TMPDIR", "/tmp")) / "tilelang_kernel.cu"
        source.write_text(made.kernel_source, encoding="utf-8")
        command = [
            *NVCC,
            f"-arch={arch}",
            "-std=c++17",
            "-w",
            "-ptx",
            "-DENABLE_BF16",
            *includes,
            "-o",
            "-",
            source,
        ]
        ptx = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        maker = f"TileLang {package.__version__}, nvcc {release()}; launch {json.dumps(launch)}"
        written(f"tilelang_{name}", ptx, maker)


if __name__ == "__main__":
    PTX.mkdir(exist_ok=True)
    {"cuda": cuda, "triton": triton, "tilelang": tilelang}[sys.argv[1]]()
