"""Helpers for the commands: suggestions for mistyped names, renamed options, whole numbers.

Owns the click classes of groups and options, the parameter types of whole numbers, and the progress
bar. Does not own any command. Source: this project; it uses click to parse and rich to draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from ondie.emu.units import digits, nearest, quoted


class Group(click.Group):
    """Command group whose error for an unknown command suggests the nearest command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args:  # print help in every version of click
            click.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = nearest(args[0], self.list_commands(ctx))
            known = not near or repr(near) in error.message  # newer click suggests by itself
            hint = "" if known else f" Nearest: {near!r}."
            raise click.UsageError(f"{error.message}{hint}", ctx) from error


class RenamedOption(click.Option):
    """Option that has been renamed and still accepts its old spelling.

    The old spelling is the last name in the declaration of the option; the help omits this name.
    """

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        spellings, self.opts = self.opts, self.opts[:-1]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = spellings


class WholeNumber(click.types.IntParamType):
    """Parameter type of a whole number that is written in decimal digits, with or without a sign.
    Unlike int(), it does not accept underscores and spaces."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:  # fmt: skip
        """Return ``value`` as a whole number. Raises click.BadParameter if it is not a whole number
        in decimal digits."""
        if isinstance(value, int):
            return value
        try:
            return digits(value)
        except ValueError:
            shown = repr(value) if len(value) <= 60 else quoted(value)
            wrong = (
                f"{shown} is not a valid integer; write a whole number in digits, such as 100000"
            )
            self.fail(wrong, param, ctx)


WHOLE = WholeNumber()


def whole_option(name: str, default: int | None, text: str, metavar: str = "N") -> Any:
    """Return a decorator that adds an option whose value is a whole number.

    ``name``: name of the option, such as "--steps". ``text``: help text.
    """
    return click.option(
        name, type=WHOLE, default=default, show_default=default is not None, metavar=metavar,
        help=text,
    )  # fmt: skip


class WholeRange(click.IntRange):
    """Parameter type of a whole number in digits, between two limits."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:  # fmt: skip
        """Return ``value`` as a whole number. Raises click.BadParameter if it is not a whole number
        between the limits."""
        found: int = super().convert(WHOLE.convert(value, param, ctx), param, ctx)
        return found


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Callable[[str, float], None] | None]:
    """Yield a callback that draws one progress bar for each name.

    The arguments of the callback are a name and the fraction of the work that is done, 0 to 1.
    Yield None if ``quiet`` is set or standard error is not a terminal.
    """
    if quiet:
        yield None
        return
    from rich.console import Console  # `ondie --help` does not need rich

    err = Console(stderr=True)
    if not err.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"))
    with Progress(*columns, TimeElapsedColumn(), console=err, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def at(name: str, share: float) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=1.0)
            bar.update(tasks[name], completed=share)

        yield at
