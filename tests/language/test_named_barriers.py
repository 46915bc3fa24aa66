"""Named barriers: `__bar_sync` and `__bar_arrive`, in one group, in the block, and between roles."""

from __future__ import annotations

import numpy as np
import pytest

from tilemma import croqtile
from tilemma.errors import CompileError
from tilemma.front_end_cache import File, TextSource
from tilemma.kernels import Kernel

FILE = """
#define FULL 1
#define EMPTY 2
__co__ void reversed(global f32 [256] a, global f32 [256] c) {
  parallel b by 1 : block {
    shared f32 [256] s;
    parallel g by 2 : group-4, t by 128 : thread {
      s.at(g # t) = a.at(g # t);
      __bar_sync(1, 256);
      c.at(g # t) = s.at(255 - g # t);
    }
  }
}
__co__ void handed_over(global f32 [256] a, global f32 [256] c) {
  parallel b by 1 : block {
    shared f32 [64] s;
    parallel g by 2 : group-2, t by 64 : thread {
      inthreads.async (g == 0) {
        foreach k in 4 {
          if (k > 0) { __bar_sync(EMPTY, 128); }
          s.at(t) = a.at(k # t);
          __bar_arrive(FULL, 128);
        }
      }
      inthreads.async (g == 1) {
        foreach k in 4 {
          __bar_sync(FULL, 128);
          c.at(k # t) = s.at(63 - t);
          if (k < 3) { __bar_arrive(EMPTY, 128); }
        }
      }
    }
  }
}
__co__ void one_level(global f32 [256] a, global f32 [256] c) {
  parallel p by 256 : thread {
    c.at(p) = a.at(p);
    __bar_arrive(2, 256);
    __bar_sync(15, 256);
    c.at(p) = c.at(p) + 1.0f;
  }
}
__co__ void blocks(global f32 [256] a, global f32 [256] c) {
  parallel b by 4 : block, g by 2 : group, t by 32 : thread {
    shared f32 [64] s;
    s.at(g # t) = a.at(b # g # t);
    __bar_sync(0, 64);
    c.at(b # g # t) = s.at(63 - g # t);
  }
}
"""
X = np.arange(256, dtype=np.float32)
RESULTS = {
    "reversed": X[::-1],
    "handed_over": X.reshape(4, 64)[:, ::-1].reshape(-1),
    "one_level": X + 1,
    "blocks": X.reshape(4, 64)[:, ::-1].reshape(-1),
}


@pytest.mark.parametrize(("target", "options"), [("cpu", {}), ("machine", {"arch": "sm_90a"})])
@pytest.mark.parametrize("name", RESULTS)
def test_threads_meet(name: str, target: str, options: dict[str, str]) -> None:
    kernel = Kernel(TextSource(File(FILE, "barriers.co", {}), name))
    c = np.zeros(256, np.float32)
    kernel.on(target, **options)(X, c)
    np.testing.assert_array_equal(c, RESULTS[name])


BODIES = {
    "__bar_sync(16, 128);": ("wrong-value", "0 to 15"),
    "__bar_sync(-1, 128);": ("wrong-value", "0 to 15"),
    "__bar_arrive(1, 100);": ("wrong-value", "a multiple of 32"),
    "__bar_sync(1, 0);": ("wrong-value", "a multiple of 32"),
    "__bar_sync(1, 2048);": ("wrong-value", "up to 1024"),
    "__bar_sync(g, 128);": ("not-constant", "`g`"),
    "__bar_sync(1);": ("wrong-arity", "__bar_sync(number, threads)"),
    "x = __bar_sync(1, 256);": ("wrong-value", "no result"),
    "__bar_sync(1, 256); __bar_arrive(1, 128);": ("wrong-value", "one number of threads"),
    "__bar_sync(1, 128);": ("event-threads", "counts 128 threads, and 256"),
    "inthreads.async (g == 0) { __bar_arrive(1, 256); }": ("event-threads", "counts 256 threads, and 128"),
}


@pytest.mark.parametrize("body", BODIES)
def test_wrong_barriers_are_refused(body: str) -> None:
    code, text = BODIES[body]
    kernel = f"""__co__ void f(global f32 [256] a) {{
      parallel b by 1 : block, g by 2 : group-4, t by 128 : thread {{ {body} a.at(g # t) = 1.0f; }} }}"""
    with pytest.raises(CompileError) as refusal:
        Kernel(TextSource(File(kernel, "wrong.co", {}), "f")).compile("sm_90a")
    assert refusal.value.code == code, refusal.value.render()
    assert text in refusal.value.render()


OUTSIDE = "__co__ void f(f32 [4] a) { __bar_sync(1, 32); parallel p by 4 : block { a.at(p) = 1.0f; } }"


def test_outside_of_parallel() -> None:
    with pytest.raises(CompileError) as refusal:
        croqtile.load(OUTSIDE, "outside.co").sources["f"].build()
    assert refusal.value.code == "outside-parallel"
