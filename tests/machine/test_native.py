"""The compiled loops do what the NumPy code does: each operation against its closure on random registers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.sampling import by_night
from tilemma import machine
from tilemma.dtypes import dtype
from tilemma.machine.isa import sums
from tilemma.machine.native import encode, library
from tilemma.machine.parser import parse
from tilemma.machine.program import Step, decode_program
from tilemma.machine.register_checks import guarded
from tilemma.machine.run import Job
from tilemma.machine.scheduler import Machine
from tilemma.machine.state import VIEW_CLASS, VIEW_DTYPES
from tilemma.modules import load_python

CORPUS = Path(__file__).parent / "corpus"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(CORPUS))
from cuda_cases import CASES as CUDA  # noqa: E402
from triton_cases import CASES as TRITON  # noqa: E402

CASES = (*CUDA, *TRITON)

_LETTER = {"16": "h", "32": "r", "64": "d"}
_FLOAT = {"f16": "h", "bf16": "h", "f32": "r", "f16x2": "r", "bf16x2": "r", "f64": "d"}
_OTHERS = (
    "not.pred %p1, %p2;", "mov.pred %p1, %p2;", "mov.b32 %r1, {%h1, %h2};", "mov.b32 {%h1, %h2}, %r3;",
    "mov.b64 {%r1, %r2}, %d1;", "mov.b64 %d1, {%r1, %r2};", "selp.f32 %r1, %r2, %r3, %p1;",
    "bfi.b32 %r0, %r1, %r2, %r3, %r4;", "lop3.b32 %r0, %r1, %r2, %r3, 0x96;", "shr.s16 %h1, %h2, 40;",
    "mul.lo.s32 %r1, %r2, -7;", "add.f32 %r1, %r2, 0f3F800000;", "cvta.to.global.u64 %d1, %d2;",
    "cvta.shared.u64 %d1, %d2;", "cvta.to.shared.u64 %d1, %d2;",
    "setp.lt.and.s32 %p1, %r1, %r2, !%p1;", "xor.pred %p1, !%p2, %p3;",
)  # fmt: skip
_EDGES = (0, 1, 2, 15, 16, 31, 32, 63, 255, 0x7F800000, 0x80000000, 0x3F800000, 0xFFFFFFFF, 0x33000001, 0x477FF000)


def _register(kind: str, number: int) -> str:
    return f"%{_FLOAT.get(kind) or _LETTER[kind[1:]]}{number}"


def _lines() -> list[str]:
    lines = list(_OTHERS)
    for opcode, (_, kinds) in encode._table().items():
        operands = ", ".join(_register(k, i) for i, k in enumerate(kinds))
        lines += [f"{opcode} {operands};", f"@!%p3 {opcode} {operands};"]
    for kind in (k for k in encode._INTEGERS if k[0] != "b"):
        a, b, c = (_register(kind, i) for i in (1, 2, 3))
        lines += [f"setp.{op}.{kind} %p1, {a}, {b};" for op in ("eq", "ne", "lt", "le", "gt", "ge")]
        lines.append(f"selp.{kind} {a}, {b}, {c}, !%p2;")
    lines += [f"setp.{op}.f32 %p1, %r1, %r2;" for op in encode._COMPARE_FLOATS]
    lines += [f"cvt.{mode}.{to}.f32 %r1, %r2;" for mode in encode._INTEGRAL for to in ("s32", "u32")]
    for ftz in ("", ".ftz"):
        for op in ("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh"):
            lines += [f"{op}.approx{ftz}.f32 %r1, %r2;", f"@%p1 {op}.approx{ftz}.f32 %r1, %r2;"]
        lines.append(f"div.full{ftz}.f32 %r1, %r2, %r3;")
    for to in encode._TYPE_CODES:
        lines += [
            f"cvt.{to}.{source} %d1, %{letter}2;" for source in ("u8", "s16", "u32", "s64") for letter in "rd"
        ]
        lines += [f"cvt.{to}.s16 %r1, %h2;"]
    return lines


def _steps(lines: list[str]) -> tuple[Any, list[Step]]:
    """The program of ``lines`` that the decoder accepts, one after the other, without checks around them."""
    head = (
        ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k(){\n.reg .pred %p<8>; .reg .b16 %h<8>;"
    )
    head += " .reg .b32 %r<8>; .reg .b64 %d<8>;\n"
    accepted = []
    for line in lines:
        try:
            module = parse(f"{head}{line}\nret;\n}}", "k")
            decode_program(module, module.entries["k"], "sm_90a")
        except Exception:
            continue
        accepted.append(line)
    module = parse(head + "\n".join(accepted) + "\nret;\n}", "k")
    program = decode_program(module, module.entries["k"], "sm_90a")
    for step in program.steps:
        if step.encoded is not None:
            step.run, step.check_guard = step.encoded, None
    return program, program.steps[:-1]


class _Warp:
    """Registers alone."""

    def __init__(self, program: Any, files: dict[str, Any]) -> None:
        self.v = [list(files[c][0].view(v)) for v, c in zip(VIEW_DTYPES, VIEW_CLASS, strict=True)]
        table, self.kept = library.register_table([*files.values(), program.parameter_bytes], 1)
        self.registers = table[0]


def _random_files(program: Any, rng: np.random.Generator, trial: int) -> dict[str, Any]:
    files = program.new_registers(1)
    for cls, file in files.items():
        if cls == "p":
            file[:] = rng.integers(0, 2, file.shape).astype(bool)
            continue
        values = rng.integers(0, 2**63, file.shape).astype(file.dtype)
        edges = rng.choice(np.array(_EDGES, np.uint64).astype(file.dtype), file.shape)
        values = np.where(rng.integers(0, 2, file.shape) > trial % 2, edges, values)
        if cls == "32" and trial > 1:
            floats = rng.standard_normal(file.shape).astype(np.float32).view(np.uint32)
            values = np.where(rng.integers(0, 3, file.shape) > 0, floats, values)
        file[:] = values
    for (cls, bits), row in program.constants.items():
        files[cls][0, row] = bits
    return files


@pytest.fixture
def native(compiled: Any) -> Any:
    return library.lanes()


def test_each_operation_gives_the_bits_of_its_closure(native: Any) -> None:
    program, steps = _steps(_lines())
    encoded = [s for s in steps if s.code is not None]
    assert {s.code[0] for s in encoded if s.code} >= {
        encode.NUMBER[x] for x in ("ADD_32", "LOP3", "CVT_INT", "FMA_F32")
    }
    assert len(encoded) > 300
    rng = np.random.default_rng(0)
    for trial in range(4):
        files = _random_files(program, rng, trial)
        mask = None if trial % 2 else rng.integers(0, 2, 32).astype(bool)
        for step in encoded:
            ours, theirs = ({c: f.copy() for c, f in files.items()} for _ in range(2))
            with np.errstate(all="ignore"):
                guarded(step)(_Warp(program, theirs), mask)
                encode._chunk(native, [step], [guarded(step)])[0](_Warp(program, ours), mask)
            for cls in files:
                assert (ours[cls] == theirs[cls]).all(), (step.instruction.text, cls, trial)


def test_a_result_with_a_nan_is_left_to_numpy(native: Any) -> None:
    program, steps = _steps(["add.f32 %r1, %r2, %r3;", "add.s32 %r4, %r1, 1;"])
    files = program.new_registers(1)
    w = _Warp(program, files)
    cls, row = program.register_rows["%r2@1"]
    files[cls][0, row] = 0x7FC12345
    called: list[str] = []
    runs = [lambda *_: called.append("add.f32"), lambda *_: called.append("add.s32")]
    encode._chunk(native, list(steps), runs)[0](w, None)  # type: ignore[arg-type]
    assert called == ["add.f32", "add.s32"]


@pytest.mark.parametrize("kind", ["mma", "wgmma"])
@pytest.mark.parametrize("t", ["f16", "bf16", "tf32", "f8_e4m3", "f8_e5m2"])
@pytest.mark.parametrize("acc", ["f32", "f16"])
def test_sums_of_products_have_the_bits_of_the_numpy_code(
    native: Any, kind: sums.Kind, t: str, acc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exponents near and far, subnormal numbers, overflow, zeros of both signs, infinities and NaN; sparse A."""
    rng = np.random.default_rng(7)
    with np.errstate(all="ignore"):
        for trial in range(12):
            depth, spread = 32 if dtype(t).bits == 8 else 16, (0, 3, 9, 40)[trial % 4]

            def draw(*shape: int, of: str = t, spread: int = spread, trial: int = trial) -> Any:
                x = rng.standard_normal(shape) * 2.0 ** rng.integers(-spread, spread + 1, shape)
                x = np.rint(x) if trial == 3 else x
                x[rng.random(shape) < 0.1] = -0.0
                if trial % 3 == 2:
                    odd = rng.choice([np.inf, -np.inf, np.nan, 6e4, 1e-40, -1e-7], shape)
                    x = np.where(rng.random(shape) < 0.02, odd, x)
                return x.astype(dtype(of).numpy)

            columns = None
            a, b, c = draw(3, 16, depth), draw(3, depth, 8), draw(3, 16, 8, of=acc)
            if trial % 4 == 3:
                a, b, c = a[0], draw(2 * depth, 8), c[0]
                columns = np.sort(rng.permuted(np.tile(np.arange(2 * depth), (16, 1)), axis=1)[:, :depth])
            ours = sums.multiply(kind, a, b, c, t, t, acc, columns)
            with monkeypatch.context() as patch:
                patch.setattr(library, "loaded", lambda: None)
                theirs = sums.multiply(kind, a, b, c, t, t, acc, columns)
            assert ours.dtype == theirs.dtype
            assert ours.tobytes() == theirs.tobytes(), trial


@pytest.mark.parametrize(
    "name",
    [
        "triton_softmax_wide-softmax", "triton_matmul_f16_sm80_1-matmul", "triton_matmul_f16_sm90_1-matmul",
        "triton_last_block-last_block", "triton_matmul_tf32_sm80_3-matmul", "matrix-wmma_shared",
        "matrix-mma_pipelined", "sync-block_pipeline", "sync-ticket_lock", "basics-bitonic_sort", "bug",
        "bug of copies",
    ],
)  # fmt: skip
def test_runs_in_the_library_are_those_of_the_numpy_code(
    native: Any, name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Bytes, hazards, notes, numbers of instructions and executed lines; bugs: a barrier or a wait is missing."""
    bugs = {
        "bug": ("triton_softmax_wide-softmax", "bar.sync"),
        "bug of copies": ("triton_matmul_tf32_sm80_3-matmul", "cp.async.wait_group"),
    }
    kernel, without = bugs.get(name, (name, ""))
    case = next(c for c in CASES if c.name == kernel)
    ptx = (CORPUS / "ptx" / f"{case.file}.ptx").read_text(encoding="utf-8")
    if without:
        ptx = "\n".join(line for line in ptx.splitlines() if without not in line)
    launch = {"entry": case.entry, "grid": case.grid, "block": case.block, **case.launch}
    found = []
    for compiled in (True, False):
        with monkeypatch.context() as patch:
            if not compiled:
                patch.setattr(library, "loaded", lambda: None)
            args = case.build()[0]
            job = Job(ptx, launch, args)
            schedules = ("late", "starve", "random", "early")
            # By day two schedules, one where the loops of Python take seconds; other names have the others.
            first = len(name) % 3
            count = 4 if by_night(request.config) else 1 if name.startswith(("bug", "triton")) else 2
            for i, how in enumerate(schedules[first : first + count]):
                report = job.run(seed=i, schedule=how, collect=True)
                arrays = [x.tobytes() for x in args.values() if isinstance(x, np.ndarray)]
                found.append((compiled, report.to_json(), report.lines, arrays))
    ours, theirs = ([x[1:] for x in found if x[0] == compiled] for compiled in (True, False))
    assert ours == theirs
    assert any(x[0]["hazards"] for x in ours) == (name in bugs)


def test_no_compiler_of_the_working_folder_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "bin" / "cc"
    own.parent.mkdir()
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.chdir(own.parent)
    for path, cc, wanted in (
        (":.", "cc", None),
        ("../bin:", "cc", None),
        (str(own.parent), "./cc", None),
        (f".:{own.parent}", "cc", [str(own)]),
    ):
        monkeypatch.setenv("PATH", path)
        monkeypatch.setenv("CC", cc)
        assert library._compiler() == wanted


def test_the_compiler_of_the_package_is_used_where_the_system_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zig = tmp_path / "ziglang" / "zig"
    zig.parent.mkdir()
    zig.write_text("#!/bin/sh\n")
    monkeypatch.setattr(library, "site_folders", lambda: [str(tmp_path)])
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert library._compiler() is None
    zig.chmod(0o755)
    assert library._compiler() == [str(zig), "cc", *library._ZIG_FLAGS]
    monkeypatch.setenv("CC", "no-such-compiler")
    assert library._compiler() is None


@pytest.mark.parametrize(
    ("script", "limit", "reason"),
    [
        ("echo 'native.c: error: no space' >&2; exit 3", 60, "exit status 3: native.c: error: no space"),
        ("sleep 5", 0.05, "it took more than 0.05 s"),
        ("exit 0", 60, "No such file"),
    ],
)
def test_a_compiler_that_fails_is_named_once(
    script: str, limit: float, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("TILEMMA_NATIVE", "1")
    monkeypatch.setattr(library, "_LIMIT", limit)
    monkeypatch.setattr(library, "_state", library._State())
    monkeypatch.setattr(library._state, "looked", True)
    with pytest.warns(library.NoCompiledLoops) as said:
        for _ in range(3):
            library.executed(library._WORTH)
    assert len(said) == 1
    assert reason in str(said[0].message)
    assert str(compiler) in str(said[0].message)


@pytest.mark.parametrize("name", ["triton_softmax_wide-softmax", "triton_matmul_f16_sm80_1-matmul"])
def test_a_program_that_was_kept_runs_as_a_new_one(name: str) -> None:
    """Also after many runs, which end the recording of some origins; other arrays get a program of their own."""
    case = next(c for c in CASES if c.name == name)
    ptx = (CORPUS / "ptx" / f"{case.file}.ptx").read_text(encoding="utf-8")
    launch = {"entry": case.entry, "grid": case.grid, "block": case.block, **case.launch}
    found, programs = [], []
    for _ in range(2):
        args = case.build()[0]
        job = Job(ptx, launch, args)
        begun = [step.run for step in job.program.steps], job.program.followed, job.program.segments
        reports = [job.run(seed=i, collect=True) for i in range(4)]
        found.append(
            [(r.to_json(), r.lines) for r in reports]
            + [x.tobytes() for x in args.values() if hasattr(x, "tobytes")]
        )
        job.end()
        programs.append(job.program)
        assert ([step.run for step in job.program.steps], job.program.followed, job.program.segments) == begun
        assert job.program.runs == 0
    assert found[0] == found[1]
    assert programs[0] is programs[1]
    assert Job(ptx, {**launch, "read_only": [next(iter(args))]}, args).program is not programs[0]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("threads", [32, 64])
def test_the_first_store_behind_a_barrier_is_not_known(
    native: Any, threads: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lane 0 is the first to access shared memory after a barrier, and the others read what it stores."""
    barrier = "bar.sync 0;" if threads == 64 else "bar.warp.sync 0xffffffff;"
    ptx = f""".version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 o) {{
  .reg .b64 %d<4>; .reg .b32 %r<4>; .reg .pred %p0; .shared .align 4 .b8 s[256];
  ld.param.u64 %d0, [o]; mov.u32 %r0, %tid.x; mov.u32 %r1, s; mad.lo.u32 %r2, %r0, 4, %r1;
  mul.wide.u32 %d1, %r0, 4; add.u64 %d1, %d0, %d1; setp.eq.u32 %p0, %r0, 0;
  st.shared.u32 [%r2], %r0; {barrier}
  @%p0 st.shared.u32 [%r1+4], 7;
  ld.shared.u32 %r3, [%r2]; st.global.u32 [%d1], %r3; ret;
}}"""
    if not compiled:
        monkeypatch.setattr(library._state, "library", None)
    for schedule in ("late", "random"):
        job = Job(ptx, {"grid": 1, "block": threads}, {"o": np.zeros(threads, np.uint32)})
        report = job.run(schedule=schedule, collect=True)
        assert [h.code for h in report.hazards] == ["race"]


def test_an_operation_that_the_library_has_completed_is_not_completed_again(native: Any) -> None:
    """A starved warp polls an mbarrier after the library has completed the last copy."""
    kernel = load_python(EXAMPLES / "py" / "event_pipeline.py").only()
    result = kernel.compile("sm_80", TILE_N=64, STAGES=2)
    (launch,) = result.launches
    ones = (np.ones((m, n), np.float16) for m, n in ((72, 328), (72, 328)))
    out = np.zeros((72, 72), np.float16)
    arrays = dict(zip(("lhs", "rhs", "output"), (*ones, out), strict=True))
    assert machine.check(result.ptx, launch, arrays, schedules=3).ok
    assert (out == 328).all()


# Loops of different lengths, sides that leave, a branch whose sides never meet, and one within another.
_BRANCHES = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 o) {
  .reg .b64 %d<4>; .reg .b32 %r<8>; .reg .pred %p<6>; .shared .align 4 .b8 s[256];
  ld.param.u64 %d0, [o]; mov.u32 %r0, %tid.x; mov.u32 %r1, 0; and.b32 %r2, %r0, 7; mov.u32 %r5, s;
  mad.lo.u32 %r6, %r0, 4, %r5; mul.wide.u32 %d1, %r0, 4; add.u64 %d1, %d0, %d1;
LOOP:
  add.u32 %r1, %r1, 3; and.b32 %r3, %r1, 1; setp.eq.u32 %p0, %r3, 0; @%p0 bra EVEN;
  setp.gt.u32 %p1, %r2, 3; @%p1 bra HIGH; st.shared.u32 [%r6], %r1; bra MET;
HIGH:
  st.shared.u32 [%r6], %r0; setp.eq.u32 %p2, %r2, 6; @%p2 bra LEAVE;
MET:
  add.u32 %r1, %r1, 5;
EVEN:
  mul.lo.u32 %r4, %r2, 11; setp.lt.u32 %p3, %r1, %r4; @%p3 bra LOOP;
  setp.eq.u32 %p4, %r2, 0; @%p4 ret;
  setp.eq.u32 %p5, %r2, 1; @%p5 bra LEAVE;
  st.global.u32 [%d1], %r1; ret;
LEAVE:
  st.global.u32 [%d1], %r4; exit;
}"""


@pytest.mark.parametrize("threads", [32, 80])
def test_divergent_branches_run_in_the_library_as_in_python(
    native: Any, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for compiled in (True, False):
        with monkeypatch.context() as patch:
            if not compiled:
                patch.setattr(library._state, "library", None)
            out = np.zeros(threads, np.uint32)
            job = Job(_BRANCHES, {"grid": 3, "block": threads}, {"o": out})
            for seed, how in enumerate(("late", "starve", "random", "early")):
                report = job.run(seed=seed, schedule=how, collect=True)
                found.append((report.to_json(), report.lines, out.tobytes()))
    assert found[:4] == found[4:]
    assert out.any()


@pytest.mark.parametrize(
    ("example", "shape", "constants"),
    [
        ("warp_specialized", (128, 128, 256), {"TILE_N": 128}),
        ("multicast", (256, 256, 128), {"GRID": 1}),
    ],
)
def test_warpgroups_mbarriers_and_tensor_copies_run_in_the_library_as_in_python(
    native: Any,
    example: str,
    shape: tuple[int, int, int],
    constants: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = load_python(EXAMPLES / "py" / f"{example}.py").only()
    m, n, k = shape
    rng = np.random.default_rng(3)
    lhs, rhs = (rng.standard_normal(s).astype(np.float16) for s in ((m, k), (n, k)))
    result = kernel.compile("sm_90a", **constants)
    (launch,) = result.launches
    missing = result.ptx.replace("fence.proxy.async.shared::cta;", "")
    found: dict[bool, list[Any]] = {True: [], False: []}
    for compiled in (True, False):
        with monkeypatch.context() as patch:
            if not compiled:
                patch.setattr(library._state, "library", None)
            for seed, (how, ptx) in enumerate(
                [("late", result.ptx), ("starve", result.ptx), ("random", missing), ("early", result.ptx)]
            ):
                out = np.zeros((m, n), np.float16)
                job = Job(ptx, launch, {"lhs": lhs, "rhs": rhs, "output": out})
                report = job.run(seed=seed, schedule=how, collect=True, strict=True)
                found[compiled].append((report.to_json(), report.lines, out.tobytes()))
    assert found[True] == found[False]
    assert [bool(x[0]["hazards"]) for x in found[True]] == [False, False, True, False]


# Time, active lanes, steps that no lane executes or one does, waits for bulk groups, and fragments of wmma: of one
# address and step, in another order, and (the last load) of lanes with addresses of their own.
_STEPS = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 o, .param .u64 n){
.reg .b32 %r<20>; .reg .b64 %d<9>; .reg .pred %p<4>; .shared .align 128 .b8 s[2048];
  ld.param.u64 %d1, [o]; ld.param.u64 %d2, [n]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x;
  setp.gt.u32 %p1, %r0, 999; setp.eq.u32 %p2, %r0, 3; setp.lt.u32 %p3, %r0, 20;
  mov.u32 %r2, s; mad.lo.u32 %r3, %r0, 64, %r2; mov.u32 %r4, 0;
FILL:
  mad.lo.u32 %r5, %r4, 3, %r0; add.u32 %r6, %r3, %r4; st.shared.u32 [%r6], %r5;
  add.u32 %r4, %r4, 4; setp.lt.u32 %p0, %r4, 64; @%p0 bra FILL;
  bar.sync 0; mov.u32 %r8, 7;
  mov.u32 %r7, %clock; @%p3 mov.u64 %d3, %clock64; @%p3 activemask.b32 %r8; activemask.b32 %r9;
  @%p1 atom.global.add.u32 %r10, [%d2], 1; @%p2 red.global.add.u32 [%d2], 5; cp.async.bulk.wait_group 0;
  LOAD
  mad.lo.u32 %r11, %r1, 32, %r0; mad.wide.u32 %d4, %r11, 16, %d1; add.u32 %r7, %r7, %r12;
  xor.b32 %r8, %r8, %r13; st.global.v4.u32 [%d4], {%r7, %r8, %r9, %r14};
  mad.wide.u32 %d5, %r1, 1024, %d2; mov.u32 %r18, 16; STORE
  ret;
}"""
_LOADS = {
    "wmma.load.a.sync.aligned.row.m16n16k16.shared.s8 {%r12, %r13}, [%r2], 64;": True,
    "wmma.load.a.sync.aligned.col.m16n16k8.shared.tf32 {%r12, %r13, %r14, %r15}, [%r2];": True,
    "cvt.u64.u32 %d6, %r2; cvta.shared.u64 %d6, %d6; "
    "wmma.load.b.sync.aligned.row.m16n16k16.u8 {%r12, %r13}, [%d6], 32;": True,
    "wmma.load.a.sync.aligned.row.m16n16k16.shared.s8 {%r12, %r13}, [%r2], 8;": False,
    "wmma.load.c.sync.aligned.row.m16n16k16.shared.s32 "
    "{%r12, %r13, %r14, %r15, %r16, %r17, %r4, %r5}, [%r2];": True,
    "and.b32 %r19, %r0, 1; mad.lo.u32 %r19, %r19, 16, %r2; "
    "wmma.load.a.sync.aligned.row.m16n16k16.shared.s8 {%r12, %r13}, [%r19], 64;": False,
}  # fmt: skip


@pytest.mark.parametrize("load", _LOADS)
def test_single_steps_run_in_the_library_as_in_python(
    native: Any, load: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = ", ".join(f"%r{i}" for i in (12, 13, 14, 15, 16, 17, 4, 5))
    store = f"wmma.store.d.sync.aligned.row.m16n16k16.global.s32 [%d5+64], {{{pieces}}}, %r18;"
    fill = " ".join(f"mov.u32 %r{i}, {i};" for i in (12, 13, 14, 15, 16, 17))
    ptx = _STEPS.replace("LOAD", f"{fill} {load}").replace("STORE", store if "row" in load else "")
    found = []
    for compiled in (True, False):
        with monkeypatch.context() as patch:
            if not compiled:
                patch.setattr(library._state, "library", None)
            out, count = np.zeros((96, 4), np.uint32), np.zeros(1024, np.uint32)
            job = Job(ptx, {"grid": 3, "block": 32}, {"o": out, "n": count})
            for seed, how in enumerate(("late", "starve", "random", "early")):
                executed = _executed_by_python(patch)
                report = job.run(seed=seed, schedule=how, collect=True)
                found.append((report.to_json(), report.lines, out.tobytes(), count.tobytes()))
                if compiled:
                    assert executed.isdisjoint({"mov", "activemask", "atom", "cp"})
                    assert ("wmma" in executed) != _LOADS[load]
    assert found[:4] == found[4:]
    assert out.any()
    assert count[0] == 5 * 3 * 4


def _executed_by_python(patch: pytest.MonkeyPatch) -> set[str]:
    """The first parts of the opcodes at which a frame begins to run in Python, from now on."""
    found: set[str] = set()
    execute = Machine.execute

    def counted(self: Machine, f: Any, budget: int, how: int = -1) -> None:
        found.add(self.program.steps[min(f.pc, len(self.program.steps) - 1)].instruction.parts[0])
        execute(self, f, budget, how)

    patch.setattr(Machine, "execute", counted)
    return found
