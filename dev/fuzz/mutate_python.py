"""Mutated Python kernels: each is compiled, or refused with an error meant for users."""

from __future__ import annotations

import ast
import builtins
import copy
import io
import linecache
import random
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tilemma
from tilemma.errors import TilemmaError
from tilemma.kernels import Kernel

_PACKAGE = str(Path(tilemma.__file__).resolve().parent)
# Errors that report an internal failure.
OURS = ("front-end-failure", "invalid-ir", "invalid-lane-ir", "compiler-failure")
_EXPRESSIONS = (
    "0", "1", "-1", "2.5", "True", "'x'", "None", "full", "(1, 2)", "[1]", "lambda: 1", "range(3)", "print", "2**40",
    "n", "a", "a[0, 0]", "a.shape", "a.subspan(4, 4)", "a.subspan(4, 4).at(0, 0)", "a.chunkat(0, full)", "var(0)",
    "shared('f32', 4, 4)", "mma.fill(0.0)", "mma.load(a.subspan(16, 16).at(0, 0))", "event(2)", "tm", "tm.math.exp",
    "dma.copy(a, to='shared')", "foreach(2)", "parallel(2)", "if_(n)", "atomic.add(a[0, 0], 1)", "compose(n, n)",
    "select(n, 1, 2)", "cdiv(n, 0)", "a.span_as(3)", "a.sqz()", "a == a", "apply(a)", "global_('f32', 3)",
)  # fmt: skip
_STATEMENTS = (
    "break", "continue", "return", "return a", "pass", "break_()", "sync.shared()", "x = 1", "x += 1", "wait(a)",
    "a[0, 0] = 1", "with if_(n > 1): pass", "with else_(): pass", "with while_(lambda: n > 1): pass",
    "for i in foreach(3): pass", "for q in parallel(2, level='group'): pass", "trigger(a)", "mma.commit()",
    "dma.copy(a, a)", "mma.store(a, a)", "del a", "a = 3", "assert_(n > 1)", "tm.print(n)", "swap(a, a)",
)  # fmt: skip
HEADER = "import numpy as np\nimport tilemma as tm\nfrom tilemma import *\nMATH = ('exp', 'tanh')\nPOSITIVE = ()\n"


@dataclass(frozen=True)
class Outcome:
    """``kind``: "compiled", "refused" (by us, for users), "python" (an error of the program in Python's own
    words), or "internal"."""

    kind: str
    detail: str
    text: str


def kernels_of(paths: Sequence[Path]) -> list[ast.FunctionDef]:
    """The kernels in Python files: functions with parameters of the language."""
    found = []
    for path in paths:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            arguments = node.args.args if isinstance(node, ast.FunctionDef) else []
            annotations = [ast.unparse(a.annotation) for a in arguments if a.annotation is not None]
            if isinstance(node, ast.FunctionDef) and any(a.startswith("tm.Global") for a in annotations):
                node.name, node.returns = "k", None
                node.decorator_list = [ast.parse("tm.kernel", mode="eval").body]
                found.append(node)
    return found


class _Swap(ast.NodeTransformer):
    """Replaces the node that was chosen."""

    def __init__(self, old: ast.AST, new: ast.AST | None) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else self.generic_visit(node)


def mutate(function: ast.FunctionDef, others: Sequence[ast.FunctionDef], r: random.Random) -> str:
    """The text of ``function`` with a few expressions and statements replaced, left out, doubled or moved in."""
    made: Any = copy.deepcopy(function)
    for _ in range(r.choice((1, 1, 1, 2, 3, 5))):
        inside = [n for s in made.body for n in ast.walk(s)]
        if not inside:
            break
        statements = [n for n in inside if isinstance(n, ast.stmt)]
        expressions = [
            n for n in inside if isinstance(n, ast.expr) and not isinstance(getattr(n, "ctx", None), ast.Store)
        ]
        donor = r.choice(others)
        match r.randrange(7):
            case 0:
                made = _Swap(r.choice(statements), None).visit(made)
            case 1:
                made = _Swap(r.choice(statements), ast.parse(r.choice(_STATEMENTS)).body[0]).visit(made)
            case 2:
                new = r.choice([n for n in ast.walk(donor) if isinstance(n, ast.stmt) and n is not donor])
                made = _Swap(r.choice(statements), copy.deepcopy(new)).visit(made)
            case 3 if expressions:
                new_value = ast.parse(r.choice(_EXPRESSIONS), mode="eval").body
                made = _Swap(r.choice(expressions), new_value).visit(made)
            case 4 if expressions:
                values = [n for s in donor.body for n in ast.walk(s) if isinstance(n, ast.expr)]
                made = _Swap(r.choice(expressions), copy.deepcopy(r.choice(values))).visit(made)
            case 5:
                _rename(made, r)
            case _:
                _number(inside, r)
        if not made.body:
            made.body = [ast.Pass()]
    try:
        return HEADER + ast.unparse(ast.fix_missing_locations(_known(_filled(made), r)))
    except ValueError:  # an f-string with something else inside
        return HEADER + ast.unparse(function)


def _rename(function: Any, r: random.Random) -> None:
    names = sorted({n.id for n in ast.walk(function) if isinstance(n, ast.Name)})
    if len(names) > 1:
        old, new = r.sample(names, 2)
        for n in ast.walk(function):
            if isinstance(n, ast.Name) and n.id == old and r.random() < 0.5:
                n.id = new


def _number(inside: Sequence[ast.AST], r: random.Random) -> None:
    numbers = [n for n in inside if isinstance(n, ast.Constant) and isinstance(n.value, (int, float))]
    if numbers:
        r.choice(numbers).value = r.choice((0, 1, -1, 3, 7, 17, 2**31, 2**63, 1.5, 1e40, True, 100000))


def _known(function: Any, r: random.Random) -> Any:
    """Names from elsewhere become names of the kernel, so that more than Python's NameError is tried."""
    own = [a.arg for a in (*function.args.args, *function.args.kwonlyargs)]
    own += [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    outside = {*dir(builtins), *tilemma.__all__, "tm", "np", "MATH", "POSITIVE"}
    for n in ast.walk(function):
        if isinstance(n, ast.Name) and n.id not in outside and n.id not in own and own:
            n.id = r.choice(own)
    return function


def _filled(node: Any) -> Any:
    """Bodies that lost all their statements get one."""
    for n in ast.walk(node):
        for name in ("body", "orelse"):
            body = getattr(n, name, None)
            if isinstance(body, list) and not body and name == "body":
                n.body = [ast.Pass()]  # type: ignore[attr-defined]
    return node


def outcome(text: str, name: str, arch: str | None = None) -> Outcome:
    """The outcome of a mutated kernel: built, and compiled for ``arch`` if one is given."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)

    def read() -> list[Kernel]:
        scope: dict[str, Any] = {}
        exec(compile(text, name, "exec"), scope)
        assert isinstance(scope["k"], Kernel)
        return [scope["k"]]

    try:
        return attempt(read, text, arch)
    except SyntaxError as e:
        return Outcome("python", str(e), text)
    except Exception as e:
        last = traceback.extract_tb(e.__traceback__)[-1]
        if last.filename.startswith(_PACKAGE) and last.name != "__getattr__":
            return Outcome("internal", traceback.format_exc(), text)
        return Outcome("python", f"{type(e).__name__}: {e}", text)


def attempt(read: Callable[[], Sequence[Kernel]], text: str, arch: str | None) -> Outcome:
    """Build the kernels of ``text``, and compile them if ``arch`` is given; errors outside the family
    propagate."""
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            for kernel in read():
                kernel.build()
                if arch is not None:
                    kernel.compile(arch).ptx  # noqa: B018 (lowering happens when asked for)
    except TilemmaError as e:
        e.render()
        e.json()
        cause = getattr(e, "cause", None)
        detail = "".join(traceback.format_exception(cause)) if cause is not None else ""
        return Outcome("internal" if e.code in OURS else "refused", f"{e.code}: {e.message}\n{detail}", text)
    return Outcome("compiled", "", text)
