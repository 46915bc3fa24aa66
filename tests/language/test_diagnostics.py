"""What a kernel prints, asserts and returns."""

from __future__ import annotations

import numpy as np
import pytest
from construct import ARCHS, random, run_ir, unwritten

import tilemma as tm
from tilemma import cdiv, croqtile, foreach, global_, parallel
from tilemma.errors import CompileError, LaunchError, TilemmaError
from tilemma.kernels import Kernel
from tilemma.machine import HazardError
from tilemma.targets.cpu import execute


@tm.kernel
def doubled(a: tm.Global["f32", "M", "N"]):
    M, N = a.shape
    out = global_("f32", N, M)
    for i, j in parallel(M, N, level="block"):
        out[j, i] = a[i, j] * 2.0
    return out


DOUBLED = """
__co__ auto doubled(global f32 [M, N] a) {
  f32 [N, M] out;
  parallel {i, j} by [M, N] : block
    out.at(j, i) = a.at(i, j) * 2.0f;
  return out;
}
"""


def co(text: str, name: str) -> Kernel:
    return Kernel(croqtile.load(text, f"{name}.co").sources[name])


@pytest.mark.parametrize("kernel", [doubled, co(DOUBLED, "doubled")], ids=["py", "co"])
@pytest.mark.parametrize("target", ["cpu", *ARCHS])
def test_returned_arrays(kernel: Kernel, target: str) -> None:
    a = random("f32", 5, 3)
    result = kernel(a) if target == "cpu" else kernel.on("machine", arch=target)(a)
    assert isinstance(result, np.ndarray)
    np.testing.assert_array_equal(result, a.T * 2)


@tm.kernel
def returned_parameter(a: tm.Global["f32", "N"], out: tm.Global["f32", "N"]):
    for i in parallel(a.shape[0], level="block"):
        out[i] = a[i] + 1.0
    return out


def test_a_parameter_may_be_returned() -> None:
    a, out = random("f32", 4), unwritten("f32", 4)
    assert returned_parameter(a, out) is out
    np.testing.assert_array_equal(returned_parameter(a), a + 1)


@tm.kernel
def with_scratch(x: tm.Global["f32", "N"], n: tm.Int):
    held = tm.global_("f32", x.shape[0])
    out = tm.global_("f32", n, x.shape[0])
    for p in parallel(x.shape[0], level="block"):
        held[p] = x[p]
    for i, p in parallel(n, x.shape[0], level="block"):
        out[i, p] = held[p] + i
    return out


@tm.kernel
def without_arrays(n: tm.Int):
    out = tm.global_("s32", n)
    for p in parallel(n, level="block"):
        out[p] = p
    return out


@pytest.mark.parametrize("target", ["cpu", "machine"])
def test_scratch_arrays_are_no_parameters(target: str) -> None:
    k, x = with_scratch.on(target), random("f32", 3)
    wanted = x + np.arange(2, dtype=np.float32)[:, None]
    out = np.zeros_like(wanted)
    for result in (k(x, 2), k(x, n=2), k(n=2, x=x), k(x, 2, out), k(x, 2, out=out)):
        np.testing.assert_array_equal(result, wanted)
    np.testing.assert_array_equal(out, wanted)
    np.testing.assert_array_equal(without_arrays.on(target)(4), np.arange(4))
    for args in ((x,), (x, 2, out, out)):
        with pytest.raises(tm.LaunchError, match=r"with_scratch\(x, n, out\)"):
            k(*args)
    with pytest.raises(tm.LaunchError, match="`x` has 2 dimension"):
        k(out, 2)
    with pytest.raises(tm.LaunchError, match=r"`out` got \[-1, 3\]"):
        k(x, -1)


@tm.kernel
def printing(a: tm.Global["f32", "N"], n: tm.Int):
    for b in parallel(1, level="block"):
        tm.print("n is ", n, ", a[0] is ", a[0])
        for t in parallel(2, level="thread"):
            tm.print(t, " of ", tm.ubound(t), end=";")


PRINTING = """
__co__ void printing(global f32 [N] a, int n) {
  parallel b by 1 : block {
    println("n is ", n, ", a[0] is ", a.at(0));
    parallel t by 2 : thread
      print(t, " of ", #t, ";");
  }
}
"""


@pytest.mark.parametrize("kernel", [printing, co(PRINTING, "printing")], ids=["py", "co"])
def test_prints(kernel: Kernel) -> None:
    said: list[str] = []
    execute(kernel.build(), {"a": np.array([1.5], np.float32)}, {"n": 3}, dims={"N": 1}, out=said.append)
    assert "".join(said) == "n is 3, a[0] is 1.5\n0 of 2;1 of 2;"


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("kernel", [printing, co(PRINTING, "printing")], ids=["py", "co"])
def test_prints_on_the_machine(kernel: Kernel, arch: str, capfd: pytest.CaptureFixture[str]) -> None:
    kernel.on("machine", arch=arch)(np.array([1.5], np.float32), 3)
    assert capfd.readouterr().out == "n is 3, a[0] is 1.5\n0 of 2;1 of 2;"


@tm.kernel
def asserting(a: tm.Global["f32", "M", "N"], n: tm.Int, *, T=4):
    M, N = a.shape
    tm.assert_(N % 8 == 0, "N must be a multiple of 8")
    tm.assert_(T > 0, "T is a size")
    for b in parallel(M, level="block"):
        tm.assert_(n > 0, "n counts something")
        tm.assert_(a[b, 0] >= 0, "no negative numbers")


ASSERTING = """
__co__ void asserting(global f32 [M, N] a, int n) {
  assert(N % 8 == 0, "N must be a multiple of 8");
  parallel b by M : block {
    assert(n > 0, "n counts something");
    assert(a.at(b, 0) >= 0.0f, "no negative numbers");
  }
}
"""
BOTH = pytest.mark.parametrize("kernel", [asserting, co(ASSERTING, "asserting")], ids=["py", "co"])
GOOD = np.ones((3, 8), np.float32)
BAD = np.array([[1] * 8, [-1] * 8], np.float32)


@BOTH
@pytest.mark.parametrize("target", ["cpu", *ARCHS])
def test_assertions(kernel: Kernel, target: str) -> None:
    run = kernel if target == "cpu" else kernel.on("machine", arch=target)
    run(GOOD, 1)
    for a, n, message in [
        (np.ones((3, 9), np.float32), 1, "N must be a multiple of 8"),
        (GOOD, 0, "n counts something"),
        (BAD, 1, "no negative numbers"),
    ]:
        with pytest.raises(TilemmaError, match=message):
            run(a, n)


@BOTH
@pytest.mark.parametrize("arch", ARCHS)
def test_a_trap_names_its_assertion(kernel: Kernel, arch: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(HazardError) as caught:
        kernel.on("machine", arch=arch)(BAD, 1)
    assert caught.value.code == "trap" and caught.value.span is not None
    said = f"{caught.value.span.file}:{caught.value.span.line}:"
    assert any(
        "assertion failed: no negative numbers" in note.text and said in note.text for note in caught.value.notes
    )
    out = capfd.readouterr().out
    assert said in out and "assertion failed: no negative numbers\n" in out


@tm.kernel
def asserting_threads(a: tm.Global["f32", 128]):
    for b in parallel(1, level="block"):
        for t in parallel(128, level="thread"):
            tm.assert_(a[t] >= 0, "no negative numbers")


ASSERTING_THREADS = """
__co__ void asserting_threads(global f32 [128] a) {
  parallel b by 1 : block, t by 128 : thread
    assert(a.at(t) >= 0.0f, "no negative numbers");
}
"""


@pytest.mark.parametrize(
    "kernel", [asserting_threads, co(ASSERTING_THREADS, "asserting_threads")], ids=["py", "co"]
)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("failing", [range(128), range(40, 41), range(3, 32, 7), [31]], ids=str)
def test_a_failing_assertion_is_said_once_a_warp(
    kernel: Kernel, arch: str, failing, capfd: pytest.CaptureFixture[str]
) -> None:
    a = np.ones(128, np.float32)
    a[list(failing)] = -1
    with pytest.raises(HazardError) as caught:
        kernel.on("machine", arch=arch)(a)
    assert caught.value.code == "trap"
    said = capfd.readouterr().out.count("assertion failed: no negative numbers\n")
    # The first warp that traps ends the launch; others may have come as far.
    assert 1 <= said <= len({lane // 32 for lane in failing})


@BOTH
def test_sizes_are_checked_at_launch(kernel: Kernel) -> None:
    """With the kernel's name and the numbers, before anything runs."""
    with pytest.raises(LaunchError) as caught:
        kernel(np.ones((3, 9), np.float32), 1)
    assert caught.value.code == "launch-check"
    assert "asserting: N must be a multiple of 8" in str(caught.value)
    assert "N = 9" in str(caught.value)


def test_an_assertion_known_when_compiled() -> None:
    with pytest.raises(CompileError, match="T is a size"):
        asserting(GOOD, 1, T=0)


@tm.kernel
def chunked(a: tm.Global["f32", "M"], out: tm.Global["f32", "M"]):
    for i in parallel(4, level="block"):
        for t in foreach(a.shape[0] // 4):
            out.chunkat(i)[t] = a.chunkat(i)[t]


def test_chunks_must_divide() -> None:
    a = random("f32", 12)
    out = unwritten("f32", 12)
    run_ir(chunked.build(), {"a": a, "out": out})
    np.testing.assert_array_equal(out, a)
    with pytest.raises(LaunchError, match="4 must divide M"):
        chunked(random("f32", 13), unwritten("f32", 13))


def second(x):
    """Views of a chunk, each of which cuts it further."""
    return [
        lambda c: c.subspan(1).at(1)[0],
        lambda c: c.modspan(1).at(1)[0],
        lambda c: c.view(1).from_(1)[0],
        lambda c: c.chunk(3).at(1)[0],
    ][x]


@tm.kernel
def cut(a: tm.Global["f32", "M"], out: tm.Global["f32", 4], *, VIEW=0):
    for i in parallel(4, level="block"):
        out[i] = second(VIEW)(a.chunkat(i))


@pytest.mark.parametrize("view", range(4))
def test_chunks_that_are_cut_further_must_divide(view: int) -> None:
    out = unwritten("f32", 4)
    a = random("f32", 12)
    for target in ["cpu", *ARCHS]:
        run = cut if target == "cpu" else cut.on("machine", arch=target)
        run(a, out, VIEW=view)
        np.testing.assert_array_equal(out, a[1::3])
        with pytest.raises(LaunchError, match="4 must divide M"):
            run(random("f32", 13), out, VIEW=view)


@tm.kernel
def counted(a: tm.Global["f32", "M"], out: tm.Global["f32", "P"]):
    for i in parallel(cdiv(a.shape[0], 4), level="block"):
        out[i] = a.chunkat(i)[1]


def test_as_many_chunks_as_tiles_fit() -> None:
    """cdiv(M, 4) chunks are tiles of 4 where 4 divides M; 6 = 2 * 3 is not that."""
    a, out = random("f32", 8), unwritten("f32", 2)
    counted(a, out)
    np.testing.assert_array_equal(out, a[1::4])
    with pytest.raises(LaunchError, match="4 must divide M"):
        counted(random("f32", 6), out)
