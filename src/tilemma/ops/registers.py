"""Which tiles a kernel's registers hold, with its epilogue and the way its results leave."""

from __future__ import annotations

from tilemma.ops.epilogue import BLOCK
from tilemma.ops.plan import Plan
from tilemma.ops.problem import Problem

# Columns of tiles whose warpgroups have the registers for an epilogue.
WIDEST_FINISHED = 224
# Tiles whose registers do not hold an epilogue and the addresses of direct stores at the same time.
SPILLING = ((256, 128, 64), (64, 256, 64))
# Those of integers are converted to f32 for an epilogue.
SPILLING_INTEGERS = (*SPILLING, (128, 256, 64))
# A thread has room for the sums of so many columns, and for addresses and an epilogue besides, where its
# warpgroup has 128 rows, and where it is one of three; where the epilogue adds a matrix, for fewer; where that
# one's warpgroup has 64 rows; and where these are scaled, of 4 bytes, not stored by TMA, or belong to groups.
COLUMNS, COLUMNS_ADDED, COLUMNS_ADDED_WIDE, COLUMNS_UNALIGNED = 128, 96, 224, 152
# Columns of 64 rows whose integers become f32, stored from registers, or in groups, or with an addend, or with
# scales and a bias; and with scales in groups, where the results are integers again and stored by TMA.
COLUMNS_CONVERTED, COLUMNS_CONVERTED_TWICE = 192, 160
# Columns of f64 where the epilogue adds a matrix.
COLUMNS_ADDED_F64 = 96
# Columns of f8 where neither operand is contiguous along K, or the epilogue adds a matrix.
COLUMNS_F8 = 64
# Columns of three warpgroups whose epilogue is silu, and where scales are multiplied besides.
COLUMNS_SILU_OF_THREE, COLUMNS_SCALED_SILU = 144, 120
# Columns of three warpgroups, whose threads have 128 registers, and with an epilogue.
COLUMNS_OF_THREE, COLUMNS_FINISHED = 200, 192
# Columns of five, whose threads have 80 registers.
COLUMNS_OF_FIVE = 104


def promotable(problem: Problem, tile: tuple[int, int, int], groups: int) -> bool:
    """Whether registers hold a tile and the products of a step, which are added in parts of 128 columns, and no
    part has columns of two blocks of scales."""
    if not problem.promote:
        return True
    rows, columns = tile[0] // groups, tile[1]
    if problem.right.kind == "blocks" and columns < BLOCK < problem.shape[1] and BLOCK % columns:
        return False
    halves = columns == 256 and groups == 2 and problem.right.kind != "steps"
    return rows == 64 and (columns <= BLOCK or halves)


def _holds_addend(p: Problem, rows: int, columns: int, groups: int, store: str) -> bool:
    """Whether the threads of a warpgroup of ``rows`` rows hold the addresses of an addend, too."""
    if p.promote:
        return not (p.grouped and columns > BLOCK)
    if groups == 3 or rows == 128:
        return columns <= COLUMNS_ADDED and (groups == 3 or store == "tma" or columns < COLUMNS_ADDED)
    simple = store == "tma" and not (p.grouped or p.left.final or p.right.final) and p.out.dtype.bits <= 16
    return columns <= (COLUMNS_ADDED_WIDE if simple else COLUMNS_UNALIGNED)


def fits_registers_of_tiles(p: Problem, tile: tuple[int, int, int]) -> bool:
    """Whether the kernel `tiles` or `ahead` of ``tile``, of 16-bit operands, keeps to its registers."""
    columns = tile[1]
    if p.acc == "f64":
        return not p.epilogue.addend or columns <= COLUMNS_ADDED_F64
    # Threads turn both operands byte by byte.
    turned = p.lhs_major == p.rhs_major == "col"
    return not (is_float8(p) and (turned or p.epilogue.addend)) or columns <= COLUMNS_F8


def is_float8(p: Problem) -> bool:
    return p.lhs.dtype.is_float and p.lhs.dtype.bits == 8


def needs_more(p: Problem, plan: Plan) -> bool:
    """Whether threads of `tiles` or `ahead` may need more registers than ptxas gives them, left alone.

    It prefers those of three and more blocks on an SM, and spilled 8 to 56 bytes of products of f32 and f64, of
    promoted f8, and of tf32 by one warpgroup; of 16-bit operands, whose blocks were timed as they are, it did not.
    """
    if plan.kernel not in ("tiles", "ahead") or p.lhs.dtype.bits == 16:
        return False
    return plan.groups == 1 or not p.on_tensor_cores or is_float8(p)


def fits_registers(p: Problem, tile: tuple[int, int, int], groups: int, store: str, split: int) -> bool:
    """Whether the kernel of ``tile``, of 16-bit operands, keeps to its registers."""
    rows, columns = tile[0] // groups, tile[1]
    simple, whole = p.plain, split == 1
    if p.epilogue.addend and whole and not _holds_addend(p, rows, columns, groups, store):
        return False
    # An exponential and a division beside the sums.
    if p.epilogue.activation == "silu" and whole and not p.promote:
        of_three = COLUMNS_SCALED_SILU if p.left.final or p.right.final else COLUMNS_SILU_OF_THREE
        most = of_three if groups == 3 else COLUMNS - 1 if rows == 128 else WIDEST_FINISHED
        if p.grouped and p.acc == "s32":
            most = min(most, COLUMNS)
        if columns > most:
            return False
    if not simple and columns > WIDEST_FINISHED and columns % 64:
        return False
    if p.promote and columns > BLOCK and store != "tma":
        return False
    if groups == 5:
        return p.epilogue.plain and whole and columns <= COLUMNS_OF_FIVE
    if groups == 3:
        most = COLUMNS_OF_THREE if simple and whole else COLUMNS_FINISHED if p.acc == "f32" else COLUMNS
        return not p.promote and not p.grouped and columns <= most
    if rows == 128 and columns > COLUMNS:
        return simple and whole and store in ("tma", "rows") and not p.grouped and p.lhs.dtype.bits == 16
    # Groups: 8192 rows by 32 x 2048 x 7168 took 599 us with tiles of 256x128, 440 us with 128x256.
    if rows == 128 and columns == COLUMNS and (p.grouped or not whole):
        return False
    if p.acc == "s32" and whole and not simple and not p.promote:
        scaled = p.left.final or p.right.final
        more = store == "direct" or p.grouped or p.epilogue.addend or (scaled and p.epilogue.bias)
        twice = scaled and p.grouped and store != "direct" and p.out.dtype.name == "s32"
        most = COLUMNS_CONVERTED_TWICE if twice else COLUMNS_CONVERTED if more else columns
        if tile in SPILLING_INTEGERS or columns > most:
            return False
    spilling = tile in SPILLING and (not simple or (p.grouped and rows == 128))
    return not (spilling and store == "direct" and whole and not p.promote)
