"""`everlog cluster …`: a real Kafka and a real Cassandra on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from everlog.cli.commands import CliCommand, Group
from everlog.cli.exit_codes import NotFound
from everlog.cli.output import TableRows, encode, show
from everlog.cli.run import program
from everlog.cli.settings import CliSettings

if TYPE_CHECKING:
    from everlog.cluster.local import LocalCluster, ServerStatus

DEFAULT_FOLDER = "everlog-cluster"

folder_option = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_FOLDER,
    metavar="FOLDER",
    help=f"Where the cluster is.  [./{DEFAULT_FOLDER}]",
)


@click.group(cls=Group)
def cluster() -> None:
    """Run a real Kafka and a real Cassandra on this machine, without containers.

    They are ordinary processes on free ports of 127.0.0.1, and all that they write is in one folder. Maven brings them
    the first time (110 MB). For trying and testing: a real cluster has more than one machine.
    """


@cluster.command(
    cls=CliCommand,
    examples=[
        "everlog cluster up",
        f"everlog up --config {DEFAULT_FOLDER}/everlog.toml",
        "everlog cluster up --nodes 3",
    ],
)
@folder_option
@click.option("--nodes", type=int, metavar="N", help="How many brokers, and as many Cassandra nodes.  [1]")
@click.option("--secure", is_flag=True, default=None, help="TLS, users, passwords and rights.")
@click.pass_obj
def up(settings: CliSettings, /, folder: Path, nodes: int | None, secure: bool | None) -> None:
    """Start the servers, wait until they serve, write everlog.toml.

    What runs already is left alone; what died is started again with its data. Size, ports and passwords are those of
    the first time. Needs Maven, and Java 17 (Cassandra: 17 or 11).
    """
    from everlog.cluster.local import LocalCluster

    local = LocalCluster(folder, nodes=nodes, secure=secure)
    with _watched(settings) as progress:
        config = local.up(progress)
    servers = local.status()
    if settings.as_json:
        click.echo(encode({"config": str(local.config_file), "servers": [_document(one) for one in servers]}))
        return
    _print_table(servers)
    assert config.cassandra is not None
    if len(servers) == 2:
        click.echo("one broker, one node: nothing is kept twice")
    if config.cassandra.password is not None:
        click.echo("the passwords are in everlog.toml, which only you can read")
    click.echo(f"\nits configuration is {folder / local.config_file.name}; try:")
    click.echo(f"  {program()} up --config {folder / local.config_file.name}")


@cluster.command(cls=CliCommand, examples=["everlog cluster down", "everlog cluster down --wipe"])
@folder_option
@click.option("--wipe", is_flag=True, help="Remove the data too. It does not ask.")
@click.pass_obj
def down(settings: CliSettings, /, folder: Path, wipe: bool) -> None:
    """Stop the servers. Their data stays, unless --wipe is given."""
    stopped = _existing(folder).down(wipe=wipe)
    text = f"stopped {stopped} server{'' if stopped == 1 else 's'}" + (
        f", removed what was in {folder}" if wipe else ""
    )
    show(settings.as_json, {"stopped": stopped, "wiped": wipe}, text)


@cluster.command(cls=CliCommand)
@folder_option
@click.pass_obj
def status(settings: CliSettings, /, folder: Path) -> None:
    """Show each server: its address, its process, its memory."""
    servers = _existing(folder).status()
    if settings.as_json:
        for one in servers:
            click.echo(encode(_document(one)))
    else:
        _print_table(servers)


@cluster.command(
    cls=CliCommand, examples=["everlog cluster logs cassandra-1 --lines 100", "everlog cluster logs --follow"]
)
@click.argument("name", required=False)
@folder_option
@click.option(
    "--lines", type=click.IntRange(min=0), default=20, metavar="N", help="How many lines of each server.  [20]"
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what they write, until Ctrl-C.")
@click.pass_obj
def logs(settings: CliSettings, /, name: str | None, folder: Path, lines: int, follow: bool) -> None:
    """Show what the servers wrote last: one of them, or all."""
    from everlog.cluster.logs import follow as follow_files

    local = _existing(folder)
    servers = local.servers() if name is None else [local.server(name)]
    say = _speaker(settings, alone=name is not None)
    if not follow:
        for server in servers:
            for line in server.last_lines(lines):
                say(server.name, line)
        return
    with suppress(KeyboardInterrupt):
        for found, line in follow_files({server.name: server.log for server in servers}, lines):
            say(found, line)


def _existing(folder: Path) -> LocalCluster:
    from everlog.cluster.local import LocalCluster

    local = LocalCluster(folder)
    if not local.exists:
        raise NotFound(
            f"there is no cluster in {folder}: name its folder with --folder, or begin one with 'cluster up'"
        )
    return local


def _speaker(settings: CliSettings, *, alone: bool) -> Callable[[str, str], None]:
    """How a line is printed; who wrote it is said unless there is only one."""

    def say(name: str, line: str) -> None:
        text = line if alone else f"{click.style(name, bold=True)}  {line}"
        show(settings.as_json, {"server": name, "line": line}, text)

    return say


def _document(server: ServerStatus) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(server)
    return found


def _print_table(servers: list[ServerStatus]) -> None:
    TableRows("server", "address", "state", "pid", "memory").add(
        [
            [
                one.name,
                one.address,
                "running" if one.running else "not running",
                str(one.pid or "-"),
                "-" if one.memory is None else f"{one.memory / 2**20:,.0f} MiB",
            ]
            for one in servers
        ]
    )


@contextmanager
def _watched(settings: CliSettings) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each thing that takes long; without a terminal, a line when it begins."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    quiet = settings.as_json
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=None)
                if not quiet and not console.is_terminal:
                    click.echo(f"{what}: {total} …", err=True)
            # Without a total the bar only moves: Maven looks around for long before the first jar comes.
            bars.update(tasks[what], completed=done, total=total if done else None)

        yield progress
