"""The PTX machine against a GPU: the same PTX, the same launch plan, the same operands.

    python bench/machine_vs_gpu.py --prepare build/machine_vs_gpu   # the machine half; needs no GPU
    python bench/machine_vs_gpu.py --compare build/machine_vs_gpu   # the GPU half, and the comparison
    python bench/machine_vs_gpu.py                                  # both

Every example kernel for every target it compiles for, and the matrix instructions for f16 and bf16.  Where no
sum is rounded (one-hot rows, small integers) the results must agree bit for bit; with normal random operands both
must be within `testing.error_bound` of float64.  Exit status 1 when they are not.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilemma import machine, runtime, testing
from tilemma.assemble import Cubin, NoPtxas, assemble, driver_image
from tilemma.dtypes import dtype
from tilemma.errors import TilemmaError
from tilemma.ir.tile import Copy
from tilemma.ir.usage import size, written
from tilemma.ir.walk import walk
from tilemma.kernels import Kernel, facts_of
from tilemma.launch import Launch, evaluate
from tilemma.modules import load, load_python
from tilemma.tools.problem import accumulator, poisoned

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "machine_vs_gpu"
ARCHS = ("sm_80", "sm_90a")
FILLS = ("onehot", "small_integers", "randn")
EXACT = ("onehot", "small_integers")
# (M, N, K): aligned, ragged within one tile, ragged over several.  The copy engine takes rows of whole 16 bytes
# in the output, and padded ones as operands.
ANY = [(64, 64, 64), (70, 45, 65), (130, 264, 136)]
TMA = [(64, 64, 64), (1, 8, 7), (70, 40, 65), (130, 264, 136)]
# Other pipelines of the same sources; a kernel runs those whose names it has.  One CTA or cluster works through
# several tiles where a kernel is persistent.
VARIANTS: list[dict[str, Any]] = [
    {"STAGES": 2},
    {"STAGES": 3, "CONSUMERS": 1, "TILE_N": 64},
    {"STAGES": 2, "CONSUMERS": 3, "TILE_N": 128},
    {"T": "bf16"},
]
PERSISTENT_GRID = 2


@dataclass
class Case:
    """One launch: what runs, on what, and what came out of it."""

    kernel: str
    arch: str
    dims: dict[str, int]
    fill: str
    constants: dict[str, Any]
    ptx: str
    launches: list[dict[str, Any]]
    # Array name -> [key of its values in arrays.npz, elements from row to row].
    arrays: dict[str, list[Any]]
    outputs: list[str]
    accumulator: str | None = None
    machine_seconds: float = 0.0
    instructions: int = 0
    failed: str = ""

    @property
    def label(self) -> str:
        dims = "x".join(str(v) for v in self.dims.values())
        constants = ",".join(f"{k}={v}" for k, v in self.constants.items())
        return " ".join(x for x in (self.kernel, self.arch, dims, constants, self.fill) if x)

    @property
    def key(self) -> str:
        return hashlib.sha256(self.label.encode()).hexdigest()[:16]


@dataclass
class Outcome:
    """How the two results of a case compare; shares are of the error bound, NaN where none is claimed."""

    label: str
    kernel: str
    arch: str
    fill: str
    same_bits: float = float("nan")
    machine_share: float = float("nan")
    gpu_share: float = float("nan")
    differences: list[str] = field(default_factory=list)


# --- operands -----------------------------------------------------------------------------------------------


def values(shape: tuple[int, ...], kind: str, fill: str, seed: int) -> np.ndarray[Any, Any]:
    """Operand ``seed`` (0, 1, ..): of one-hot operands the first only; the other then numbers its elements."""
    if fill == "onehot" and seed:
        period = 251 if kind == "bf16" else 2039  # integers that the type holds exactly
        return (np.arange(int(np.prod(shape))) % period - period // 2).reshape(shape).astype(dtype(kind).numpy)
    return testing.random_array(shape, kind, seed, fill)


def placed(array: np.ndarray[Any, Any], row: int) -> np.ndarray[Any, Any]:
    """A copy at a multiple of 256 bytes, ``row`` elements from one row to the next."""
    rows = int(np.prod(array.shape[:-1]))
    memory = np.zeros(rows * row * array.itemsize + 256, np.uint8)
    start = -memory.ctypes.data % 256
    flat = memory[start : start + rows * row * array.itemsize].view(array.dtype).reshape(*array.shape[:-1], row)
    view = flat[..., : array.shape[-1]]
    view[...] = array
    return view


def bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")


# --- the machine half ---------------------------------------------------------------------------------------


def uses_tma(kernel: Kernel) -> bool:
    return any(isinstance(op, Copy) and op.engine == "tma" for op in walk(kernel.build().body))


def example_kernels() -> Iterator[tuple[str, Kernel]]:
    for path in sorted([*(ROOT / "examples/co").glob("*.co"), *(ROOT / "examples/py").glob("*.py")]):
        module = load_python(path) if path.suffix == ".py" else load(path)
        for name, kernel in module.kernels.items():
            yield f"{path.parent.name}/{path.name}:{name}", kernel


def configurations(kernel: Kernel) -> Iterator[tuple[dict[str, Any], tuple[int, int, int] | None, bool]]:
    """Compile-time values, shape (None: fixed by the kernel), and whether rows are padded to 16 bytes."""
    known = kernel.source.constants
    base = {"GRID": PERSISTENT_GRID} if "GRID" in known else {}
    if [p.buffer.name for p in kernel.build().arrays] != ["lhs", "rhs", "output"]:
        yield {}, None, False
        return
    tma = uses_tma(kernel)
    for shape in TMA if tma else ANY:
        yield base, shape, tma
    for variant in VARIANTS:
        if all(known.get(k, v) != v for k, v in variant.items()) and variant.keys() <= known.keys():
            yield {**base, **variant}, (70, 40, 136), tma


def plan(stored: dict[str, Any], texts: dict[str, str]) -> Iterator[Case]:
    """The cases, their operands put into ``stored`` and their PTX into ``texts``; equal PTX is taken once."""
    seen = set()
    for name, kernel in example_kernels():
        for arch in ARCHS:
            for constants, shape, padded in configurations(kernel):
                dims = dict(zip("MNK", shape, strict=True)) if shape else {}
                for fill in FILLS if shape or len(kernel.build().arrays) > 1 else FILLS[-1:]:
                    try:
                        case = make_case(name, kernel, arch, dims, fill, constants, padded, stored, texts)
                    except TilemmaError as e:
                        if arch == "sm_80" and e.code in ("tma-refused", "cluster-refused"):
                            break
                        raise
                    identity = re.sub(r"(?m)^\s*\.(loc|file)\s.*\n|//.*", "", texts[case.ptx])
                    identity += f"{case.launches}{case.arrays}"
                    if identity not in seen:
                        seen.add(identity)
                        yield case


def make_case(
    name: str,
    kernel: Kernel,
    arch: str,
    dims: dict[str, int],
    fill: str,
    constants: dict[str, Any],
    padded: bool,
    stored: dict[str, Any],
    texts: dict[str, str],
) -> Case:
    built = kernel.build(**constants)
    outputs = sorted(written(built))
    made: dict[str, np.ndarray[Any, Any]] = {}
    described: dict[str, list[Any]] = {}
    for seed, p in enumerate(built.arrays):
        b = p.buffer
        shape = tuple(evaluate(size(e), dims) for e in b.shape)
        row = -(-shape[-1] * b.dtype.bits // 128) * 128 // b.dtype.bits if padded else shape[-1]
        made[b.name] = (
            poisoned(shape, b.dtype.numpy) if b.name in outputs else values(shape, b.dtype.name, fill, seed)
        )
        key = f"{b.dtype.name}_{'x'.join(map(str, shape))}_" + ("out" if b.name in outputs else f"{fill}_{seed}")
        stored[key] = bits(made[b.name])
        described[b.name] = [key, row, b.dtype.name]
    arrays = {n: placed(a, described[n][1]) for n, a in made.items()}
    compiled = kernel.compile(arch, facts=facts_of(arrays), **constants)
    digest = hashlib.sha256(compiled.ptx.encode()).hexdigest()[:16]
    texts[digest] = compiled.ptx
    launches = [x.to_json() for x in compiled.launches]
    acc = accumulator(built)
    return Case(name, arch, dims, fill, constants, digest, launches, described, outputs, acc)


def arrays_of(case: Case, stored: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    return {
        name: placed(stored[key].view(dtype(kind).numpy), row) for name, (key, row, kind) in case.arrays.items()
    }


def plans_of(case: Case) -> list[Launch]:
    return [Launch.from_json(x) for x in case.launches]


def on_machine(job: tuple[Case, str, dict[str, Any]]) -> tuple[Case, dict[str, Any]]:
    """The case run on the machine, under its adversarial rules; hazards are failures."""
    case, ptx, stored = job
    arrays = arrays_of(case, stored)
    start = time.perf_counter()
    try:
        for launch in plans_of(case):
            report = machine.run(ptx, launch, arrays, seed=int(case.key[:6], 16), strict=True)
            case.instructions += report.instructions
    except TilemmaError as e:
        case.failed = f"{type(e).__name__}: {e}".splitlines()[0]
    case.machine_seconds = round(time.perf_counter() - start, 3)
    return case, {f"{case.key}_{n}": bits(arrays[n]) for n in case.outputs}


def prepare(folder: Path, workers: int, forms: str) -> None:
    """Everything that the comparison needs, into ``folder``."""
    from machine_vs_gpu_forms import prepare_forms

    stored: dict[str, Any] = {}
    texts: dict[str, str] = {}
    results: dict[str, Any] = {}
    start = time.perf_counter()
    cases = list(plan(stored, texts))
    print(f"{len(cases)} launches of {len(texts)} PTX texts compiled in {time.perf_counter() - start:.0f} s")
    # Long ones first, so that no worker is left with one at the end.
    cases.sort(key=lambda c: -int(np.prod(list(c.dims.values()) or [1])))
    done = []
    with ProcessPoolExecutor(workers) as pool:
        jobs = ((c, texts[c.ptx], {k: stored[k] for k, *_ in c.arrays.values()}) for c in cases)
        for case, found in pool.map(on_machine, jobs, chunksize=2):
            done.append(case)
            results |= found
            if case.failed:
                print(f"{case.label}: {case.failed}")
        records = prepare_forms(forms, pool.map)
    for name, (_, out) in records.items():
        results |= {f"form_{name}_{i}": x for i, x in enumerate(out)}
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "arrays.npz", **stored)
    np.savez_compressed(folder / "results.npz", **results)
    with gzip.open(folder / "ptx.json.gz", "wt") as f:
        json.dump(texts, f)
    found_forms = {n: {"digest": digest, "outputs": len(out)} for n, (digest, out) in records.items()}
    data = {"cases": [asdict(c) for c in done], "forms": found_forms, "forms_kept": forms}
    (folder / "cases.json").write_text(json.dumps(data))
    total = sum(f.stat().st_size for f in folder.iterdir() if f.is_file())
    count = sum(c.instructions for c in done)
    print(
        f"{len(done)} launches ({count} warp instructions) and {len(records)} instruction forms on the machine in "
        f"{time.perf_counter() - start:.0f} s, {sum(bool(c.failed) for c in done)} failed; "
        f"{folder}: {total / 2**20:.1f} MB"
    )


# --- the GPU half -------------------------------------------------------------------------------------------


def images(cases: list[Case], texts: Mapping[str, str], device: Any) -> dict[tuple[str, str], tuple[bytes, Any]]:
    """Machine code by (PTX, target), and what it was assembled for; the driver assembles where no ptxas is."""
    wanted = sorted({(c.ptx, c.arch) for c in cases if runtime.runs_on(c.arch, device.compute_capability)})

    def one(item: tuple[str, str]) -> tuple[bytes, str | None]:
        where = runtime.assembly_arch(item[1], device)
        try:
            cubin: Cubin = assemble(texts[item[0]], where)
        except NoPtxas:
            return driver_image(texts[item[0]]), None
        return cubin.bytes, where

    with ThreadPoolExecutor() as pool:
        return dict(zip(wanted, pool.map(one, wanted), strict=True))


def on_gpu(case: Case, stored: Mapping[str, Any], image: tuple[bytes, Any], device: Any) -> dict[str, Any]:
    """What the case's outputs are after running on ``device``."""
    arrays = arrays_of(case, stored)
    staged = dict(zip(arrays, runtime.to_device(list(arrays.values()), device), strict=True))
    with device.active():
        for launch in plans_of(case):
            bound = runtime.bind(launch, [], staged, kernel=case.kernel)
            loaded = runtime.LoadedKernel(image[0], launch, device, arch=image[1], kernel=case.kernel)
            loaded.prepare(bound)(0)
        device.driver.synchronize(0)
    return {n: bits(staged[n].to_host()) for n in case.outputs}


def judge(
    case: Case, stored: Mapping[str, Any], of_machine: Mapping[str, Any], of_gpu: Mapping[str, Any]
) -> Outcome:
    """Bit for bit where exact; within the bound of float64, both, for a product of matrices."""
    outcome = Outcome(case.label, case.kernel, case.arch, case.fill)
    different = sum(int((of_machine[n] != of_gpu[n]).sum()) for n in case.outputs)
    elements = sum(of_gpu[n].size for n in case.outputs)
    outcome.same_bits = 1 - different / elements
    product = len(case.arrays) == 3 and len(case.outputs) == 1
    if (case.fill in EXACT or not product) and different:
        where = next(tuple(map(int, np.argwhere(of_machine[n] != of_gpu[n])[0])) for n in case.outputs)
        outcome.differences.append(
            f"{different} of {elements} elements differ in their bits, the first at {where}"
        )
    if not product:
        return outcome
    arrays = arrays_of(case, stored)
    a, b = (x for n, x in arrays.items() if n not in case.outputs)
    (output,) = case.outputs
    kind = dtype(case.arrays[output][2])
    wanted = testing.reference("mk,nk->mn", a, b)
    bound = testing.error_bound(a, b.T, acc=case.accumulator or "f32", out=kind)
    outcome.machine_share = testing.share_of_bound(of_machine[output].view(kind.numpy), wanted, bound)
    outcome.gpu_share = testing.share_of_bound(of_gpu[output].view(kind.numpy), wanted, bound)
    for who, share in (("the machine", outcome.machine_share), ("the GPU", outcome.gpu_share)):
        if not share <= 1.0:
            outcome.differences.append(f"{who} is {share:.3g} times the error bound off")
    return outcome


def compare(folder: Path, json_file: Path | None, run: Callable[..., dict[str, Any]] = on_gpu) -> int:
    """The GPU half; prints a table, returns the exit status."""
    from machine_vs_gpu_forms import compare_forms

    device = runtime.cuda_device(0)
    data = json.loads((folder / "cases.json").read_text())
    cases = [Case(**c) for c in data["cases"]]
    stored, results = np.load(folder / "arrays.npz"), np.load(folder / "results.npz")
    texts = json.loads(gzip.decompress((folder / "ptx.json.gz").read_bytes()))
    start = time.perf_counter()
    code = images(cases, texts, device)
    assembled = time.perf_counter() - start
    outcomes, skipped = [], 0
    for case in cases:
        if (case.ptx, case.arch) not in code:
            skipped += 1
            continue
        outcome = Outcome(
            case.label, case.kernel, case.arch, case.fill, differences=[case.failed] * bool(case.failed)
        )
        if not case.failed:
            try:
                found = run(case, stored, code[case.ptx, case.arch], device)
                of_machine = {n: results[f"{case.key}_{n}"] for n in case.outputs}
                outcome = judge(case, stored, of_machine, found)
            except TilemmaError as e:
                outcome.differences.append(f"{type(e).__name__}: {e}".splitlines()[0])
        outcomes.append(outcome)
    outcomes += [
        Outcome(f"form {n}", "instruction forms", "sm_90a", fill, *shares, differences=differences)
        for n, fill, shares, differences in compare_forms(data["forms"], data["forms_kept"], results)
    ]
    report(outcomes)
    wrong = [o for o in outcomes if o.differences]
    seconds = time.perf_counter() - start
    summary = f"{len(outcomes) - len(wrong)} of {len(outcomes)} agree on {device}, {skipped} need another device"
    print(f"{summary}; {seconds:.0f} s, {assembled:.0f} of them assembling")
    if json_file is not None:
        facts = {"device": str(device), "seconds": round(seconds, 1), "skipped": skipped}
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps({**facts, "results": [asdict(o) for o in outcomes]}, indent=1) + "\n")
    return int(bool(wrong) or not outcomes)


def report(outcomes: list[Outcome]) -> None:
    """A line for each kernel, target and fill, then every difference."""
    print(f"{'kernel':52} {'target':7} {'operands':15} {'runs':>5} {'equal bits':>10} {'machine':>8} {'GPU':>8}")
    groups = Counter((o.kernel, o.arch, o.fill) for o in outcomes)
    for (kernel, arch, fill), count in groups.items():
        members = [o for o in outcomes if (o.kernel, o.arch, o.fill) == (kernel, arch, fill)]
        same = min(o.same_bits for o in members)
        shares = [max(getattr(o, f"{who}_share") for o in members) for who in ("machine", "gpu")]
        mark = "  DIFFERENT" if any(o.differences for o in members) else ""
        print(f"{kernel:52} {arch:7} {fill:15} {count:5} {same:10.2%} {shares[0]:8.3f} {shares[1]:8.3f}{mark}")
    for o in outcomes:
        for text in o.differences:
            print(f"{o.label}: {text}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", type=Path, metavar="DIR", help="run the machine half and store it")
    parser.add_argument("--compare", type=Path, metavar="DIR", help="run the GPU half of what was stored")
    parser.add_argument("--workers", type=int, default=2, help="processes of the machine half")
    parser.add_argument("--forms", choices=("none", "some", "all"), default="some", help="instruction forms")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    both = not (options.prepare or options.compare)
    if options.prepare or both:
        prepare(options.prepare or FOLDER, options.workers, options.forms)
    if options.compare or both:
        return compare(options.compare or FOLDER, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
