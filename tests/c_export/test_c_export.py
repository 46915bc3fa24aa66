"""Exported kernels, compiled by the host's C compiler against a driver that writes down what it is asked.

Launches, arguments and tensor maps are those of a call from Python.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilemma as tm
from tests.runtime.fake_driver import FakeDriver
from tests.sampling import examples
from tilemma.c_export.header import Exported, header
from tilemma.c_export.program import dimensions, encodings, pattern, program
from tilemma.c_export.sizes import SUPPORT, c_size
from tilemma.dtypes import dtype
from tilemma.errors import LaunchError, TilemmaError
from tilemma.launch import Launch, PointerArgument, Size, TensorMapArgument, evaluate
from tilemma.runtime.binding import Bound, bind
from tilemma.runtime.loading import argument_bytes

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
COMPILER = shutil.which("cc") or shutil.which("gcc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler here")


def compiled(folder: Path, sizes: str, *texts: Path) -> Path:
    target = folder / "program"
    command = [str(COMPILER), "-std=c11", "-Wall", "-Werror", "-Wno-unused-function", f"-I{HERE}", f"-I{folder}"]
    command += [f"-DARGUMENT_SIZES={sizes}", "-o", str(target), *map(str, texts)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return target


def argument_sizes(launches: tuple[Launch, ...], packed: list[list[bytes]]) -> str:
    return ",".join(f"{','.join(str(len(p)) for p in args)},0" if args else "0" for args in packed) or "0"


def exported(folder: Path, k: Exported) -> tuple[Path, Path]:
    text, main = folder / f"{k.name}.h", folder / f"{k.name}_main.c"
    text.write_text(header(k))
    main.write_text(program(k))
    return text, main


def expected(launch: Launch, values: dict[str, Any]) -> tuple[list[str], list[bytes], Bound]:
    """The lines of the maps, the arguments' bytes and the call, as Python prepares it."""
    driver = FakeDriver()
    bound = bind(launch, [values[a.name] for a in launch.arrays] + [values[s.name] for s in launch.scalars])
    packed = argument_bytes(driver, bound)
    maps = []
    for call in driver.calls:
        if call[0] == "tensor_map":
            _, _, _, dims, strides, box, steps, *codes = call
            parts = [f"{d} {b} {s}" for d, b, s in zip(dims, box, steps, strict=True)]
            maps.append(" ".join(["map 0", *parts, *map(str, strides), *map(str, codes)]))
    return maps, packed, bound


KERNELS = {
    "plain": ("co/matmul_wgmma_2group.co", "sm_90a", {}),
    "maps and clusters": ("co/multicast.co", "sm_90a", {}),
    "persistent": ("co/persistent.co", "sm_90a", {}),
    "sm_80": ("co/double_buffer.co", "sm_80", {}),
}


@needs_compiler
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("extents", [(256, 256, 256), (256, 320, 64)])
def test_launches_as_python_does(name: str, extents: tuple[int, ...], tmp_path: Path) -> None:
    file, arch, constants = KERNELS[name]
    module = tm.load(EXAMPLES / file)
    kernel = next(iter(module.kernels.values()))
    plan = kernel.compile(arch, **constants)
    k = Exported(kernel.name, arch, plan.launches, b"\x7fELF")
    names = dict(zip(dimensions(k), extents, strict=False))
    values = {}
    for a in k.arrays:
        shape = [evaluate(d, names) for d in a.dims]
        count = int(np.prod(shape))
        # 256 bytes of alignment, as the driver of the test has.
        room = np.zeros(count * dtype(a.dtype).bytes + 256, np.uint8)
        start = -room.ctypes.data % 256
        flat = room[start : start + count * dtype(a.dtype).bytes].view(dtype(a.dtype).numpy)
        flat[:] = encodings(a.dtype)[pattern(count)]
        values[a.name] = flat.reshape(shape)
    scalars = {s.name: 1 for s in k.scalars}
    _, main = exported(tmp_path, k)
    wanted = [expected(x, values | scalars) for x in k.launches]
    sizes = argument_sizes(k.launches, [packed for _, packed, _ in wanted])
    run = compiled(tmp_path, sizes, main, HERE / "driver.c")
    given = [*(str(names[d]) for d in dimensions(k)), *("1" for _ in k.scalars)]
    lines = subprocess.run([run, *given], check=True, capture_output=True, text=True).stdout.splitlines()
    assert lines[0] == "load ELF"
    launched = [line.split() for line in lines if line.startswith("launch")]
    assert [line for line in lines if line.startswith("map")] == [m for maps, _, _ in wanted for m in maps]
    assert len(launched) == len(wanted)
    for words, launch, (_, packed, bound) in zip(launched, k.launches, wanted, strict=True):
        numbers = [*bound.grid, *launch.block, launch.shared]
        assert words[1:8] == [str(n) for n in numbers]
        assert ("cluster" in words) == (launch.cluster is not None)
        told = words[len(words) - len(packed) :]
        for argument, text, data in zip(launch.arguments, told, packed, strict=True):
            if not isinstance(argument, (PointerArgument, TensorMapArgument)):
                assert bytes.fromhex(text) == data
    sums = dict(line.split() for line in lines if line.split()[0] in values)
    assert sums.keys() == {a.name for a in k.arrays if a.written}
    for array, said in sums.items():
        total = 14695981039346656037
        for byte in values[array].tobytes():
            total = (total ^ byte) * 1099511628211 % 2**64
        assert said == f"{total:016x}"


@needs_compiler
@pytest.mark.parametrize(
    "change, why",
    [
        ("a.shape[1] = 65", "dimension 0 of b does not agree"),
        ("a.data += 1", "address is not aligned"),
        ("a.stride[1] = 2", "stride 1"),
        ("a.stride[0] = 65", "stride is not aligned"),
        ("a.shape[0] = -1", "out of range"),
        ("c.shape[0] = 3", "dimension 0 of c does not agree"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "k.co").write_text(
        "__co__ void k(global f16 [M, K] a, global f16 [K, 8] b, global f16 [M, 8] c) {\n"
        "  parallel i by M : block, j by 8 : thread c.at(i, j) = a.at(i, 0) + b.at(0, j);\n}\n"
    )
    plan = tm.load(tmp_path / "k.co").only().compile("sm_80")
    k = Exported("k", "sm_80", plan.launches, b"\x7fELF")
    _, main = exported(tmp_path, k)
    text = main.read_text()
    at = text.index("  const CUresult launched")
    main.write_text(f"{text[:at]}  {change};\n{text[at:]}")
    run = compiled(tmp_path, "8,8,8,0", main, HERE / "driver.c")
    done = subprocess.run([run, "64", "64"], capture_output=True, text=True)
    assert done.returncode == 1 and why in done.stderr and "launch" not in done.stdout


NAMES = {"M": -7, "N": 0, "K": 2**31 - 1, "x.stride0": 12345}
LEAVES = st.sampled_from([*NAMES, 0, 1, -1, 2, 3, -3, 128, 2**31])
BINARY = [
    "add",
    "sub",
    "mul",
    "floordiv",
    "cdiv",
    "div",
    "mod",
    "floormod",
    "min",
    "max",
    "lt",
    "le",
    "eq",
    "and",
    "or",
]
SIZES = st.recursive(
    LEAVES,
    lambda s: (
        st.tuples(st.sampled_from(BINARY), s, s)
        | st.tuples(st.just("wrap"), s)
        | st.tuples(st.just("select"), s, s, s)
    ),
    max_leaves=6,
)


@needs_compiler
@settings(max_examples=examples(3), deadline=None)
@given(sizes=st.lists(SIZES, min_size=40, max_size=60))
def test_sizes_are_those_of_the_plan(sizes: list[Size], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("sizes")
    values = [(s, evaluate(s, NAMES)) for s in sizes]
    fits = [(s, v) for s, v in values if all(abs(x) < 2**62 for x in _intermediate(s))]
    names = {n: f"v[{i}]" for i, n in enumerate(NAMES)}
    prints = "\n".join(f'printf("%lld\\n", (long long)({c_size(s, names)}));' for s, _ in fits)
    numbers = ", ".join(map(str, NAMES.values()))
    text = f"#include <stdint.h>\n#include <stdio.h>\n{SUPPORT}\n"
    text += f"int main(void) {{\nconst int64_t v[] = {{{numbers}}};\n{prints}\nreturn 0;\n}}\n"
    (folder / "sizes.c").write_text(text)
    run = folder / "sizes"
    subprocess.run([str(COMPILER), "-w", "-o", run, folder / "sizes.c"], check=True, capture_output=True)
    said = subprocess.run([run], check=True, capture_output=True, text=True).stdout.split()
    assert said == [str(int(v)) for _, v in fits]


def _intermediate(size: Size) -> list[int]:
    own = [int(evaluate(size, NAMES))]
    return own + [x for s in (size[1:] if isinstance(size, tuple) else ()) for x in _intermediate(s)]


def test_export_writes_the_files(tmp_path: Path) -> None:
    kernel = tm.load(EXAMPLES / "co" / "double_buffer.co").only()
    try:
        paths = tm.export(kernel, tmp_path / "out", "sm_80")
    except TilemmaError as error:
        pytest.skip(error.message)
    assert [p.name for p in paths] == [f"{kernel.name}{end}" for end in (".cubin", ".json", ".h", "_main.c")]
    assert paths[0].read_bytes()[:4] == b"\x7fELF"
    assert Launch.from_json(json.loads(paths[1].read_text())).entry == kernel.name
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(p.name for p in paths)


def test_wrong_arguments_of_export(tmp_path: Path) -> None:
    kernel = tm.load(EXAMPLES / "co" / "double_buffer.co").only()
    (tmp_path / "file").write_text("")
    for arguments in ((3, tmp_path), (kernel, 3), (kernel, tmp_path / "file"), (kernel, "a\0b")):
        with pytest.raises(LaunchError):
            tm.export(*arguments, "sm_80")
