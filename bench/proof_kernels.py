"""PTX of the hardware proof: for each record of the catalogue a kernel that feeds it chosen operands and
shows what came out where.  Nothing in the kernels knows a fragment layout: they move registers and bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilemma.atoms import CopyAtom, MmaAtom
from tilemma.atoms.atom import REGISTER_BITS

# Shared memory of the wgmma kernels, in bytes: tile of A, tile of B, one warpgroup's accumulators.
A_AT, B_AT, D_AT = 0, 16384, 57344
SHARED_BYTES = D_AT + 128 * 128 * 4
ACCUMULATED = 512  # added to the accumulator beforehand where the instruction is asked to accumulate
SLOTS = 32  # what the list of one register has room for: 16 elements along K, two digits each


def header(arch: str) -> str:
    # 8.7 has the newest form, m16n8k16 of 8-bit floats.
    return f".version 8.7\n.target {arch}\n.address_size 64\n.extern .shared .align 1024 .b8 smem[];\n"


def module(arch: str, kernels: Iterable[str]) -> str:
    """One PTX module with these entries."""
    return header(arch) + "\n".join(kernels)


def names(prefix: str, count: int) -> list[str]:
    return [f"%{prefix}{i}" for i in range(count)]


def declare(operand: object, prefix: str) -> str:
    return f"  .reg .{operand.register} %{prefix}<{operand.registers}>;"


def entry(name: str, params: str, threads: int, body: Iterable[str]) -> str:
    declared = ", ".join(f".param .{p.split()[0]} {p.split()[1]}" for p in params.split(", "))
    return "\n".join([f".visible .entry {name}({declared})", f".reqntid {threads}, 1, 1", "{", *body, "}"])


def mma_sync(atom: MmaAtom, name: str) -> str:
    """One warp a CTA: registers from a, b, c and e [CTA][lane][register], the instruction, registers to d."""
    letters = "abc" if atom.e is None else "abce"
    body = [
        "  .reg .u32 %lane, %cta, %index;",
        "  .reg .u64 %address, %step;",
        *(declare(getattr(atom, x), x) for x in (*letters, "d")),
        "  mov.u32 %lane, %tid.x;",
        "  mov.u32 %cta, %ctaid.x;",
        "  mad.lo.u32 %index, %cta, 32, %lane;",
    ]

    def move(letter: str) -> Iterable[str]:
        operand = getattr(atom, letter)
        yield f"  ld.param.u64 %address, [{letter}_at];"
        size = REGISTER_BITS[operand.register] // 8
        yield f"  mad.wide.u32 %address, %index, {size * operand.registers}, %address;"
        for i, register in enumerate(names(letter, operand.registers)):
            if letter == "d":
                yield f"  st.global.{operand.register} [%address + {size * i}], {register};"
            else:
                yield f"  ld.global.{operand.register} {register}, [%address + {size * i}];"

    for letter in letters:
        body += move(letter)
    registers = {x: names(x, getattr(atom, x).registers) for x in (*letters, "d")}
    body += ["  " + atom.emit(**registers), *move("d"), "  ret;"]
    return entry(name, ", ".join(f"u64 {x}_at" for x in (*letters, "d")), 32, body)


def _wgmma_variants(atom: MmaAtom) -> list[tuple[int, int]]:
    return [(a, b) for a in ((0, 1) if not atom.a.in_registers else (0,)) for b in (0, 1)]


def _wgmma_emit(atom: MmaAtom, trans_a: int, trans_b: int, scale_d: str | int) -> str:
    a = names("a", 4) if atom.a.in_registers else "%desca"
    legal = {i.name for i in atom.immediates}
    trans = {n: x for n, x in (("trans_a", trans_a), ("trans_b", trans_b)) if n in legal}
    return "  " + atom.emit(d=names("d", atom.d.registers), a=a, b="%descb", scale_d=scale_d, **trans)


def wgmma(atom: MmaAtom, name: str) -> str:
    """One warpgroup a CTA.  Element p of A is 1 and all others 0, for the p of this CTA; B holds the number
    of each of its elements, one digit a pass.  Every accumulator is compared with what ``places`` says of
    its register, and when ``list_at`` is not 0 whatever is not zero is appended to its register's list.

    a_at[p]: byte offset of element p in A's tile (shared memory), ignored for A in registers.
    coords[p], places[lane][value]: row << 16 | col.  out: number of differences, then the highest p of one.
    """
    assert atom.shape[1] * atom.shape[2] <= 65536  # two digits number B's elements
    params = (
        "u64 a_at, u64 coords_at, u64 b_at, u64 places_at, u64 out_at, u64 list_at, u64 desc_a, u64 desc_b, "
        "u32 trans, u32 b_bytes, u32 one, u32 count"
    )
    body = [
        *_wgmma_start(atom),
        *_wgmma_fill_b(),
        *_wgmma_next_element(),
        *(_one_hot_registers(atom) if atom.a.in_registers else _one_hot_shared()),
        *_wgmma_multiply(atom),
        *_wgmma_compare(atom),
        "  bar.sync 0;",
        *([] if atom.a.in_registers else ["  mov.b16 %h, 0;", f"  @%first st.shared.b16 [%aat + {A_AT}], %h;"]),
        "  mov.u32 %step, %nctaid.x;",
        "  add.u32 %p, %p, %step;",
        "  bra ELEMENT;",
        "PASSED:",
        "  add.u32 %pass, %pass, 1;",
        "  setp.lt.u32 %more, %pass, 2;",
        "  @%more bra PASS;",
        "  ret;",
    ]
    return entry(name, params, 128, body)


def _wgmma_start(atom: MmaAtom) -> list[str]:
    """Registers and parameters; A's tile zeroed."""
    values, element = atom.d.values, atom.d.dtype.bits // 8
    return [
        "  .reg .u32 %thread, %smem, %i, %p, %pass, %count, %step, %bytes, %onehot, %aat, %coord, %row0, %k0;",
        "  .reg .u32 %v, %place, %row, %col, %q, %hi, %found, %slot, %index, %scratch, %trans, %lane, %which;",
        "  .reg .u64 %gp, %list, %entry, %desca, %descb, %start, %out, %places;",
        "  .reg .f32 %x, %want;",
        "  .reg .b16 %h;",
        "  .reg .pred %more, %first, %second, %here, %bad, %listed, %room, %t;",
        declare(atom.d, "d"),
        *([declare(atom.a, "a")] if atom.a.in_registers else []),
        "  mov.u32 %thread, %tid.x;",
        "  setp.eq.u32 %first, %thread, 0;",
        "  mov.u32 %smem, smem;",
        "  ld.param.u32 %count, [count];",
        "  ld.param.u32 %bytes, [b_bytes];",
        "  ld.param.u32 %onehot, [one];",
        "  ld.param.u32 %trans, [trans];",
        "  ld.param.u64 %out, [out_at];",
        "  ld.param.u64 %list, [list_at];",
        "  setp.ne.u64 %listed, %list, 0;",
        "  ld.param.u64 %places, [places_at];",
        f"  mad.wide.u32 %places, %thread, {4 * values}, %places;",
        f"  mad.lo.u32 %scratch, %thread, {values * element}, %smem;",
        f"  add.u32 %scratch, %scratch, {D_AT};",
        *descriptor("a", A_AT),
        *descriptor("b", B_AT),
        "  shl.b32 %i, %thread, 2;",
        "CLEAR:",
        f"  setp.lt.u32 %more, %i, {B_AT - A_AT};",
        "  @!%more bra CLEARED;",
        "  add.u32 %q, %smem, %i;",
        f"  st.shared.u32 [%q + {A_AT}], 0;",
        "  add.u32 %i, %i, 512;",
        "  bra CLEAR;",
        "CLEARED:",
        "  mov.u32 %pass, 0;",
    ]


def descriptor(letter: str, at: int) -> list[str]:
    """The parameter's descriptor, its start address relative to the tile, moved to where the tile is."""
    return [
        f"  add.u32 %i, %smem, {at};",
        "  shr.u32 %i, %i, 4;",
        "  cvt.u64.u32 %start, %i;",
        f"  ld.param.u64 %desc{letter}, [desc_{letter}];",
        f"  add.u64 %desc{letter}, %desc{letter}, %start;",
    ]


def _wgmma_fill_b() -> list[str]:
    """B's image of this pass to shared memory."""
    return [
        "PASS:",
        "  setp.ne.u32 %second, %pass, 0;",
        "  bar.sync 0;",
        "  ld.param.u64 %gp, [b_at];",
        "  mul.lo.u32 %i, %pass, %bytes;",
        "  cvt.u64.u32 %entry, %i;",
        "  add.u64 %gp, %gp, %entry;",
        "  shl.b32 %i, %thread, 2;",
        "FILL:",
        "  setp.lt.u32 %more, %i, %bytes;",
        "  @!%more bra FILLED;",
        "  cvt.u64.u32 %entry, %i;",
        "  add.u64 %entry, %gp, %entry;",
        "  ld.global.u32 %found, [%entry];",
        "  add.u32 %q, %smem, %i;",
        f"  st.shared.u32 [%q + {B_AT}], %found;",
        "  add.u32 %i, %i, 512;",
        "  bra FILL;",
        "FILLED:",
        "  mov.u32 %p, %ctaid.x;",
    ]


def _wgmma_next_element() -> list[str]:
    return [
        "ELEMENT:",
        "  setp.lt.u32 %more, %p, %count;",
        "  @!%more bra PASSED;",
        "  ld.param.u64 %gp, [coords_at];",
        "  mad.wide.u32 %gp, %p, 4, %gp;",
        "  ld.global.u32 %coord, [%gp];",
        "  shr.u32 %row0, %coord, 16;",
        "  and.b32 %k0, %coord, 65535;",
    ]


def _one_hot_registers(atom: MmaAtom) -> list[str]:
    """Element p is value p % values of lane p / values; two values share a register."""
    lines = [
        f"  div.u32 %lane, %p, {atom.a.values};",
        f"  rem.u32 %which, %p, {atom.a.values};",
        "  setp.eq.u32 %here, %lane, %thread;",
        "  and.b32 %i, %which, 1;",
        "  shl.b32 %i, %i, 4;",
        "  shl.b32 %q, %onehot, %i;",
        "  shr.u32 %which, %which, 1;",
    ]
    for j in range(atom.a.registers):
        lines += [f"  setp.eq.and.u32 %t, %which, {j}, %here;", f"  selp.b32 %a{j}, %q, 0, %t;"]
    return lines


def _one_hot_shared() -> list[str]:
    return [
        "  ld.param.u64 %gp, [a_at];",
        "  mad.wide.u32 %gp, %p, 4, %gp;",
        "  ld.global.u32 %aat, [%gp];",
        "  add.u32 %aat, %aat, %smem;",
        "  cvt.u16.u32 %h, %onehot;",
        f"  @%first st.shared.b16 [%aat + {A_AT}], %h;",
    ]


def _wgmma_multiply(atom: MmaAtom) -> list[str]:
    """The instruction, overwriting in the first pass and accumulating in the second; D to shared memory."""
    held = {"f32": f"0f{_f32(ACCUMULATED)}", "b32": "0x60006000"}[atom.d.register]  # 512.0 as f32, as f16x2
    registers = names("d", atom.d.registers)
    lines = ["  fence.proxy.async;", "  bar.sync 0;"]
    lines += [f"  mov.{atom.d.register} {r}, {held};" for r in registers]
    lines.append("  wgmma.fence.sync.aligned;")
    for a, b in _wgmma_variants(atom):
        lines += [
            f"  setp.eq.u32 %t, %trans, {a + 2 * b};",
            f"  @!%t bra SKIP{a}{b};",
            _wgmma_emit(atom, a, b, "%second"),
            f"SKIP{a}{b}:",
        ]
    lines += ["  wgmma.commit_group.sync.aligned;", "  wgmma.wait_group.sync.aligned 0;"]
    lines += [f"  st.shared.{atom.d.register} [%scratch + {4 * i}], {r};" for i, r in enumerate(registers)]
    return lines


def _wgmma_compare(atom: MmaAtom) -> list[str]:
    """Every accumulator of this lane against what it should be, and to its list what is not zero."""
    values, element, k = atom.d.values, atom.d.dtype.bits // 8, atom.shape[2]
    load = "ld.shared.f32 %x, [%i];" if element == 4 else "ld.shared.b16 %h, [%i];\n  cvt.f32.f16 %x, %h;"
    return [
        "  mov.u32 %v, 0;",
        "VALUE:",
        f"  mad.lo.u32 %i, %v, {element}, %scratch;",
        f"  {load}",
        f"  @%second sub.f32 %x, %x, 0f{_f32(ACCUMULATED)};",
        "  mad.wide.u32 %gp, %v, 4, %places;",
        "  ld.global.u32 %place, [%gp];",
        "  shr.u32 %row, %place, 16;",
        "  and.b32 %col, %place, 65535;",
        f"  mad.lo.u32 %q, %col, {k}, %k0;",
        "  shr.u32 %hi, %q, 8;",
        "  and.b32 %q, %q, 255;",
        "  selp.b32 %q, %hi, %q, %second;",
        "  add.u32 %q, %q, 1;",
        "  setp.eq.u32 %here, %row, %row0;",
        "  selp.b32 %q, %q, 0, %here;",
        "  cvt.rn.f32.u32 %want, %q;",
        "  setp.neu.f32 %bad, %x, %want;",
        "  @%bad red.global.add.u32 [%out], 1;",
        "  @%bad red.global.max.u32 [%out + 4], %p;",
        "  setp.neu.and.f32 %room, %x, 0f00000000, %listed;",
        "  @!%room bra UNLISTED;",
        f"  mad.lo.u32 %index, %thread, {values}, %v;",
        "  mad.wide.u32 %entry, %index, 4, %list;",
        "  atom.global.add.u32 %slot, [%entry], 1;",
        f"  setp.lt.u32 %room, %slot, {SLOTS};",
        f"  mad.lo.u32 %index, %index, {SLOTS}, %slot;",
        f"  add.u32 %index, %index, {128 * values};",
        "  mad.wide.u32 %entry, %index, 4, %list;",
        "  cvt.rzi.u32.f32 %found, %x;",
        "  shl.b32 %slot, %p, 1;",
        "  add.u32 %slot, %slot, %pass;",
        "  shl.b32 %slot, %slot, 12;",
        "  or.b32 %found, %found, %slot;",
        "  @%room st.global.u32 [%entry], %found;",
        "UNLISTED:",
        "  add.u32 %v, %v, 1;",
        f"  setp.lt.u32 %more, %v, {values};",
        "  @%more bra VALUE;",
    ]


def _f32(value: float) -> str:
    import struct

    return struct.pack(">f", value).hex().upper()


def matrix_copy(atom: CopyAtom, name: str) -> str:
    """One warp: bytes [0, 4096) from image_at to shared memory, the instruction with lane i's address
    at_[i], shared memory back to image_at; registers [lane][register] from or to registers_at.
    """
    assert atom.fragment is not None
    count = atom.fragment.registers
    load = atom.kind == "ldmatrix"
    registers = names("r", count)
    body = [
        "  .reg .u32 %lane, %smem, %i, %at, %word;",
        "  .reg .u64 %image, %regs, %gp;",
        "  .reg .pred %more;",
        f"  .reg .b32 %r<{count}>;",
        "  mov.u32 %lane, %tid.x;",
        "  mov.u32 %smem, smem;",
        "  ld.param.u64 %image, [image_at];",
        "  ld.param.u64 %regs, [registers_at];",
        f"  mad.wide.u32 %regs, %lane, {4 * count}, %regs;",
        *_image("IN", "ld.global.u32 %word, [%gp];", "st.shared.u32 [%at], %word;"),
        "  bar.sync 0;",
        "  ld.param.u64 %gp, [lanes_at];",
        "  mad.wide.u32 %gp, %lane, 4, %gp;",
        "  ld.global.u32 %at, [%gp];",
        "  add.u32 %at, %at, %smem;",
        *([] if load else [f"  ld.global.b32 {r}, [%regs + {4 * i}];" for i, r in enumerate(registers)]),
        "  " + atom.emit(address="%at", registers=registers),
        *([f"  st.global.b32 [%regs + {4 * i}], {r};" for i, r in enumerate(registers)] if load else []),
        "  bar.sync 0;",
        *_image("OUT", "ld.shared.u32 %word, [%at];", "st.global.u32 [%gp], %word;"),
        "  ret;",
    ]
    return entry(name, "u64 image_at, u64 lanes_at, u64 registers_at", 32, body)


def _image(label: str, *moves: str) -> list[str]:
    return [
        "  shl.b32 %i, %lane, 2;",
        f"{label}:",
        "  cvt.u64.u32 %gp, %i;",
        "  add.u64 %gp, %gp, %image;",
        "  add.u32 %at, %smem, %i;",
        *(f"  {m}" for m in moves),
        "  add.u32 %i, %i, 128;",
        "  setp.lt.u32 %more, %i, 4096;",
        f"  @%more bra {label};",
    ]


def async_copy(atom: CopyAtom, name: str) -> str:
    """One warp: shared memory from image_at, lane i copies from source_at + from[i] to lanes[i], of which
    sizes[i] bytes are read, and shared memory goes back to image_at.
    """
    body = [
        "  .reg .u32 %lane, %smem, %i, %at, %word, %size;",
        "  .reg .u64 %image, %source, %gp, %off;",
        "  .reg .pred %more;",
        "  mov.u32 %lane, %tid.x;",
        "  mov.u32 %smem, smem;",
        "  ld.param.u64 %image, [image_at];",
        "  ld.param.u64 %source, [source_at];",
        *_image("IN", "ld.global.u32 %word, [%gp];", "st.shared.u32 [%at], %word;"),
        "  bar.sync 0;",
        "  ld.param.u64 %gp, [from_at];",
        "  mad.wide.u32 %gp, %lane, 4, %gp;",
        "  ld.global.u32 %word, [%gp];",
        "  cvt.u64.u32 %off, %word;",
        "  add.u64 %source, %source, %off;",
        "  ld.param.u64 %gp, [sizes_at];",
        "  mad.wide.u32 %gp, %lane, 4, %gp;",
        "  ld.global.u32 %size, [%gp];",
        "  ld.param.u64 %gp, [lanes_at];",
        "  mad.wide.u32 %gp, %lane, 4, %gp;",
        "  ld.global.u32 %at, [%gp];",
        "  add.u32 %at, %at, %smem;",
        "  " + atom.emit(address="%at", source="%source", source_size="%size"),
        "  cp.async.commit_group;",
        "  cp.async.wait_group 0;",
        "  bar.sync 0;",
        *_image("OUT", "ld.shared.u32 %word, [%at];", "st.global.u32 [%gp], %word;"),
        "  ret;",
    ]
    return entry(name, "u64 image_at, u64 source_at, u64 from_at, u64 lanes_at, u64 sizes_at", 32, body)
