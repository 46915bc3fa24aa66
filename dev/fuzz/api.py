"""Random arguments for every public function, random command lines and PTX: a result or an error of the family."""

from __future__ import annotations

import random
import re
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from tensor_layouts import Layout

import tilemma as tm
from dev.fuzz.command_lines import CommandLines
from dev.fuzz.language_calls import Function, language
from tilemma.assemble import assemble, disassemble
from tilemma.errors import TilemmaError
from tilemma.layouts import plain_layout, shared_layout

# Fragments of an instruction of 8 x 8 x 32 on bytes.
BYTES, SUMS = Layout(((4, 8), 8), ((64, 1), 8)), Layout(((4, 8), 2), ((16, 1), 8))

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
SECONDS = 20
# Errors that report an internal failure.
OURS = (
    "front-end-failure",
    "invalid-ir",
    "invalid-lane-ir",
    "compiler-failure",
    "machine-failure",
    "command-failure",
)


@dataclass(frozen=True, slots=True)
class Case:
    """One call: its name in a report, the call, and the seconds that it may take."""

    text: str
    run: Callable[[], object]
    seconds: float = SECONDS


@dataclass(frozen=True, slots=True)
class Outcome:
    """``kind``: "success", "refused" (an error of the family), "internal" (one that reports an internal failure),
    "raw"
    (an error of Python's), "hang"."""

    kind: str
    detail: str
    text: str


class Hang(BaseException):
    """A case took too long."""


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise Hang after ``seconds`` of this process's time, or ten times as many of waiting."""

    def stop(*_: object) -> None:
        raise Hang

    limits = ((signal.SIGPROF, signal.ITIMER_PROF, seconds), (signal.SIGALRM, signal.ITIMER_REAL, 10 * seconds))
    before = [signal.signal(number, stop) for number, _, _ in limits]
    for _, timer, most in limits:
        signal.setitimer(timer, most)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(limits, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def outcome(case: Case) -> Outcome:
    """The outcome of a case."""
    try:
        with (
            _limited(case.seconds),
            redirect_stdout(StringIO()),
            redirect_stderr(StringIO()),
            np.errstate(all="ignore"),
        ):
            case.run()
    except Hang:
        return Outcome("hang", f"more than {case.seconds:g} s", case.text)
    except TilemmaError as error:
        try:
            str(error), error.json()
        except Exception:
            return Outcome("raw", traceback.format_exc(limit=-6), case.text)
        if error.code in OURS:
            cause = getattr(error, "cause", None)
            where = "".join(traceback.format_exception(cause, limit=-6)) if cause else ""
            return Outcome("internal", f"{error.message}\n{where}", case.text)
        return Outcome("refused", error.code, case.text)
    except Exception as error:
        if str(error) == Hostile.said:  # the caller's own error passes through
            return Outcome("success", "", case.text)
        return Outcome("raw", traceback.format_exc(limit=-6), case.text)
    return Outcome("success", "", case.text)


# -- odd values


class Hostile:
    """An object whose every attribute and method raises an error."""

    said = "the object's own error"

    def _fail(self, *_: object, **__: object) -> Any:
        raise RuntimeError(Hostile.said)

    __len__ = __getitem__ = __iter__ = __bool__ = __index__ = __float__ = __call__ = __contains__ = _fail
    __repr__ = __str__ = _fail

    def __hash__(self) -> int:
        raise RuntimeError(Hostile.said)


@dataclass(frozen=True)
class CallersOwn:
    """A function of the caller's, whose errors are the caller's own."""

    function: Callable[..., Any]

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        try:
            return self.function(*args, **keywords)
        except Exception as error:
            raise RuntimeError(Hostile.said) from error


def _arrays() -> dict[str, Any]:
    masked = np.ma.masked_array(np.zeros((4, 4), np.float16), mask=True)
    read_only = np.zeros((64, 64), np.float16)
    read_only.flags.writeable = False
    return {
        "array of objects": np.array([[None, 1], [2, 3]], object),
        "matrix": np.zeros((4, 4), np.float32).view(np.matrix),
        "masked array": masked,
        "structured array": np.zeros((4, 4), [("x", "f4"), ("y", "i8")]),
        "complex array": np.zeros((4, 4), np.complex64),
        "big-endian array": np.zeros((4, 4), ">f4"),
        "array of texts": np.array([["a", "b"]]),
        "dates": np.zeros((2, 2), "M8[s]"),
        "empty array": np.zeros((0, 64), np.float16),
        "scalar array": np.zeros((), np.float16),
        "deep array": np.zeros((1,) * 20, np.float16),
        "read-only array": read_only,
        "reversed array": np.zeros((64, 64), np.float16)[::-1, ::-1],
        "broadcast array": np.broadcast_to(np.zeros(1, np.float16), (64, 64)),
        "float64 array": np.zeros((64, 64)),
        "a good array": np.zeros((64, 64), np.float16),
        "misaligned array": np.zeros(64 * 64 * 2 + 1, np.uint8)[1:].view(np.float16).reshape(64, 64),
    }


def _array(name: str) -> Any:
    return _arrays()[name]


def odd_values() -> dict[str, Callable[[], Any]]:
    """Values that functions do not expect, by how a report calls them."""
    plain: list[Any] = [
        None, True, False, 0, 1, -1, 5, 64, 2**31, -(2**31) - 1, 2**63, 2**64, 0.5, -0.0, 1e308, float("nan"),
        float("inf"), 1j, "", "x", "f16", "f8", "sm_80", "sm_90a", "sm_999", "M", "cpu", "block", "\0", "\ud800", "%s{}",
        "{x}", "../x", "x" * 200, b"", b"x", b"\x7fELF", [], [1], [[1]], (), (1,), (1, 2, 3), (None,), {}, {"a": 1},
        {1: 2}, {None: None}, set(), frozenset({1}), range(3), range(10**12), slice(None), ..., NotImplemented, int, type,
        print, len, Ellipsis, ValueError("x"), Path("x"), Path("/"), np.float16(1), np.int64(-1), np.bool_(True),
        np.dtype("f2"), np.float32, tm, tm.full, tm.atoms, tm.math,
    ]  # fmt: skip
    made: dict[str, Callable[[], Any]] = {f"{v!r:.40}": partial(_same, v) for v in plain}
    made |= {name: partial(_array, name) for name in _arrays()}
    made |= {
        "10**5000": lambda: 10**5000,
        "object()": object,
        "lambda": lambda: lambda *a, **k: None,
        "generator": lambda: (i for i in range(3)),
        "Hostile()": Hostile,
        "bytearray": lambda: bytearray(b"abc"),
        "memoryview": lambda: memoryview(b"abc"),
        "list in itself": _circular,
    }
    return made


def _same(value: Any) -> Any:
    return value


def _circular() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


# -- calls


def half(*shape: int) -> Any:
    return np.zeros(shape, np.float16)


PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry f(.param .u64 out, .param .u32 n)
{
    .reg .b32 %r<4>;
    .reg .b64 %q<4>;
    .reg .pred %p;
    ld.param.u64 %q1, [out];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x;
    setp.ge.u32 %p, %r2, %r1;
    @%p bra done;
    cvt.u64.u32 %q2, %r2;
    shl.b64 %q2, %q2, 2;
    add.u64 %q1, %q1, %q2;
    st.global.u32 [%q1], %r2;
done:
    ret;
}
"""
LAUNCH = {"grid": (1, 1, 1), "block": (32, 1, 1)}


def functions() -> list[Function]:
    """Every public function that needs no GPU, with good arguments."""
    co = str(EXAMPLES / "co" / "matmul_wgmma_2group.co")
    kernel = tm.load(co).only()
    t, m = tm.testing, tm.machine
    a, b, out = half(64, 64), half(64, 64), half(64, 64)
    small = np.ones((64, 64), ml_dtypes.float8_e4m3fn)
    simple = {"out": np.zeros(64, np.uint32), "n": 3}
    return [
        Function("load", tm.load, (co,), {"defines": {}}),
        Function("loads", tm.loads, ("__co__ void f(global f32 [M] a) {}",), {"defines": {}, "name": "text.co"}),
        Function("kernel", tm.kernel, (lambda a: None,)),
        Function("Kernel.__call__", kernel, (a, b, out)),
        Function("Kernel.on", kernel.on, ("cpu",)),
        Function("Kernel.on.call", lambda target, *x, **o: kernel.on(target, **o)(*x), ("cpu", a, b, out)),
        Function("Kernel.on(machine)", lambda *x, **o: kernel.on("machine", **o)(*x), (a, b, out), {"seed": 1, "strict": True, "arch": "sm_90a", "schedule": "late"}),
        Function("Kernel.compile", kernel.compile, ("sm_90a",), {"facts": None}),
        Function("Kernel.compile(constants)", lambda **k: kernel.compile("sm_90a", **k), (), {"WARP_K": 16, "TILE_K": 64}),
        Function("Kernel.build", lambda **k: kernel.build(**k), (), {"TILE_K": 64}),
        Function("Module[]", lambda name: tm.load(co)[name], ("matmul_wgmma_2group",)),
        Function("Global", lambda *x: tm.Global[x], ("f16", "M", "K")),
        Function("Scalar", lambda x: tm.Scalar[x], ("s32",)),
        Function("atoms[]", lambda name: tm.atoms[name], ("SM80_16x8x16_F32F16F16F32_TN",)),
        Function("dtypes.dtype", tm.dtypes.dtype, ("f16",)),
        Function("machine.run", m.run, (PTX, LAUNCH, simple), {"arch": "sm_80", "seed": 0, "schedule": "late", "strict": False, "collect": False, "max_steps": 1000, "trace": False}),
        Function("machine.run(launch)", lambda **k: m.run(PTX, k, simple), (), {**LAUNCH, "entry": "f", "cluster": (1, 1, 1), "shared": 0, "arch": "sm_80", "read_only": []}),
        Function("machine.run(args)", lambda **k: m.run(PTX, LAUNCH, k), (), simple),
        Function("machine.check", m.check, (PTX, LAUNCH, simple), {"seed": 0, "strict": False, "max_steps": 1000, "schedules": 2}),
        Function("machine.inspect", m.inspect, (PTX, LAUNCH, simple, 17), {"warp": 0, "occurrence": 0}),
        Function("machine.TensorMap", lambda **k: m.run(PTX.replace(".param .u64 out", ".param .align 64 .b8 out[128]"), LAUNCH, {"out": m.TensorMap(**k), "n": 1}), (), {"array": a, "box": (8, 8), "swizzle": 0, "dtype": "f16", "dims": (64, 64), "strides": (128,), "element_strides": (1, 1)}),
        Function("testing.error_bound", t.error_bound, (a, b), {"acc": "f32", "out": "f16", "alpha": 1, "beta": 0, "c": None, "bias": None, "activation": None}),
        Function("testing.random_array", t.random_array, ((4, 4), "f16", 0, "randn")),
        Function("testing.guarded", t.guarded, (a,), {"margin": 4096, "gap": 16, "misalignment": 0, "device": None}),
        Function("testing.reference", t.reference, ("mk,nk->mn", a, b)),
        Function("testing.share_of_bound", t.share_of_bound, (a, np.zeros((64, 64)), np.ones((64, 64)))),
        Function("testing.half_ulp", t.half_ulp, (np.zeros(4), "f16")),
        Function("testing.to_float64", t.to_float64, (a,)),
        Function("testing.differential", t.differential, ({"f": lambda *_: a}, (a, b), a, a), {"identical": [["f"]]}),
        Function("ops.matmul", tm.ops.matmul, (a, b), {"out": None, "alpha": 1.0, "beta": 0.0, "c": None, "bias": None, "activation": None, "out_dtype": None, "tune": False}),
        Function("ops.plan", tm.ops.plan, (a, b), {"tune": False}),
        Function("ops.plan(keywords)", tm.ops.plan, (a, b), {"tune": False, "out": None, "alpha": 1.0, "bias": None, "activation": None, "out_dtype": None}),
        Function("ops.save_plans", tm.ops.save_plans, (Path(tempfile.gettempdir(), "plans_of_fuzzing.json"),), fixed=(0,)),
        Function("ops.load_plans", tm.ops.load_plans, ("plans.json",)),
        Function("ops.scaled_matmul", tm.ops.scaled_matmul, (small, small, 1.0, 0.5), {"out": None, "out_dtype": "bf16", "bias": None, "activation": None, "fast": True}),
        Function("ops.grouped_matmul", tm.ops.grouped_matmul, (a, half(2, 64, 64), np.array([32, 64], np.int32)), {"scale_a": None, "scale_b": None, "out": None, "out_dtype": None}),
        Function("testing.differential(results)", lambda r: t.differential({"f": lambda *_: r}, (a, b), a, a), (a,)),
        Function("assemble", assemble, (PTX, "sm_80"), {"options": (), "cache": None}),
        Function("disassemble", disassemble, (b"x",)),
        Function("layouts.shared_layout", shared_layout, ("f16", 64, 64), {"major": "K", "swizzle": 128}),
        Function("layouts.plain_layout", plain_layout, ("f16", 64, 64), {"major": "K", "pad": 8}),
        Function("targets.register", tm.targets.register, ("mine", _Target())),
        Function("Pipeline", tm.Pipeline, (), {"stages": 4, "producer": True, "cluster": 2, "persistent": True, "blocks": 3, "order": "any"}),
        Function("export", tm.export, (kernel, tempfile.gettempdir() + "/tilemma-export", "sm_90a"), {"facts": None, "sizes": None, "TILE_K": 64}, (1,)),
        Function("bench", tm.bench, (lambda *_: None, 3), {"repeats": 3, "flush": True, "graph": False, "steady": 0, "flops": 1.0, "bytes": 1.0, "compute": "f16", "name": "k"}, called=(0,)),
        Function("instruction", _declared, ("MY_8x8x32", (8, 8, 32), {"D": "s32", "A": "s8", "B": "u8"}, {"A": BYTES, "B": BYTES, "C": SUMS}), {"ptx": None, "effects": (), "meaning": None, "archs": (), "rank": -1}),
        Function("report", tm.report, ({"none": lambda *_: None}, [1, 2], lambda n: (n,)), {"repeats": 2, "steady": 0}, called=(0, 2)),
        Function("Kernel.tune", lambda *x, **o: kernel.tune(*x, measure=lambda run: 1.0, **o), (a, b, out), {"space": [{"TILE_K": 64}], "budget_s": 1e-3, "quiet": True, "store": False}),
        Function("autotune", lambda space, **o: tm.autotune(space, measure=lambda run: 1.0, **o)(kernel)(a, b, out), ([{"TILE_K": 64}],), {"budget_s": 1e-3, "quiet": True, "store": False}),
        *language(),
    ]  # fmt: skip


class _Target:
    """A target that does nothing."""

    def run(self, *_: object, **__: object) -> None:
        """As `tilemma.targets.Target.run`."""


def _declared(*args: Any, **keywords: Any) -> None:
    """A declaration, which is taken back: no later case shall use the instruction."""
    tm.atoms.withdraw(tm.instruction(*args, **keywords).name)


def every_function() -> list[Function]:
    """Those of the language, of kernels, and of single layers."""
    from dev.fuzz import layers

    return [*functions(), *layers.functions()]


class Calls:
    """Calls of public functions with one to three odd arguments."""

    def __init__(self) -> None:
        from dev.fuzz.layers import odd_layouts

        self.functions = every_function()
        self.odd = odd_values() | odd_layouts()

    def case(self, r: random.Random) -> Case:
        f = r.choice(self.functions)
        args, keywords = list(f.args), dict(f.keywords or {})
        places: list[Any] = [*(i for i in range(len(args)) if i not in f.fixed), *keywords]
        said, seconds = [], float(SECONDS)
        for place in r.sample(places, min(len(places), r.choice((1, 1, 1, 2, 3)))):
            name = r.choice(list(self.odd))
            said.append(f"{place} = {name}")
            target: Any = args if isinstance(place, int) else keywords
            value = self.odd[name]()
            target[place] = CallersOwn(value) if place in f.called and callable(value) else value
            seconds += _asked_for(place, value)
        if r.random() < 0.05 and args and not f.name.startswith("inside"):
            args.pop()
            said.append("one argument less")
            return Case(
                f"{f.name}: {', '.join(said)}", lambda: _python_counts(f.function, args, keywords), seconds
            )
        return Case(f"{f.name}: {', '.join(said)}", lambda: f.function(*args, **keywords), seconds)


def _asked_for(place: int | str, value: Any) -> float:
    """The seconds that an argument asks a measurement to take; an hour is the most that is accepted."""
    if place not in ("steady", "budget_s") or type(value) not in (int, float):
        return 0.0
    return float(value) if 0 < value <= 3600 else 0.0


def _python_counts(function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> None:
    """A call whose number of arguments Python itself may refuse, before the package is called."""
    try:
        function(*args, **keywords)
    except TypeError as error:
        frames = [
            f
            for f in traceback.extract_tb(error.__traceback__)
            if not f.filename.endswith(("/checked.py", "/sources.py"))
        ]
        if isinstance(error, TilemmaError) or len(frames) > 2:
            raise


# -- command lines


class Commands:
    """Command lines of all commands with odd options."""

    def __init__(self, folder: Path) -> None:
        self.lines = CommandLines(folder, PTX)

    def case(self, r: random.Random) -> Case:
        line = self.lines.draw(r)
        return Case(" ".join(line)[:300], lambda: self.call(line))

    def call(self, line: list[str]) -> None:
        status, said = self.lines.run(line)
        assert status in (0, 1, 2), f"status {status}"
        assert "Traceback" not in said or "program-failed" in said, said[-500:]
        ours = re.search(rf"error\[({'|'.join(OURS)})\]|\"code\": \"({'|'.join(OURS)})\"", said)
        assert ours is None, said[-1500:]
        assert status != 1 or "--json" in line or "HAZARD" in said or "WRONG" in said or "DIFF" in said, said[
            -500:
        ]


def _texts(folder: Path) -> Any:
    from dev.fuzz.ptx_texts import Texts

    return Texts()


KINDS: dict[str, Callable[[Path], Any]] = {
    "calls": lambda folder: Calls(),
    "command lines": Commands,
    "PTX": _texts,
}
# The share of each kind in a run: a text of PTX takes some three times as long as a call, a command line ten times.
SHARES = {"calls": 16, "command lines": 1, "PTX": 3}
