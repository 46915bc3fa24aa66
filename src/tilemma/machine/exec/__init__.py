"""The instructions, one family a file; importing this package registers them all."""

from tilemma.machine.exec import (  # noqa: F401
    barriers,
    control,
    convert,
    copies,
    fences,
    floating,
    integer,
    matrix,
    memory,
    move,
    predicate,
    warps,
)
