"""Operations of single lanes on the registers of a warp's instruction: fragments are local buffers.

Element v of such a buffer is value v of the lane in the record's thread-value layout.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from tilemma.ir.effects import Execution, Reads, Receives, Writes
from tilemma.ir.expr import Expr, Var
from tilemma.ir.operation import Op
from tilemma.ir.types import View
from tilemma.records import record


@record
class LaneLoad(Op):
    """``dst``: the lane's values of operand ``operand`` of ``atom``, of the tile that ``src`` starts with.

    B's ``src`` has K along its first dimension; E is the metadata of a sparse A, one word; SFA and SFB are scales
    of blocks, one word of four codes.  `ExpandLaneWork` makes element statements of it.
    """

    syntax: ClassVar[str] = "lane_load.$operand $dst, $src"
    execution: ClassVar[Execution] = Execution.LANES
    operand: Literal["A", "B", "C", "E", "SFA", "SFB"]
    dst: Writes[View]
    src: Reads[View]
    atom: str


@record
class LaneStore(Op):
    """The lane's values of D of ``atom`` to the tile that ``dst`` starts with, converted as stores convert."""

    syntax: ClassVar[str] = "lane_store $src, $dst"
    execution: ClassVar[Execution] = Execution.LANES
    src: Reads[View]
    dst: Writes[View]
    atom: str


@record
class LaneMma(Op):
    """``d = a x b + c`` by the lanes of each warp; ``atom`` names the record, ``e``: metadata of a sparse A,
    ``sfa`` and ``sfb``: the scales of blocks of A and B."""

    syntax: ClassVar[str] = "lane_mma $d, $a, $b, $c"
    execution: ClassVar[Execution] = Execution.LANES
    d: Writes[View]
    a: Reads[View]
    b: Reads[View]
    c: Reads[View]
    atom: str
    e: Reads[View] | None = None
    sfa: Reads[View] | None = None
    sfb: Reads[View] | None = None


ExchangeName = Literal["shfl_xor", "shfl_up", "shfl_down", "shfl_idx", "ballot"]


@record
class Exchange(Op):
    """``result`` becomes ``value`` of another lane of the warp, or (``ballot``) a bit of ``value`` for each lane.

    The other lane: this one's number XOR, minus or plus ``lane``, or ``lane`` itself; ``lane`` counts modulo 32.
    A lane before the first or after the last is this one.
    """

    syntax: ClassVar[str] = "exchange.$name $result, $value"
    execution: ClassVar[Execution] = Execution.LANES
    name: Literal["shfl_xor", "shfl_up", "shfl_down", "shfl_idx", "ballot"]
    result: Receives[Var]
    value: Expr
    lane: Expr | None = None
