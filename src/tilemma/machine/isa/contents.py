"""The instructions that the PTX ISA lists (version 9.0, "Instructions"), and how the machine treats each.

``docs/machine.md`` shows this table; a refused instruction is refused with its section's name.
"""

from __future__ import annotations

from dataclasses import dataclass

# The machine executes an instruction and checks it for hazards; or executes it (only operands can be wrong); or
# accepts it without an effect on results; or refuses it.
CHECKED, EXECUTED, HINT, REFUSED = "executed and checked", "executed", "accepted, no effect", "refused"


@dataclass(frozen=True, slots=True)
class Listed:
    """One instruction of the contents: section, name (a dotted prefix of opcodes), treatment, and reason."""

    section: str
    name: str
    status: str
    why: str = ""


_TCGEN05 = "tensor memory of sm_100 is not modelled"
_TEXTURE = "textures and surfaces are not modelled"
_MULTIMEM = "memory of several GPUs is not modelled"
_OLD = "gone from sm_70 and later; use the `.sync` form"
_STACK = "stack pointers are not modelled"

# Section: (names that are executed and checked, names that are executed).
_MODELLED: dict[str, tuple[str, str]] = {
    "Integer Arithmetic Instructions": (
        "",
        "add sub mul mad mul24 mad24 sad div rem abs neg min max popc clz bfind fns brev bfe bfi bmsk szext dp4a "
        "dp2a",
    ),
    "Extended-Precision Integer Arithmetic Instructions": ("", "add.cc addc sub.cc subc mad.cc madc"),
    "Floating Point Instructions": ("", "testp copysign fma rcp sqrt rsqrt sin cos lg2 ex2 tanh"),
    "Comparison and Selection Instructions": ("", "set setp selp slct"),
    "Logic and Shift Instructions": ("", "and or xor not cnot lop3 shf shl shr"),
    "Data Movement and Conversion Instructions": (
        "shfl.sync ld ldu st st.async red.async cp.async cp.async.commit_group cp.async.wait_group "
        "cp.async.wait_all cp.async.bulk cp.reduce.async.bulk cp.async.bulk.tensor cp.reduce.async.bulk.tensor "
        "cp.async.bulk.commit_group cp.async.bulk.wait_group tensormap.replace discard st.bulk",
        "mov prmt isspacep cvta cvt cvt.pack mapa getctarank",
    ),
    "Control Flow Instructions": ("", "bra brx.idx call ret exit"),
    "Parallel Synchronization and Communication Instructions": (
        "bar barrier bar.warp.sync barrier.cluster membar membar.proxy fence fence.proxy fence.mbarrier_init atom "
        "red vote.sync "
        "match.any.sync match.all.sync redux.sync elect.sync mbarrier.init mbarrier.inval mbarrier.expect_tx "
        "mbarrier.complete_tx mbarrier.arrive mbarrier.arrive_drop cp.async.mbarrier.arrive mbarrier.test_wait "
        "mbarrier.try_wait tensormap.cp_fenceproxy",
        "activemask mbarrier.pending_count",
    ),
    "Warp Level Matrix Multiply-Accumulate Instructions": (
        "wmma.load wmma.store wmma.mma mma.sync mma.sp.sync mma.sp::ordered_metadata.sync ldmatrix.sync "
        "stmatrix.sync movmatrix.sync",
        "",
    ),
    "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions": (
        "wgmma.mma_async wgmma.fence wgmma.commit_group wgmma.wait_group",
        "",
    ),
    "Video Instructions": (
        "",
        "vadd vsub vabsdiff vmin vmax vshl vshr vmad vset vadd2 vsub2 vavrg2 vabsdiff2 vmin2 vmax2 vset2 vadd4 "
        "vsub4 vavrg4 vabsdiff4 vmin4 vmax4 vset4",
    ),
    "Miscellaneous Instructions": ("setmaxnreg trap brkpt", ""),
}
_HINTS: dict[str, str] = {
    "Data Movement and Conversion Instructions": "prefetch prefetchu applypriority cp.async.bulk.prefetch "
    "createpolicy",
    "Parallel Synchronization and Communication Instructions": "griddepcontrol",
    "Miscellaneous Instructions": "nanosleep pmevent",
}
_REFUSED: dict[str, dict[str, str]] = {
    "Data Movement and Conversion Instructions": {
"shfl": _OLD, "multimem.ld_reduce": _MULTIMEM,
        "multimem.st": _MULTIMEM, "multimem.red": _MULTIMEM, "multimem.cp.async.bulk": _MULTIMEM,
        "multimem.cp.reduce.async.bulk": _MULTIMEM,
    },
    "Texture Instructions": dict.fromkeys(("tex", "tld4", "txq", "istypep"), _TEXTURE),
    "Surface Instructions": dict.fromkeys(("suld", "sust", "sured", "suq"), _TEXTURE),
    "Parallel Synchronization and Communication Instructions": {
        "vote": _OLD, "clusterlaunchcontrol.try_cancel": "an instruction of sm_100",
        "clusterlaunchcontrol.query_cancel": "an instruction of sm_100",
    },
    "TensorCore 5th Generation Family Instructions": dict.fromkeys(
        (
            "tcgen05.alloc", "tcgen05.dealloc", "tcgen05.relinquish_alloc_permit", "tcgen05.ld", "tcgen05.st",
            "tcgen05.wait", "tcgen05.cp", "tcgen05.shift", "tcgen05.mma", "tcgen05.commit", "tcgen05.fence",
        ),
        _TCGEN05,
    ),
    "Stack Manipulation Instructions": dict.fromkeys(("stacksave", "stackrestore", "alloca"), _STACK),
}  # fmt: skip


def _listed() -> tuple[Listed, ...]:
    out: list[Listed] = []
    for section in {**_MODELLED, **_REFUSED}:
        checked, executed = _MODELLED.get(section, ("", ""))
        out += [Listed(section, name, CHECKED) for name in checked.split()]
        out += [Listed(section, name, EXECUTED) for name in executed.split()]
        out += [Listed(section, name, HINT) for name in _HINTS.get(section, "").split()]
        out += [Listed(section, name, REFUSED, why) for name, why in _REFUSED.get(section, {}).items()]
    return tuple(out)


CONTENTS = _listed()
_BY_NAME = {x.name: x for x in CONTENTS}


def find(opcode: str) -> Listed | None:
    """The entry of the contents for an opcode, by the longest matching name."""
    parts = opcode.split(".")
    for n in range(len(parts), 0, -1):
        found = _BY_NAME.get(".".join(parts[:n]))
        if found is not None:
            return found
    family = [x for x in CONTENTS if x.name.split(".")[0] == parts[0]]
    return family[0] if family and all(x.status == REFUSED for x in family) else None
