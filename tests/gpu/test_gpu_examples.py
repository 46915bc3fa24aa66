"""Every example on a GPU, ragged, with poisoned surroundings, for every target that the GPU runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilemma import testing
from tilemma.errors import TilemmaError
from tilemma.ir.tile import Copy
from tilemma.ir.walk import walk
from tilemma.kernels import Kernel
from tilemma.modules import load, load_python
from tilemma.runtime import cuda_device, describe, facts, gpu_unavailable_reason, runs_on
from tilemma.tools.problem import accumulator, dimensions, make_problem

pytestmark = pytest.mark.gpu
MISSING = gpu_unavailable_reason()
if MISSING:
    pytest.skip(MISSING, allow_module_level=True)
torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2] / "examples"


def read(path: Path) -> list[Kernel]:
    """The kernels of a file that multiply lhs [M, K] by rhs [N, K]."""
    found = (load_python(path) if path.suffix == ".py" else load(path)).kernels.values()
    wanted = [(name, 2) for name in ("lhs", "rhs", "output")]
    return [k for k in found if [(p.buffer.name, len(p.buffer.shape)) for p in k.build().arrays] == wanted]


FILES = sorted(p for folder in ("co", "py", "tutorial") for p in (ROOT / folder).glob("*.??"))
KERNELS = {f"{p.suffix[1:]}-{k.name}": k for p in FILES if p.stem != "fragment_walk" for k in read(p)}
ARCHS = [a for a in ("sm_80", "sm_90a") if runs_on(a, cuda_device(0).compute_capability)]
SMALL = [(1, 1, 1), (127, 129, 65), (1, 300, 7), (200, 8, 64), (64, 64, 16), (130, 70, 200), (70, 72, 65)]
LARGE = [(1000, 1000, 1000), (4095, 4097, 4099), (1024, 1024, 1024)]


def uses_tma(kernel: Kernel) -> bool:
    """Whether arrays have to be as the copy engine takes them: 16-byte bases and strides."""
    return any(isinstance(op, Copy) and op.engine == "tma" for op in walk(kernel.build().body))


def targets(kernel: Kernel) -> list[str]:
    return [a for a in ARCHS if a == "sm_90a" or not uses_tma(kernel)]


PADDED = "padded"


def guarded(array: np.ndarray, gap: int | str) -> testing.Guarded:
    """The array on the GPU among poison; "padded" rows start on multiples of 16 bytes."""
    if gap == PADDED:
        return testing.guarded(array, gap=16 - array.shape[-1] * array.itemsize % 16, device="cuda")
    assert isinstance(gap, int)
    return testing.guarded(array, gap=gap, misalignment=gap % 16, device="cuda")


CASES = [(name, arch) for name, kernel in KERNELS.items() for arch in targets(kernel)]


@pytest.mark.parametrize("shape", SMALL, ids=str)
@pytest.mark.parametrize("gap", [0, 2, 16, PADDED], ids=lambda g: f"gap{g}")
@pytest.mark.parametrize(("name", "arch"), CASES)
def test_ragged(name: str, gap: int | str, shape: tuple[int, int, int], arch: str) -> None:
    kernel = KERNELS[name]
    problem = make_problem(kernel.build(), dict(zip("MNK", shape, strict=True)), {}, 0, "mk,nk->mn")
    guards = {n: guarded(a, gap) for n, a in problem.arrays.items()}
    call = kernel.on("cuda", arch=arch)
    arrays = [guards[p.buffer.name].array for p in problem.kernel.arrays]
    # Rows of the output that end inside 16 bytes: a tensor store would write past them.
    partial = 2 * shape[1] % 16
    if uses_tma(kernel) and (partial or any(facts(describe(x)).alignment < 16 for x in arrays)):
        with pytest.raises(TilemmaError, match="fix: "):
            call(*arrays)
        return
    call(*arrays)
    torch.cuda.synchronize()
    problem.arrays["output"][...] = guards["output"].array.cpu().numpy()
    assert problem.share() <= 1.0
    for g in guards.values():
        g.check()


@pytest.mark.parametrize("shape", LARGE, ids=str)
@pytest.mark.parametrize(("name", "arch"), CASES)
def test_large(name: str, shape: tuple[int, int, int], arch: str) -> None:
    kernel = KERNELS[name]
    built = kernel.build()
    assert dimensions(built) == ["M", "K", "N"]
    if uses_tma(kernel) and any(extent % 8 for extent in shape):
        pytest.skip("rows are not multiples of 16 bytes: refused, as test_ragged shows")
    m, n, k = shape
    torch.manual_seed(0)
    a = torch.randn(m, k, device="cuda").half()
    b = torch.randn(n, k, device="cuda").half()
    c = torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16)
    kernel.on("cuda", arch=arch)(a, b, c)
    bound = testing.error_bound(a, b.T, acc=accumulator(built) or "f32", out="f16")
    assert testing.share_of_bound(c, testing.reference("mk,nk->mn", a, b), bound) <= 1.0


@pytest.mark.parametrize("name", KERNELS)
def test_libraries_agree(name: str) -> None:
    """NumPy arrays staged to the GPU, torch tensors and cupy arrays give the same bits."""
    kernel = KERNELS[name]
    a = testing.random_array((96, 80), "f16", 1)
    b = testing.random_array((72, 80), "f16", 2)
    results = []
    host = np.full((96, 72), np.nan, np.float16)
    kernel.on("cuda")(a, b, host)
    results.append(host)
    c = torch.empty(96, 72, dtype=torch.float16, device="cuda")
    kernel(torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda(), c)
    results.append(c.cpu().numpy())
    cupy = pytest.importorskip("cupy")
    out = cupy.empty((96, 72), cupy.float16)
    kernel(cupy.asarray(a), cupy.asarray(b), out)
    results.append(cupy.asnumpy(out))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


def test_the_ownership_map_is_printed_on_the_gpu(capfd: pytest.CaptureFixture[str]) -> None:
    """The tutorial's two first kernels: the true map, and sixteen everywhere."""
    module = load_python(ROOT / "py" / "hello_mma.py")
    host = {}
    for target in ("cpu", "cuda"):
        for kernel in module.kernels.values():
            problem = make_problem(kernel.build(), {}, {}, 0, None)
            kernel.on(target)(*problem.arguments())
            host[kernel.name, target] = problem.arrays
    torch.cuda.synchronize()
    for kernel in module.kernels:
        for name, array in host[kernel, "cpu"].items():
            np.testing.assert_allclose(array, host[kernel, "cuda"][name], rtol=1e-5, atol=1e-5)


def test_the_callers_stream_is_used() -> None:
    kernel = next(iter(KERNELS.values()))
    stream = torch.cuda.Stream()
    a, b = (torch.randn(64, 64, device="cuda").half() for _ in range(2))
    c = torch.zeros(64, 64, device="cuda", dtype=torch.float16)
    kernel(a, b, c)
    torch.cuda.synchronize()
    c.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        kernel(a, b, c)
    assert not c.any().item() or stream.query()
    stream.synchronize()
    assert c.any().item()
