"""Plain kernels as users write them: NumPy, the CPU reference before and after the passes, and the PTX machine
agree, with the compiler's settings and with those of a program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from user_references import REFERENCES, arguments, dimensions

from tilemma.kernels import Kernel, facts_of
from tilemma.modules import load, load_python
from tilemma.targets.cpu import execute

HERE = Path(__file__).parent
FILES = [HERE / name for name in ("user_operands.py", "user_loops.py", "user_grids.py", "user_kernels.co")]
# Settings of a whole kernel, in Python and in Croqtile.
SETTINGS = {
    "chosen": None,
    "ring": "stages=3, producer=True, persistent=True, blocks=2",
    "alone": 'stages=2, cluster=1, blocks=1, order="keep"',
    "pairs": "cluster=2, persistent=False",
    "fours": "cluster=4, blocks=2",
    "ahead": "stages=4, producer=False",
    "many": "stages=16",
}
# No instruction of sm_80 multiplies 8-bit floats.
ONLY_SM_90A = ("scale_by_blocks", "narrow_floats")


def configured(path: Path, setting: str, folder: Path) -> dict[str, Kernel]:
    """The kernels of a file, each with a setting of `SETTINGS` in place of its own."""
    text, given = path.read_text(), SETTINGS[setting]
    if given is not None and path.suffix == ".py":
        text = text.replace("@tm.kernel\n", f"@tm.kernel(pipeline=tm.Pipeline({given}))\n")
    elif given is not None:
        words = given.replace("True", "true").replace("False", "false")
        text = re.sub(r"\[\[pipeline.*\]\]\n(?=__co__)", "", text).replace(
            "__co__", f"[[pipeline({words})]] __co__"
        )
    place = folder / f"{setting}_{path.name}"
    place.write_text(text)
    return (load_python(place) if path.suffix == ".py" else load(place)).kernels


NAMES = {
    name: path for path in FILES for name in re.findall(r"^(?:def|__co__ void) (\w+)\(", path.read_text(), re.M)
}
ASKED = list(SETTINGS)[1:]
CASES = [(n, "chosen", "sm_90a") for n in NAMES] + [(n, "chosen", "sm_80") for n in NAMES if n not in ONLY_SM_90A]
CASES += [(n, s, "sm_90a") for i, n in enumerate(NAMES) for j, s in enumerate(ASKED) if (i + j) % 3 == 0]


def cases() -> list[Any]:
    """Every twentieth by day, all by night."""
    return [pytest.param(*x, marks=() if i % 20 == 7 else pytest.mark.slow) for i, x in enumerate(CASES)]


def test_each_kernel_has_a_reference() -> None:
    assert set(NAMES) == set(REFERENCES)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder, known = tmp_path_factory.mktemp("configured"), {}

    def find(name: str, setting: str) -> Kernel:
        key = NAMES[name], setting
        if key not in known:
            known[key] = configured(*key, folder)
        return known[key][name]

    return find


@pytest.mark.parametrize("name, setting, arch", cases())
def test_results(name: str, setting: str, arch: str, kernels: Any) -> None:
    kernel = kernels(name, setting)
    built = kernel.build()
    given = arguments(name, built)
    wanted = REFERENCES[name](**{n: x.copy() if isinstance(x, np.ndarray) else x for n, x in given.items()})

    def copies() -> dict[str, Any]:
        return {n: x.copy() if isinstance(x, np.ndarray) else x for n, x in given.items()}

    def check(found: dict[str, Any], where: str) -> None:
        for n, x in wanted.items():
            rounded = x.astype(found[n].dtype).astype(np.float64)
            np.testing.assert_array_equal(found[n].astype(np.float64), rounded, f"{n}, {where}")

    found = copies()
    kernel.on("cpu")(**found)
    check(found, "reference")
    arrays = {n: x for n, x in copies().items() if isinstance(x, np.ndarray)}
    scalars = {n: x for n, x in given.items() if n not in arrays}
    compiled = kernel.compile(arch, facts=facts_of(arrays))
    if all(p.buffer.dtype.bits >= 8 for p in built.arrays):
        execute(compiled.kernel, arrays, scalars, dims=dimensions(name, built))
        check(arrays, "after the passes")
    for seed, schedule in enumerate(("random", "late", "starve")):
        found = copies()
        kernel.on("machine", arch=arch, seed=seed, schedule=schedule, strict=True)(**found)
        check(found, f"machine, schedule {schedule}")
