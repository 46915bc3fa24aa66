"""One lane's registers: fragments of an instruction, and exchange of values between the lanes of a warp."""

from __future__ import annotations

from typing import Any

from tilemma.ir.lane_registers import Letter, Shape, exchange, is_lane_values, load_matrix, store_matrix
from tilemma.ir.lane_work import ExchangeName
from tilemma.ir.refusals import WrongValue
from tilemma.ir.tiles import Tile, scalar
from tilemma.lang import spans
from tilemma.lang.namespaces import Namespace
from tilemma.lang.scalars import Value, boolean, integer, operand, python_int, refuse_effect
from tilemma.lang.tracing import builder, trace
from tilemma.lang.views import TileValue, tile_of


class _Shaped:
    """``load_matrix_a[M, N, K]``: a function for the fragments of the instruction of that shape."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getitem__(self, shape: Any) -> Any:
        extents = shape if isinstance(shape, tuple) else (shape,)
        if len(extents) != 3:
            raise self._wrong(f"{len(extents)} extents")
        m, n, k = (python_int(x, self._name) for x in extents)
        return self._of((m, n, k))

    def _of(self, shape: Shape) -> Any:
        raise NotImplementedError

    def __call__(self, *args: Any, **options: Any) -> Any:
        raise self._wrong("no extents")

    def _wrong(self, got: str) -> WrongValue:
        return WrongValue(
            builder(self._name).span,
            what=f"`{self._name}[...]`",
            got=got,
            wanted="M, N and K of the instruction",
            fix_text=f"write `{self._name}[16, 8, 16](...)`, for instance",
        )


class LoadMatrix(_Shaped):
    """``a = load_matrix_a[M, N, K](x, row, col)``: the values that this lane holds of operand A of the instruction
    of that shape, whose tile starts at element (row, col) of ``x``.  B's tile is [K, N]; E is the metadata of a
    sparse A, one u32; SFA and SFB are scales of blocks along K of A's rows and of B's columns, one u32.

    ``a[i]`` is value i.  ``atom``: the name of the instruction, where its shape and type do not determine it.
    """

    def __init__(self, letter: Letter) -> None:
        super().__init__(f"load_matrix_{letter.lower()}")
        self._letter = letter

    def _of(self, shape: Shape) -> Any:
        def load(x: Any, row: Any = 0, col: Any = 0, *, atom: str | None = None) -> TileValue:
            b = builder(self._name)
            name = (spans.bound_names() or (self._letter.lower(),))[0]
            at = integer(row, self._name), integer(col, self._name)
            return TileValue(load_matrix(b, self._letter, name, shape, tile_of(x, self._name), at, atom))

        return load


class StoreMatrix(_Shaped):
    """``store_matrix_d[M, N, K](x, d, row, col)``: this lane's values of D to the tile that starts at element
    (row, col) of ``x``."""

    def __init__(self) -> None:
        super().__init__("store_matrix_d")

    def _of(self, shape: Shape) -> Any:
        def store(x: Any, d: Any, row: Any = 0, col: Any = 0, *, atom: str | None = None) -> None:
            b = builder(self._name)
            at = integer(row, self._name), integer(col, self._name)
            store_matrix(b, shape, tile_of(x, self._name), tile_of(d, self._name), at, atom)

        return store


load_matrix_a, load_matrix_b, load_matrix_c = LoadMatrix("A"), LoadMatrix("B"), LoadMatrix("C")
load_matrix_e = LoadMatrix("E")
load_matrix_sfa, load_matrix_sfb = LoadMatrix("SFA"), LoadMatrix("SFB")
store_matrix_d = StoreMatrix()


class LaneNamespace(Namespace):
    """`tm.lane`: values of other lanes of the warp."""

    _spelled = "lane"
    _forms = "`lane.shfl_xor(v, m)`, or another of its functions"

    def shfl_xor(self, value: Any, mask: Any) -> Value:
        """``value`` of the lane whose number is this one's XOR ``mask``."""
        return _exchange("shfl_xor", value, mask)

    def shfl_up(self, value: Any, delta: Any) -> Value:
        """``value`` of the lane ``delta`` below; the lowest ``delta`` lanes keep their own."""
        return _exchange("shfl_up", value, delta)

    def shfl_down(self, value: Any, delta: Any) -> Value:
        """``value`` of the lane ``delta`` above; the highest ``delta`` lanes keep their own."""
        return _exchange("shfl_down", value, delta)

    def shfl_idx(self, value: Any, lane: Any) -> Value:
        """``value`` of lane ``lane``."""
        return _exchange("shfl_idx", value, lane)

    def ballot(self, cond: Any) -> Value:
        """A u32 with bit i set where ``cond`` holds in lane i."""
        b, running = builder("lane.ballot"), trace()
        assert running is not None
        refuse_effect(running.pure, "`lane.ballot`")
        return Value(exchange(b, "ballot", boolean(cond, "lane.ballot")))


def _exchange(name: ExchangeName, value: Any, lane: Any) -> Value:
    what = f"lane.{name}"
    b, running = builder(what), trace()
    assert running is not None
    refuse_effect(running.pure, f"`{what}`")
    return Value(exchange(b, name, operand(value, what), scalar(integer(lane, what))))


lane = LaneNamespace()


def local_tile(x: Any) -> Tile | None:
    """The local buffer that ``x`` is, if it is one."""
    tile = x.tile if isinstance(x, TileValue) and not x.slots else None
    return tile if tile is not None and is_lane_values(tile) else None
