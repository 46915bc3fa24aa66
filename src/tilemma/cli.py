"""The command line.  Exit status: 0 good, 1 the kernel is wrong, 2 the program or the arguments are wrong."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from tilemma.errors import TilemmaError

F = Callable[..., Any]


def guarded(function: F) -> F:
    """Errors of the family are printed (as JSON when asked for) and become the exit status."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            status = function(*args, **kwargs)
        except TilemmaError as e:
            if kwargs.get("as_json"):
                click.echo(json.dumps({"ok": False, "error": e.to_json()}, ensure_ascii=False))
            else:
                click.echo(e.render(), err=True)
            sys.exit(e.exit_status)
        sys.exit(status or 0)

    return run


def kernel_arguments(function: F) -> F:
    for option in (
        click.option(
            "--define", "defines", multiple=True, metavar="NAME=VALUE", help="compile-time value or macro"
        ),
        click.argument("kernel", required=False),
        click.argument("file", type=click.Path(dir_okay=False)),
    ):
        function = option(function)
    return function


def problem_arguments(function: F) -> F:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="print JSON"),
        click.option("--seed", default=0, show_default=True, help="of the random inputs"),
        click.option("--arg", "args", multiple=True, metavar="NAME=VALUE", help="value of a scalar parameter"),
        click.option("--shape", metavar="M=..,N=..", help="all dimensions (default: 1024 each)"),
    ):
        function = option(function)
    return function


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tilemma")
def main() -> None:
    """Kernels for 2D tensor contraction: run, compile, check and look at them."""


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
@click.option("--expect", metavar="EINSUM", help='compare with float64 einsum, e.g. "mk,nk->mn" (output last)')
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
    )
    click.echo(json.dumps(outcome.to_json(), ensure_ascii=False) if as_json else outcome.render())
    return 0 if outcome.ok else 1


@main.command(name="compile")
@kernel_arguments
@click.option("--arch", required=True, help="sm_80, sm_86, sm_89, sm_90 or sm_90a")
@click.option("--emit", required=True, type=click.Choice(["ir", "lane", "ptx", "cubin", "sass", "launch"]))
@click.option(
    "-o", "output", type=click.Path(dir_okay=False, writable=True), help="file to write (default: print)"
)
@guarded
def compile_(
    file: str, kernel: str | None, defines: tuple[str, ...], arch: str, emit: str, output: str | None
) -> int:
    """Compile a kernel as far as asked for."""
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
        Path(output).write_bytes(data.encode() if isinstance(data, str) else data)
    elif isinstance(data, bytes):
        sys.stdout.buffer.write(data)
    else:
        click.echo(data, nl=not data.endswith("\n"))
    return 0


@main.command()
@kernel_arguments
@click.option("--arch", default="sm_90a", show_default=True)
@click.option("--schedules", default=20, show_default=True, help="adversarial schedules to run")
@click.option("--strict", is_flag=True, help="report what only the letter of the ISA forbids, too")
@problem_arguments
@guarded
def check(
    file: str,
    kernel: str | None,
    defines: tuple[str, ...],
    arch: str,
    schedules: int,
    strict: bool,
    shape: str | None,
    args: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> int:
    """Run the kernel's PTX on the PTX machine under many schedules, and report hazards."""
    from tilemma.tools.check import check_kernel

    chosen, constants = _load(file, kernel, defines)
    outcome = check_kernel(
        chosen,
        constants,
        arch=arch,
        shape=shape,
        args=args,
        schedules=schedules,
        strict=strict,
        seed=seed,
        progress=not as_json and sys.stderr.isatty(),
    )
    click.echo(json.dumps(outcome.to_json(), ensure_ascii=False) if as_json else outcome.render())
    return 0 if outcome.ok else 1


@main.command()
@kernel_arguments
@click.option("--arch", default="sm_90a", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@guarded
def explain(file: str, kernel: str | None, defines: tuple[str, ...], arch: str, as_json: bool) -> int:
    """The plan: atoms, tiling, layouts, descriptors, copies, synchronisation, shared memory."""
    chosen, constants = _load(file, kernel, defines)
    start = time.perf_counter()
    explanation = chosen.compile(arch, **constants).explain()
    explanation.seconds = time.perf_counter() - start
    click.echo(json.dumps(explanation.to_json(), ensure_ascii=False) if as_json else explanation.render())
    return 0


@main.command()
@click.argument("atom")
@click.option("--operand", metavar="A|B|C|E", help="one operand only")
@click.option("--format", "format_", default="text", show_default=True, help="text, json, csv, md, svg or html")
@click.option("--element", metavar="ROW,COL", help="who holds this element of the operand")
@click.option(
    "--lane", metavar="LANE[,REGISTER]", help="what this lane (or one register of it) holds of the operand"
)
@click.option("--tile", metavar="MxNxK", help="the instruction repeated over a block tile (text or svg)")
@click.option("--units", metavar="MxNxK", default="1x1x1", help="with --tile: warps or warpgroups along each axis")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@guarded
def show(
    atom: str,
    operand: str | None,
    format_: str,
    element: str | None,
    lane: str | None,
    tile: str | None,
    units: str,
    as_json: bool,
) -> int:
    """Who owns what: which lane and register holds which element of an instruction's operands.

    ATOM is a name of the catalogue, or a tile in shared memory as DTYPE,ROWSxCOLS,MAJOR,SWIZZLE
    (f16,128x64,K,128): its swizzle, banks and conflicts.
    """
    from tilemma.tools import show as tool
    from tilemma.tools.show_tile import show_shared, show_tile

    if "," in atom:
        click.echo(show_shared(atom, format_))
        return 0
    if tile is not None:
        click.echo(show_tile(atom, tile, units, format_))
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
    click.echo(answer if isinstance(answer, str) else json.dumps(answer))
    return 0


def _numbers(option: str, text: str, least: int, most: int) -> list[int]:
    """``text`` as comma-separated numbers; BadArgument otherwise."""
    from tilemma.tools.problem import BadArgument

    parts = text.split(",")
    if not least <= len(parts) <= most or not all(p.strip().isdigit() for p in parts):
        wanted = f"{least if least == most else f'{least} or {most}'} numbers, separated by commas"
        raise BadArgument(
            option=option, text=text, problem=f"not {wanted}", wanted=wanted, fix_text=f"write --{option} 0,1"
        )
    return [int(p) for p in parts]


@main.command()
@click.option("--arch", help="only what runs on this target")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@guarded
def atoms(arch: str | None, as_json: bool) -> int:
    """The catalogue of instructions."""
    from tilemma.passes.target import Target
    from tilemma.tools.show_atoms import list_atoms

    click.echo(list_atoms(Target.of(arch).arch if arch else None, as_json))
    return 0


if __name__ == "__main__":
    main()
