"""Which test follows the advice of which error: every code has one, or a reason why no test can follow it."""

# A case is easier to read on one line.
# ruff: noqa: E501
from __future__ import annotations

import importlib.util
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from dev.pages.errors import import_everything
from tilemma.errors import KINDS

TESTS = Path(__file__).parent
_DECLARED = re.compile(r"^FOLLOWED\b", re.MULTILINE)

# The advice is no change of the program or the call: what the reader is to do is outside of both.
REPORT = "the error is a mistake of this package: the advice is to report it"
TOOLS = "the advice is to install, update or select a program or a driver on the machine"
MEANING = "the advice names the place to correct; the correction depends on the meaning of the program"
TEMPLATE = "the PTX machine tries repairs itself: tests/machine/test_repairs.py and docs/proofs/first_fix.json"
EARLIER = "rules that are checked before a kernel runs (`lanes-apart`, `lane-divergence`) refuse what is known to raise it"
LARGE = "the error needs an array that is larger than the memory of the machines that run the tests"
NOT_FOLLOWED: dict[str, str] = {
    **dict.fromkeys(("command-failure", "compiler-failure", "front-end-failure", "invalid-ir", "invalid-lane-ir",
                     "machine-failure", "ptx-rejected", "ptxas-failed", "stale-parse-table"), REPORT),
    **dict.fromkeys(("disassembly-failed", "driver-error", "no-cuda-package", "no-gpu", "no-nvdisasm", "no-ptxas",
                     "no-triton", "no-examples", "graph-library", "torch-transform", "ptxas-too-old", "tool-does-not-run", "torch-missing", "tune-needs-gpu"), TOOLS),
    **dict.fromkeys(("extent-too-large", "too-many-elements"), LARGE),
    "lane-dependent": EARLIER,
    **dict.fromkeys(("command-line", "bad-launch-plan", "ir-syntax", "ir-unknown-name", "no-target", "triton-refused",
                     "wrong-emission", "wrong-fragment", "wrong-instruction", "not-comparable", "launch-check",
                     "assertion-failed", "matrix-descriptor", "machine-arguments", "machine-limit", "ptx-operand",
                     "ptx-syntax", "ptx-unsupported", "kernel-gone", "too-large", "not-in-reference"), MEANING),
    **dict.fromkeys(("aligned-under-divergence", "barrier-count", "copy-by-many", "exit-before-cluster",
                     "exit-with-pending", "inadmissible-descriptor", "mbarrier-arrivals",
                     "mbarrier-bytes", "mbarrier-complete", "mbarrier-elsewhere", "mbarrier-reinit", "missing-wgmma-fence-after-move",
                     "race-rounded-values", "register-in-flight-before-wait", "misaligned", "missing-proxy-fence-cp-async",
                     "missing-proxy-fence-global", "missing-tensor-map-fence", "no-such-form", "not-in-target",
                     "operand-layout", "out-of-bounds", "overwrite-in-flight", "overwrite-in-flight-store",
                     "overwrite-in-flight-warps", "race-equal-values", "read-before-arrival", "setmaxnreg-pool",
                     "shuffle-inactive-lane", "step-limit", "swizzle-mismatch", "tensor-map-inadmissible", "trap",
                     "uninitialised-register", "uninitialised-shared", "wgmma-not-uniform",
                     "write-to-read-only"), TEMPLATE),
}  # fmt: skip


@cache
def followed() -> dict[str, list[str]]:
    """Codes with the test files that follow their advice: those of ``FOLLOWED`` in each."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        if path == Path(__file__) or not _DECLARED.search(path.read_text(encoding="utf-8")):
            continue
        sys.path.insert(0, str(path.parent))
        try:
            spec = importlib.util.spec_from_file_location(f"inventory_{path.stem}", path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            codes = module.FOLLOWED
        except pytest.skip.Exception:
            # What the tests need is not installed: the codes as the file writes them.
            codes = re.findall(r'"([a-z-]+)"', _DECLARED.split(path.read_text(encoding="utf-8"))[1].split("\n")[0])
        finally:
            sys.path.remove(str(path.parent))
        for code in codes:
            found.setdefault(code, []).append(path.name)
    return found


def codes() -> set[str]:
    import_everything()
    return {code for code, cls in KINDS.items() if cls.__module__.startswith("tilemma.")}


def test_every_advice_is_followed_or_has_a_reason() -> None:
    assert sorted(codes() - set(followed()) - set(NOT_FOLLOWED)) == []


def test_the_inventory_names_errors_that_exist() -> None:
    assert sorted((set(followed()) | set(NOT_FOLLOWED)) - codes()) == []


def test_no_reason_remains_for_an_advice_that_is_followed() -> None:
    assert {code: followed()[code] for code in NOT_FOLLOWED if code in followed()} == {}
