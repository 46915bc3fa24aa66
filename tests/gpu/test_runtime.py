from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import runtime_kernels as kernels

from tilemma.assemble import NoPtxas, assemble, driver_image
from tilemma.launch import Launch
from tilemma.runtime import (
    LoadedKernel,
    NoGPU,
    PreparedLaunch,
    assembly_arch,
    bind,
    copy_back,
    cuda_device,
    describe,
    empty_like_first,
    gpu_unavailable_reason,
    to_device,
)
from tilemma.testing import guarded, random_array, to_float64

REASON = gpu_unavailable_reason()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(REASON is not None, reason=str(REASON))]


def image(ptx: str, launch: Launch, ordinal: int = 0) -> tuple[bytes, str | None]:
    """Machine code from ptxas, or PTX text for the driver to assemble where there is no ptxas."""
    try:
        arch = assembly_arch(launch.arch, cuda_device(ordinal))
        return assemble(ptx, arch).bytes, arch
    except NoPtxas:
        return driver_image(ptx), None


def prepared(ptx: str, launch: Launch, *args: Any, created: frozenset[str] = frozenset()) -> PreparedLaunch:
    bound = bind(launch, args, created=created)
    ordinal = bound.device[1]
    code, arch = image(ptx, launch, ordinal)
    return LoadedKernel(code, launch, cuda_device(ordinal), arch=arch).prepare(bound)


def scale(*args: Any, stream: Any = None, **options: Any) -> None:
    prepared(kernels.SCALE, kernels.scale_plan(), *args, **options)(stream)


@pytest.fixture
def torch() -> Any:
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip("torch has no CUDA device")
    return module


A = random_array((37, 200), "f16", 1)
WANTED = (A.astype(np.float32) * np.float32(1.5)).astype(np.float16).astype(np.float64)


def test_torch_tensors_of_any_strides(torch: Any) -> None:
    a = torch.from_numpy(A).cuda()
    for source in (a, a.t().contiguous().t(), torch.cat([a, a], 1)[:, :200], torch.cat([a, a])[::2]):
        out = torch.empty_like(a)
        scale(source, out, 1.5)
        assert torch.equal(out, (source.float() * 1.5).half())


def test_cupy_arrays() -> None:
    cupy = pytest.importorskip("cupy")
    a = cupy.asarray(A)
    for source in (a, cupy.asfortranarray(a), a[:, ::-1]):
        out = cupy.empty_like(a)
        with cupy.cuda.Stream(non_blocking=True) as stream:
            scale(source, out, 1.5)
            stream.synchronize()
        assert cupy.array_equal(out, (source.astype("f") * 1.5).astype("e"))


def test_jax_arrays_and_a_result_made_for_the_call() -> None:
    jax = pytest.importorskip("jax")
    gpus = [d for d in jax.devices() if d.platform in ("gpu", "cuda")]
    if not gpus:
        pytest.skip("jax has no GPU")
    a = jax.device_put(A, gpus[0])
    out = empty_like_first(describe(a), A.shape, "f16")
    scale(a, out, 1.5, created=frozenset({"out"}))
    assert np.array_equal(to_float64(out), WANTED)
    again = jax.jit(lambda x: x * 2)(out)
    assert np.array_equal(to_float64(again), WANTED * 2)


def test_numpy_arrays_through_device_copies() -> None:
    out = np.zeros((37, 300), np.float16)[:, 50:250]
    values = [A.T.copy().T, out, 1.5]
    staged = to_device(values, cuda_device())
    scale(*staged)
    copy_back(values, staged, [False, True, False])
    assert np.array_equal(out.astype(np.float64), WANTED) and not out.base[:, :50].any()


def test_surroundings_stay_poisoned(torch: Any) -> None:
    for shape in ((1, 1), (37, 200), (5, 127), (64, 129)):
        x = random_array(shape, "f16", 2)
        a, out = guarded(x, device="cuda"), guarded(x * 0, device="cuda")
        scale(a.array, out.array, 2.0)
        torch.cuda.synchronize()
        a.check()
        out.check()
        assert np.array_equal(to_float64(out.array), x.astype(np.float64) * 2)
    out.memory[100] = 0
    with pytest.raises(AssertionError):
        out.check()


def test_the_callers_current_stream_is_used(torch: Any) -> None:
    a, out = (
        torch.zeros((37, 200), dtype=torch.half, device="cuda"),
        torch.empty((37, 200), dtype=torch.half).cuda(),
    )
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(50_000_000)
        a.fill_(3)
        scale(a, out, 2.0)
        torch.cuda.current_stream().synchronize()
    assert (out == 6).all()


def test_a_stream_can_be_given(torch: Any) -> None:
    a, out = (
        torch.zeros((37, 200), dtype=torch.half, device="cuda"),
        torch.empty((37, 200), dtype=torch.half).cuda(),
    )
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        a.fill_(3)
    for given in (stream, stream.cuda_stream):
        scale(a, out, 2.0, stream=given)
        stream.synchronize()
        assert (out == 6).all()


def test_launches_are_captured_in_a_graph(torch: Any) -> None:
    a, out = (
        torch.ones((37, 200), dtype=torch.half, device="cuda"),
        torch.zeros((37, 200), dtype=torch.half).cuda(),
    )
    launch = prepared(kernels.SCALE, kernels.scale_plan(), a, out, 2.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    assert (out == 0).all()
    a.fill_(5)
    graph.replay()
    torch.cuda.synchronize()
    assert (out == 10).all()


def test_code_may_be_loaded_while_a_graph_is_captured(torch: Any) -> None:
    a, out = (
        torch.ones((37, 200), dtype=torch.half, device="cuda"),
        torch.zeros((37, 200), dtype=torch.half).cuda(),
    )
    fresh = kernels.SCALE.replace("mul.f32 f2, f0, f1;", "fma.rn.f32 f2, f0, f1, 0f3F800000;")
    assert fresh != kernels.SCALE
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prepared(fresh, kernels.scale_plan(), a, out, 2.0)()
    graph.replay()
    torch.cuda.synchronize()
    assert (out == 3).all()


def test_threads_without_a_current_context(torch: Any) -> None:
    a = torch.from_numpy(A).cuda()
    outs = [torch.empty_like(a) for _ in range(8)]
    torch.cuda.synchronize()
    failures: list[BaseException] = []

    def work(out: Any) -> None:
        try:
            for _ in range(20):
                scale(a, out, 1.5, stream=0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(out,)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert not failures and all(torch.equal(out, outs[0]) for out in outs)
    assert np.array_equal(to_float64(outs[0]), WANTED)


def test_every_device_runs_and_the_callers_stays_current(torch: Any) -> None:
    before = torch.cuda.current_device()
    for ordinal in range(torch.cuda.device_count()):
        a = torch.from_numpy(A).to(f"cuda:{ordinal}")
        out = torch.empty_like(a)
        scale(a, out, 1.5)
        assert np.array_equal(to_float64(out), WANTED)
        assert torch.cuda.current_device() == before
    with pytest.raises(NoGPU):
        cuda_device(torch.cuda.device_count())


def test_dynamic_shared_memory_up_to_the_limit(torch: Any) -> None:
    a = torch.from_numpy(A).cuda()
    for shared in (0, 49_153, cuda_device().shared_per_block):
        out = torch.empty_like(a)
        prepared(kernels.SCALE, kernels.scale_plan(shared), a, out, 1.5)()
        assert np.array_equal(to_float64(out), WANTED)


needs_tma = pytest.mark.skipif(
    REASON is not None or cuda_device().compute_capability < (9, 0), reason="TMA needs compute capability 9.0"
)


@needs_tma
@pytest.mark.parametrize("cluster", [None, (2, 1, 1)])
@pytest.mark.parametrize("shape", [(1, 8), (8, 64), (9, 72), (127, 200), (64, 1000)])
def test_tensor_maps(torch: Any, shape: tuple[int, int], cluster: Any) -> None:
    if cluster and -(-shape[1] // 64) % 2:
        pytest.skip("the grid is no multiple of the cluster")
    x = random_array(shape, "f16", 3)
    a, out = guarded(x, gap=16, device="cuda"), guarded(x * 0, gap=2, device="cuda")
    prepared(kernels.TILE, kernels.tile_plan(cluster), a.array, out.array)()
    torch.cuda.synchronize()
    out.check()
    assert np.array_equal(to_float64(out.array), x.astype(np.float64))


@needs_tma
def test_tensor_map_of_an_empty_array_is_taken_by_the_driver(torch: Any) -> None:
    from tilemma.runtime.loading import argument_bytes

    plan = kernels.tile_plan()
    empty = torch.empty((16, 0), dtype=torch.half, device="cuda")
    bound = bind(plan, [empty, torch.empty((16, 0), dtype=torch.half, device="cuda")])
    assert len(argument_bytes(cuda_device().driver, bound)[0]) == 128
