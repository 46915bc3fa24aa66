"""The operators that Python lets a class define, and those that would give wrong results for traced values."""

from __future__ import annotations

from typing import Any, NoReturn

from tilemma.ir.expr import BinaryOp
from tilemma.lang.spans import caller_span
from tilemma.lang.tracing import BoolOfTraced, PythonNumber


class Operators:
    """Python's operators as `_binary`; operators without a meaning in kernels raise errors."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]
    # NumPy scalars then call the reflected operators here.
    __array_ufunc__ = None

    def _binary(self, op: BinaryOp, other: Any, swap: bool = False) -> Any:
        raise NotImplementedError

    def __add__(self, o: Any) -> Any:
        return self._binary("add", o)

    def __radd__(self, o: Any) -> Any:
        return self._binary("add", o, True)

    def __sub__(self, o: Any) -> Any:
        return self._binary("sub", o)

    def __rsub__(self, o: Any) -> Any:
        return self._binary("sub", o, True)

    def __mul__(self, o: Any) -> Any:
        return self._binary("mul", o)

    def __rmul__(self, o: Any) -> Any:
        return self._binary("mul", o, True)

    def __floordiv__(self, o: Any) -> Any:
        return self._binary("floordiv", o)

    def __rfloordiv__(self, o: Any) -> Any:
        return self._binary("floordiv", o, True)

    def __truediv__(self, o: Any) -> Any:
        return self._binary("div", o)

    def __rtruediv__(self, o: Any) -> Any:
        return self._binary("div", o, True)

    def __mod__(self, o: Any) -> Any:
        return self._binary("mod", o)

    def __rmod__(self, o: Any) -> Any:
        return self._binary("mod", o, True)

    def __and__(self, o: Any) -> Any:
        return self._binary("and", o)

    def __rand__(self, o: Any) -> Any:
        return self._binary("and", o, True)

    def __or__(self, o: Any) -> Any:
        return self._binary("or", o)

    def __ror__(self, o: Any) -> Any:
        return self._binary("or", o, True)

    def __xor__(self, o: Any) -> Any:
        return self._binary("xor", o)

    def __rxor__(self, o: Any) -> Any:
        return self._binary("xor", o, True)

    def __lshift__(self, o: Any) -> Any:
        return self._binary("shl", o)

    def __rlshift__(self, o: Any) -> Any:
        return self._binary("shl", o, True)

    def __rshift__(self, o: Any) -> Any:
        return self._binary("shr", o)

    def __rrshift__(self, o: Any) -> Any:
        return self._binary("shr", o, True)

    def __lt__(self, o: Any) -> Any:
        return self._binary("lt", o)

    def __le__(self, o: Any) -> Any:
        return self._binary("le", o)

    def __gt__(self, o: Any) -> Any:
        return self._binary("gt", o)

    def __ge__(self, o: Any) -> Any:
        return self._binary("ge", o)

    def __eq__(self, o: object) -> Any:
        return self._binary("eq", o)

    def __ne__(self, o: object) -> Any:
        return self._binary("ne", o)

    def __bool__(self) -> NoReturn:
        raise BoolOfTraced(
            caller_span(),
            text=str(self),
            fix_text="use `with if_(c):`, `with while_(lambda: c):`, `select(c, x, y)`; "
            "join conditions with `&`, `|`, `~`; write `tm.math.min(a, b)` and `tm.math.max(a, b)`",
        )

    def __index__(self) -> NoReturn:
        raise PythonNumber(caller_span(), text=str(self))

    __int__ = __index__
    __float__ = __index__
    __len__ = __index__

    def __iter__(self) -> NoReturn:
        raise PythonNumber(caller_span(), text=f"of elements of {self}")
