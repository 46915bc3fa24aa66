"""Options and arguments that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

F = Callable[..., Any]


def _remember_kernel(context: click.Context, _: click.Parameter, name: str | None) -> None:
    """`--kernel NAME` stands for the argument."""
    context.meta["tilemma.kernel"] = name


def kernel_arguments(function: F) -> F:
    for option in (
        click.option(
            "--define", "defines", multiple=True, metavar="NAME=VALUE", help="compile-time value or macro"
        ),
        click.argument("kernel", required=False, callback=lambda c, _, name: name or c.meta.get("tilemma.kernel")),
        click.option(
            "--kernel",
            "named",
            metavar="NAME",
            is_eager=True,
            expose_value=False,
            callback=_remember_kernel,
            help="the kernel, as KERNEL",
        ),
        click.argument("file"),
    ):
        function = option(function)
    return function


def problem_arguments(function: F) -> F:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="print JSON"),
        click.option("--seed", default=0, show_default=True, help="of the random inputs"),
        click.option("--arg", "args", multiple=True, metavar="NAME=VALUE", help="value of a scalar parameter"),
        click.option(
            "--shape",
            metavar="M=..,N=..",
            help="all dimensions (default: 1024 each; check: the smallest that reach every path)",
        ),
    ):
        function = option(function)
    return function
