"""Elements narrower than a byte on a GPU: products from packed arrays and those of NumPy, elements, copies."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tilemma import dtypes
from tilemma.arithmetic.packing import pack
from tilemma.errors import TilemmaError
from tilemma.runtime import gpu_unavailable_reason

pytestmark = pytest.mark.gpu
MISSING = gpu_unavailable_reason()
if MISSING:
    pytest.skip(MISSING, allow_module_level=True)
torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "language"))

from test_packed_elements import CASES, XOR, copies, elements, product, values  # noqa: E402

ON_SM_90A = [(ta, tb, way, level) for ta, tb, way, level, _ in CASES]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("ta", "tb", "way", "level"), ON_SM_90A)
def test_products(ta: str, tb: str, way: str, level: str, arch: str) -> None:
    if way == "tma" and arch == "sm_80":
        pytest.skip("sm_80 has no TMA")
    depth = 128 if ta == "b1" else 64
    a, b = values(ta, (70, 3 * depth)), values(tb, (20, 3 * depth), 1)
    want = a.astype(np.int64) @ b.astype(np.int64).T
    kernel = product(ta, tb, (64, 16, 2 * depth), level=level, way=way)
    x, y = (torch.from_numpy(pack(v, dtypes.dtype(t))).cuda() for v, t in ((a, ta), (b, tb)))
    for run in (kernel, kernel.on("cuda", arch=arch)):
        c = torch.zeros(70, 20, dtype=torch.int32, device="cuda")
        run(x, y, c)
        np.testing.assert_array_equal(c.cpu().numpy(), want)
    c = np.zeros((70, 20), np.int32)
    kernel.on("cuda", arch=arch)(a, b, c)
    np.testing.assert_array_equal(c, want)


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_differences_of_bits(arch: str) -> None:
    a, b = values("b1", (40, 256)), values("b1", (20, 256), 1)
    c = np.zeros((40, 20), np.int32)
    name = "SM75_8x8x128_S32U1U1S32_TN_XORPOPC" if arch == "sm_75" else XOR
    product("b1", "b1", (32, 16, 128), atom=name).on("cuda", arch=arch)(a, b, c)
    np.testing.assert_array_equal(c, (a[:, None] != b[None]).sum(-1))


@pytest.mark.parametrize("t", ["s4", "u4", "b1"])
def test_elements_and_copies(t: str) -> None:
    x = values(t, (6, 64))
    y, z = np.zeros((6, 64), np.float32), np.zeros_like(x)
    elements.on("cuda")(x, y, T=t)
    np.testing.assert_array_equal(y, 3 * x.astype(np.float32))
    copies.on("cuda")(x, z, T=t)
    np.testing.assert_array_equal(z, x)


def test_one_element_a_byte_on_the_device_is_refused() -> None:
    a = torch.zeros(32, 128, dtype=torch.bool, device="cuda")
    with pytest.raises(TilemmaError) as caught:
        product("b1", "b1", (32, 16, 128))(a, a[:16], torch.zeros(32, 16, dtype=torch.int32, device="cuda"))
    assert caught.value.code == "array-sub-byte"
