"""The command line.

Exit status: 0 good, 1 the kernel is wrong, 2 anything else (program, arguments, tools, memory), 130 interrupted.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tilemma.errors import TilemmaError
from tilemma.tools.commands import Commands, guarded
from tilemma.tools.options import kernel_arguments, problem_arguments


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """The version, and which of NVIDIA's tools are used, and why."""
    if not wanted or context.resilient_parsing:
        return
    from tilemma import __version__
    from tilemma.assemble import find_tool
    from tilemma.tools.output import say

    lines = [f"tilemma, version {__version__}"]
    for name in ("ptxas", "nvdisasm"):
        try:
            lines.append(str(find_tool(name)))
        except TilemmaError as error:
            lines.append(f"{name}: none: {error.message}")
    say("\n".join(lines))
    context.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Show the version."
)
def main() -> None:
    """Kernels for 2D tensor contraction: run, compile, check and look at them."""


def _show(outcome: Any, as_json: bool) -> None:
    from tilemma.tools.output import say, say_json

    if as_json:
        say_json(outcome.to_json())
    else:
        say(outcome.render())


def _load(file: str, kernel: str | None, defines: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    from tilemma.tools.problem import literal, parse_pairs, pick, read_module

    values = {k: literal(v) for k, v in parse_pairs("define", list(defines)).items()}
    module = read_module(file, values)
    chosen = pick(module, kernel)
    return chosen, values if Path(file).suffix == ".py" else {}


@main.command()
@kernel_arguments
@click.option("--target", default="auto", show_default=True, help="auto, cpu, machine or cuda")
@click.option("--arch", help="architecture to compile for (default: the device's; sm_90a on the machine)")
@click.option(
    "--expect",
    metavar="EINSUM",
    help='compare with float64: an einsum (output last), addends, an activation: "relu(mk,nk->mn + bias)"',
)
@click.option("--plan", is_flag=True, help="print the plan too")
@problem_arguments
@guarded
def run(
    file: str,
    kernel: str | None,
    defines: tuple[str, ...],
    target: str,
    arch: str | None,
    expect: str | None,
    plan: bool,
    shape: str | None,
    args: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> int:
    """Run a kernel on random inputs, and compare with what it should compute."""
    from tilemma.tools.run import run_kernel

    chosen, constants = _load(file, kernel, defines)
    outcome = run_kernel(
        chosen,
        constants,
        shape=shape,
        args=args,
        target=target,
        arch=arch,
        expect=expect,
        seed=seed,
        plan=plan,
        file=file,
    )
    _show(outcome, as_json)
    return 0 if outcome.ok else 1


@main.command(name="compile")
@kernel_arguments
@click.option("--arch", required=True, help="sm_80, sm_86, sm_89, sm_90 or sm_90a")
@click.option("--emit", required=True, type=click.Choice(["ir", "lane", "ptx", "cubin", "sass", "launch"]))
@click.option("-o", "output", metavar="PATH", help="file to write (default, and `-`: print)")
@click.option("--force", is_flag=True, help="let -o replace a file that tilemma did not write")
@guarded
def compile_(
    file: str, kernel: str | None, defines: tuple[str, ...], arch: str, emit: str, output: str | None, force: bool
) -> int:
    """Compile a kernel as far as asked for."""
    from tilemma.tools.output import say, write_file, write_standard

    chosen, constants = _load(file, kernel, defines)
    compiled = chosen.compile(arch, **constants)
    content: dict[str, Callable[[], str | bytes]] = {
        "ir": lambda: compiled.ir,
        "lane": lambda: compiled.lane_ir,
        "ptx": lambda: compiled.ptx,
        "cubin": lambda: compiled.cubin,
        "sass": compiled.sass,
        "launch": lambda: json.dumps(compiled.launch, indent=2) + "\n",
    }
    data = content[emit]()
    if output is not None:
        binary = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
        write_file(output, binary, source=file, force=force)
    elif isinstance(data, bytes):
        if sys.stdout is not None and sys.stdout.isatty():
            raise click.UsageError("machine code on a terminal: name a file with `-o PATH`, or write `-o -`")
        write_standard(data)
    else:
        say(data)
    return 0


@main.command()
@kernel_arguments
@click.option("--entry", help="PTX: the kernel (may be left out where the file has one)")
@click.option("--grid", metavar="N[xN]", help="PTX: blocks")
@click.option("--block", metavar="N[xN]", help="PTX: threads of a block")
@click.option("--cluster", metavar="N[xN]", help="PTX: blocks of a cluster")
@click.option("--shared", default=0, metavar="BYTES", help="PTX: dynamic shared memory")
@click.option("--expect", multiple=True, metavar="a1=a0+1", help="PTX: what an array should hold afterwards")
@click.option(
    "--ctas", default="all", metavar="all|sample:N", help="PTX: run N independent blocks of the grid only"
)
@click.option("--arch", help="target [default: sm_90a; of PTX: its own]")
@click.option("--schedules", default=20, show_default=True, help="adversarial schedules to run")
@click.option("--strict", is_flag=True, help="also report what the PTX ISA forbids and hardware tolerates")
@click.option(
    "--advice/--no-advice", default=True, help="PTX: try repairs of a hazard, and advise one that removes it"
)
@click.option("--writer", "writers", multiple=True, metavar="A[I,J]|%R@LINE", help="the stores to an element; the "
              "instruction that gave a register its value before a PTX line")  # fmt: skip
@click.option("--lane", "lanes", multiple=True, metavar="[X,Y,Z:]WARP,LANE", help="trace a lane (of CTA X,Y,Z)")
@click.option(
    "--timeline", metavar="PATH", help="write warps, waits and copies over time: .svg, or text (`-`: print)"
)
@click.option("--force", is_flag=True, help="let --timeline replace a file that tilemma did not write")
@problem_arguments
@guarded
def check(
    file: str,
    kernel: str | None,
    defines: tuple[str, ...],
    entry: str | None,
    grid: str | None,
    block: str | None,
    cluster: str | None,
    shared: int,
    expect: tuple[str, ...],
    ctas: str,
    arch: str | None,
    schedules: int,
    strict: bool,
    advice: bool,
    writers: tuple[str, ...],
    lanes: tuple[str, ...],
    timeline: str | None,
    force: bool,
    shape: str | None,
    args: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> int:
    """Run the kernel's PTX on the PTX machine under many schedules, and report hazards.

    FILE may be PTX of any compiler: `tilemma check k.ptx --grid 4 --block 128 --arg 'f32[1024]=random' --arg
    'f32[1024]=out' --expect 'a1=a0 + 1'`.  Arguments are a0, a1, ... in order: TYPE[SHAPE]=random, =out
    (poisoned), =zeros, =x.npy or NumPy text; TYPE=NUMBER; tma(a0, box=64x64, swizzle=128), the box innermost
    first.
    """
    from tilemma.tools.explain_run import Questions

    progress = not as_json and sys.stderr is not None and sys.stderr.isatty()
    options: dict[str, Any] = {"schedules": schedules, "strict": strict, "seed": seed, "progress": progress}
    options["questions"] = Questions(writers, lanes, timeline, file, force)
    outcome: Any
    if Path(file).suffix == ".ptx":
        from tilemma.tools.check_ptx import PtxLaunch, check_ptx, required

        launch = PtxLaunch(required("grid", grid), required("block", block), entry or kernel, cluster, shared)
        outcome = check_ptx(file, launch, args=args, expect=expect, arch=arch, ctas=ctas, advice=advice, **options)
    else:
        from tilemma.tools.check import check_kernel
        from tilemma.tools.check_ptx import not_of_a_program, whole_grid

        whole_grid(ctas)
        not_of_a_program(entry=entry, grid=grid, block=block, cluster=cluster, shared=shared, expect=expect)
        chosen, constants = _load(file, kernel, defines)
        outcome = check_kernel(
            chosen, constants, arch="sm_90a" if arch is None else arch, shape=shape, args=args, **options
        )
    _show(outcome, as_json)
    return 0 if outcome.ok else 1


@main.command()
@kernel_arguments
@click.option("--arch", default="sm_90a", show_default=True)
@click.option(
    "--timeline",
    metavar="PATH",
    help="which agent copies, multiplies, stores when: .svg, .html, or text (`-`: print)",
)
@click.option(
    "--shape",
    metavar="M=..,N=..",
    help="all dimensions: how full the last round of blocks is, and tiles that fill it; of the timeline "
    "(default: a tile, and enough to fill each ring)",
)
@click.option("--arg", "args", multiple=True, metavar="NAME=VALUE", help="with --shape: a scalar parameter")
@click.option("--force", is_flag=True, help="let --timeline replace a file that tilemma did not write")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@guarded
def explain(
    file: str,
    kernel: str | None,
    defines: tuple[str, ...],
    arch: str,
    timeline: str | None,
    shape: str | None,
    args: tuple[str, ...],
    force: bool,
    as_json: bool,
) -> int:
    """The plan: atoms, tiling, layouts, descriptors, copies, synchronisation, shared memory.

    With --timeline the schedule, from a run on the PTX machine.
    """
    from tilemma.tools.output import say, say_json

    chosen, constants = _load(file, kernel, defines)
    if timeline is not None:
        from tilemma.tools.schedule import schedule, write_schedule

        found = schedule(chosen, constants, arch=arch, shape=shape, args=args)
        if as_json:
            say_json(found.to_json())
        else:
            write_schedule(found, timeline, source=file, force=force)
        return 0
    from tilemma.tools.better_tiles import full_rounds

    start = time.perf_counter()
    compiled = chosen.compile(arch, **constants)
    explanation = compiled.explain()
    explanation.seconds = time.perf_counter() - start
    assembler, filled = _assembler(), full_rounds(chosen, constants, compiled, shape, args)
    if as_json:
        tool = assembler and assembler.to_json()
        say_json({**explanation.to_json(), **filled.to_json(), "assembler": tool})
    else:
        say(explanation.render())
        for line in filled.lines():
            say(f"  {line}")
        say(f"  assembler {assembler}" if assembler else "  assembler none, see `tilemma --version`")
    return 0


def _assembler() -> Any:
    """The ptxas that is used, if there is one."""
    from tilemma.assemble import find_tool
    from tilemma.errors import ToolError

    try:
        return find_tool("ptxas")
    except ToolError:
        return None


@main.command()
@click.argument("atom", metavar="ATOM|TILE|FILE")
@click.argument("kernel", required=False)
@click.option("--operand", metavar="A|B|C|E|SFA|SFB", help="one operand only")
@click.option("--format", "format_", default="text", show_default=True, help="text, json, csv, md, svg or html")
@click.option("--element", metavar="ROW,COL", help="the lanes and registers that hold this element of the operand")
@click.option(
    "--lane", metavar="LANE[,REGISTER]", help="what this lane (or one register of it) holds of the operand"
)
@click.option("--tile", metavar="MxNxK", help="the instruction repeated over a block tile (text or svg)")
@click.option("--units", metavar="MxNxK", default="1x1x1", help="with --tile: warps or warpgroups along each axis")
@click.option("--declared-in", metavar="FILE.py", help="a program that declares instructions (tm.instruction)")
@click.option("--html", "as_html", is_flag=True, help="a page, as --format html; FILE: the picture of a kernel")
@click.option("-o", "output", metavar="PATH", help="FILE: the page [default: KERNEL.html; `-`: print]")
@click.option("--force", is_flag=True, help="FILE: let -o replace a file that tilemma did not write")
@click.option("--arch", default="sm_90a", show_default=True, help="FILE: target")
@click.option("--define", "defines", multiple=True, metavar="NAME=VALUE", help="FILE: compile-time value or macro")
@click.option("--shape", metavar="M=..,N=..", help="FILE: all dimensions [default: the smallest]")
@click.option("--arg", "args", multiple=True, metavar="NAME=VALUE", help="FILE: value of a scalar parameter")
@click.option("--seed", default=0, show_default=True, help="FILE: of inputs and schedule")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@guarded
def show(
    atom: str,
    kernel: str | None,
    operand: str | None,
    format_: str,
    element: str | None,
    lane: str | None,
    tile: str | None,
    units: str,
    declared_in: str | None,
    as_html: bool,
    output: str | None,
    force: bool,
    as_json: bool,
    **drawing: Any,
) -> int:
    """The lane and register that hold each element of an instruction's operands.

    ATOM is a name of the catalogue, its PTX mnemonic (mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32), or a
    tile in shared memory as DTYPE,ROWSxCOLS,MAJOR,SWIZZLE (f16,128x64,K,128): its swizzle, banks, conflicts and
    core matrices.

    FILE [KERNEL] --html draws a kernel of a `.co` or `.py` file: grid, warps and roles, shared memory, fragments,
    and the timeline of a run on the PTX machine, linked to source, PTX and SASS.
    """
    from tilemma.tools import show as tool
    from tilemma.tools.output import say
    from tilemma.tools.show_tile import show_shared, show_tile

    _declare(declared_in)
    format_ = "html" if as_html else format_
    if Path(atom).suffix in (".co", ".py"):
        if format_ != "html":
            raise click.UsageError("the picture of a kernel is a page: add `--html`")
        from tilemma.tools.picture import draw

        chosen, constants = _load(atom, kernel, drawing.pop("defines"))
        picture = draw(chosen, constants, **drawing)
        said = picture.save(f"{chosen.name}.html" if output is None else output, force=force, source=atom)
        if said:
            say(said)
        return 0
    if "," in atom and "." not in atom.split(",")[0]:
        say(show_shared(atom, format_))
        return 0
    if tile is not None:
        say(show_tile(atom, tile, units, format_))
        return 0
    if element is not None:
        row, col = _numbers("element", element, 2, 2)
        ask = tool.where if as_json else tool.describe_element
        answer: Any = ask(atom, operand or "C", row, col)
    elif lane is not None:
        numbers = _numbers("lane", lane, 1, 2)
        answer = (tool.holds if as_json else tool.describe_lane)(atom, operand or "C", *numbers)
    else:
        answer = tool.show(atom, operand, "json" if as_json else format_)
    say(answer if isinstance(answer, str) else json.dumps(answer))
    return 0


def _declare(path: str | None) -> None:
    """Run the Python file that declares instructions, if there is one."""
    if path is not None:
        from tilemma.modules import load_python

        load_python(path)


def _numbers(option: str, text: str, least: int, most: int) -> list[int]:
    """``text`` as comma-separated numbers; BadArgument otherwise."""
    from tilemma.tools.problem import BadArgument, whole_number

    parts = [whole_number(p) for p in text.split(",")]
    numbers = [p for p in parts if p is not None]
    if not least <= len(parts) <= most or len(numbers) < len(parts):
        wanted = f"{least if least == most else f'{least} or {most}'} numbers, separated by commas"
        raise BadArgument(
            option=option, text=text, problem=f"not {wanted}", wanted=wanted, fix_text=f"write --{option} 0,1"
        )
    return numbers


@main.command()
@click.option("--arch", help="only what runs on this target")
@click.option("--declared-in", metavar="FILE.py", help="a program that declares instructions (tm.instruction)")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@guarded
def atoms(arch: str | None, declared_in: str | None, as_json: bool) -> int:
    """The catalogue of instructions."""
    from tilemma.targets.ptx.target import Target
    from tilemma.tools.output import say
    from tilemma.tools.show_atoms import list_atoms

    _declare(declared_in)
    say(list_atoms(Target.of(arch).arch if arch else None, as_json))
    return 0


@main.command()
@click.option("--clear", is_flag=True, help="remove the entries")
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="entries of this kind only")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@guarded
def cache(clear: bool, kinds: tuple[str, ...], as_json: bool) -> int:
    """Show or clear the cache on disk.

    Anything in it is made again when needed; of `plans` and `tuned` that takes a GPU's time.
    """
    from tilemma.tools.cache import report

    _show(report(clear=clear, kinds=kinds), as_json)
    return 0


@main.command()
@click.argument("folder", required=False)
@click.option("--force", is_flag=True, help="replace files that tilemma did not write")
@guarded
def examples(folder: str | None, force: bool) -> int:
    """List the example kernels, or write them into FOLDER."""
    from tilemma.tools import examples
    from tilemma.tools.output import say

    if folder is None:
        say("\n".join([str(examples.folder()), *("  " + name for name in examples.names())]))
    else:
        say("\n".join(examples.write(folder, force=force)))
    return 0


if __name__ == "__main__":
    main()
