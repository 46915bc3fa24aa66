"""The operators that Python lets a class define, and those that would give wrong results for traced values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from tilemma.ir.expr import BinaryOp
from tilemma.ir.refusals import WrongValue
from tilemma.lang.spans import caller_span
from tilemma.lang.tracing import BoolOfTraced, PythonNumber

T = TypeVar("T")


def binary(op: BinaryOp) -> Callable[[Any, Any], Any]:
    """The method of ``x op other``."""

    def method(self: Any, other: Any) -> Any:
        return self._binary(op, other)

    return method


def reflected(op: BinaryOp) -> Callable[[Any, Any], Any]:
    """The method of ``other op x``."""

    def method(self: Any, other: Any) -> Any:
        return self._binary(op, other, True)

    return method


def in_place(op: BinaryOp) -> Callable[[T, Any], T]:
    """The method of ``x op= other``, by the `_update` of a class that has it."""

    def method(self: Any, other: Any) -> Any:
        return self._update(op, other)

    return method


class Operators:
    """Python's operators as `_binary`; operators without a meaning in kernels raise errors."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]
    # NumPy scalars then call the reflected operators here.
    __array_ufunc__ = None

    def _binary(self, op: BinaryOp, other: Any, swap: bool = False) -> Any:
        raise NotImplementedError

    __add__ = binary("add")
    __radd__ = reflected("add")
    __sub__ = binary("sub")
    __rsub__ = reflected("sub")
    __mul__ = binary("mul")
    __rmul__ = reflected("mul")
    __floordiv__ = binary("floordiv")
    __rfloordiv__ = reflected("floordiv")
    __truediv__ = binary("div")
    __rtruediv__ = reflected("div")
    __mod__ = binary("mod")
    __rmod__ = reflected("mod")
    __and__ = binary("and")
    __rand__ = reflected("and")
    __or__ = binary("or")
    __ror__ = reflected("or")
    __xor__ = binary("xor")
    __rxor__ = reflected("xor")
    __lshift__ = binary("shl")
    __rlshift__ = reflected("shl")
    __rshift__ = binary("shr")
    __rrshift__ = reflected("shr")
    __lt__ = binary("lt")
    __le__ = binary("le")
    __gt__ = binary("gt")
    __ge__ = binary("ge")
    __eq__ = binary("eq")
    __ne__ = binary("ne")

    def __bool__(self) -> NoReturn:
        raise BoolOfTraced(
            caller_span(),
            text=str(self),
            fix_text="use `with if_(c):`, `with while_(lambda: c):`, `select(c, x, y)`; "
            "join conditions with `&`, `|`, `~`; write `tm.math.min(a, b)` and `tm.math.max(a, b)`",
        )

    def __index__(self) -> NoReturn:
        raise PythonNumber(caller_span(), text=str(self))

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise WrongValue(
            caller_span(),
            what="a function of NumPy",
            got=f"`{self}`, which is only known when the kernel runs",
            wanted="arrays and numbers known when compiled",
            fix_text="use the functions of `tm.math` and `tm.select(condition, a, b)`",
        )

    __int__ = __index__
    __float__ = __index__
    __len__ = __index__

    def __iter__(self) -> NoReturn:
        raise PythonNumber(caller_span(), text=f"of elements of {self}")
