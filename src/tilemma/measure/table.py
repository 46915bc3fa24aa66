"""Times of several functions over several sizes, as a table and a plot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from tilemma.checked import checked, function, instance, optional
from tilemma.errors import WrongArgument, WrongArgumentType, described
from tilemma.measure.timing import Timing, bench
from tilemma.records import record

# Colours that readers with a colour vision deficiency tell apart, on light and dark ground.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
WIDTH, HEIGHT, MARGIN = 640, 360, 60
MAX_SIZES = 10_000


@record
class Table:
    """The times of ``names`` at ``sizes``; ``timings[i][j]`` is of size i and name j."""

    sizes: tuple[Any, ...]
    names: tuple[str, ...]
    timings: tuple[tuple[Timing, ...], ...]

    def _value(self, timing: Timing) -> float:
        return timing.tflops or (timing.gbytes if timing.gbytes else timing.median * 1e6)

    @property
    def unit(self) -> str:
        """The unit of the numbers: TFLOP/s where the operations are known, else GB/s, else microseconds."""
        first = self.timings[0][0]
        return "TFLOP/s" if first.tflops else "GB/s" if first.gbytes else "us"

    def __str__(self) -> str:
        head = ["size", *self.names, *(f"{n} / {self.names[0]}" for n in self.names[1:])]
        rows = [head]
        for size, timings in zip(self.sizes, self.timings, strict=True):
            values = [f"{self._value(t):.4g}" for t in timings]
            ratios = [f"{timings[0].median / t.median:.3f}" for t in timings[1:]]
            rows.append([str(size), *values, *ratios])
        widths = [max(len(r[i]) for r in rows) for i in range(len(head))]
        lines = ["  ".join(c.rjust(w) for c, w in zip(r, widths, strict=True)) for r in rows]
        where = self.timings[0][0]
        cold = ", L2 flushed before each call" if where.flushed else ""
        return "\n".join([f"{self.unit} on {where.where}, medians of {where.calls} calls{cold}", *lines])

    __repr__ = __str__

    def to_json(self) -> list[dict[str, Any]]:
        """One entry for each size and name."""
        return [
            {"size": size, **t.to_json()}
            for size, timings in zip(self.sizes, self.timings, strict=True)
            for t in timings
        ]

    def svg(self) -> str:
        """The table as a line plot over the sizes."""
        top = max(self._value(t) for row in self.timings for t in row) * 1.05
        steps = max(len(self.sizes) - 1, 1)

        def x(i: int) -> float:
            return MARGIN + (WIDTH - 2 * MARGIN) * i / steps

        def y(value: float) -> float:
            return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * value / top

        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
            'font-size="11" role="img">',
            f'<text x="{MARGIN}" y="{MARGIN - 30}" fill="currentColor">{self.unit} on '
            f"{escape(self.timings[0][0].where)}</text>",
        ]
        for tick in range(5):
            value = top * tick / 4
            parts.append(
                f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
                'stroke="currentColor" stroke-opacity="0.2"/>'
                f'<text x="{MARGIN - 6}" y="{y(value) + 4:.1f}" text-anchor="end" fill="currentColor">'
                f"{value:.3g}</text>"
            )
        for i, size in enumerate(self.sizes):
            parts.append(
                f'<text x="{x(i):.1f}" y="{HEIGHT - MARGIN + 16}" text-anchor="middle" fill="currentColor">'
                f"{escape(str(size))}</text>"
            )
        for j, name in enumerate(self.names):
            colour = COLOURS[j % len(COLOURS)]
            points = " ".join(f"{x(i):.1f},{y(self._value(row[j])):.1f}" for i, row in enumerate(self.timings))
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
            parts.append(
                f'<text x="{MARGIN + 8 + 120 * j}" y="{MARGIN - 12}" fill="{colour}">{escape(name)}</text>'
            )
        return "\n".join([*parts, "</svg>"])


@checked(
    functions=instance("a mapping from names to functions", Mapping),
    sizes=instance("a list of sizes", Sequence),
    arguments=function("a function from a size to the arguments of a call"),
    flops=optional(function("a function from a size to operations")),
    bytes=optional(function("a function from a size to bytes")),
)
def report(
    functions: Mapping[str, Callable[..., Any]],
    sizes: Sequence[Any],
    arguments: Callable[[Any], Sequence[Any]],
    *,
    flops: Callable[[Any], float] | None = None,
    bytes: Callable[[Any], float] | None = None,
    **options: Any,
) -> Table:
    """Times of ``functions`` at each of ``sizes``, as ratios to the first.

    ``arguments(size)``: the arguments of a call; ``flops(size)``, ``bytes(size)``: its work.  ``options`` are
    those of `bench`.  Raises WrongArgumentType, WrongArgument, and what `bench` raises.
    """
    if not isinstance(functions, Mapping) or not functions or not all(callable(f) for f in functions.values()):
        wanted = "a mapping from names to functions"
        raise WrongArgumentType(function="report", name="functions", got=described(functions), wanted=wanted)
    if isinstance(sizes, str):
        raise WrongArgumentType(function="report", name="sizes", got=described(sizes), wanted="a list of sizes")
    if not 1 <= len(sizes) <= MAX_SIZES:
        wanted = f"1 to {MAX_SIZES} sizes"
        raise WrongArgument(function="report", name="sizes", got=f"{len(sizes)} sizes", wanted=wanted)
    listed = tuple(sizes)
    rows = []
    for size in listed:
        given = arguments(size)
        work: dict[str, Any] = {n: f(size) for n, f in (("flops", flops), ("bytes", bytes)) if f is not None}
        instance("a list of arguments", Iterable).check("report", "the result of arguments", given)
        rows.append(tuple(bench(f, *given, name=name, **work, **options) for name, f in functions.items()))
    return Table(listed, tuple(functions), tuple(rows))
