"""Our kinds of click commands: global options everywhere, and a help page with sections."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from everlog.cli.exit_codes import EXIT_CODES, FAILED, INTERRUPTED, OK, exit_code, report
from everlog.cli.logs import start_logging
from everlog.cli.settings import CliSettings, global_options

log = logging.getLogger("everlog.cli")


class _WithGlobalOptions(click.Command):
    """Lists the options of all commands apart from those of this one."""

    everywhere: list[click.Option]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *self.everywhere]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [one for one in super().get_params(ctx) if isinstance(one, click.Option)]
        own = [found for one in options if (found := one.get_help_record(ctx)) is not None]
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)
        if own:
            with formatter.section("Options"):
                formatter.write_dl(own)
        with formatter.section("Options of every command"):
            formatter.write_dl([one.get_help_record(ctx) or ("", "") for one in self.everywhere])


class CliCommand(_WithGlobalOptions):
    """A command that does something."""

    def __init__(self, *arguments: Any, examples: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.everywhere = global_options(environment=False)
        self.examples = examples

    def invoke(self, ctx: click.Context) -> Any:
        settings = ctx.ensure_object(CliSettings)
        start_logging(settings.log_level, settings.log_format)
        return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        write_examples(formatter, self.examples)


class Group(_WithGlobalOptions, click.Group):
    """Commands around one noun."""

    command_class = CliCommand

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.everywhere = global_options(environment=False)


class Root(Group):
    """`everlog` itself: its help is the manual's first page, and it turns errors into exit codes."""

    group_class = Group

    def __init__(
        self, *arguments: Any, sections: dict[str, list[str]], examples: Sequence[str], **attributes: Any
    ) -> None:
        super().__init__(*arguments, **attributes)
        self.everywhere = global_options(environment=True)
        self.context_settings.setdefault("max_content_width", 100)
        self.sections = sections
        self.examples = examples

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in self.sections.values() for name in names]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(70)) for name in names])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, self.examples)
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in EXIT_CODES.items()])
        formatter.write_paragraph()
        formatter.write_text("The variables EVERLOG_DATA and EVERLOG_CONFIG stand in for --data and --config.")

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        if not standalone_mode:
            return super().main(words, prog_name or "everlog", complete_var, standalone_mode=False, **extra)
        try:
            code = super().main(words, prog_name or "everlog", complete_var, standalone_mode=False, **extra)
        except Exception as error:
            _end(error, as_json="--json" in words)
        sys.exit(code if isinstance(code, int) else OK)


def _end(error: Exception, *, as_json: bool) -> NoReturn:
    if isinstance(error, click.exceptions.Exit):
        sys.exit(error.exit_code)
    if isinstance(error, click.Abort):
        sys.exit(INTERRUPTED)
    if isinstance(error, BrokenPipeError):
        # The reader of the pipe has enough; that is no error. Python would complain when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(OK)
    log.debug("the command failed", exc_info=error)
    report(error, as_json=as_json)
    sys.exit(exit_code(error) if not isinstance(error, OSError) else FAILED)


def write_examples(formatter: click.HelpFormatter, examples: Sequence[str]) -> None:
    """Commands to copy, one per line."""
    if examples:
        with formatter.section("Examples"):
            for example in examples:
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")
