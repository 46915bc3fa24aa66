"""The instructions, one family a file; importing this package registers them all."""

from tilemma.machine.exec import (  # noqa: F401
    barriers,
    bulk,
    calls,
    control,
    convert,
    copies,
    fences,
    floating,
    integer,
    matrix,
    mbarriers,
    memory,
    move,
    predicate,
    registers,
    warps,
    wgmma,
)
