"""Plans that were measured once, in a file for other machines with the same device."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_tuning import on_fake_device

from tilemma import ops
from tilemma.errors import TilemmaError, WrongArgument, WrongArgumentType
from tilemma.ops import plan_tables, plans
from tilemma.ops.plan import Plan
from tilemma.runtime import cudadriver

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from fake_driver import FakeDriver


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], list[Plan]]:
    """A function that forgets all plans, as another machine does; it returns the plans measured from then on."""

    def forget() -> list[Plan]:
        measured: list[Plan] = []

        def measure(_: Any, found: Any, spent: float) -> Plan:
            measured.append(found[-1].plan)
            return measured[-1]

        monkeypatch.setenv("TILEMMA_CACHE", str(tmp_path / f"cache{len(list(tmp_path.iterdir()))}"))
        monkeypatch.setattr(plans, "used", {})
        monkeypatch.setattr(plans, "shipped", {})
        monkeypatch.setattr(plans, "measured", measure)
        return measured

    return forget


def made(fresh: Callable[[], list[Plan]], path: Path) -> Plan:
    measured = fresh()
    with cudadriver.using(FakeDriver()):
        plan = plans.best(on_fake_device(), True)
    assert measured == [plan] and ops.save_plans(path) == 1
    return plan


def test_another_machine_takes_the_plans_of_a_table(fresh: Callable[[], list[Plan]], tmp_path: Path) -> None:
    plan = made(fresh, tmp_path / "plans.json")
    (entry,) = json.loads((tmp_path / "plans.json").read_text())["plans"]
    assert entry["product"].startswith("70 x 80 x 301 f16") and entry["plan"]["tile"] == list(plan.tile)
    measured = fresh()
    assert ops.load_plans(tmp_path / "plans.json") == 1
    with cudadriver.using(FakeDriver()):
        untuned = plans.best(on_fake_device())
        assert plans.best(on_fake_device(), True) == plan != untuned and not measured
    # What came from a table is saved as well, and an empty table is one.
    assert ops.save_plans(tmp_path / "again.json") == 1
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "plans.json").read_bytes()
    fresh()
    assert ops.save_plans(tmp_path / "none.json") == 0 == ops.load_plans(tmp_path / "none.json")


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    def edit(text: str) -> str:
        table = json.loads(text)
        change(table)
        return json.dumps(table)

    return edit


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (lambda _: "", "no table of plans"),
        (lambda _: "[]", "no table of plans"),
        (lambda text: text[:-9], "no table of plans"),
        (edited(lambda t: t.pop("digest")), "no table of plans"),
        (edited(lambda t: t.update({plan_tables.FORM: 2})), "no table of plans"),
        (edited(lambda t: t["plans"][0]["plan"].update(stages=9)), "changed after"),
        (edited(lambda t: t["plans"].clear()), "changed after"),
        (edited(lambda t: t["made by"].update(NumPy="1.0")), "other NumPy (1.0, here"),
        (edited(lambda t: t["made by"].clear()), "other sources of tilemma"),
        (
            edited(lambda t: (t["plans"].append({}), t.update(digest=plan_tables._digest(t["plans"])))),
            "no table of plans",
        ),
    ],
)
def test_other_files_are_refused_whole(
    edit: Callable[[str], str], found: str, fresh: Callable[[], list[Plan]], tmp_path: Path
) -> None:
    path = tmp_path / "plans.json"
    made(fresh, path)
    path.write_text(edit(path.read_text()))
    with pytest.raises(WrongArgument) as e:
        ops.load_plans(path)
    assert found in str(e.value) and "save_plans" in str(e.value) and not plans.shipped


def test_places_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "plans.json", "a\0b"):
        with pytest.raises(TilemmaError):
            ops.load_plans(path)
        with pytest.raises(WrongArgument, match="cannot be written"):
            ops.save_plans(path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(WrongArgument, match="no regular file"):
        ops.save_plans("/dev/null")
    number: Any = 3
    for call in (ops.load_plans, ops.save_plans):
        with pytest.raises(WrongArgumentType):
            call(number)
