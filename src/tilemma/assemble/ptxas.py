"""PTX to cubin with ptxas: its messages as data, its errors with their lines, its results kept on disk."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, field

from tilemma.records import record

from ..checked import Condition, checked, instance, integer, optional
from ..errors import Note, Span, ToolError, register_source, source_line
from . import elf
from .cache import DiskCache
from .process import Stopped, content, tail
from .runs import FAST_COMPILE, Ahead, Run
from .toolchain import Tool, find_tool

_PTX = instance("PTX text", str)
_LINE_NUMBER = integer(0, 1 << 31)
# Bytes of text that are read: the report of some 10,000 functions.
_MOST_SAID = 4 << 20

# NVIDIA's release notes of CUDA 13.x list "Data Race in WGMMA A/B Register Copy Propagation": ptxas moves
# copies into the registers of A above wgmma.wait_group N for N >= 1.  13.5 keeps them in place.
SOUND_REGISTER_A = (13, 5)


class PtxRejected(ToolError):
    code = "ptx-rejected"
    found = "ptxas {version} refuses the PTX: {text}"
    expected = "PTX that is legal for {arch}"
    fix = (
        "if you wrote this PTX, correct the line (PTX ISA, the instruction's section); "
        "if tilemma did, report it with the kernel: the compiler should have refused earlier"
    )


class PtxasFailed(ToolError):
    code = "ptxas-failed"
    found = "ptxas {version} failed ({reason}): {text}"
    expected = "a cubin for {arch}"
    fix = (
        "try another ptxas (set TILEMMA_PTXAS), and report the kernel: `tilemma compile --emit ptx` writes its PTX"
    )


class PtxasTooOld(ToolError):
    code = "ptxas-too-old"
    found = "ptxas {version} miscompiles wgmma with A in registers and wgmma.wait_group {pending}"
    expected = "ptxas {needed} or newer for this kernel"
    fix = "pip install 'nvidia-cuda-nvcc>={needed}', or load A through shared memory, or wait for group 0"


@record
class PtxasMessage:
    """A remark of ptxas: its code such as `C7510` (empty: none), severity, PTX line from 1 (0: none), text."""

    code: str
    line: int
    text: str
    severity: str = "info"


@record
class EntryUsage:
    """The resources of one function of the module: registers a thread, and bytes of each memory."""

    name: str
    registers: int = 0
    spills_stores: int = 0
    spills_loads: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0
    barriers: int = 0


@record
class Cubin:
    """An assembled module.  Registers, spills, stack and shared memory are those of its worst entry.

    ``seconds`` is the time ptxas took when it ran; ``cached`` says that this time it did not.
    """

    bytes: bytes
    arch: str
    registers: int
    spills_stores: int
    spills_loads: int
    stack_bytes: int
    shared_bytes: int
    warnings: tuple[PtxasMessage, ...]
    ptxas_version: tuple[int, ...]
    seconds: float
    entries: tuple[EntryUsage, ...] = ()
    cached: bool = field(default=False, compare=False)

    @property
    def spills(self) -> bool:
        """Whether registers were spilled to local memory."""
        return self.spills_stores > 0 or self.spills_loads > 0

    def has_warning(self, code: str) -> bool:
        return any(w.code == code for w in self.warnings)

    @property
    def setmaxnreg_ignored(self) -> bool:
        """C7508 or C7504: `setmaxnreg` does nothing (the entry lacks .maxnreg or .minnctapersm)."""
        return self.has_warning("C7508") or self.has_warning("C7504")

    @property
    def problems(self) -> tuple[str, ...]:
        """Reasons why this cubin is slower than its PTX states; empty for a good one."""
        spilled = f"spills: {self.spills_stores} bytes stored, {self.spills_loads} bytes loaded"
        lost = [f"{w.code}: {w.text}" for w in self.warnings if w.code]
        return (*([spilled] if self.spills else []), *lost)


# Possessive repeats: none of these is tried again with fewer characters.
_LINE = re.compile(
    r"^ptxas\s++(?:(?P<file>.*?), line (?P<line>\d{1,9}+);\s*+)?"
    r"(?P<severity>info|warning|error|fatal)\s*+:\s*+(?P<text>.*)"
)
_CODE = re.compile(r"^\((C\d++)\)\s*+")
_ENTRY = re.compile(
    r"(?:Compiling entry function '(?P<entry>[^']{1,4096}+)'|Function properties for (?P<function>\S{1,4096}+))"
)
_STACK = re.compile(
    r"(\d{1,12}+) bytes stack frame, (\d{1,12}+) bytes spill stores, (\d{1,12}+) bytes spill loads"
)
_USED = re.compile(r"Used (\d{1,12}+) registers")
_BARRIERS = re.compile(r"used (\d{1,12}+) barriers")
_SHARED = re.compile(r"(\d{1,12}+) bytes smem")
# `-v` reports usage in these; they are not remarks on the code.
_REPORT = re.compile(r"bytes gmem|Compiling entry function|Function properties|^Used \d|Compile time")


def parse_messages(output: str) -> tuple[PtxasMessage, ...]:
    """The remarks, warnings and errors in the output of ptxas, without its usage report."""
    messages = []
    for raw in output.splitlines():
        match = _LINE.match(raw)
        if match is None or _REPORT.search(match["text"]):
            continue
        text = match["text"].strip()
        code = _CODE.match(text)
        messages.append(
            PtxasMessage(
                code=code[1] if code else "",
                line=int(match["line"] or 0),
                text=text[code.end() :] if code else text,
                severity=match["severity"],
            )
        )
    return tuple(messages)


def parse_usage(output: str) -> tuple[EntryUsage, ...]:
    """The usage of each function in the output of `ptxas -v`."""
    usage: dict[str, dict[str, int]] = {}
    name, entry = "", ""
    for line in output.splitlines():
        if match := _ENTRY.search(line):
            entry = match["entry"] or entry
            name = match["entry"] or match["function"]
            usage.setdefault(name, {})
        elif name and (match := _STACK.search(line)):
            stack, stores, loads = map(int, match.groups())
            usage[name] |= {"stack_bytes": stack, "spills_stores": stores, "spills_loads": loads}
        elif name and (match := _USED.search(line)):
            barriers, shared = _BARRIERS.search(line), _SHARED.search(line)
            usage[entry or name] |= {
                "registers": int(match[1]),
                "barriers": int(barriers[1]) if barriers else 0,
                "shared_bytes": int(shared[1]) if shared else 0,
            }
    return tuple(EntryUsage(name, **values) for name, values in usage.items())


_FILE = re.compile(r'^[ \t]*+\.file[ \t]++(\d{1,9}+)[ \t]++"((?:[^"\\\n]|\\[^\n])*+)"', re.MULTILINE)
_LOC = re.compile(r"^\s*+\.loc\s++(\d{1,9}+)\s++(\d{1,9}+)\s++(\d{1,9}+)")


@checked(ptx=_PTX, line=_LINE_NUMBER)
def source_position(ptx: str, line: int) -> Span | None:
    """The source position that the `.loc` before PTX line ``line`` (from 1) names; None when there is none.

    PTX ISA, Debugging Directives: a `.loc` holds for the instructions that follow it lexically.
    """
    files = {int(m[1]): m[2] for m in _FILE.finditer(ptx)}
    for text in reversed(ptx.split("\n")[:line]):
        if match := _LOC.match(text):
            index, at, column = map(int, match.groups())
            if index not in files or at == 0:
                return None
            whole = source_line(files[index], at)
            end = len(whole) + 1 if whole is not None and len(whole) >= column > 0 else column + 1
            return Span(files[index], at, max(column, 1), at, max(end, 2))
        if text.lstrip().startswith((".visible .entry", ".entry", ".func")):
            return None
    return None


@checked(ptx=_PTX, line=_LINE_NUMBER, name=instance("text", str))
def ptx_span(ptx: str, line: int, name: str) -> Span:
    """Line ``line`` of ``ptx`` as a span that can show its text; ``name`` is what to call the PTX."""
    register_source(name, ptx)
    lines = ptx.split("\n")
    text = lines[line - 1] if 1 <= line <= len(lines) else ""
    start = len(text) - len(text.lstrip()) + 1
    return Span(name, line, start, line, max(len(text.rstrip()) + 1, start + 1))


def _rejection(ptx: str, arch: str, tool: Tool, output: str) -> ToolError:
    messages = [m for m in parse_messages(output) if m.severity in ("error", "fatal")]
    placed = list(dict.fromkeys(m for m in messages if m.line))
    if not placed:
        text = "; ".join(m.text for m in messages)[:2000] or tail(output)
        return PtxasFailed(version=tool.release, arch=arch, reason="status not 0", text=text)
    # An undefined name is reported after the mismatch that it causes in the same line.
    first, *others = sorted(placed, key=lambda m: (m.line, m.text.startswith("Arguments mismatch")))
    name = f"<{next(iter(elf.entries_of(ptx)), 'module')}.ptx>"
    notes = []
    if (source := source_position(ptx, first.line)) is not None:
        notes.append(Note("this PTX comes from", source))
    shown = itertools.islice(others, 4)
    notes += [Note(f"ptxas also says: {m.text}", ptx_span(ptx, m.line, name)) for m in shown]
    if len(others) > 4:
        notes.append(Note(f"and {len(others) - 4} more"))
    span = ptx_span(ptx, first.line, name)
    return PtxRejected(span, notes=notes, version=tool.release, text=first.text, arch=arch)


_PENDING = re.compile(r"wgmma\.wait_group\.sync\.aligned\s++0*+([1-9]\d{0,8}+)")


def _takes_registers(statement: str) -> bool:
    """Whether the `wgmma.mma_async` in one PTX statement has A in registers: a second list in braces."""
    operands = statement[statement.rfind("wgmma.mma_async") :].partition("{")[2]
    return re.match(r"\s*+,\s*+\{", operands.partition("}")[2]) is not None


@checked(ptx=_PTX)
def register_a_in_flight(ptx: str) -> int:
    """The largest N of `wgmma.wait_group N` in a module that has wgmma with A in registers, else 0."""
    if "wgmma.mma_async" not in ptx:
        return 0
    if not any(_takes_registers(s) for s in ptx.split(";") if "wgmma.mma_async" in s):
        return 0
    return max((int(m[1]) for m in _PENDING.finditer(ptx)), default=0)


def _pack(cubin: Cubin) -> bytes:
    facts = asdict(cubin)
    del facts["bytes"], facts["cached"]
    head = json.dumps(facts).encode()
    return len(head).to_bytes(4, "little") + head + cubin.bytes


def _unpack(data: bytes, ptx: str, arch: str) -> Cubin:
    size = int.from_bytes(data[:4], "little")
    facts = json.loads(data[4 : 4 + size])
    facts["warnings"] = tuple(PtxasMessage(**w) for w in facts["warnings"])
    facts["entries"] = tuple(EntryUsage(**e) for e in facts["entries"])
    facts["ptxas_version"] = tuple(facts["ptxas_version"])
    cubin = Cubin(bytes=data[4 + size :], cached=True, **facts)
    if cubin.arch != arch or elf.problem(cubin.bytes, arch, elf.entries_of(ptx)):
        raise ValueError("another cubin")
    return cubin


@functools.lru_cache(maxsize=1)
def _format() -> str:
    return ",".join(Cubin.__dataclass_fields__)


class Assembly:
    """ptxas at work on a text, or what it made of it before: `result` waits for the end.

    Use it as a context manager: leaving takes away what is left of it, a process that still runs included.
    """

    def __init__(
        self,
        ptx: str,
        arch: str,
        options: Sequence[str],
        tool: Tool,
        key: Callable[[], str],
        store: DiskCache,
        ahead: Ahead | None = None,
        stated: Sequence[str] = (),
    ) -> None:
        """Starts ``tool``, whose result ``store`` keeps by ``key``, or takes what was started ``ahead``.

        ``stated``: options in the text, before ``options``.  Code that spills with them, or is rejected, is
        assembled without them.
        Raises PtxasFailed.
        """
        self.ptx, self.arch, self.tool, self.key, self.store = ptx, arch, tool, key, store
        self.options, self.stated = options, stated
        taken = None if ahead is None else ahead.take(tool, arch, (*stated, *options), ptx)
        self.run = taken or self._started(stated)

    def _started(self, stated: Sequence[str]) -> Run:
        try:
            return Run(self.tool.path, self.arch, (*stated, *self.options), self.ptx)
        except (OSError, ValueError) as error:
            raise self._failed("not run", str(error)) from None

    def __enter__(self) -> Assembly:
        return self

    def __exit__(self, *_: object) -> None:
        self.run.end()

    def result(self) -> Cubin:
        """The machine code.  Raises PtxRejected, PtxasFailed."""
        cubin = self._with_stated() if self.stated else self._ended()
        if cubin is None:
            self.run.end()
            self.run = self._started(())
            cubin = self._ended()
        self.store.put(self.key(), _pack(cubin))
        return cubin

    def _with_stated(self) -> Cubin | None:
        """The machine code of the run with the options in the text; None if it spills or ptxas refuses them."""
        try:
            cubin = self._ended()
        except (PtxRejected, PtxasFailed):
            if (self.run.process.process.returncode or 0) > 0:  # a later release may lack the option
                return None
            raise
        return None if cubin.spills else cubin

    def _ended(self) -> Cubin:
        """The machine code of the present run."""
        try:
            _ = self.tool.digest  # for the key: computed while ptxas works
            status = self.run.process.wait()
            seconds = time.perf_counter() - self.run.process.began
            output = self._output()
            if status < 0:
                raise self._failed(f"killed by signal {-status}", tail(output))
            if status:
                raise _rejection(self.ptx, self.arch, self.tool, output)
            image = content(self.run.target)
        except Stopped as stopped:
            raise self._failed(str(stopped), tail(self._output())) from None
        except OSError as error:  # files that are gone, or something else now
            raise self._failed("its files cannot be read", str(error)) from None
        if not image:
            raise self._failed("wrote nothing", tail(output))
        if (wrong := elf.problem(image, self.arch, elf.entries_of(self.ptx))) is not None:
            raise self._failed(f"wrote no such machine code: {wrong}", tail(output))
        return _cubin(image, self.arch, self.tool, output, seconds)

    def _output(self) -> str:
        """The text that ptxas printed; of a long one the end."""
        with contextlib.suppress(OSError):
            return content(self.run.said, end=_MOST_SAID).decode("utf-8", "replace")
        return ""

    def _failed(self, reason: str, text: str) -> PtxasFailed:
        return PtxasFailed(version=self.tool.release, arch=self.arch, reason=reason, text=text)


_STATED = re.compile(r"// ptxas (-Ofc=min)$", re.MULTILINE)


def stated_options(ptx: str) -> tuple[str, ...]:
    """The option in the first line of ``ptx`` (`// ptxas -Ofc=min`), if it has one."""
    match = _STATED.match(ptx)
    return (match[1],) if match else ()


@record
class Stored:
    """An assembly that need not run: its result was kept."""

    cubin: Cubin

    def __enter__(self) -> Stored:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def result(self) -> Cubin:
        return self.cubin


def _cubin(image: bytes, arch: str, tool: Tool, output: str, seconds: float) -> Cubin:
    entries = parse_usage(output)

    def worst(name: str) -> int:
        return max((getattr(entry, name) for entry in entries), default=0)

    return Cubin(
        bytes=image,
        arch=arch,
        registers=worst("registers"),
        spills_stores=worst("spills_stores"),
        spills_loads=worst("spills_loads"),
        stack_bytes=worst("stack_bytes"),
        shared_bytes=worst("shared_bytes"),
        warnings=parse_messages(output),
        ptxas_version=tool.version,
        seconds=seconds,
        entries=entries,
    )


@checked(
    ptx=_PTX,
    arch=instance("an architecture such as sm_90a", str),
    options=Condition(
        "a sequence of ptxas options",
        lambda v: isinstance(v, (tuple, list)) and all(isinstance(o, str) for o in v),
    ),
    cache=optional(instance("a DiskCache", DiskCache)),
    ahead=optional(instance("a run that was started ahead", Ahead)),
)
def begin(
    ptx: str,
    arch: str,
    *,
    options: Sequence[str] = (),
    cache: DiskCache | None = None,
    ahead: Ahead | None = None,
) -> Assembly | Stored:
    """`assemble` in two steps: ptxas starts now, and `result` of the returned object waits for it.

    ::

        with begin(ptx, arch) as assembly:
            ...  # while ptxas works
            cubin = assembly.result()

    ``ahead``: a run that was started before the text was known; it is taken if it is the one that this needs.
    Raises NoPtxas, PtxasTooOld and PtxasFailed; the rest comes from `result`.
    """
    if os.environ.get("TILEMMA_LINE_INFO") == "1" and "-lineinfo" not in options:
        options = (*options, "-lineinfo")  # a profiler then shows the lines of the program
    tool = find_tool("ptxas") if ahead is None else ahead.tool
    if tool.version < SOUND_REGISTER_A and (pending := register_a_in_flight(ptx)):
        needed = ".".join(map(str, SOUND_REGISTER_A))
        raise PtxasTooOld(version=tool.release, pending=pending, needed=needed)
    given = any(o.startswith(("-O", "--O", "--opt-level")) for o in options)
    stated = () if given or tool.version < FAST_COMPILE else stated_options(ptx)
    store = cache if cache is not None else DiskCache("cubin")
    named = _format(), ptx, arch, tuple(options), tool.version, tool.path

    def key() -> str:
        return store.key(*named, tool.digest)

    if not store.is_empty() and (found := store.read(key(), lambda data: _unpack(data, ptx, arch))) is not None:
        return Stored(found)
    return Assembly(ptx, arch, options, tool, key, store, ahead, stated)


def assemble(ptx: str, arch: str, *, options: Sequence[str] = (), cache: DiskCache | None = None) -> Cubin:
    """Assemble ``ptx`` for ``arch`` (`sm_90a`): the machine code with what ptxas says of it.

    ``arch`` is the device's and may be later than the PTX's `.target` (PTX for sm_80 assembles for sm_90).
    ``options`` go to ptxas as they are, behind the option that the PTX asks for (`stated_options`) unless they
    have one of its kind.  The result is kept on disk under a hash of PTX, arch, options and ptxas: its release,
    its path and the hash of its file.  Raises NoPtxas, PtxRejected (with the PTX line, and the source line through
    `.loc`), PtxasTooOld, PtxasFailed.
    """
    with begin(ptx, arch, options=options, cache=cache) as assembly:
        return assembly.result()


@checked(ptx=_PTX)
def driver_image(ptx: str) -> bytes:
    """``ptx`` as the CUDA driver takes it to assemble it itself: the last resort where there is no ptxas.

    Raises PtxasTooOld for code that a driver's assembler of unknown age may miscompile.
    """
    pending = register_a_in_flight(ptx)
    if pending:
        needed = ".".join(map(str, SOUND_REGISTER_A))
        raise PtxasTooOld(version="inside the driver", pending=pending, needed=needed)
    return ptx.encode("utf-8", "surrogatepass") + b"\0"
