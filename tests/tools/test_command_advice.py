"""Advice of the command line works: followed word by word, the command succeeds."""

# A case is easier to read on one line.
# ruff: noqa: E501
from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tilemma.cli import main

FILES = {
    "two.co": """
__co__ void f(global f32 [N] x) { parallel i by N : block { x.at(i) = x.at(i) + 1.0f; } }
__co__ void g(global f32 [N] x, int s) { parallel i by N : block { x.at(i) = s; } }
""",
    "bad.py": "import tilemma as tm\n1 / 0\n",
    "good.py": """
import tilemma as tm
from tilemma import parallel

@tm.kernel
def f(x: tm.Global["f32", "N"]):
    for i in parallel(x.shape[0], level="block"):
        x[i] = x[i] + 1.0
""",
    "none.py": "import tilemma as tm\n\ndef f(x):\n    pass\n",
    "latin.co": "// \xe9\n__co__ void f(global f32 [N] x) { parallel i by N : block { x.at(i) = 1.0f; } }\n",
}
FILES["prod.co"] = """
__co__ void f(global f16 [16, 16] a, global f16 [16, 16] b, global f32 [16, 16] c) {
  parallel p by 1 : block, w by 1 : group { m = mma.fill.f32 0.0f; mma.row.row m, a, b; mma.store m, c; }
}
"""
FILES["added.co"] = """
__co__ void f(global f32 [8, 4] a, global f32 [16, 4] b, global f32 [16] d, global f32 [8, 16] c) {
  parallel {i, j} by [8, 16] : block {
    mutable f32 sum = 0.0f;
    foreach k in 4 { sum += a.at(i, k) * b.at(j, k); }
    c.at(i, j) = sum + 2.0f * d.at(j);
  }
}
"""
# A size that a search from small ones does not find.
FILES["sized.co"] = """
__co__ void f(global f32 [N] x) {
  assert(N % 1000003 == 777777, "N of a kind");
  parallel i by 1 : block { foreach j in 4 { x.at(j) = 1.0f; } }
}
"""
RUN = "check two.co f --schedules 1 --shape N=4"
ATOM = "SM80_16x8x16_F32F16F16F32_TN"
# code, part of the advice, the wrong command, the command with the advice followed.
CASES = [
    ("several-kernels", "`FILE NAME` on the command line", "check two.co --schedules 1", RUN),
    ("no-such-kernel", "name one of these", "check two.co h --schedules 1", RUN),
    ("bad-argument", "write --shape NAME=VALUE", "check two.co f --schedules 1 --shape N", RUN),
    ("bad-shape", "give N a size", "check two.co f --schedules 1 --shape N=x", RUN),
    ("bad-shape", "give N a size", "check two.co f --schedules 1 --shape N=-1", RUN),
    ("bad-shape", "remove M", f"{RUN},M=3", RUN),
    ("bad-argument", "add --arg s=...", "check two.co g --schedules 1 --shape N=4",
     "check two.co g --schedules 1 --shape N=4 --arg s=3"),
    ("no-sizes", "add `--shape N=..`", "check sized.co --schedules 1", "check sized.co --schedules 1 --shape N=777777"),
    ("unknown-arch", "did you mean `sm_90`", f"{RUN} --arch sm_99", f"{RUN} --arch sm_90"),
    ("unknown-arch", "did you mean `sm_80`", f"{RUN} --arch ampere", f"{RUN} --arch sm_80"),
    ("bad-argument", "leave it out", f"{RUN} --grid 4", RUN),
    ("bad-argument", "leave it out", f"{RUN} --block 32", RUN),
    ("bad-argument", "leave it out", f"{RUN} --expect a0=1", RUN),
    ("bad-argument", "leave it out", f"{RUN} --cluster 2", RUN),
    ("bad-argument", "leave it out", f"{RUN} --shared 64", RUN),
    ("bad-argument", "leave it out", f"{RUN} --entry f", RUN),
    ("bad-argument", "leave it out", f"{RUN} --ctas 1", RUN),
    ("cannot-read-file", "check the path", "check too.co --schedules 1", RUN),
    ("program-failed", "correct it", "check bad.py --schedules 1", "check good.py --schedules 1"),
    ("no-kernel", "write `@tm.kernel` above the function", "check none.py", "check good.py --schedules 1"),
    ("not-utf-8", "save the file with the encoding UTF-8", "check latin.co", "check latin8.co --schedules 1"),
    ("unknown-atom", "`tilemma atoms` lists all names", "show XX", f"show {ATOM}"),
    ("no-such-operand", "leave --operand out", f"show {ATOM} --operand Z", f"show {ATOM}"),
    ("no-such-format", "give one of these after --format", f"show {ATOM} --format yaml",
     f"show {ATOM} --format csv"),
    ("bad-argument", "write --element 0,1", f"show {ATOM} --operand A --element 1",
     f"show {ATOM} --operand A --element 0,1"),
    ("bad-argument", "write --element 0,1", f"show {ATOM} --operand A --element x,y",
     f"show {ATOM} --operand A --element 0,1"),
    ("unknown-arch", "such as `sm_80`", "atoms --arch volta", "atoms --arch sm_80"),
    ("not-in-fragment", "write --element ROW,COLUMN in this range, such as 15,0", f"show {ATOM} --operand A --element 99,0",
     f"show {ATOM} --operand A --element 15,0"),
    ("not-in-fragment", "N comes first", f"show {ATOM} --operand B --element 15,7", f"show {ATOM} --operand B --element 7,15"),
    ("not-in-fragment", "write --lane LANE,REGISTER in these ranges, such as 31,3",
     f"show {ATOM} --operand A --lane 32,4", f"show {ATOM} --operand A --lane 31,3"),
    ("not-in-fragment", "name an operand in registers: --operand C",
     "show SM90_64x64x16_F32F16F16_SS --operand A --element 0,0", "show SM90_64x64x16_F32F16F16_SS --operand C --element 0,0"),
    ("bad-tile", "write for instance 128x128x64", f"show {ATOM} --tile 3x4", f"show {ATOM} --tile 128x128x64"),
    ("bad-tile", "write for instance 128x128", "show f16,12", "show f16,128x128"),
    ("bad-tile", f"write for instance {ATOM}", "show SM75_U32x4_LDSM_N --tile 16x8x16", f"show {ATOM} --tile 16x8x16"),
    ("tile-instruction", "", f"show {ATOM} --tile 3x4x5", f"show {ATOM} --tile 16x8x16"),
    ("several-records", "write one of these names", "show mma.sync.aligned", f"show {ATOM}"),
    ("bad-expectation", "write one group of letters for each input: mk,nk->mn", "run prod.co --target cpu --expect mknk",
     "run prod.co --target cpu --expect mk,nk->mn"),
    ("bad-expectation", "give one group of letters for each input", "run prod.co --target cpu --expect mk->mn",
     "run prod.co --target cpu --expect mk,nk->mn"),
    ("bad-expectation", "multiply by a number", "run added.co --target cpu --expect mk,nk->mn+x*d",
     "run added.co --target cpu --expect mk,nk->mn+2*d"),
    ("bad-expectation", "did you mean `d`?", "run added.co --target cpu --expect mk,nk->mn+2*D",
     "run added.co --target cpu --expect mk,nk->mn+2*d"),
    ("bad-expectation", "and name the addends: `+ bias`", "run added.co --target cpu --expect mk,nk->mn",
     "run added.co --target cpu --expect mk,nk->mn+2*d"),
    ("bad-expectation", "correct the output's letters", "run prod.co --target cpu --expect mk,nk->mm",
     "run prod.co --target cpu --expect mk,nk->mn"),
    ("cannot-write-file", "create the folder `built` first",
     "compile good.py --arch sm_80 --emit ptx -o built/k.ptx",
     "compile good.py --arch sm_80 --emit ptx -o built/k.ptx"),
]  # fmt: skip
FOLLOWED = frozenset(c[0] for c in CASES)


@pytest.mark.parametrize("n", range(len(CASES)), ids=lambda n: f"{CASES[n][0]}-{n}")
def test_followed_it_succeeds(n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, advice, wrong, right = CASES[n]
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="latin-1" if name == "latin.co" else "utf-8")
    (tmp_path / "latin8.co").write_text(FILES["latin.co"], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(main, wrong.split())
    assert refused.exit_code == 2 and f"error[{code}]" in refused.output, refused.output
    assert advice in refused.output.partition("fix: ")[2], refused.output
    (tmp_path / "built").mkdir()
    done = CliRunner().invoke(main, right.split())
    assert done.exit_code == 0, done.output
