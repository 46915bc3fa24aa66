"""mma.sync m16n8 of f16 and bf16: one warp multiplies A[16, K] by B[8, K] transposed; both operands in registers,
K-major."""

from __future__ import annotations

from tilemma.atoms.atom import MmaAtom, Rate
from tilemma.atoms.family import Family
from tilemma.atoms.warp import dense
from tilemma.dtypes import DType, bf16, f16, f32

_A100 = "NVIDIA A100 whitepaper: 312 TFLOP/s = 108 SMs x 1.41 GHz x 2 x 1024"
_GA10X = "NVIDIA GA102 whitepaper, RTX 3090: 71 (f32) and 142 (f16) TFLOP/s = 82 SMs x 1.695 GHz x 2 x 256 and 512"
_AD10X = "NVIDIA Ada whitepaper, RTX 4090: 165 (f32) and 330 (f16) TFLOP/s = 128 SMs x 2.52 GHz x 2 x 256 and 512"
_TU10X = (
    "NVIDIA Turing whitepaper, RTX 2080 Ti: 54 (f32) and 108 (f16) TFLOP/s = 68 SMs x 1.545 GHz x 2 x 256 and 512"
)


def _record(k: int, operand: DType, accumulator: DType) -> MmaAtom:
    wide = accumulator is f32
    # The whitepapers' peaks are those of the widest instruction.
    rates = (
        Rate("sm_80", 1024, _A100),
        Rate("sm_86", 256 if wide else 512, _GA10X),
        Rate("sm_89", 256 if wide else 512, _AD10X),
    )
    types = (accumulator, operand, operand)
    return dense((16, 8, k), types, arch="sm_80", version=(7, 0), rates=rates if k == 16 else ())


def _turing(accumulator: DType) -> MmaAtom:
    rate = Rate("sm_75", 256 if accumulator is f32 else 512, _TU10X)
    return dense((16, 8, 8), (accumulator, f16, f16), arch="sm_75", version=(6, 5), rates=(rate,))


def _family(t: DType, acc: DType) -> Family:
    def make() -> tuple[MmaAtom, ...]:
        older = (_turing(acc),) if t is f16 else ()
        return (_record(8, t, acc), _record(16, t, acc), *older)

    return Family(t, t, acc, "registers", make)


ATOMS = tuple(_family(t, acc) for t, acc in ((f16, f16), (f16, f32), (bf16, f32)))
