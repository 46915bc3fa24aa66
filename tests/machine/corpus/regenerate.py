"""Make the PTX of the corpus anew: ``python regenerate.py cuda`` (with nvcc) or ``triton`` (with Triton).

Neither needs a GPU.  The first line of each file says what made it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCES, PTX = HERE / "sources", HERE / "ptx"
# Source, suffix of the PTX, options of nvcc.
CUDA = [
    ("basics", "", ()),
    ("sync", "", ()),
    ("matrix", "", ()),
    ("language", "", ()),
    ("basics", "_lines", ("-lineinfo",)),
    ("matrix", "_lines", ("-lineinfo",)),
    ("language", "_debug", ("-G",)),
]


def written(name: str, text: str, maker: str) -> None:
    """Keep PTX without the paths of the machine that made it."""
    text = re.sub(r'(\.file\s+\d+\s+")[^"]*/', r"\1", text)
    text = re.sub(r"\.section\s+\.debug_(?:info|abbrev|line|loc|ranges|frame|aranges)\s*\{[^}]*\}", "", text)
    (PTX / f"{name}.ptx").write_text(f"// Made by {maker}\n{text}", encoding="utf-8")


def cuda() -> None:
    version = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"release [\d.]+, (V[\d.]+)", version)
    assert release is not None
    for source, suffix, options in CUDA:
        command = ["nvcc", "-arch=sm_90a", "-std=c++17", "-ptx", *options, "-o", "-", f"{source}.cu"]
        made = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, check=True)
        written(source + suffix, made.stdout, f"nvcc {release[1]} {' '.join(command[1:-3])} from {source}.cu")


def triton() -> None:
    sys.path.insert(0, str(SOURCES))
    import triton as package  # type: ignore[import-not-found]
    from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found]
    from triton.compiler import ASTSource, compile  # type: ignore[import-not-found]
    from triton_kernels import KERNELS  # type: ignore[import-not-found]

    for name, (function, types, constants, warps, stages, arch) in KERNELS.items():
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


if __name__ == "__main__":
    PTX.mkdir(exist_ok=True)
    {"cuda": cuda, "triton": triton}[sys.argv[1]]()
