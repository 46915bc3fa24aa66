"""The matrix instructions' half of machine_vs_gpu.py: the kernels of the hardware proof on machine and GPU.

`mma.sync` forms also take normal random fragments, judged against float64; the wgmma kernels of the proof compare
inside (one-hot A, numbered B), so what agrees is their verdict and their counts.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import prove_atoms as proof

from tilemma import machine, runtime, testing
from tilemma.assemble import assemble
from tilemma.atoms import MmaAtom, catalogue
from tilemma.machine.parser import parse

ARCH = "sm_90a"
# Widths of wgmma that "some" keeps: the narrowest, one that is 8 modulo 16, powers of two, the widest.
SOME_WIDTHS = (8, 24, 64, 128, 256)


def forms(kept: str) -> list[MmaAtom]:
    """The multiplying records for f16 and bf16."""
    if kept == "none":
        return []
    found = [
        a
        for a in catalogue.values()
        if isinstance(a, MmaAtom) and a.runs_on(ARCH) and a.a.dtype.name in ("f16", "bf16")
    ]
    found = [a for a in found if a.kind in ("mma.sync", "wgmma") and "SP" not in a.name.split("_")]
    return [a for a in found if kept == "all" or a.kind == "mma.sync" or a.shape[1] in SOME_WIDTHS]


def experiments(atom: MmaAtom, run: proof.Runner) -> tuple[list[str], list[tuple[str, float]]]:
    """Differences from the record, and (operands, share of the error bound) of what was judged here."""
    if atom.kind == "wgmma":
        cases = proof.combinations(atom)
        which = atom.shape[1] // 8 % len(cases)
        return proof.prove_wgmma(atom, run, limit=1, cases=[cases[which]]).differences, []
    differences = proof.prove_mma_sync(atom, run, limit=4).differences
    return differences, [("randn", _random_fragments(atom, run))]


def _random_fragments(atom: MmaAtom, run: proof.Runner) -> float:
    a, b, c = (testing.random_array(o.shape, o.dtype, i) for i, o in enumerate((atom.a, atom.b, atom.c)))
    words = [proof.bits_of(o, o.gather(x)[None]) for o, x in ((atom.a, a), (atom.b, b), (atom.c, c))]
    out = np.zeros_like(words[2])
    run(proof.module_of(atom), proof.entry_name(atom), 1, 32, 0, [*words, out])
    found = atom.d.scatter(out.view(atom.d.dtype.numpy).reshape(32, -1))
    kind = atom.d.dtype.name
    wanted = testing.reference("mk,nk->mn", a, b) + c.astype(np.float64)
    bound = testing.error_bound(a, b.T, acc=kind, out=kind, beta=1.0, c=c)
    return testing.share_of_bound(found, wanted, bound)


class MachineRunner:
    """A proof.Runner on the machine; keeps what each run wrote."""

    def __init__(self, ptx: str) -> None:
        self.ptx = ptx
        entries = parse(ptx, "proof").entries.values()
        self.parameters = {e.name: [p.name for p in e.parameters] for e in entries}
        self.outputs: list[Any] = []

    def run(self, module: str, entry: str, grid: int, threads: int, shared: int, arguments: Sequence[Any]) -> None:
        numbers = [x if isinstance(x, np.ndarray) else x[1] for x in arguments]
        launch = {"entry": entry, "grid": (grid, 1, 1), "block": (threads, 1, 1), "shared": shared}
        args = dict(zip(self.parameters[entry], numbers, strict=True))
        machine.run(self.ptx, launch, args, arch=ARCH, strict=True)
        self.outputs.append(written_by(arguments).copy())


class GpuRunner:
    """A proof.Runner on the first GPU, for one module after another; keeps what each run wrote."""

    def __init__(self) -> None:
        self.ptx = ""
        self.outputs: list[Any] = []
        self.cuda = proof.Cuda(lambda _: assemble(self.ptx, ARCH).bytes)

    def take(self, ptx: str) -> None:
        """Run the entries of ``ptx`` from now on."""
        self.ptx, self.outputs = ptx, []
        self.cuda.modules.clear()
        self.cuda.functions.clear()

    def run(self, *call: Any) -> None:
        self.cuda.run(*call)
        self.outputs.append(written_by(call[-1]).copy())


def written_by(arguments: Sequence[Any]) -> np.ndarray[Any, Any]:
    """The result of a proof's run: D's words, or for wgmma (number of wrong accumulators, last wrong element)."""
    arrays = [x for x in arguments if isinstance(x, np.ndarray)]
    # mma.sync: A, B, C, D; wgmma: places of A, coordinates, images, places of D, counts[, lists].
    return arrays[3] if len(arrays) == 4 else arrays[4]


def ptx_of(atom: MmaAtom) -> str:
    (text,) = proof.modules([atom], ARCH).values()
    return text


def digest_of(atom: MmaAtom) -> str:
    return hashlib.sha256(ptx_of(atom).encode()).hexdigest()[:16]


def on_machine(name: str) -> tuple[str, str, list[Any], list[str]]:
    atom = catalogue[name]
    assert isinstance(atom, MmaAtom)
    runner = MachineRunner(ptx_of(atom))
    differences, shares = experiments(atom, runner.run)
    differences += [f"{fill}: {share:.3g} times the error bound off" for fill, share in shares if not share <= 1]
    return name, digest_of(atom), runner.outputs, differences


def prepare_forms(kept: str, mapped: Callable[..., Iterable[Any]] = map) -> dict[str, tuple[str, list[Any]]]:
    """Record name -> (digest of its PTX, what each run wrote)."""
    records = {}
    for name, digest, outputs, differences in mapped(on_machine, [a.name for a in forms(kept)]):
        for text in differences:
            print(f"form {name} on the machine: {text}")
        records[name] = (digest, outputs)
    return records


def compare_forms(
    stored: Mapping[str, Mapping[str, Any]], kept: str, results: Mapping[str, Any]
) -> Iterator[tuple[str, str, tuple[float, float, float], list[str]]]:
    """(name, operands, (share of equal words, machine's share, GPU's share of the bound), differences)."""
    if not stored or not runtime.runs_on(ARCH, runtime.cuda_device(0).compute_capability):
        return
    atoms = {a.name: a for a in forms(kept)}
    gpu = GpuRunner()
    for name, facts in stored.items():
        atom = atoms.get(name)
        if atom is None or digest_of(atom) != facts["digest"]:
            yield name, "onehot", (0.0, float("nan"), float("nan")), ["its PTX changed since it was prepared"]
            continue
        gpu.take(ptx_of(atom))
        differences, shares = experiments(atom, gpu.run)
        outputs = gpu.outputs
        exact = len(outputs) - len(shares)
        of_machine = [results[f"form_{name}_{i}"] for i in range(facts["outputs"])]
        same = [float((x == y).mean()) for x, y in zip(of_machine, outputs, strict=True)]
        if min(same[:exact]) < 1:
            differences.append("machine and GPU differ in their bits")
        yield name, "onehot", (min(same[:exact]), float("nan"), float("nan")), differences
        for (fill, share), equal in zip(shares, same[exact:], strict=True):
            text = [] if share <= 1 else [f"the GPU is {share:.3g} times the error bound off"]
            yield name, fill, (equal, float("nan"), share), text
