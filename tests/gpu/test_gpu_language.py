"""The constructs of the language and the programs of docs/language.md on a GPU, for every target that it runs."""

from __future__ import annotations

import pytest
from construct import Case, cases
from language_page import programs

from tilemma.runtime import cuda_device, gpu_unavailable_reason, runs_on

pytestmark = pytest.mark.gpu
MISSING = gpu_unavailable_reason()
if MISSING:
    pytest.skip(MISSING, allow_module_level=True)

FILES = ("contraction", "control", "copying", "dialects", "lane_work", "scalars", "spellings", "storage", "views")
ARCHS = [a for a in ("sm_80", "sm_90a") if runs_on(a, cuda_device(0).compute_capability)]
ALL = {f"case-{c.name}": c for c in cases(*FILES).values()} | {f"page-{c.name}": c for c in programs()}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", ALL)
def test_on_the_gpu(name: str, arch: str) -> None:
    case: Case = ALL[name]
    if arch not in case.archs:
        pytest.skip(f"for {', '.join(case.archs)}")
    case.run(lambda a: case.kernel.on("cuda", arch=arch)(**a, **case.constants), f"GPU, {arch}")
