"""An instruction of the GPU, declared as if the catalogue lacked it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilemma.modules import load_python
from tilemma.runtime import gpu_unavailable_reason

pytestmark = pytest.mark.gpu
MISSING = gpu_unavailable_reason()
if MISSING:
    pytest.skip(MISSING, allow_module_level=True)
torch = pytest.importorskip("torch")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "instructions" / "own_instruction.py"


def test_it_computes_on_the_gpu_what_its_function_says() -> None:
    """Sums of integers that f16 holds; and of others, to f16's rounding of 16 sums a step."""
    kernel = load_python(EXAMPLE).kernels["product"]
    torch.manual_seed(5)
    a, b = (torch.randint(-2, 3, (96, 160), device="cuda").half() for _ in "ab")
    c = torch.zeros(96, 96, device="cuda", dtype=torch.half)
    kernel(a, b, c)
    assert (c.double() == a.double() @ b.double().t()).all()
    on_machine = np.zeros((96, 96), np.float16)
    x, y = (torch.randn(96, 160).half() for _ in "xy")
    kernel(x.cuda(), y.cuda(), c)
    kernel.on("machine", arch="sm_80")(x.numpy(), y.numpy(), on_machine)
    np.testing.assert_array_equal(c.cpu().numpy(), on_machine)
