"""What compiling costs, stage by stage, and what a warm call costs the host.

    python bench/compile_time.py                          # every example, the slowest stage by stage
    python bench/compile_time.py examples/py/persistent.py@sm_90a --repeats 9 --json compile.json

Every sample is a process of its own.  Cold: an empty cache on disk, each stage timed.  Cached: the cache
filled by an earlier process.  Python's bytecode is there in both, as pip leaves it.  Times in milliseconds,
medians (and the least, where the machine does other work); targets: 300 ms cold and 50 ms cached, both after
import, a warm call not above `torch.mm(out=)`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COLD_TARGET, CACHED_TARGET = 300.0, 50.0
SIZE = 256
BATCH, BATCHES = 200, 31


class Clock:
    """Milliseconds by stage, in order."""

    def __init__(self) -> None:
        self.stages: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.stages[name] = self.stages.get(name, 0.0) + (time.perf_counter() - start) * 1e3


def read(path: Path) -> Any:
    from tilemma.modules import load, load_python

    return (load_python(path) if path.suffix == ".py" else load(path)).only()


def imports(clock: Clock) -> None:
    with clock.stage("import numpy"):
        import numpy  # noqa: F401
    with clock.stage("import tilemma"):
        import tilemma

        tilemma.kernel  # noqa: B018  (names of the package are looked up lazily)


def facts_of_a_call(kernel: Any) -> dict[str, Any]:
    """What a call with row-major, aligned arrays that have elements finds."""
    from tilemma.ir.tile import ArrayFacts

    return {a.name: ArrayFacts(len(a.dims) - 1, 16, True) for a in kernel.signature().plan.arrays}


def cold_stages(path: Path, arch: str) -> dict[str, float]:
    """The steps of `Kernel.ready` one by one; "ptxas" is its start and what is left of it after the checks."""
    clock = Clock()
    imports(clock)
    from tilemma.assemble import begin
    from tilemma.compiler import CHECKS, Draft, uncollected, with_facts
    from tilemma.ir.verifier import verify
    from tilemma.targets.ptx import print_module
    from tilemma.targets.ptx.lower import lower
    from tilemma.targets.ptx.passes import TARGET_PASSES

    with clock.stage("read"):
        kernel = read(path)
    with clock.stage("trace"):
        kernel.traced()
    with clock.stage("signature"):
        facts = facts_of_a_call(kernel)
    with uncollected():
        with clock.stage("front passes"):
            built = kernel.build()
        log: list[Any] = []
        source = built = with_facts(built, facts)
        for step in TARGET_PASSES(arch):
            with clock.stage(f"pass {type(step).__name__}"):
                built = step.run(built, log)
        with clock.stage("lower"):
            units = lower(built, arch)
        with clock.stage("print"):
            ptx = print_module([u.lane for u in units])
        with ExitStack() as process:
            with clock.stage("ptxas"):
                assembly = process.enter_context(begin(ptx, arch))
            with clock.stage("verify"):
                verify(source)
                verify(built)
            for check in CHECKS:
                with clock.stage("check code"):
                    check(Draft(source, built, units, ptx))
            with clock.stage("ptxas"):
                assembly.result()
    return clock.stages


def whole(path: Path, arch: str) -> dict[str, float]:
    """The same through the public way, as a first call takes it; loaded where there is a GPU."""
    clock = Clock()
    imports(clock)
    from tilemma import runtime

    with clock.stage("read"):
        kernel = read(path)
    with clock.stage("signature"):
        facts = facts_of_a_call(kernel)
    device = None
    if runtime.gpu_unavailable_reason() is None:
        here = runtime.cuda_device(0)  # its context is the process's, not the kernel's
        device = here if runtime.runs_on(arch, here.compute_capability) else None
    where = arch if device is None else runtime.assembly_arch(arch, device, kernel.name)
    with clock.stage("launch plan and cubin"):
        ready = kernel.ready(arch, facts, assemble_for=where)
        cubin = ready.assembled(where)
    if device is not None:
        with clock.stage("load"):
            runtime.LoadedKernel(cubin.bytes, ready.launches[0], device, arch=where)
    return clock.stages


def sample(mode: str, path: Path, arch: str, cache: Path, bytecode: Path) -> dict[str, float]:
    """One process."""
    command = [sys.executable, __file__, "--sample", mode, f"{path}@{arch}"]
    environment = {**os.environ, "TILEMMA_CACHE": str(cache), "PYTHONPYCACHEPREFIX": str(bytecode)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if result.returncode:
        raise SystemExit(f"{path} for {arch}:\n{result.stderr}")
    stages: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return stages


def samples(mode: str, path: Path, arch: str, repeats: int, bytecode: Path) -> list[dict[str, float]]:
    """``mode``: "stages" or "cold", each from an empty cache, or "cached"."""
    how = "stages" if mode == "stages" else "whole"
    with tempfile.TemporaryDirectory() as folder:
        caches = [Path(folder, "filled" if mode == "cached" else str(i)) for i in range(repeats)]
        sample(how, path, arch, Path(folder, "filled"), bytecode)  # writes the bytecode, and fills that cache
        return [sample(how, path, arch, cache, bytecode) for cache in caches]


def after_import(stages: dict[str, float]) -> float:
    return sum(v for k, v in stages.items() if not k.startswith("import"))


def table(title: str, found: list[dict[str, float]], target: float | None) -> dict[str, Any]:
    """Prints medians; returns them with the totals after import."""
    totals = [after_import(s) for s in found]
    medians = {k: median(s[k] for s in found) for k in found[0]}
    total = median(totals)
    print(f"\n{title}")
    for name, ms in medians.items():
        share = "" if name.startswith("import") else f"{ms / after_import(medians) * 100:5.1f} %"
        print(f"  {name:24} {ms:8.1f} ms {share}")
    missed = f", target {target:.0f} ms{' MISSED' if total > target else ''}" if target else ""
    print(f"  {'after import':24} {total:8.1f} ms  (least {min(totals):.1f}{missed})")
    return {"stages": medians, "median": total, "least": min(totals), "target": target}


def every_example() -> list[tuple[Path, str]]:
    """All examples in both languages, for the first architecture that has each one's instructions and the last."""
    from tilemma.errors import TilemmaError

    found = []
    for path in sorted((*(ROOT / "examples/py").glob("*.py"), *(ROOT / "examples/co").glob("*.co"))):
        for arch in ("sm_80", "sm_90a"):
            try:
                read(path).compile(arch).ptx  # noqa: B018
            except TilemmaError:  # not one kernel, or not for this target
                continue
            found.append((path, arch))
    return found


def slowest(totals: Mapping[tuple[Path, str], float]) -> list[tuple[Path, str]]:
    """The example that took longest, and the persistent kernel, in both languages."""
    path, arch = max(totals, key=lambda x: totals[x])
    chosen = [(path.stem, arch)]
    if path.stem != "persistent":
        chosen.append(("persistent", "sm_90a"))
    found = [(ROOT / "examples" / kind / f"{stem}.{kind}", a) for stem, a in chosen for kind in ("py", "co")]
    return [(p, a) for p, a in found if p.exists()]


def cold_of_all(
    kernels: Iterable[tuple[Path, str]], repeats: int, bytecode: Path
) -> dict[tuple[Path, str], dict[str, float]]:
    """Milliseconds after import from an empty cache: median and least."""
    found = {}
    print(f"{'cold, after import':44} {'median':>8} {'least':>8} ms")
    for path, arch in kernels:
        if not found:
            samples("cold", path, arch, 1, bytecode)  # writes the bytecode
        with tempfile.TemporaryDirectory() as folder:
            caches = [Path(folder, str(i)) for i in range(repeats)]
            totals = [after_import(sample("whole", path, arch, cache, bytecode)) for cache in caches]
        found[path, arch] = {"median": median(totals), "least": min(totals)}
        missed = " MISSED" if median(totals) > COLD_TARGET else ""
        print(f"{named(path, arch):44} {median(totals):8.1f} {min(totals):8.1f}{missed}", flush=True)
    return found


def named(path: Path, arch: str) -> str:
    return f"{path.parent.name}/{path.name} for {arch}"


def warm_call(path: Path) -> dict[str, float] | str:
    """Host microseconds of a call on CUDA tensors that were passed before, next to torch.mm(out=)."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "no GPU"
    a, b = (torch.randn(SIZE, SIZE, device="cuda").half() for _ in range(2))
    c = torch.empty(SIZE, SIZE, device="cuda", dtype=torch.float16)
    kernel = read(path)
    turned = b.T
    calls = {"tilemma": lambda: kernel(a, b, c), "torch.mm(out=)": lambda: torch.mm(a, turned, out=c)}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(BATCHES + 3):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(BATCH):
                call()
            seconds = time.perf_counter() - start
            if i >= 3:
                times[name].append(seconds / BATCH * 1e6)
    return {name: median(series) for name, series in times.items()}


def parse(text: str) -> tuple[Path, str]:
    file, _, arch = text.partition("@")
    return Path(file).resolve(), arch or "sm_90a"


def measured(path: Path, arch: str, repeats: int, bytecode: Path) -> dict[str, Any]:
    return {
        mode: table(
            f"{named(path, arch)}, {title}",
            samples(mode, path, arch, repeats, bytecode),
            target,
        )
        for mode, title, target in (
            ("stages", "cold, stage by stage", None),
            ("cold", "cold, through the public way", COLD_TARGET),
            ("cached", "from the cache on disk", CACHED_TARGET),
        )
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", type=parse, metavar="FILE[@ARCH]")
    parser.add_argument("--repeats", type=int, default=5, help="processes of each kind")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sample", choices=("stages", "whole"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sample:
        how = cold_stages if options.sample == "stages" else whole
        print(json.dumps(how(*options.kernels[0])))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        bytecode = Path(folder)
        everything = {} if options.kernels else cold_of_all(every_example(), options.repeats, bytecode)
        chosen = options.kernels or slowest({k: v["median"] for k, v in everything.items()})
        results = {named(path, arch): measured(path, arch, options.repeats, bytecode) for path, arch in chosen}
    warm = warm_call(ROOT / "examples/py/persistent.py")
    print("\nwarm call, host microseconds:", json.dumps(warm))
    if options.json:
        facts = {"cpus": os.cpu_count(), "load": os.getloadavg(), "python": sys.version.split()[0]}
        every = {named(*k): v for k, v in everything.items()}
        data = {**facts, "kernels": results, "every_example": every, "warm_call_us": warm}
        options.json.write_text(json.dumps(data, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
