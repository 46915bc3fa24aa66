"""`tilemma show`: every format has the content of the record."""

from __future__ import annotations

import csv
import io
import json
import re
import warnings
import xml.etree.ElementTree as ET

import pytest

from tilemma.atoms import CopyAtom, MmaAtom, UnknownAtom, catalogue
from tilemma.atoms.atom import Atom
from tilemma.tools.show import (
    FORMATS,
    NoSuchFormat,
    NoSuchOperand,
    NotInFragment,
    SeveralRecords,
    describe_element,
    describe_lane,
    holds,
    operands_of,
    record,
    show,
    where,
)
from tilemma.tools.show_atoms import NoSuchArch, list_atoms

HELLO = "SM80_16x8x16_F32F16F16F32_TN"


def _picture(atom: Atom) -> tuple[object, ...]:
    """What the pictures of an atom depend on, besides its name and N."""
    if isinstance(atom, CopyAtom):
        return (atom.kind, atom.fragment)
    operands = ((x, o.dtype.bits, o.in_registers) for x, o in operands_of(atom).items())
    return (atom.kind, atom.shape[2], *operands)


# The narrowest of each picture.
SAMPLE = list({_picture(atom): name for name, atom in reversed([*catalogue.items()])}.values())

# The accumulator of HELLO as the PTX ISA draws it: rows 8 to 15 repeat rows 0 to 7.
TRUE_MAP = "\n".join(" ".join(f"T{t:02d}" for t in (4 * (m % 8) + n // 2 for n in range(8))) for m in range(16))


def _owners(name: str, letter: str) -> list[list[list[list[int]]]]:
    return json.loads(show(name, letter, "json"))["operands"][letter]["owners"]


@pytest.mark.parametrize("format", FORMATS)
def test_every_record_can_be_shown_in_every_format(format: str) -> None:
    for name in SAMPLE:
        found = show(name, format=format)
        assert name in found or format == "csv"
        if format == "svg":
            root = ET.fromstring(found)
            assert root.tag.endswith("svg") and float(root.attrib["width"]) > 0


def test_json_has_the_promised_keys() -> None:
    found = json.loads(show(HELLO, format="json"))
    assert found["name"] == HELLO and found["shape"] == [16, 8, 16] and found["threads"] == 32
    assert found["types"] == {"A": "f16", "B": "f16", "C": "f32", "D": "f32"}
    assert found["operands"]["B"]["shape"] == [8, 16]
    assert found["operands"]["A"]["owners"][3][5] == [[14, 1]]
    smem = json.loads(show("SM90_64x64x16_F16F16F16_SS", format="json"))["operands"]
    assert smem["A"]["owners"] is None and smem["B"]["owners"] is None
    assert smem["C"]["owners"][63][63] == [[127, 31]]


def test_the_ownership_map_is_the_isa_s() -> None:
    """A widely read tutorial prints T00 T00 T04 T04 in row 0; the hardware has T00 T00 T01 T01."""
    owners = _owners(HELLO, "C")
    assert "\n".join(" ".join(f"T{o[0][0]:02d}" for o in row) for row in owners) == TRUE_MAP
    assert [o[0][0] for o in owners[0]] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [o[0][0] for o in owners[8]] == [o[0][0] for o in owners[0]]


@pytest.mark.parametrize("name", [HELLO, "SM90_64x24x16_F32F16F16_RS", "SM75_U16x8_LDSM_T"])
def test_text_csv_markdown_svg_and_json_agree(name: str) -> None:
    for letter, operand in operands_of(catalogue[name]).items():
        if not operand.in_registers:
            continue
        owners = _owners(name, letter)
        expected = {
            (r, c, lane, value) for r, row in enumerate(owners) for c, o in enumerate(row) for lane, value in o
        }
        low = letter.lower()

        def of_tables(text: str, low: str = low) -> set[tuple[int, int, int, int]]:
            found = (re.findall(rf"T(\d+)\.{low}(\d+)", line) for line in text.splitlines())
            cells = [line for line in found if line]
            return {(r, c, int(t), int(v)) for r, line in enumerate(cells) for c, (t, v) in enumerate(line)}

        assert of_tables(show(name, letter, "text")) == expected
        assert of_tables(show(name, letter, "md")) == expected
        rows = csv.DictReader(io.StringIO(show(name, letter, "csv")))
        assert {tuple(int(r[k]) for k in ("row", "col", "lane", "value")) for r in rows} == expected
        titles = re.findall(rf"{letter}\((\d+), (\d+)\): lane (\d+), {low}(\d+)", show(name, letter, "svg"))
        assert {tuple(map(int, t)) for t in titles} == expected


@pytest.mark.parametrize("name", [HELLO, "SM90_64x8x16_F16F16F16_RS", "SM75_U32x2_LDSM_N"])
def test_both_directions_are_inverse(name: str) -> None:
    for letter, operand in operands_of(catalogue[name]).items():
        if not operand.in_registers:
            continue
        for lane in range(operand.threads):
            for held in holds(name, letter, lane):
                (place,) = where(name, letter, held["row"], held["col"])
                assert place == {"lane": lane} | {k: held[k] for k in ("value", "register", "bit")}


def test_sentences() -> None:
    assert describe_element(HELLO, "A", 3, 5) == "A(3, 5) is a1 of lane 14: register 0, bits 16-31"
    assert describe_element(HELLO, "D", 8, 1) == "C(8, 1) is c3 of lane 0: register 3"
    assert describe_lane(HELLO, "A", 0, 1) == (
        "lane 0, register 1, bits 0-15: a2 is A(8, 0)\nlane 0, register 1, bits 16-31: a3 is A(8, 1)"
    )


class TestBadInput:
    def test_an_unknown_name_gets_the_nearest(self) -> None:
        with pytest.raises(UnknownAtom) as e:
            show("SM80_16x8x16_F32F16F16F32")
        assert HELLO in e.value.remedy

    def test_an_operand_that_is_not_there(self) -> None:
        with pytest.raises(NoSuchOperand, match="no operand E"):
            show(HELLO, "E")
        with pytest.raises(NoSuchOperand, match="no operand A"):
            show("SM80_CP_ASYNC_CACHEGLOBAL_16B", "A")

    def test_a_format_that_is_not_there(self) -> None:
        with pytest.raises(NoSuchFormat):
            show(HELLO, format="pdf")

    def test_elements_and_lanes_out_of_range(self) -> None:
        with pytest.raises(NotInFragment, match=r"element \(16, 0\)"):
            where(HELLO, "A", 16, 0)
        with pytest.raises(NotInFragment, match="lane 32"):
            holds(HELLO, "A", 32)
        with pytest.raises(NotInFragment, match="register 4"):
            holds(HELLO, "A", 0, 4)
        with pytest.raises(NotInFragment, match="read from shared memory"):
            where("SM90_64x64x16_F16F16F16_SS", "A", 0, 0)


def test_list_of_atoms() -> None:
    every = json.loads(list_atoms(as_json=True))["atoms"]
    assert [a["name"] for a in every] == list(catalogue)
    on_86 = list_atoms("sm_86")
    assert HELLO in on_86 and "wgmma" not in on_86 and "STSM" not in on_86
    assert "SM90_64x256x16_F32F16F16_SS" in list_atoms("sm_90a")
    assert "wgmma" not in list_atoms("sm_90")
    with pytest.raises(NoSuchArch):
        list_atoms("hopper")


@pytest.mark.parametrize(
    "atom", [x for x in catalogue.values() if isinstance(x, MmaAtom)][::9], ids=lambda x: x.name
)
def test_a_mnemonic_finds_its_record(atom: MmaAtom) -> None:
    mnemonic = atom.ptx.split(" ")[0]
    try:
        found = record(f"{mnemonic} {{%r1}}, ...;")
    except SeveralRecords as e:
        assert atom.ptx.startswith("wgmma") and atom.name.removesuffix("_TN")[:-2] in str(e)
    else:
        assert found.ptx.split(" ")[0] == mnemonic


@pytest.mark.parametrize("kind", ["SS", "RS"])
def test_the_operands_of_a_statement_tell_records_of_one_mnemonic_apart(kind: str) -> None:
    for name in (f"SM90_64x16x16_F32F16F16_{kind}", f"SM90_SPARSE_64x8x32_F16F16F16_{kind}"):
        atom = catalogue[name]
        a = "{%a0, %a1, %a2, %a3}" if kind == "RS" else "%desc_a"
        assert record(atom.ptx.split(" ")[0] + " {%d0, %d1}, " + a + ", %desc_b, 1, 1, 1, 0;") is atom


def test_the_shared_memory_of_the_cta_is_shared_memory() -> None:
    plain = "ldmatrix.sync.aligned.m8n8.x4.shared.b16"
    assert record(plain.replace("shared", "shared::cta")) is record(plain)


def test_the_beginning_of_a_mnemonic() -> None:
    assert record("mma.sync.aligned.m16n8k16.row.col.f32.bf16...").name == "SM80_16x8x16_F32BF16BF16F32_TN"
    with pytest.raises(SeveralRecords, match="SM80_16x8x16_F16F16F16F16_TN"):
        record("mma.sync.aligned.m16n8k16...")
    with pytest.raises(UnknownAtom, match="did you mean"):
        record("mma.sync.aligned.m16n8k17.row.col.f32.f16.f16.f32")
    assert show("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") == show("SM80_16x8x16_F32F16F16F32_TN")


def test_a_record_says_where_it_is_emulated_and_how_fast_it_was() -> None:
    atom = catalogue["SM80_16x8x64_S32S4S4S32_TN"]
    found = atom.measured
    assert found is not None and found.latency > 0 and found.rate is not None
    text = show(atom.name)
    assert "emulated on sm_90, sm_90a, sm_100" in text
    assert f"measured on {found.device} ({found.arch}), {found.date}: latency {found.latency:g} clocks" in text
    (entry,) = [x for x in json.loads(list_atoms("sm_90a", True))["atoms"] if x["name"] == atom.name]
    assert entry["emulated"] == list(atom.emulated) and entry["measured"]["rate"] == found.rate
    assert catalogue["SM75_U32x4_LDSM_N"].measured.rate is None


def test_what_an_h200_runs_has_been_measured() -> None:
    """A measurement has the record's name: `bench/time_atoms.py` writes them again."""
    missing = [a.name for a in catalogue.values() if a.runs_on("sm_90a") and a.measured is None]
    if missing:
        warnings.warn(f"not measured: {', '.join(missing[:5])} ...", stacklevel=1)
    assert len(missing) < len(catalogue) // 2
