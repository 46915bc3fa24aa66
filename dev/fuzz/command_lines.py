"""Command lines of every command with odd values for its options."""

from __future__ import annotations

import random
from pathlib import Path

import click
from click.testing import CliRunner

from tilemma.cli import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
_OPTIONS = {
    name: [p for p in command.params if isinstance(p, click.Option)] for name, command in main.commands.items()
}
# Values of these are paths that are written.
_WRITTEN = ("-o", "--timeline")
_WORDS = (
    "", "0", "-1", "1", "2", "64", "99999999999999999999", "9" * 5000, "1e9", "nan", "x", "\0", "\ud800", "é", "\x1b[31m",
    "M=2,N=2,K=2", "M=64,N=64,K=64", "M=-1", "M=0,N=0,K=0", "M", "=", "=1", "n=1", "M=1,M=2", "a=b=c", "TILE_K=64", "TILE_K=0",
    "TILE_K=-1", "TILE_K=x", "TILE_K=99999999999", "WARP_N=7", "sm_80", "sm_86", "sm_90a", "sm_1", "sm_", "cpu", "machine",
    "cuda", "auto", "ir", "lane", "ptx", "cubin", "sass", "launch", "-", "/", "/dev/null", "/dev/full", "nowhere/x", "mk,nk->mn",
    "mk,nk", "->", "mk,nk->m n", "ab,cd->ef", "mm,nn->mn", "A", "B", "C", "E", "Q", "text", "json", "csv", "md", "svg", "html",
    "0,0", "99,99", "-1,0", "1,2,3", "128x128x64", "0x0x0", "16x8x16", "1x1x1", "99999x99999x99999", "f16,64x64,K,128",
    "f16,0x0", "f32,128x64,MN,32", "u4,8x8,K,64", "f16,8x8,K,pad=3", "f16,8x8,K,pad=99999999", "--", "--help", "--json",
    "f32[64]=random", "f32[64]=out", "s32=7", "tma(a0, box=64x64)", "f32[99999999999999]=zeros", "f32[4]=__import__('os')",
    "f32[4]=x.npy", "f32[-1]=out", "f32[]=out", "f32[4]=" + "(" * 300, "f32[4]=np.zeros(10**12)", "s32=10**10**10", "4x2", "²", "٣",
    "u32=-1", "u32[]=out", "sample:1", "sample:0", "a0[0]", "a0[²]", "%r1@9", "%r1@" + "9" * 5000, "0,0,0:0,0", "a0=a0+1",
)  # fmt: skip


class CommandLines:
    """Draws command lines, and runs them with files of ``folder``: ``ptx`` is the text of one."""

    def __init__(self, folder: Path, ptx: str) -> None:
        self.folder = folder
        (folder / "f.ptx").write_text(ptx)
        (folder / "broken.co").write_text("__co__ void f(global f16 [M, K] a) { a.at(0")
        (folder / "broken.py").write_text("import tilemma as tm\nx = (\n")
        (folder / "raises.py").write_text("raise SystemExit(5)\n")
        (folder / "empty.co").write_text("")
        (folder / "bytes.co").write_bytes(bytes(range(256)))
        names = ("f.ptx", "broken.co", "broken.py", "raises.py", "empty.co", "bytes.co", "none.co")
        examples = sorted((EXAMPLES / "co").glob("*.co"))[:6] + sorted((EXAMPLES / "py").glob("*.py"))[:3]
        self.files = [*map(str, examples), *(str(folder / n) for n in names)]

    def draw(self, r: random.Random) -> list[str]:
        command = r.choice(list(_OPTIONS))
        line = [command, *self._operands(command, r)]
        for option in r.sample(_OPTIONS[command], r.randrange(min(4, len(_OPTIONS[command])) + 1)):
            name = r.choice([*option.opts, *option.secondary_opts])
            line += [name] if option.is_flag else [name, self._value(name, r)]
        defaults = {
            "--shape": (("run", "check", "show"), "M=64,N=64,K=64"),
            "--schedules": (("check",), "1"),
            "--arch": (("compile",), "sm_80"),
            "--emit": (("compile",), r.choice(("ir", "ptx", "launch"))),
        }
        for name, (commands, value) in defaults.items():
            if command in commands and name not in line:
                line += [name, value]
        return line

    def _operands(self, command: str, r: random.Random) -> list[str]:
        match command:
            case "show" if r.random() < 0.7:
                return [r.choice(("SM80_16x8x16_F32F16F16F32_TN", "SM90_64x64x16_F32F16F16_SS", *_WORDS))]
            case "examples":
                return [str(self.folder / "examples")] if r.random() < 0.5 else []
            case "atoms" | "cache":
                return []
        return [r.choice(self.files)]

    def _value(self, option: str, r: random.Random) -> str:
        word = r.choice(_WORDS)
        safe = ("-", "/", "/dev/null", "/dev/full", "nowhere/x")
        return word if option not in _WRITTEN or word in safe else str(self.folder / "out")

    def run(self, line: list[str]) -> tuple[int, str]:
        """The exit status, and all that was printed.  The commands' cache is in the folder."""
        runner = CliRunner(env={"TILEMMA_CACHE": str(self.folder / "cache")})
        result = runner.invoke(main, line, catch_exceptions=False)
        return result.exit_code, result.output
