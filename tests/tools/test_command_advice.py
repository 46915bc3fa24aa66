"""Advice of the command line works: followed word by word, the command succeeds."""

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
    ("unknown-arch", "did you mean `sm_90`", f"{RUN} --arch sm_99", f"{RUN} --arch sm_90"),
    ("unknown-arch", "such as `sm_80`", f"{RUN} --arch ampere", f"{RUN} --arch sm_80"),
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
    ("cannot-write-file", "create the folder `built` first",
     "compile good.py --arch sm_80 --emit ptx -o built/k.ptx",
     "compile good.py --arch sm_80 --emit ptx -o built/k.ptx"),
]  # fmt: skip


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
