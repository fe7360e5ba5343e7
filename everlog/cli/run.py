"""`everlog up`, `everlog serve` and `everlog replicate`: the pipeline, the server, and what runs with them."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from everlog.api import Everlog
from everlog.cli.commands import CliCommand
from everlog.cli.exit_codes import FAILED, INTERRUPTED
from everlog.cli.output import encode, show
from everlog.cli.projections import load_app
from everlog.cli.sample import holds_sample, load_sample
from everlog.cli.settings import CliSettings, with_log
from everlog.cli.status import document, plain_line, stop_signals, watch_status
from everlog.errors import MissingExtra, ReplicationFailed
from everlog.projections.projection import Projection
from everlog.projections.strategies import OnSpark
from everlog.queues.factory import make_upkeep
from everlog.runtime.server_process import as_server_process
from everlog.runtime.service import Service

if TYPE_CHECKING:
    from everlog.pipeline.replicator import Replicator

F = TypeVar("F", bound=Callable[..., Any])

once_option = click.option("--once", is_flag=True, help="End when all that is in the log now is replicated.")
timeout_option = click.option(
    "--timeout", "patience", type=float, metavar="SECONDS", help="With --once: give up after this long."
)
loss_option = click.option(
    "--accept-loss", is_flag=True, help="Go on although records that were not replicated are gone from the log."
)
_SERVER_OPTIONS = (
    click.option("--host", metavar="ADDRESS", help="Where the server listens.  [127.0.0.1]"),
    click.option("--port", type=click.IntRange(0, 65_535), metavar="N", help="At which port; 0: any.  [8080]"),
    click.option("--writable", is_flag=True, help="Without tokens: let the console act, not only show."),
    click.option("--anonymous", is_flag=True, help="Let every client in at a public address, without tokens."),
)


def server_options(command: F) -> F:
    """Where the server listens, and whom it lets in."""
    decorated: Any = command
    for option in reversed(_SERVER_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


@dataclass(frozen=True)
class ServerOptions:
    """What was said about the server; what was not comes from `[server]`."""

    host: str | None = None
    port: int | None = None
    writable: bool = False
    anonymous: bool = False

    @asynccontextmanager
    async def serving(self, log: Everlog, *, any_port: bool = False) -> AsyncIterator[str]:
        """The server at work. `any_port`: if the usual port is taken and none was asked for, another one will do."""
        from everlog.console.server import serving

        config = log.config.server
        host, port = self.host or config.host, config.port if self.port is None else self.port
        any_port = any_port and self.port is None
        with as_server_process():
            async with serving(
                log, host=host, port=port, any_port=any_port, writable=self.writable, anonymous=self.anonymous
            ) as url:
                yield url


@click.command(cls=CliCommand, examples=["everlog serve", "everlog serve --port 9000 --data /var/lib/everlog"])
@server_options
@with_log(create=True, for_long=True)
async def serve(log: Everlog, settings: CliSettings, /, **options: Any) -> None:
    """Serve journals, tags, projections, queues and documents over HTTP, until Ctrl-C."""
    with stopping(settings) as stop:
        async with ServerOptions(**options).serving(log) as url:
            show(
                settings.as_json,
                {"url": url},
                f"Everlog in {log.config.where} serves {url} ({url}/openapi)",
            )
            await stop.wait()


@click.command(
    cls=CliCommand,
    examples=[
        "everlog up",
        "everlog up --projections shop.views:app",
        "everlog up --once --no-sample --data /var/lib/everlog",
    ],
)
@once_option
@timeout_option
@click.option("--no-sample", is_flag=True, help="Leave a new folder empty.")
@click.option("--no-server", is_flag=True, help="Do not serve over HTTP. With --once there is no server either.")
@click.option("--projections", "app", metavar="APP", help="Run the projections of APP, module:attribute, too.")
@server_options
@with_log(create=True, for_long=True)
async def up(
    log: Everlog,
    settings: CliSettings,
    /,
    once: bool,
    patience: float | None,
    no_sample: bool,
    no_server: bool,
    app: str | None,
    **server: Any,
) -> None:
    """Run everything in one process: the pipeline, the server, expiry, retention, and the upkeep of queues.

    Makes the folder if needed, and loads a small sample into a new one. Ctrl-C ends it.
    """
    from everlog.journal.expiry import Expiry
    from everlog.journal.retention import Retention

    check_once(once, patience, app)
    found = [] if app is None else load_app(app)
    heavy = [one for one in found if isinstance(one.strategy, OnSpark)]
    services: list[Service] = [Expiry(log.parts)]
    if log.config.embedded:
        services.append(Retention(log.parts))
    async with AsyncExitStack() as stack:
        # Before anything begins that must be ended: a server that others know of leaves in order.
        stop = stack.enter_context(stopping(settings))
        starting = await stack.enter_async_context(start_pipeline(log, accept_loss=False))
        await greet(log, settings, sample=log.config.embedded and not no_sample)
        served = False
        if not once and not no_server:
            served = await start_server(log, settings, stack, ServerOptions(**server))
        if not served:  # a server sees to the queues itself
            services.append(make_upkeep(log.config, lambda: log.queues, clock=log.parts.clock, store=log.parts.store))
        if light := [one for one in found if one not in heavy]:
            await stack.enter_async_context(log.projections.run(*light))
        await run_pipeline(log, settings, services, stop, starting, once=once, patience=patience, projections=heavy)


async def greet(log: Everlog, settings: CliSettings, *, sample: bool) -> None:
    """Load the sample into a new folder, and say what can be done here."""
    loaded = await load_sample(log) if sample else None
    if not settings.as_json:
        click.echo(f"Everlog in {log.config.where}")
        if loaded is not None:
            click.echo(f"loaded a sample: {loaded.topics} topics, {loaded.journals} journals, {loaded.events} events")
        show_hints(settings, sample=await holds_sample(log))


def check_once(once: bool, patience: float | None, app: str | None) -> None:
    """What does not go together."""
    if app is not None and once:
        raise click.UsageError("--projections runs until Ctrl-C: it does not go with --once")
    if patience is not None and not once:
        raise click.UsageError("--timeout goes with --once")


def stopping(settings: CliSettings) -> AbstractContextManager[asyncio.Event]:
    """What Ctrl-C and SIGTERM set."""
    return stop_signals("" if settings.as_json else "stopping … (once more: at once)")


async def start_server(log: Everlog, settings: CliSettings, stack: AsyncExitStack, options: ServerOptions) -> bool:
    """Serve as long as the stack lasts. An installation without the server's part works without it: False."""
    try:
        url = await stack.enter_async_context(options.serving(log, any_port=True))
    except MissingExtra as error:
        click.echo(f"no server: {error}", err=True)
        return False
    show(settings.as_json, {"url": url}, f"serves {url}\n")
    return True


@click.command(cls=CliCommand, examples=["everlog replicate", "everlog replicate --projections shop.views:heavy"])
@once_option
@timeout_option
@loss_option
@click.option("--projections", "app", metavar="APP", help="Run the projections on Spark of APP, module:attribute, too.")
@with_log(create=True)
async def replicate(
    log: Everlog,
    settings: CliSettings,
    /,
    once: bool,
    patience: float | None,
    accept_loss: bool,
    app: str | None,
) -> None:
    """Run the pipeline: fold the log into the tables, until Ctrl-C."""
    check_once(once, patience, app)
    found = [] if app is None else load_app(app)
    with stopping(settings) as stop:
        async with start_pipeline(log, accept_loss=accept_loss) as starting:
            await run_pipeline(log, settings, [], stop, starting, once=once, patience=patience, projections=found)


async def run_pipeline(
    log: Everlog,
    settings: CliSettings,
    services: list[Service],
    stop: asyncio.Event,
    starting: StartingPipeline,
    *,
    once: bool,
    patience: float | None,
    projections: Sequence[Projection] = (),
) -> None:
    """Run until `stop` is set, or with `once` until all that is in the log now is in the tables."""
    done = False
    async with (
        running(starting, settings, services, stop) as pipeline,
        _on_spark(log, pipeline, projections),
    ):
        if once:
            done = await _wait(log, pipeline, settings, stop, patience)
        else:
            await watch_status(log, settings, stop)
        interrupted = stop.is_set()
    if pipeline.failure is not None:
        raise pipeline.failure
    if once:
        await _conclude(log, settings, done=done, interrupted=interrupted, patience=patience)


class StartingPipeline:
    """A pipeline whose Spark starts while other things are done."""

    def __init__(self, pipeline: Replicator) -> None:
        self.pipeline = pipeline
        self.ended = False
        # In a thread: the loop stays free, and Spark does not take over Ctrl-C as it does in the main thread.
        self.start = asyncio.create_task(asyncio.to_thread(pipeline.start))

    async def stop(self) -> None:
        """Once it has started; one that did not start has nothing to stop."""
        if not self.ended:
            self.ended = True
            await asyncio.wait([self.start])
            if self.start.exception() is None:
                await asyncio.to_thread(self.pipeline.stop)


@asynccontextmanager
async def start_pipeline(log: Everlog, *, accept_loss: bool) -> AsyncIterator[StartingPipeline]:
    """Begin to start the pipeline. Whatever fails meanwhile, it is stopped at the end."""
    from everlog.pipeline.replicator import Replicator

    starting = StartingPipeline(Replicator(log.config, accept_loss=accept_loss))
    try:
        yield starting
    finally:
        await starting.stop()


@asynccontextmanager
async def running(
    starting: StartingPipeline, settings: CliSettings, services: list[Service], stop: asyncio.Event
) -> AsyncIterator[Replicator]:
    """The pipeline and the services at work; stopped in the opposite order. If it ends by itself, it sets `stop`."""
    if not settings.as_json and not starting.start.done():
        click.echo("starting Spark …", err=True)
    pipeline = starting.pipeline
    async with AsyncExitStack() as stack:
        await asyncio.shield(starting.start)
        stack.push_async_callback(asyncio.wait, [asyncio.create_task(_end_with(pipeline, stop))])
        stack.push_async_callback(starting.stop)
        for service in services:
            service.start()
            stack.push_async_callback(service.stop)
        yield pipeline


@asynccontextmanager
async def _on_spark(log: Everlog, pipeline: Replicator, projections: Sequence[Projection]) -> AsyncIterator[None]:
    """Projections on the pipeline's own session; they end before it does."""
    if not projections:
        yield
        return
    from everlog.projections.spark.runner import SparkProjections

    session = await asyncio.to_thread(lambda: pipeline.session)
    heavy = SparkProjections(log.config, projections, session=session)
    await asyncio.to_thread(heavy.start)
    try:
        yield
    finally:
        await asyncio.to_thread(heavy.stop)


async def _end_with(pipeline: Replicator, stop: asyncio.Event) -> None:
    await asyncio.to_thread(pipeline.join)
    stop.set()


async def _wait(
    log: Everlog,
    pipeline: Replicator,
    settings: CliSettings,
    stop: asyncio.Event,
    patience: float | None,
) -> bool:
    """Wait for the pipeline to reach what is in the log now, and show how far it is."""
    reached = asyncio.create_task(asyncio.to_thread(pipeline.wait_until_replicated, patience))
    over = asyncio.Event()
    watching = asyncio.create_task(_watch_quietly(log, settings, over))
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([reached, stopped], return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            await asyncio.to_thread(pipeline.stop)  # this also ends the wait
            await reached
            return False
        return reached.result()
    finally:
        over.set()
        stopped.cancel()
        await watching


async def _watch_quietly(log: Everlog, settings: CliSettings, over: asyncio.Event) -> None:
    """With --json only the last document counts; people see what flows."""
    if settings.as_json:
        await over.wait()
    else:
        await watch_status(log, settings, over)


async def _conclude(
    log: Everlog,
    settings: CliSettings,
    *,
    done: bool,
    interrupted: bool,
    patience: float | None,
) -> None:
    """Print what `--once` came to, and end with the code that says so."""
    found = await log.status()
    left_out = found.pipeline.left_out if found.pipeline is not None else {}
    if settings.as_json:
        click.echo(encode({"replicated": done and not left_out, **document(found)}))
    else:
        click.echo(f"summary: {plain_line(found)}")
    if interrupted:
        sys.exit(INTERRUPTED)
    if not done:
        reason = found.pipeline.last_error if found.pipeline is not None else None
        raise ReplicationFailed(f"not all is replicated after {patience:g} s" + (f": {reason}" if reason else ""))
    if left_out:
        click.echo(f"error: {len(left_out)} topics were left out: {', '.join(sorted(left_out))}", err=True)
        sys.exit(FAILED)


def program() -> str:
    """How a person calls this program from where they are."""
    script = Path(sys.argv[0])
    if script.name != "everlog":
        return "everlog"
    found = shutil.which("everlog")
    if found is not None and Path(found).resolve() == script.resolve():
        return "everlog"
    try:
        return str(script.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(script.absolute())


def show_hints(settings: CliSettings, *, sample: bool) -> None:
    """Commands to try next, as they can be typed here."""
    everlog, where = program(), settings.arguments()
    topic, journal_id = ("orders", "order-1") if sample else ("my-topic", "my-journal")
    lines = [
        f'journal append {topic} {journal_id}{where} --json-payload \'{{"type": "returned"}}\' --tag eu',
        f"journal read {topic} {journal_id}{where}",
        f"tags follow eu{where}",
    ]
    if sample:
        lines += [f"journal keys carts{where}", f"snapshot load accounts account-1{where}"]
    lines.append(f"status --watch{where}")
    click.echo("try, in another terminal:")
    for line in lines:
        click.echo(f"  {everlog} {line}")
    click.echo("")
