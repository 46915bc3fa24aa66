"""`dev.fuzz.products` as programs of both languages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dev.fuzz.products import Product


def _extents(p: Product) -> dict[str, tuple[str, str]]:
    """The names of the extents of each array."""
    depth = "H" if p.words else "K"
    found = {
        "a": (depth, "M") if p.turned[0] else ("M", depth),
        "b": ("K", "N") if p.turned[1] else ("N", "K"),
    }
    if p.words:
        found["e"] = ("M", "E")
    if p.scale and p.rows != "number":
        found["v"] = ("M", "1") if p.rows == "tile" else ("1", "M")
    if p.scale and p.columns == "tile":
        found["w"] = ("1", "N")
    if isinstance(p.start, str):
        found["c0"] = ("M", "N")
    found["c"] = ("N", "M") if p.transposed else ("M", "N")
    return found


def _types(p: Product) -> dict[str, str]:
    start = p.start if isinstance(p.start, str) else ""
    return {"a": p.stored[0], "b": p.stored[1], "e": p.words, "v": "f32", "w": "f32", "c0": start, "c": p.out}


class _Tiles:
    """Extents of tiles and their places, as text that both languages share."""

    def __init__(self, p: Product) -> None:
        self.p = p
        m, n, k = p.tile
        self.rows, self.columns, self.depth = m, n, k
        half = k // 2 if p.words else k
        self.a = (half, m) if p.turned[0] else (m, half)
        self.b = (k, n) if p.turned[1] else (n, k)
        self.e = (m, k // p.unit) if p.words else (0, 0)

    def of_block(self, name: str) -> str:
        """The tile of an operand in global memory for step t."""
        first, second = {"a": ("i", "t"), "b": ("j", "t"), "e": ("i", "t")}[name]
        if name in "ab" and self.p.turned["ab".index(name)]:
            first, second = second, first
        h, w = getattr(self, name)
        return f"{name}.subspan({h}, {w}).at({first}, {second})"

    def of_part(self, name: str, base: str) -> str:
        """The part of a tile for instance x and step s of K."""
        h, w = getattr(self, name)
        k_axis = 0 if name in "ab" and self.p.turned["ab".index(name)] else 1
        extents, places = [h, w], ["0", "0"]
        extents[k_axis] //= self.p.steps
        places[k_axis] = "s" if self.p.steps > 1 else "0"
        if name != "b":
            extents[1 - k_axis] //= self.p.parts
            places[1 - k_axis] = "x" if self.p.parts > 1 else "0"
        if self.p.parts == 1 and self.p.steps == 1:
            return base
        return f"{base}.subspan({extents[0]}, {extents[1]}).at({places[0]}, {places[1]})"

    def in_global(self, name: str) -> str:
        """The same, of an array."""
        h, w = getattr(self, name)
        k_axis = 0 if name in "ab" and self.p.turned["ab".index(name)] else 1
        extents, places = [h, w], ["", ""]
        extents[k_axis] //= self.p.steps
        places[k_axis] = f"t * {self.p.steps} + s" if self.p.steps > 1 else "t"
        other = "j" if name == "b" else "i"
        if name != "b":
            extents[1 - k_axis] //= self.p.parts
            other = f"i * {self.p.parts} + x" if self.p.parts > 1 else "i"
        places[1 - k_axis] = other
        return f"{name}.subspan({extents[0]}, {extents[1]}).at({places[0]}, {places[1]})"

    @property
    def own(self) -> str:
        return f"i * {self.p.parts} + x" if self.p.parts > 1 else "i"

    def result(self, name: str, turned: bool = False) -> str:
        h, w = self.rows // self.p.parts, self.columns
        text = f"({w}, {h}).at(j, {self.own})" if turned else f"({h}, {w}).at({self.own}, j)"
        return f"{name}.subspan{text}"

    def scales(self) -> tuple[str, str]:
        h, w = self.rows // self.p.parts, self.columns
        rows = {
            "number": "0.5",
            "tile": f"v.subspan({h}, 1).at({self.own}, 0)",
            "turned": f"v.subspan(1, {h}).at(0, {self.own})",
        }
        return rows[self.p.rows], f"w.subspan(1, {w}).at(0, j)" if self.p.columns == "tile" else "2.0"


def _blocks(p: Product) -> str:
    return f"cdiv(M, {p.tile[0]}), cdiv(N, {p.tile[1]})"


def _operand_names(p: Product) -> list[str]:
    return ["a", "b", "e"] if p.words else ["a", "b"]


def python(p: Product) -> str:
    """The kernel ``k`` in Python."""
    tiles, types, extents = _Tiles(p), _types(p), _extents(p)
    params = []
    for name, dims in extents.items():
        texts = [d if d == "1" else f'"{d}"' for d in dims]
        params.append(f'{name}: tm.Global["{types[name]}", {", ".join(texts)}]')
    if p.mask != (-1, -1):
        params += ["r: tm.Int", "q: tm.Int"]
    lines = ["@tm.kernel", f"def k({', '.join(params)}):"]
    k_axis = 0 if p.turned[1] else 1
    shape = "N, M" if p.transposed else "M, N"
    lines += [f"    ({shape}), K = c.shape, b.shape[{k_axis}]"]
    lines += [f'    for i, j in parallel({_blocks(p)}, level="block"):']
    if p.source in ("copy", "view", "tma"):
        for name in _operand_names(p):
            h, w = getattr(tiles, name)
            lines.append(f'        {name}_s = shared("{types[name]}", {h}, {w})')
    level = f'for x in parallel({p.parts}, level="{p.level}"):'
    fast = ", fast=True" if p.fast else ""
    fill = f'mc = mma.fill({p.start}, "{p.d}"{fast})'
    if isinstance(p.start, str):
        fill = f'mc = mma.load({tiles.result("c0")}, dtype="{p.d}")'
    steps = _step(p, tiles, PYTHON)
    loop = f"for t in foreach(cdiv(K, {p.tile[2]})):"
    if p.inside:
        lines += ["        " + level, f"            {fill}", f"            {loop}"]
        lines += ["                " + x for x in _python_copies(p, tiles)]
        lines += ["                " + x for x in steps]
    else:
        lines += [f"        {fill}", f"        {loop}"]
        lines += ["            " + x for x in _python_copies(p, tiles)]
        lines += ["            " + level] + ["                " + x for x in steps]
        lines += ["        " + level]
    lines += ["            " + x for x in _python_end(p, tiles)]
    return "\n".join(lines) + "\n"


def _python_copies(p: Product, tiles: _Tiles) -> list[str]:
    found = []
    for name in _operand_names(p):
        match p.source:
            case "copy" | "view":
                found.append(f"dma.copy({tiles.of_block(name)}, {name}_s)")
            case "tma":
                engine = "dma" if name == "e" else "tma"
                found.append(f"{engine}.copy({tiles.of_block(name)}, {name}_s)")
            case "shared":
                found.append(f'{name}_f = dma.copy({tiles.of_block(name)}, to="shared")')
    return found


def _place(p: Product, tiles: _Tiles, name: str) -> str:
    if p.source == "global":
        return tiles.in_global(name)
    return tiles.of_part(name, f"{name}_f.data" if p.source == "shared" else f"{name}_s")


@dataclass(frozen=True)
class Syntax:
    """The statements of a step in a language: ``load(name, place, type)``, ``multiply(form, operands, atom)``."""

    load: Callable[[str, str, str], str]
    multiply: Callable[[str, str, str], str]
    scale: str
    number: Callable[[str], str]
    loop: tuple[str, str, tuple[str, ...]]  # the head, the indentation of the body, the end


def _argument(name: str, value: str) -> str:
    return f', {name}="{value}"' if value else ""


PYTHON = Syntax(
    load=lambda name, place, t: f"m{name} = mma.load({place}{_argument('dtype', t)})",
    multiply=lambda form, operands, atom: f"mma.{form}(mc, {operands}{_argument('atom', atom)})",
    scale="mma.scale(mc, {}, {})",
    number=str,
    loop=("for s in foreach({}):", "    ", ()),
)
CROQTILE = Syntax(
    load=lambda name, place, t: f"m{name} = mma.load{t and '.' + t} {place};",
    multiply=lambda form, operands, atom: f"{atom and f'[[atom({atom})]] '}mma.{form} mc, {operands};",
    scale="mma.scale mc, {}, {};",
    number=lambda x: x + "f",
    loop=("foreach s in [{}] {{", "  ", ("}",)),
)


def _step(p: Product, tiles: _Tiles, syntax: Syntax) -> list[str]:
    """The loads and the multiply of one step of the main loop."""
    lines = []
    operands = []
    for name, want, have in zip("ab", p.operands, p.stored, strict=True):
        place = _place(p, tiles, name)
        if p.source == "view":
            operands.append(place)
            continue
        lines.append(syntax.load(name, place, want if want != have else ""))
        operands.append(("-" if name in p.signs else "") + f"m{name}")
    form = str(p.contract)
    if p.words:
        lines.append(syntax.load("e", _place(p, tiles, "e"), ""))
        operands.append("me")
        form += ".sp"
    scales = [syntax.number(x) if x[0].isdigit() else x for x in tiles.scales()]
    fused = p.scale == "fused" and not p.words
    if fused:
        operands += scales
        form = f"{p.contract}.scale"
    lines.append(syntax.multiply(form, ", ".join(operands), p.atom))
    if p.scale and not fused:
        lines.append(syntax.scale.format(*scales))
    if p.steps > 1:
        head, indent, end = syntax.loop
        return [head.format(p.steps), *(indent + x for x in lines), *end]
    return lines


def _python_end(p: Product, tiles: _Tiles) -> list[str]:
    options = ", transp=True" if p.transposed else ""
    options += ", rows=r, columns=q" if p.mask != (-1, -1) else ""
    value = f"mc * {p.factor}" if p.factor else "mc"
    return [f"mma.store({value}, {tiles.result('c', p.transposed)}{options})"]


def croqtile(p: Product) -> str:
    """The kernel ``k`` in Croqtile."""
    tiles, types, extents = _Tiles(p), _types(p), _extents(p)
    params = [f"global {types[name]} [{', '.join(dims)}] {name}" for name, dims in extents.items()]
    if p.mask != (-1, -1):
        params += ["int r", "int q"]
    lines = [f"__co__ void k({', '.join(params)}) {{"]
    lines += [f"  parallel {{i, j}} by [{_blocks(p)}] : block {{"]
    if p.source in ("copy", "view", "tma"):
        for name in _operand_names(p):
            h, w = getattr(tiles, name)
            lines.append(f"    shared {types[name]} [{h}, {w}] {name}_s;")
    level = f"parallel x by {p.parts} : {p.level} {{"
    fill = f"mc = mma.fill.{p.d}{'.fast' if p.fast else ''} {p.start};"
    if isinstance(p.start, str):
        convert = f".{p.d}" if p.start != p.d else ""
        fill = f"mc = mma.load{convert} {tiles.result('c0')};"
    steps = _step(p, tiles, CROQTILE)
    loop = f"foreach t in [cdiv(K, {p.tile[2]})] {{"
    if p.inside:
        lines += [f"    {level}", f"      {fill}", f"      {loop}"]
        lines += ["        " + x for x in (*_croqtile_copies(p, tiles), *steps)]
        lines += ["      }"]
    else:
        lines += [f"    {fill}", f"    {loop}"]
        lines += ["      " + x for x in _croqtile_copies(p, tiles)]
        lines += [f"      {level}"] + ["        " + x for x in steps] + ["      }", "    }"]
        lines += [f"    {level}"]
    lines += ["      " + x for x in _croqtile_end(p, tiles)]
    lines += ["    }", "  }", "}"]
    return "\n".join(lines) + "\n"


def _croqtile_copies(p: Product, tiles: _Tiles) -> list[str]:
    found = []
    for name in _operand_names(p):
        match p.source:
            case "copy" | "view":
                found.append(f"dma.copy {tiles.of_block(name)} => {name}_s;")
            case "tma":
                engine = "dma" if name == "e" else "tma"
                found.append(f"{engine}.copy {tiles.of_block(name)} => {name}_s;")
            case "shared":
                found.append(f"{name}_f = dma.copy {tiles.of_block(name)} => shared;")
    return found


def _croqtile_end(p: Product, tiles: _Tiles) -> list[str]:
    suffix = (".transp" if p.transposed else "") + (".mask" if p.mask != (-1, -1) else "")
    limits = ", r, q" if p.mask != (-1, -1) else ""
    lines, value = [], "mc"
    if p.factor:
        m, n = p.tile[0] // p.parts, p.tile[1]
        wide = "f64" if p.d == "f64" else p.d if p.d[0] == "f" else "f32"
        lines, value = [f"frag {wide}[{m}, {n}] md;", f"md = mc * {p.factor}f;"], "md"
    return [*lines, f"mma.store{suffix} {value}, {tiles.result('c', p.transposed)}{limits};"]
