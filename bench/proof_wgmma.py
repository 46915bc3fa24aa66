"""Proof of the wgmma records of every type, dense and sparse, by operands with one element of A in each row.

Experiment s: row r of A holds one element that is not zero, at a stored column that differs from row to row; over
all experiments every row has had each of its columns.  B holds one digit of the number of each of its elements, a
digit a launch.  D[r, j] is then one digit of B[j, k], with the k of row r; another row, column or position along K
would show another digit in some experiment.  Half of the experiments accumulate.  Operands in shared memory lie
where the layouts say, away from the tile's origin, so the descriptors are proved too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import proof_kernels as kernels
from numpy.typing import NDArray

from tilemma.arithmetic import sparsity
from tilemma.atoms import MmaAtom
from tilemma.atoms.atom import Operand
from tilemma.dtypes import DType, dtype
from tilemma.layouts import SWIZZLES, Major, SharedLayout, shared_layout

Array = NDArray[Any]
Case = tuple[Major, int]
ACCUMULATED = 31  # thread & 31 is in the accumulator beforehand where the instruction accumulates


def variants(atom: MmaAtom) -> list[dict[str, int]]:
    """The immediates of each form that a kernel holds: the majornesses, each sign alone, each selector."""
    names = {i.name: i.legal for i in atom.immediates}
    forms: list[dict[str, int]] = [{}]
    for name in ("trans_a", "trans_b"):
        if name in names:
            forms = [{**f, name: x} for f in forms for x in (0, 1)]
    forms += [{**forms[0], name: -1} for name in ("scale_a", "scale_b") if name in names]
    forms += [{**forms[0], "selector": x} for x in names.get("selector", ())[1:]]
    return forms


def kernel(atom: MmaAtom, name: str) -> str:
    """One warpgroup a CTA.  CTA s * digits + d is experiment s with digit d.

    a_at: an image of A for each experiment, of shared memory or registers [lane][register].  b_at: one of B for
    each digit.  e_at: metadata [lane].  k_at[s][row], hot_at[s][row]: position along K and value of the element.
    digit_at[d][column][k]: what B holds.  places[lane][value]: row << 16 | column.  out: number of differences,
    then the highest experiment of one.
    """
    params = (
        "u64 a_at, u64 b_at, u64 e_at, u64 k_at, u64 hot_at, u64 digit_at, u64 places_at, u64 out_at, "
        "u64 desc_a, u64 desc_b, u32 variant, u32 a_bytes, u32 b_bytes, u32 digits"
    )
    body = [*_start(atom), *_operands(atom), *_multiply(atom), *_compare(atom), "  ret;"]
    return kernels.entry(name, params, 128, body)


def sum_kernel(atom: MmaAtom, name: str) -> str:
    """One warpgroup a CTA: images and registers of its experiment, the instruction, registers to d_at.

    a_at and b_at: images of each experiment, of shared memory or registers.
    e_at, c_at, d_at: [CTA][lane][register].
    """
    arrays = ", ".join(f"u64 {x}_at" for x in "abecd")
    params = f"{arrays}, u64 desc_a, u64 desc_b, u32 a_bytes, u32 b_bytes"
    d = kernels.names("d", atom.d.registers)
    a = kernels.names("a", atom.a.registers) if atom.a.in_registers else "%desca"
    metadata = {} if atom.e is None else {"e": "%e0"}

    def held(letter: str, form: str) -> list[str]:
        address = [f"  ld.param.u64 %gp, [{letter}_at];", f"  mad.wide.u32 %gp, %i, {4 * len(d)}, %gp;"]
        return address + ["  " + form.format(r=r, at=f"[%gp + {4 * i}]") for i, r in enumerate(d)]

    body = [
        *_registers(atom),
        "  mov.u32 %s, %ctaid.x;",
        *_operands(atom, "%s"),
        "  mad.lo.u32 %i, %s, 128, %thread;",
        *held("c", f"ld.global.{atom.d.register} {{r}}, {{at}};"),
        "  fence.proxy.async;",
        "  bar.sync 0;",
        "  wgmma.fence.sync.aligned;",
        "  " + atom.emit(d=d, a=a, b="%descb", **metadata),
        "  wgmma.commit_group.sync.aligned;",
        "  wgmma.wait_group.sync.aligned 0;",
        *held("d", f"st.global.{atom.d.register} {{at}}, {{r}};"),
        "  ret;",
    ]
    return kernels.entry(name, params, 128, body)


def sum_arguments(
    atom: MmaAtom,
    a: Array,
    b: Array,
    c: Array,
    metadata: Array,
    out: Array,
    words: Callable[[Operand, Array], Array],
    gathered: Callable[[Operand, Array], Array],
) -> list[Any]:
    """The arguments of `sum_kernel` for values [experiments, rows, k] and registers of C and D."""
    b_images, desc_b = images_of(atom.b.dtype, b, ("K", 0))
    if atom.a.in_registers:
        a_images, desc_a, a_bytes = words(atom.a, gathered(atom.a, a)), 0, 0
    else:
        a_images, desc_a = images_of(atom.a.dtype, a, ("K", 0))
        a_bytes = a_images.shape[1]
    arrays = [np.ascontiguousarray(x) for x in (a_images, b_images, metadata, c)]
    numbers = [("u64", desc_a), ("u64", desc_b), ("u32", a_bytes), ("u32", b_images.shape[1])]
    return [*arrays, out, *numbers]


def _registers(atom: MmaAtom) -> list[str]:
    return [
        "  .reg .u32 %thread, %smem, %i, %q, %s, %digit, %digits, %bytes, %variant, %scratch;",
        "  .reg .u32 %v, %place, %row, %col;",
        "  .reg .u64 %gp, %at, %start, %desca, %descb, %out, %places, %rows, %hots, %table;",
        "  .reg .f32 %x, %want, %held;",
        "  .reg .b32 %word, %e0;",
        "  .reg .b16 %h;",
        "  .reg .pred %more, %adds, %bad, %t;",
        kernels.declare(atom.d, "d"),
        *([kernels.declare(atom.a, "a")] if atom.a.in_registers else []),
        "  mov.u32 %thread, %tid.x;",
        "  mov.u32 %smem, smem;",
    ]


def _start(atom: MmaAtom) -> list[str]:
    values, element = atom.d.values, atom.d.dtype.bits // 8
    return [
        *_registers(atom),
        "  ld.param.u32 %digits, [digits];",
        "  ld.param.u32 %variant, [variant];",
        "  mov.u32 %i, %ctaid.x;",
        "  div.u32 %s, %i, %digits;",
        "  rem.u32 %digit, %i, %digits;",
        "  add.u32 %q, %s, %digit;",
        "  and.b32 %q, %q, 1;",
        "  setp.ne.u32 %adds, %q, 0;",
        "  and.b32 %q, %thread, 31;",
        "  cvt.rn.f32.u32 %held, %q;",
        "  ld.param.u64 %out, [out_at];",
        "  ld.param.u64 %places, [places_at];",
        f"  mad.wide.u32 %places, %thread, {4 * values}, %places;",
        f"  mad.lo.u32 %scratch, %thread, {values * element}, %smem;",
        f"  add.u32 %scratch, %scratch, {kernels.D_AT};",
    ]


def _image(letter: str, which: str, at: int) -> list[str]:
    """Image number ``which`` of an operand to shared memory."""
    return [
        f"  ld.param.u64 %gp, [{letter}_at];",
        f"  ld.param.u32 %bytes, [{letter}_bytes];",
        f"  mad.wide.u32 %gp, {which}, %bytes, %gp;",
        "  shl.b32 %i, %thread, 2;",
        f"FILL_{letter}:",
        "  setp.lt.u32 %more, %i, %bytes;",
        f"  @!%more bra FILLED_{letter};",
        "  cvt.u64.u32 %at, %i;",
        "  add.u64 %at, %gp, %at;",
        "  ld.global.b32 %v, [%at];",
        # Swizzled already: as a value that was computed, the machine does not take it for a tile of the array.
        "  or.b32 %v, %v, 0;",
        "  add.u32 %q, %smem, %i;",
        f"  st.shared.b32 [%q + {at}], %v;",
        "  add.u32 %i, %i, 512;",
        f"  bra FILL_{letter};",
        f"FILLED_{letter}:",
    ]


def _operands(atom: MmaAtom, b_image: str = "%digit") -> list[str]:
    lines = [*_image("b", b_image, kernels.B_AT), *kernels.descriptor("b", kernels.B_AT)]
    if atom.a.in_registers:
        lines += [
            "  mad.lo.u32 %i, %s, 128, %thread;",
            "  ld.param.u64 %gp, [a_at];",
            f"  mad.wide.u32 %gp, %i, {4 * atom.a.registers}, %gp;",
            *(f"  ld.global.b32 %a{i}, [%gp + {4 * i}];" for i in range(atom.a.registers)),
        ]
    else:
        lines += [*_image("a", "%s", kernels.A_AT), *kernels.descriptor("a", kernels.A_AT)]
    if atom.e is not None:
        lines += [
            "  ld.param.u64 %gp, [e_at];",
            "  mov.u32 %i, %thread;" if b_image == "%digit" else "  mad.lo.u32 %i, %s, 128, %thread;",
            "  mad.wide.u32 %gp, %i, 4, %gp;",
            "  ld.global.b32 %e0, [%gp];",
        ]
    return lines


def _held(atom: MmaAtom) -> list[str]:
    """What the accumulators hold beforehand, as their type."""
    registers = kernels.names("d", atom.d.registers)
    if atom.d.register == "f32":
        return [f"  mov.f32 {r}, %held;" for r in registers]
    if atom.d.dtype.bits == 16:
        convert = ["  cvt.rn.f16.f32 %h, %held;", "  mov.b32 %word, {%h, %h};"]
        return convert + [f"  mov.b32 {r}, %word;" for r in registers]
    return ["  and.b32 %word, %thread, 31;", *(f"  mov.b32 {r}, %word;" for r in registers)]


def _multiply(atom: MmaAtom) -> list[str]:
    registers = kernels.names("d", atom.d.registers)
    lines = ["  fence.proxy.async;", "  bar.sync 0;", *_held(atom), "  wgmma.fence.sync.aligned;"]
    a = kernels.names("a", atom.a.registers) if atom.a.in_registers else "%desca"
    for i, form in enumerate(variants(atom)):
        metadata = {} if atom.e is None else {"e": "%e0"}
        text = atom.emit(d=registers, a=a, b="%descb", scale_d="%adds", **metadata, **form)
        lines += [f"  setp.eq.u32 %t, %variant, {i};", f"  @!%t bra SKIP{i};", "  " + text, f"SKIP{i}:"]
    lines += ["  wgmma.commit_group.sync.aligned;", "  wgmma.wait_group.sync.aligned 0;"]
    return lines + [f"  st.shared.{atom.d.register} [%scratch + {4 * i}], {r};" for i, r in enumerate(registers)]


def _compare(atom: MmaAtom) -> list[str]:
    values, element = atom.d.values, atom.d.dtype.bits // 8
    load = {
        "f32": "ld.shared.f32 %x, [%i];",
        "f16": "ld.shared.b16 %h, [%i];\n  cvt.f32.f16 %x, %h;",
        "s32": "ld.shared.b32 %word, [%i];\n  cvt.rn.f32.s32 %x, %word;",
    }[atom.d.dtype.name]
    return [
        "  ld.param.u64 %rows, [k_at];",
        "  mad.wide.u32 %rows, %s, 256, %rows;",
        "  ld.param.u64 %hots, [hot_at];",
        "  mad.wide.u32 %hots, %s, 256, %hots;",
        "  ld.param.u64 %table, [digit_at];",
        f"  mad.wide.u32 %table, %digit, {4 * atom.shape[1] * atom.shape[2]}, %table;",
        "  mov.u32 %v, 0;",
        "VALUE:",
        f"  mad.lo.u32 %i, %v, {element}, %scratch;",
        f"  {load}",
        "  @%adds sub.f32 %x, %x, %held;",
        "  mad.wide.u32 %gp, %v, 4, %places;",
        "  ld.global.u32 %place, [%gp];",
        "  shr.u32 %row, %place, 16;",
        "  and.b32 %col, %place, 65535;",
        "  mad.wide.u32 %gp, %row, 4, %rows;",
        "  ld.global.u32 %i, [%gp];",
        f"  mad.lo.u32 %i, %col, {atom.shape[2]}, %i;",
        "  mad.wide.u32 %gp, %i, 4, %table;",
        "  ld.global.f32 %want, [%gp];",
        "  mad.wide.u32 %gp, %row, 4, %hots;",
        "  ld.global.f32 %held, [%gp];",
        "  mul.f32 %want, %want, %held;",
        "  and.b32 %q, %thread, 31;",
        "  cvt.rn.f32.u32 %held, %q;",
        "  setp.neu.f32 %bad, %x, %want;",
        "  @%bad red.global.add.u32 [%out], 1;",
        "  @%bad red.global.max.u32 [%out + 4], %s;",
        "  add.u32 %v, %v, 1;",
        f"  setp.lt.u32 %more, %v, {values};",
        "  @%more bra VALUE;",
    ]


# --- the experiments ----------------------------------------------------------------------------------------


def cases_of(operand: Operand) -> list[Case]:
    """Every majorness and swizzle; a swizzled K-major operand is no longer than the swizzle's span along K."""
    size = operand.shape[1] * operand.dtype.bits // 8
    every = ((major, swizzle) for major in operand.majors for swizzle in SWIZZLES)
    return [(major, swizzle) for major, swizzle in every if major == "MN" or not 0 < swizzle < size]


def combinations(atom: MmaAtom) -> list[tuple[Case | None, Case]]:
    """Every majorness with every swizzle of each operand, and all pairs of majornesses."""
    of_b = cases_of(atom.b)
    if atom.a.in_registers:
        return [(None, b) for b in of_b]
    of_a, count = cases_of(atom.a), len(of_b)
    shifts = (1, count // 2 + 1) if count > 4 else (1,)
    return [(of_a[i % len(of_a)], of_b[(i + shift) % count]) for shift in shifts for i in range(count)]


def _base(t: DType) -> tuple[int, int]:
    """The number of digits of which ``t`` has each as a value, and the value of digit 0."""
    if t.is_float:
        return min(256, 2 << t.floating.mantissa), 1
    return (2, 0) if t.bits == 1 else (256, 0 if t.kind == "uint" else -128)


@functools.lru_cache(maxsize=64)
def digits_of(t: DType, n: int, k: int) -> Array:
    """The digits of the numbers of B's elements, as values of ``t``: f32 [digits, n, k]."""
    base, first = _base(t)
    numbers = np.arange(n * k).reshape(n, k)
    found = []
    while numbers.any() or not found:
        found.append(numbers % base + first)
        numbers = numbers // base
    return np.stack(found).astype(np.float32)


def stored(t: DType, values: Array) -> Array:
    """``values`` [..., rows, columns] as elements in memory: of ``t``, of which eight of 1 bit share a byte."""
    if t.bits == 1:
        return np.packbits(values.astype(np.uint8), axis=-1, bitorder="little")
    return values.astype(t.numpy)


def tile_for(t: DType, rows: int, k: int, case: Case) -> tuple[SharedLayout, int, int]:
    """A tile with a ``rows`` x ``k`` operand away from its origin: (tile, row0, k0)."""
    major, swizzle = case
    span = max(swizzle, 16) * 8 // t.bits
    row0 = 8 if major == "K" else span
    step = (8, span) if major == "K" else (span, 8)
    shape = tuple(-(-extent // s) * s for extent, s in zip((row0 + rows, 2 * k), step, strict=True))
    return shared_layout(t, shape[0], shape[1], major, swizzle), row0, k


def images_of(t: DType, values: Array, case: Case) -> tuple[Array, int]:
    """Images of the tile with each of ``values`` [count, rows, k]; the operand's descriptor."""
    elements = stored(t, values)
    unit = dtype("u8") if t.bits == 1 else t
    _, rows, k = elements.shape
    tile, row0, k0 = tile_for(unit, rows, k, case)
    images = np.zeros((len(elements), tile.size_bytes), np.uint8)
    at = tile.offsets()[row0 : row0 + rows, k0 : k0 + k].reshape(-1)
    size = unit.bits // 8
    bytes_of = np.ascontiguousarray(elements).view(np.uint8).reshape(len(elements), -1, size)
    images[:, at[:, None] + np.arange(size)] = bytes_of
    return images, tile.descriptor(row0, k0, rows, k).encode()


@functools.lru_cache(maxsize=64)
def _images_of_b(t: DType, n: int, k: int, case: Case) -> tuple[Array, int]:
    return images_of(t, digits_of(t, n, k), case)


def experiments(atom: MmaAtom, seed: int) -> Iterator[Array]:
    """Values of A's stored elements [experiments, 64, stored K], position along K of each row's element and its
    value [experiments, 64], the fields of the metadata [64, chunks]."""
    m, k = atom.a.shape
    t = atom.a.dtype
    rng = np.random.default_rng(seed)
    stored_at = np.stack([rng.permutation(k) for _ in range(m)], axis=1)
    choice = {"u8": [1, 255], "s8": [1, -1, 127, -128], "b1": [1]}.get(t.name, [1, -1])
    hot = rng.choice(choice, (k, m))
    values = np.zeros((k, m, k))
    np.put_along_axis(values, stored_at[..., None], hot[..., None], axis=-1)
    columns, fields = np.broadcast_to(np.arange(k), (m, k)), np.zeros((m, 1), np.int64)
    if atom.e is not None:
        fields = sparsity.fields_from(sparsity.kept(rng.random((m, atom.shape[2])), t), t)
        columns = sparsity.columns_of(fields, t)
    yield values
    yield columns[np.arange(m), stored_at].astype(np.uint32)
    yield hot.astype(np.float32)
    yield fields


def prove(
    atom: MmaAtom,
    run: Callable[..., None],
    module: str,
    entry: str,
    words: Callable[[Operand, Array], Array],
    limit: int | None = None,
    cases: Sequence[tuple[Case | None, Case]] | None = None,
) -> tuple[int, list[str], list[str]]:
    """Experiments, configurations and differences.  ``words`` packs fragments into registers."""
    m, n, k = atom.shape
    values, positions, hot, fields = experiments(atom, seed=n)
    values, positions, hot = (x[:limit] for x in (values, positions, hot))
    digits = digits_of(atom.b.dtype, n, k)
    places = atom.d.coordinates_table
    places = (places % m << 16 | places // m).astype(np.uint32)
    metadata = np.zeros(128, np.uint32) if atom.e is None else words(atom.e, atom.e.gather(fields))
    forms = variants(atom)
    plain = [i for i, f in enumerate(forms) if -1 in f.values() or f.get("selector")]
    count, labels, differences = 0, [], []
    for number, (a_case, b_case) in enumerate(combinations(atom) if cases is None else cases):
        b_images, desc_b = _images_of_b(atom.b.dtype, n, k, b_case)
        if a_case is None:
            table = values.transpose(0, 2, 1).reshape(len(values), -1)[:, atom.a.coordinates_table]
            a_images, desc_a, a_bytes = words(atom.a, table), 0, 0
        else:
            a_images, desc_a = images_of(atom.a.dtype, values, a_case)
            a_bytes = a_images.shape[1]
        wanted = {"trans_b": int(b_case[0] == "MN"), "trans_a": int(a_case is not None and a_case[0] == "MN")}
        majors = next(i for i, f in enumerate(forms) if all(f.get(x, 0) == y for x, y in wanted.items()))
        # The signs and the other selectors are variants of the form without transposition.
        for variant in [majors, *(plain if majors == 0 and number < 2 else ())]:
            form = forms[variant]
            sign = form.get("scale_a", 1) * form.get("scale_b", 1)
            out = np.zeros(2, np.uint32)
            arrays = [a_images.reshape(-1), b_images.reshape(-1), metadata.reshape(-1), positions, sign * hot]
            run(
                *(module, entry, len(values) * len(digits), 128, kernels.SHARED_BYTES),
                [
                    *(np.ascontiguousarray(x) for x in (*arrays, digits, places)),
                    *(out, ("u64", desc_a), ("u64", desc_b)),
                    *(("u32", x) for x in (variant, a_bytes, b_images.shape[1], len(digits))),
                ],
            )
            tiles = " ".join(f"{x}:{c[0]}-major SW{c[1]}" for x, c in (("A", a_case), ("B", b_case)) if c)
            label = tiles + "".join(f" {x}={y}" for x, y in form.items() if variant != majors and y not in (0, 1))
            label += f" selector={form['selector']}" if form.get("selector") else ""
            count += len(values) * len(digits)
            labels.append(label)
            if out[0]:
                differences.append(f"{label}: {out[0]} accumulators differ, up to experiment {out[1]}")
    return count, labels, differences
