"""The program `everlog`: one command, one library call."""

from __future__ import annotations

import click

from everlog.cli.cluster import cluster
from everlog.cli.commands import Root
from everlog.cli.docs import docs
from everlog.cli.journal import expire, journal
from everlog.cli.projections import projections, verify
from everlog.cli.quarantine import quarantine
from everlog.cli.queue import queue
from everlog.cli.run import replicate, serve, up
from everlog.cli.snapshot import snapshot
from everlog.cli.status import status
from everlog.cli.tags import tags
from everlog.cli.token import token
from everlog.cli.work import work
from everlog.version import __version__

_SECTIONS = {
    "Run": ["up", "serve", "replicate", "status", "token", "cluster"],
    "Work with journals": ["journal", "snapshot", "tags"],
    "Make views of them": ["projections"],
    "Work with queues": ["queue", "work"],
    "Work with documents": ["docs"],
    "Look after them": ["quarantine", "expire", "verify"],
}
_EXAMPLES = [
    "everlog up                                             # start here",
    "everlog journal append orders order-1 --payload hello  # prints a token",
    "everlog journal read orders order-1 --json",
    "everlog journal append orders --lines events.jsonl     # in bulk",
    "everlog tags follow eu                                 # events as they come",
    "everlog queue put pages page-7 --delay 10s             # merges with what waits for the key",
    "everlog status --watch",
]


@click.group("everlog", cls=Root, sections=_SECTIONS, examples=_EXAMPLES)
@click.version_option(__version__, prog_name="everlog")
def main() -> None:
    """Everlog keeps events: append them to journals, read them back, let Spark fold the log into tables.

    Everything lives in one folder. Reads see every acknowledged append at once, whether the pipeline has replicated
    it yet or not. 'everlog COMMAND --help' tells more about a command.
    """


for _command in (
    up,
    serve,
    replicate,
    status,
    journal,
    snapshot,
    tags,
    projections,
    queue,
    work,
    docs,
    quarantine,
    expire,
    verify,
    cluster,
    token,
):
    main.add_command(_command)
