"""Common behaviour of the commands: errors and exit statuses, interrupts, help."""

from __future__ import annotations

import contextlib
import signal
import sys
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from tilemma.errors import TilemmaError, ToolError, debugging, visible

F = Callable[..., Any]
INTERRUPTED = 130


class TooLarge(ToolError):
    code = "too-large"
    found = "this computer's memory, or Python's stack, is too small: {what}"
    expected = "a problem that this computer can hold"
    fix = "give smaller sizes, or a program with less nesting"


class CommandFailure(TilemmaError):
    code = "command-failure"
    found = "tilemma failed: {what}"
    expected = "a result, or an error that says what is wrong with the program or the arguments"
    fix = "this is a mistake in tilemma: please report it with the command; `TILEMMA_DEBUG=1` shows the traceback"


class BadCommandLine(TilemmaError):
    code = "command-line"
    found = "{what}"
    expected = "{usage}"
    fix = "{remedy}"


def _of_click(error: click.ClickException) -> TilemmaError:
    """What click says of a command line, as an error of the family."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    usage = "arguments that the command takes" if context is None else context.get_usage().removeprefix("Usage: ")
    command = "tilemma" if context is None else context.command_path
    what, meant = " ".join(error.format_message().split()), getattr(error, "possibilities", None)
    remedy = f"`{command} --help` lists the arguments and options"
    if meant:  # click's text would end with them
        what = f"No such option {getattr(error, 'option_name', '')!r}"
        remedy = f"did you mean {' or '.join(f'`{x}`' for x in sorted(meant))}? {remedy}"
    return BadCommandLine(what=visible(what.rstrip(".")), usage=" ".join(usage.split()), remedy=remedy)


def _report(error: TilemmaError, as_json: bool = False) -> int:
    """Print ``error``; its exit status."""
    from tilemma.tools.output import complain, say_json

    if as_json:
        try:
            say_json({"ok": False, "error": error.to_json()})
            return error.exit_status
        except ToolError as unwritten:
            error = unwritten
    complain(error.render())
    return error.exit_status


def guarded(function: F) -> F:
    """Print errors of the family (as JSON with --json) and convert them to the exit status; print warnings too."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        from tilemma.tools.output import complain

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            warnings.showwarning = lambda message, *_, **__: complain(f"warning: {visible(str(message))}")
            try:
                status = function(*args, **kwargs)
            except (click.ClickException, click.Abort):
                raise
            except Exception as e:  # the border to the user: `_unexpected` reports our own mistakes as such
                if debugging():
                    raise
                error = e if isinstance(e, TilemmaError) else _unexpected(e)
                status = _report(error, kwargs.get("as_json", False))
        sys.exit(status or 0)

    return run


def _unexpected(error: Exception) -> TilemmaError:
    """The error for a limit of this computer, or an exception of the user's program or of this package."""
    from tilemma.sources import program_failed

    if (failed := program_failed(error)) is not None:
        return failed
    kind = TooLarge if isinstance(error, (RecursionError, MemoryError)) else CommandFailure
    return kind(what=f"{type(error).__name__}: {error}".rstrip(": "))


# Options of one command that are tried on others, and what those call the same.
_ELSEWHERE = {"--target": "--arch"}


class Command(click.Command):
    """A command whose help, too, is printed by `say`; it names its option for one of another command."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(context, args)
        except click.NoSuchOption as error:
            meant = _ELSEWHERE.get(error.option_name)
            if meant and any(meant in p.opts for p in self.params):
                # As a possibility click would drop it: the names do not resemble each other.
                message = f"No such option {error.option_name!r}. Did you mean {meant!r}?"
                raise click.NoSuchOption(error.option_name, message, ctx=context) from None
            raise

    def get_help_option(self, context: click.Context) -> click.Option | None:
        option = super().get_help_option(context)
        if option is not None:
            option.callback = _print_help
        return option


# Signals that end a command: a request, and the end of the terminal.
_ENDS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Commands(Command, click.Group):
    """The commands; an interrupt ends them with its own status, and takes their temporary files along."""

    command_class = Command

    def main(self, *args: Any, standalone_mode: bool = True, **kwargs: Any) -> Any:
        run: F = super().main
        if not standalone_mode:
            return run(*args, standalone_mode=False, **kwargs)
        before = {}
        with contextlib.suppress(ValueError):  # not in the main thread
            for number in _ENDS:
                if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
                    before[number] = signal.signal(number, lambda number, _: sys.exit(128 + number))
        try:
            sys.exit(run(*args, standalone_mode=False, **kwargs) or 0)
        except click.exceptions.NoArgsIsHelpError as error:
            from tilemma.tools.output import complain

            complain(error.format_message())
            sys.exit(error.exit_code)
        except click.ClickException as error:
            given = kwargs.get("args") or (args[0] if args else None) or sys.argv[1:]
            sys.exit(_report(_of_click(error), "--json" in given))
        except TilemmaError as error:  # of --version and --help
            sys.exit(_report(error))
        except (click.Abort, KeyboardInterrupt):
            sys.exit(INTERRUPTED)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _print_help(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    from tilemma.tools.output import say

    if wanted and not context.resilient_parsing:
        say(context.get_help())
        context.exit()
