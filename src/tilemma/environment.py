"""The outside values that a traced function reads: globals, closure cells, attributes of modules and objects.

Tracing runs a kernel's function as ordinary Python, so its IR depends on every value that the function, and the
functions that it calls, read by name.  `Environment` finds these names in the bytecode, once, and tests cheaply
whether one of them has another value now.  `docs/architecture.md` (*Caches*) states the rule.

Names whose values cannot change by themselves (numbers, text, functions, modules, classes) are compared by
identity, which costs some 20 ns a name.  Lists, dictionaries, arrays and objects are compared by content.
"""

from __future__ import annotations

import builtins
import dis
import functools
import os
import site
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import count
from operator import itemgetter
from types import CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from tilemma.forking import ForkSafeLock

_PACKAGE = __name__.split(".")[0]
# Folders of the standard library and of installed packages, whose behaviour is assumed constant.
_INSTALLED = (os.path.dirname(os.__file__), *site.getsitepackages())
_SCALARS = (bool, int, str, bytes, complex, type(None), type(...), range, slice)
_MISSING = object()
# By opcode, how many low bits of the argument are flags; the rest is the number of a name.
_SHIFTS = {"LOAD_GLOBAL": 1, "LOAD_ATTR": int(sys.version_info >= (3, 12))}
_GLOBALS, _VARIABLES, _ATTRIBUTES = (
    {dis.opmap[name]: _SHIFTS.get(name, 0) for name in names if name in dis.opmap}
    for names in (
        ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"),
        ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"),
        ("LOAD_ATTR", "LOAD_METHOD"),
    )
)

# The objects whose content is being computed, by address (recursive structures).
_looking = threading.local()


# Packages that define kernels: theirs are the program's own modules, installed or not.
_homes: set[str] = set()


@functools.cache
def _is_foreign(module: str) -> bool:
    """Whether the module is tilemma's, of the standard library, or of an installed package without kernels."""
    package = module.split(".")[0]
    if package == _PACKAGE or module in ("builtins", ""):
        return True
    loaded = sys.modules.get(module)
    if loaded is None or module == "__main__" or package in _homes:
        return False
    file = getattr(loaded, "__file__", None)
    if file is None:
        return getattr(getattr(loaded, "__spec__", None), "origin", None) in ("built-in", "frozen")
    return bool(file.startswith(_INSTALLED))


def _adopt(module: str) -> None:
    """Count the package of ``module`` among those that define kernels."""
    package = module.split(".")[0]
    if package not in (_PACKAGE, "") and package not in _homes:
        _homes.add(package)
        _is_foreign.cache_clear()


def _own_function(f: Any) -> bool:
    """Whether ``f`` is a Python function of the program, whose own reads are tracked."""
    return isinstance(f, FunctionType) and not _is_foreign(f.__module__ or "")


def content(value: Any) -> Hashable:
    """Equal for values that trace the same: 1, 1.0 and True do not, nor do 0.0 and -0.0."""
    kind = type(value)
    if kind is float:
        return kind, value.hex()
    if kind is slice:  # has a hash from Python 3.12 on only
        return kind, content(value.start), content(value.stop), content(value.step)
    if kind in _SCALARS:
        return kind, value
    if isinstance(value, FunctionType):
        return value, Environment.of(value).key() if _own_function(value) else None
    if isinstance(value, (type, ModuleType)):
        return _class_content(value) if isinstance(value, type) else value
    if isinstance(value, np.ndarray):  # its repr leaves elements out
        return kind, value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return kind, value.tobytes()
    return _guarded(value, _compound)


def _guarded(value: Any, look: Callable[[Any], Hashable]) -> Hashable:
    """``look(value)``, once for each object in a structure; a recursive occurrence is represented by its
    position."""
    state = _looking.__dict__
    outermost = "seen" not in state
    seen: dict[int, Hashable] = state.setdefault("seen", {})
    if id(value) in seen:
        return seen[id(value)]
    seen[id(value)] = "inside itself"
    try:
        found = seen[id(value)] = look(value)
        return found
    finally:
        if outermost:
            del state["seen"]


def _compound(value: Any) -> Hashable:
    kind = type(value)
    if isinstance(value, (list, tuple)):
        return kind, *map(content, value)
    if isinstance(value, dict):
        return kind, *((content(k), content(v)) for k, v in value.items())
    if isinstance(value, (set, frozenset)):
        return kind, frozenset(map(content, value))
    if isinstance(value, functools.partial):
        return kind, content(value.func), content(value.args), content(value.keywords)
    if isinstance(value, MethodType):
        return kind, content(value.__func__), content(value.__self__)
    if _is_namespace(value):
        return kind, content(vars(value))
    if _is_foreign(kind.__module__):
        return kind, _identity(value)
    slots = [n for k in kind.__mro__ for n in _names(k.__dict__.get("__slots__", ()))]
    attributes = {n: getattr(value, n) for n in slots if hasattr(value, n)} | getattr(value, "__dict__", {})
    # An object without its own `==` is distinguished from another one with the same attributes.
    itself = _identity(value) if getattr(kind, "__eq__", None) is object.__eq__ else None
    return kind, _class_content(kind), content(attributes), itself


def _names(slots: Any) -> tuple[str, ...]:
    return tuple(n for n in ((slots,) if isinstance(slots, str) else slots) if n != "__dict__")


def _identity(value: Any) -> Hashable:
    """The object itself as a key that keeps it alive: no later object can have its address."""
    try:
        hash(value)
    except TypeError:
        return repr(value)
    found: Hashable = value
    return found


def _class_content(kind: type) -> Hashable:
    """A class of the program with its attributes, methods and bases; another one is only itself."""
    return kind if _is_foreign(kind.__module__) else _guarded(kind, _members)


def _members(kind: type) -> Hashable:
    held = [(n, _plain(v)) for n, v in list(vars(kind).items())]
    # Of the attributes that Python gives every class only methods are the program's.
    kept = [(n, content(v)) for n, v in held if not n.startswith("__") or isinstance(v, FunctionType)]
    return kind, tuple(map(_class_content, kind.__bases__)), tuple(kept)


def _plain(attribute: Any) -> Any:
    """The functions that a class's attribute wraps."""
    if isinstance(attribute, (staticmethod, classmethod)):
        return attribute.__func__
    if isinstance(attribute, property):
        return [attribute.fget, attribute.fset]
    return attribute


class _Reads:
    """The names that functions read, with the values that they have now."""

    def __init__(self) -> None:
        self.namespaces: dict[int, tuple[Mapping[str, Any], dict[str, Any]]] = {}
        self.absent: dict[int, tuple[Mapping[str, Any], set[str]]] = {}
        self.cells: dict[int, tuple[CellType, Any]] = {}
        self.functions: dict[int, FunctionType] = {}
        self.changing: dict[int, Any] = {}

    def function(self, f: FunctionType) -> None:
        """Add ``f`` and all its reads."""
        if id(f) in self.functions:
            return
        self.functions[id(f)] = f
        cells = dict(zip(f.__code__.co_freevars, f.__closure__ or (), strict=False))
        for default in (*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()):
            self.value(default)
        self._code(f.__code__, cells, f.__globals__)

    def _code(self, code: CodeType, cells: Mapping[str, CellType], names: Mapping[str, Any]) -> None:
        for name, is_cell, attributes in _loaded(code):
            if is_cell:
                if name in cells:
                    self._cell(cells[name], attributes)
            elif name in names:
                self._name(names, name, attributes)
            elif hasattr(builtins, name):
                self.absent.setdefault(id(names), (names, set()))[1].add(name)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._code(constant, {n: c for n, c in cells.items() if n in constant.co_freevars}, names)

    def _cell(self, cell: CellType, attributes: tuple[str, ...]) -> None:
        value = _held(cell)
        self.cells[id(cell)] = cell, value
        if value is not _MISSING:
            self._reached(value, attributes)

    def _name(self, names: Mapping[str, Any], name: str, attributes: tuple[str, ...]) -> None:
        value = names[name]
        self.namespaces.setdefault(id(names), (names, {}))[1][name] = value
        self._reached(value, attributes)

    def _reached(self, value: Any, attributes: tuple[str, ...]) -> None:
        """``value``, of which the code reads the first of ``attributes``, of that the next."""
        held = getattr(value, "__dict__", None)
        if isinstance(value, ModuleType):
            if attributes and attributes[0] in value.__dict__ and not _is_foreign(value.__name__):
                self._name(value.__dict__, attributes[0], attributes[1:])
        elif attributes and type(held) is dict and attributes[0] in held and not _is_fixed(value):
            self._name(held, attributes[0], attributes[1:])
        else:
            self.value(value)

    def value(self, value: Any) -> None:
        """``value`` as a whole."""
        if isinstance(value, FunctionType):
            if _own_function(value):
                self.function(value)
        elif _may_change(value):
            self.changing[id(value)] = value


def _is_fixed(value: Any) -> bool:
    """Whether the attributes of ``value`` need no watch: those of functions, and of the language's own objects."""
    return isinstance(value, FunctionType) or type(value).__module__.startswith(f"{_PACKAGE}.lang.")


def _may_change(value: Any) -> bool:
    """Whether another content may be found in the same object."""
    kind = type(value)
    if kind in _SCALARS or kind is float or isinstance(value, (ModuleType, np.generic)):
        return False
    if isinstance(value, type):
        return not _is_foreign(value.__module__)
    containers = (list, tuple, dict, set, frozenset, np.ndarray, functools.partial, MethodType)
    return isinstance(value, containers) or _is_namespace(value) or not _is_foreign(kind.__module__)


def _is_namespace(value: Any) -> bool:
    """Whether the object is one of the standard library's that only hold attributes."""
    return isinstance(value, SimpleNamespace) or (type(value).__module__, type(value).__name__) == _PARSED


_PARSED = ("argparse", "Namespace")


def _held(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


@functools.lru_cache(maxsize=4096)
def _loaded(code: CodeType) -> tuple[tuple[str, bool, tuple[str, ...]], ...]:
    """The names that the code reads: (name, whether a function around it has the variable, attributes read)."""
    # `dis.get_instructions` takes twenty times as long; a test compares.
    found: dict[tuple[str, bool, tuple[str, ...]], None] = {}
    shared = (*code.co_cellvars, *code.co_freevars)
    variables = (*code.co_varnames, *(n for n in shared if n not in code.co_varnames))
    name, is_cell, attributes, high = "", False, list[str](), 0
    for op, low in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        number, high = high | low, 0
        if op == dis.EXTENDED_ARG:
            high = number << 8
        elif op in _ATTRIBUTES and name:
            attributes.append(code.co_names[number >> _ATTRIBUTES[op]])
        elif op:  # 0 is an inline cache of the instruction before
            if name:
                found[name, is_cell, tuple(attributes)] = None
            name, attributes = "", []
            if op in _GLOBALS:
                name = code.co_names[number >> _GLOBALS[op]]
            elif op in _VARIABLES:
                name = variables[number]
            is_cell = name in shared
    return tuple(found)


def _getter(names: Iterable[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that returns the values of ``names``, and the first once more: `itemgetter` of one name is no
    tuple."""
    return itemgetter(*(all_of_them := tuple(names)), *all_of_them[:1])


class Environment:
    """The outside values that ``function``, and the ``constants`` given to it, read."""

    def __init__(self, function: FunctionType, constants: Iterable[Any] = ()) -> None:
        _adopt(function.__module__ or "")
        self.function = function
        # A number for the values that were read last; whether they are the same now.
        self.version = -1
        self.unchanged: Callable[[], bool] = lambda: False
        self._constants = tuple(constants)
        self._lock = ForkSafeLock()
        self._versions: dict[Hashable, int] = {}
        self._numbers = count()
        self._working = False

    @staticmethod
    def of(function: FunctionType) -> Environment:
        """The environment of a function without constants; the function keeps it."""
        found: Environment | None = function.__dict__.get(_KEPT)
        if found is None or found.function is not function:  # `functools.wraps` copies it
            found = function.__dict__[_KEPT] = Environment(function)
        return found

    def key(self) -> int:
        """The number of the values that are read now: equal where all of them are."""
        return self.version if self.unchanged() else self._look()

    def accept(self) -> None:
        """Assign the changes that tracing itself made since `key` to the same number."""
        if self.version >= 0 and not self.unchanged():
            self._look(self.version)

    def _look(self, version: int | None = None) -> int:
        with self._lock:
            if self._working:  # functions that call each other
                return self.version
            self._working = True
            try:
                reads = _Reads()
                reads.function(self.function)
                for constant in self._constants:
                    reads.value(constant)
                self._take(reads, version)
            finally:
                self._working = False
            return self.version

    def _take(self, reads: _Reads, version: int | None) -> None:
        changing = [(value, content(value)) for value in reads.changing.values()]
        codes = [(f, f.__code__) for f in reads.functions.values() if f is not self.function]

        def leaf(value: Any) -> Hashable:
            if id(value) in reads.changing:
                return "its content stands below"
            itself: Hashable = value if isinstance(value, (FunctionType, type, ModuleType)) else content(value)
            return itself

        state: Hashable = (
            tuple((n, leaf(x)) for _, read in reads.namespaces.values() for n, x in read.items()),
            tuple(leaf(x) for _, x in reads.cells.values()),
            tuple(code for _, code in codes),
            tuple(before for _, before in changing),
        )
        if len(self._versions) >= _VERSIONS and state not in self._versions:
            del self._versions[next(iter(self._versions))]
        if version is not None:
            self._versions[state] = version
        if state not in self._versions:
            self._versions[state] = next(self._numbers)
        self.version = self._versions[state]
        self.unchanged = _comparison(reads, codes, changing)


def _comparison(
    reads: _Reads, codes: list[tuple[FunctionType, CodeType]], changing: list[tuple[Any, Hashable]]
) -> Callable[[], bool]:
    """A function that compares all values that were read with the present ones; it runs before every call."""
    numbers = (bool, int, float, complex)
    named = list(reads.namespaces.values())
    others = [(names, {n: x for n, x in read.items() if type(x) not in numbers}) for names, read in named]
    # A tuple compares identical members without their `==`; equal numbers may be of different types.
    together = [(_getter(read), names, _doubled(read)) for names, read in others if read]
    alone = [(names, n, x) for names, read in named for n, x in read.items() if type(x) in numbers]
    disjoint = [(names.keys().isdisjoint, frozenset(absent)) for names, absent in reads.absent.values()]
    rest = bool(alone or reads.cells or codes or changing)

    def plain() -> bool:
        try:
            same = all(get(names) == values for get, names, values in together)
            return same and all(is_free(absent) for is_free, absent in disjoint)
        except (KeyError, ValueError):  # a name is gone; arrays have no truth value
            return False

    if len(together) == 1 and len(disjoint) <= 1:
        # Nearly always: the names of the kernel's own module.
        ((get, names, values),) = together
        is_free, absent = disjoint[0] if disjoint else (frozenset[str]().isdisjoint, frozenset[str]())

        def plain() -> bool:
            try:
                return get(names) == values and is_free(absent)
            except (KeyError, ValueError):
                return False

    def every() -> bool:
        return (
            plain()
            and all(names.get(n, _MISSING) is x for names, n, x in alone)
            and all(_held(cell) is value for cell, value in reads.cells.values())
            and all(f.__code__ is code for f, code in codes)
            and all(content(value) == before for value, before in changing)
        )

    return every if rest else plain


def _doubled(read: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values as `_getter` gives them."""
    return (*read.values(), *list(read.values())[:1])


_KEPT = "__tilemma_environment__"
# Versions that an environment distinguishes; the oldest is dropped first.
_VERSIONS = 256
