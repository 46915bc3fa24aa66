"""Classes of products that users have, and how their shapes are drawn; for `survey_ops.py`."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilemma import dtypes
from tilemma.ops.arguments import GROUPED, PLAIN, SCALED, Call
from tilemma.runtime.arrays import ArrayRef

# (N, K) of the projections of language models: Llama 1B, 8B and 70B, Qwen 7B and 32B, DeepSeek V3, Mixtral.
PROJECTIONS = (
    (3072, 2048), (16384, 2048), (2048, 8192), (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336),
    (128256, 4096), (10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672), (4608, 3584), (3584, 3584),
    (37888, 3584), (3584, 18944), (7168, 5120), (5120, 25600), (51200, 5120), (2112, 7168), (24576, 1536),
    (32768, 512), (7168, 16384), (36864, 7168), (7168, 18432), (4096, 7168), (7168, 2048), (256, 7168), (8, 4096),
)  # fmt: skip
ROWS = (1, 2, 4, 8, 16, 32, 64, 100, 128, 200, 256, 300, 384, 512, 768, 1000, 1024, 1536, 2048, 4096, 8192)
# (experts, N, K) of layers of experts.
EXPERTS = (
    (8, 14336, 4096), (8, 4096, 14336), (64, 2816, 2048), (64, 2048, 1408), (128, 1536, 4096), (128, 768, 2048),
    (128, 2048, 768), (256, 4096, 7168), (256, 7168, 2048), (32, 5760, 2880), (16, 16384, 5120),
)  # fmt: skip
LAYOUTS = ("RR", "CC", "CR")
# Operations and bytes a second by which it is guessed how long a product takes; single launches of those that take
# so many seconds are timed; bytes of all copies of the others' operands.
RATE, MEMORY, LONG, COLD = 7e14, 4e12, 3e-5, 120e6
# Bytes of all arrays of a product, at most.
MOST = 3e9


@dataclass(frozen=True)
class Case:
    """A product: ``layout`` of A and B, R or C; ``shared``: "a" or "b", the same for all of the batch."""

    kind: str
    m: int
    n: int
    k: int
    batch: int = 1
    types: tuple[str, str] = ("bf16", "bf16")
    layout: str = "RC"
    scales: str = ""
    out: str = "bf16"
    epilogue: str = ""
    shared: str = ""
    groups: tuple[int, ...] = ()

    def __str__(self) -> str:
        size = f"{self.batch} x " * (self.batch > 1) + f"{self.m}x{self.n}x{self.k}"
        types = "/".join(dict.fromkeys(self.types)) + f">{self.out}" * (self.out != self.types[0])
        more = [types] * (types != "bf16") + [self.layout] * (self.layout != "RC") + [self.scales, self.epilogue]
        groups = f"{len(self.groups)} groups to {max(self.groups)}" if self.groups else ""
        more += [f"shared {self.shared}"] * bool(self.shared) + [groups]
        return f"{self.kind}: {size} " + " ".join(x for x in more if x)

    @property
    def bytes(self) -> float:
        left, right = (dtypes.dtype(x).bytes for x in self.types)
        a = self.m * self.k * left * (1 if self.shared == "a" else self.batch)
        b = self.n * self.k * right * (1 if self.shared == "b" else self.batch) * max(1, len(self.groups))
        return a + b + self.batch * self.m * self.n * dtypes.dtype(self.out).bytes

    @property
    def seconds(self) -> float:
        """A guess."""
        work = 2.0 * self.batch * self.m * self.n * self.k
        return max(work / RATE / (3 - dtypes.dtype(self.types[0]).bytes), self.bytes / MEMORY)

    @property
    def copies(self) -> int:
        """Copies of the operands that replays of a graph take turns with; 1: single launches are timed."""
        if self.seconds > LONG and (self.batch > 1 or min(self.m, self.n) > 256 or self.groups):
            return 1
        return max(2, min(16, math.ceil(COLD / self.bytes)))


def between(rng: random.Random, low: int, high: int, step: int = 1) -> int:
    value = math.exp(rng.uniform(math.log(low), math.log(high)))
    return max(step, round(value / step) * step)


def _prime(rng: random.Random, low: int, high: int) -> int:
    while True:
        x = rng.randrange(low, high)
        if all(x % i for i in range(2, math.isqrt(x) + 1)):
            return x


Draw = Callable[[random.Random], Case]


def _draws() -> dict[str, Draw]:
    """How each kind is drawn."""

    def case(kind: str, *sizes: Any, **more: Any) -> Draw:
        """The draw of M, N and K, and of the other fields: functions of the numbers that are drawn, or values."""

        def drawn(rng: random.Random) -> Case:
            m, n, k = (x(rng) if callable(x) else x for x in sizes)
            fields = {name: x(rng) if callable(x) else x for name, x in more.items()}
            return Case(kind, m, n, k, **fields)

        return drawn

    def size(low: int, high: int, step: int = 1) -> Any:
        return lambda rng: between(rng, low, high, step)

    def one(*x: Any) -> Any:
        return lambda rng: rng.choice(x)

    half = one(("bf16", "bf16"), ("f16", "f16"))

    def projection(rng: random.Random) -> Case:
        n, k = rng.choice(PROJECTIONS)
        kind = rng.choice(("bf16", "f16"))
        return Case("projections", rng.choice(ROWS), n, k, types=(kind, kind), out=kind)

    def floats(rng: random.Random, kind: str, m: int, n: int, k: int, forms: tuple[str, ...]) -> Case:
        types = rng.choice((("f8_e4m3",) * 2, ("f8_e4m3", "f8_e5m2"), ("f8_e5m2", "f8_e4m3")))
        return Case(kind, m, n, k, types=types, scales=rng.choice(forms), out=rng.choice(("bf16", "bf16", "f16")))

    def float_projection(rng: random.Random) -> Case:
        n, k = rng.choice(PROJECTIONS[:-1])
        return floats(rng, "8-bit projections", rng.choice(ROWS[4:]), n, k, ("tensor", "rows"))

    def float_blocks(rng: random.Random) -> Case:
        n, k = rng.choice(PROJECTIONS[:-2])
        types, m = ("f8_e4m3", "f8_e4m3"), rng.choice(ROWS[6:])
        return Case("8-bit blocks", m, n, k // 128 * 128, types=types, scales="blocks")

    def float_sizes(rng: random.Random) -> Case:
        sizes = between(rng, 64, 16384, 16), between(rng, 256, 8192, 16), between(rng, 256, 8192, 16)
        return floats(rng, "8-bit sizes", *sizes, ("tensor", "rows"))

    def integers(rng: random.Random) -> Case:
        sizes = between(rng, 64, 8192, 8), between(rng, 512, 8192, 16), between(rng, 512, 8192, 16)
        out, form = rng.choice((("s32", ""), ("bf16", "rows"), ("f16", "tensor"), ("s8", "tensor")))
        return Case("integers", *sizes, types=("s8", "s8"), scales=form, out=out)

    def experts(rng: random.Random) -> Case:
        count, n, k = rng.choice(EXPERTS)
        tokens = rng.choice((64, 512, 2048, 4096, 8192, 16384))
        kind = rng.choice(("bf16", "bf16", "f8_e4m3"))
        way = rng.choice(("router", "skewed", "one", "equal"))
        weights = [rng.gauss(0, 1) for _ in range(count)]
        shares = [math.exp(x) if way == "skewed" else 1.0 for x in weights]
        sizes = [0] * count
        if way == "one":
            sizes[count // 3] = tokens
        elif way == "equal":
            sizes = [tokens // count] * count
        else:
            for e in rng.choices(range(count), shares, k=tokens):
                sizes[e] += 1
        total = sum(sizes)
        if total == 0:
            return experts(rng)
        scales = rng.choice(("rows", "rows", "blocks")) if kind != "bf16" else ""
        return Case("experts", total, n, k, types=(kind, kind), scales=scales, groups=tuple(sizes))

    def powers(rng: random.Random) -> Case:
        m, n, k = (1 << rng.randrange(low, 14) for low in (4, 8, 8))
        return Case("powers of two", m, n, k)

    found: dict[str, Draw] = {
        "projections": projection, "8-bit projections": float_projection, "8-bit blocks": float_blocks,
        "8-bit sizes": float_sizes, "integers": integers, "experts": experts, "powers of two": powers,
    }  # fmt: skip
    weights = size(2048, 16384, 128)
    for c in (
        case("some hundred rows", size(257, 1023), weights, weights),
        case("tall", size(4096, 65536), size(16, 128, 8), size(256, 8192, 8)),
        case("tall, f16", size(4096, 65536), size(1, 128), size(256, 8192, 64), types=("f16", "f16"), out="f16"),
        case("few rows", size(1, 16), weights, weights, types=half),
        case("f16 rows", size(17, 256), weights, weights, types=("f16", "f16"), out="f16"),
        case("medium rows", size(65, 224), size(8192, 16384, 128), size(8192, 16384, 128)),
        case("very large", *[size(6144, 16384, 64)] * 3),
        case("very long K", *[size(512, 2048, 64)] * 2, size(16384, 65536, 64)),
        case("K of 8", size(1024, 8192), size(1024, 8192, 64), lambda rng: 8 * rng.randrange(128, 1024, 1) | 8),
        case("N of 8", size(1024, 8192), lambda rng: 8 * rng.randrange(128, 1024) | 8, size(1024, 8192, 64)),
        case("prime rows", lambda rng: _prime(rng, 200, 6000), weights, weights),
        case("large, transposed", *[size(1024, 8192, 64)] * 3, layout=one(*LAYOUTS)),
        case("rows, transposed", size(1, 256), weights, weights, layout=one("RR", "RR", "CR", "CC")),
        case("some hundred rows, transposed", size(257, 1023, 8), weights, weights,
             layout=one("RR", "RR", *LAYOUTS)),
        case("batches, transposed", *[size(32, 1024, 8)] * 3, batch=size(16, 512), layout=one(*LAYOUTS)),
        case("few of medium size", *[size(256, 2048, 8)] * 3, batch=size(2, 15)),
        case("few of medium size, transposed", *[size(256, 2048, 8)] * 3, batch=size(2, 15),
             layout=one(*LAYOUTS)),
        case("few of long K", *[size(64, 512, 8)] * 2, size(2048, 16384, 8), batch=size(2, 15)),
        case("shared weights", size(1, 512), size(512, 8192, 8), size(512, 8192, 8), batch=size(2, 64),
             shared="b", layout=one("RC", "RC", "RR")),
        case("shared rows", size(16, 1024, 8), size(16, 1024, 8), size(64, 1024, 8), batch=size(4, 256),
             shared="a", layout=one("RC", "RR")),
        case("decode scores", one(1, 1, 4, 8), one(512, 1024, 2048, 4096, 8192), one(64, 128),
             batch=size(16, 1024)),
        case("decode context", one(1, 1, 4, 8), one(64, 128), one(512, 1024, 2048, 4096, 8192),
             batch=size(16, 1024), layout="RR"),
        case("scores", *[one(512, 1024, 2048, 4096)] * 2, one(32, 64, 96, 128), batch=size(4, 128)),
        case("context", one(512, 1024, 2048, 4096), one(64, 128), one(512, 1024, 2048, 4096), batch=size(4, 128),
             layout="RR"),
        case("batches, long unaligned K", size(32, 128), size(32, 128), size(400, 2000), batch=size(16, 120)),
        case("outer products", *[size(512, 8192, 8)] * 2, one(8, 16, 32, 64, 128)),
        case("epilogues", size(16, 8192), weights, weights, types=half,
             epilogue=one("bias", "bias gelu", "bias relu", "c", "c bias silu", "f32", "rows relu")),
    ):  # fmt: skip
        found[c(random.Random(0)).kind] = c
    return found


DRAWS = _draws()
KINDS = tuple(DRAWS)


def cases(count: int, seed: int, kinds: tuple[str, ...] = KINDS) -> list[Case]:
    rng, found = random.Random(seed), dict[Case, None]()
    while len(found) < count:
        c = DRAWS[kinds[len(found) % len(kinds)]](rng)
        if c.types == ("f16", "f16") and c.out == "bf16":
            c = Case(**{**c.__dict__, "out": "f16"})
        if c.epilogue == "f32":
            c = Case(**{**c.__dict__, "out": "f32", "epilogue": ""})
        if c.bytes <= MOST:
            found[c] = None
    return list(found)


Make = Callable[[tuple[int, ...], str, bool], ArrayRef]


def call_of(c: Case, make: Make) -> tuple[Call, ArrayRef]:
    """The call of a case; ``make(shape, dtype, transposed)`` gives its arrays, of offsets the groups' ends."""
    outer = (c.batch,) * (c.batch > 1)
    left, right = (() if c.shared == "a" else outer), (() if c.shared == "b" else outer)
    if c.groups:
        right = (len(c.groups),)
    a = make((*left, c.k, c.m) if c.layout[0] == "C" else (*left, c.m, c.k), c.types[0], c.layout[0] == "C")
    b = make((*right, c.n, c.k) if c.layout[1] == "C" else (*right, c.k, c.n), c.types[1], c.layout[1] == "C")
    out, more = make((*outer, c.m, c.n), c.out, False), dict[str, Any]()
    if c.scales:
        steps, blocks = -(-c.k // 128), -(-c.n // 128)
        forms = {
            "tensor": ((1, 1), (1, 1)),
            "rows": ((1, c.m), (1, c.n)),
            "blocks": ((steps, c.m), (blocks, steps)),
        }
        shapes = forms[c.scales]
        second = (*right[: len(c.groups) > 0], *shapes[1])
        more["scale_a"] = make(shapes[0], "f32", True)
        more["scale_b"] = make(second, "f32", c.scales == "blocks")
    if c.groups:
        more["offsets"] = make((len(c.groups),), "s32", False)
    if "c" in c.epilogue.split():
        more |= {"c": make((*outer, c.m, c.n), c.out, False), "beta": 0.5}
    if "bias" in c.epilogue.split():
        more["bias"] = make((c.n,), c.out, False)
    if "rows" in c.epilogue.split():
        more["bias"] = make((c.m, 1), c.out, False)
    activation = next((x for x in ("gelu", "relu", "silu") if x in c.epilogue.split()), None)
    scaled = bool(c.scales) or c.types[0].startswith("f8")
    rules = GROUPED if c.groups else SCALED if scaled else PLAIN
    return Call(a, b, rules=rules, activation=activation, **more), out
