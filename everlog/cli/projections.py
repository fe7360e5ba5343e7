"""`everlog projections …`: run projections, look at them, tell them what to do; rebuild and verify their views."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

import click

from everlog.api import Everlog
from everlog.cli.commands import CliCommand, Group
from everlog.cli.exit_codes import FAILED
from everlog.cli.output import TableRows, encode, moment, plain, progress_bar, show
from everlog.cli.settings import CliSettings, with_log
from everlog.cli.status import stop_signals
from everlog.cli.tags import warnings_behind
from everlog.errors import InvalidOffset, InvalidProjection
from everlog.projections.api import ProjectionStatus
from everlog.projections.copies import Copies, CopyRequest, Difference
from everlog.projections.dead_letters import ShownDeadLetter
from everlog.projections.offsets import Offset, Single, parse, parse_place
from everlog.projections.offsets import show as show_offset
from everlog.projections.port import ANY_OFFSET, AnyOffset
from everlog.projections.projection import Projection
from everlog.projections.source import EnvelopeFacts
from everlog.projections.tag_source import TagSource
from everlog.wire.projections import letter_body

TYPES = {"text": "STR", "int": "INT", "long": "LNG", "sequence": "SEQ", "uuid": "TBU"}

name_argument = click.argument("name")
key_option = click.option("--key", metavar="KEY", help="Which instance.  [the only one]")
type_option = click.option(
    "--type", "kind", type=click.Choice([*TYPES, "map"]), default="long", help="What the offset is.  [long]"
)
wait_option = click.option(
    "--wait", type=float, metavar="SECONDS", help="Wait until its owner obeys, at most this long."
)
app_option = click.option(
    "--app", metavar="APP", help="Where the projection is declared, as module:attribute.  [[projections] app]"
)
offset_option = click.option("--offset", metavar="OFFSET", help="Only the one at this offset.")


@click.group(cls=Group)
def projections() -> None:
    """Run projections, look at them, tell them what to do.

    Commands go through the store: they work from any process, and while the projection does not run.
    """


def load_app(where: str) -> list[Projection]:
    """The projections that 'module:attribute' names: one, or a list of them."""
    module, colon, attribute = where.partition(":")
    if not colon or not module or not attribute:
        raise InvalidProjection(f"name the projections as module:attribute, not {where!r}")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise InvalidProjection(f"{where} cannot be imported: {type(error).__name__}: {error}") from error
    app = [found] if isinstance(found, Projection) else found
    if not isinstance(app, list | tuple) or not app or not all(isinstance(one, Projection) for one in app):
        raise InvalidProjection(f"{where} is no projection, and no list of them")
    return list(app)


def declared(log: Everlog, name: str, app: str | None) -> Projection:
    """The projection of this name in an app, which the configuration may name."""
    where = app or log.config.projections.app
    if where is None:
        raise InvalidProjection("say where the projection is declared: --app module:attribute, or [projections] app")
    found = [one for one in load_app(where) if one.name == name]
    if not found:
        raise InvalidProjection(f"{where} has no projection {name}")
    return found[0]


@projections.command(cls=CliCommand, examples=["everlog projections run shop.views:app"])
@click.argument("app", required=False)
@with_log(create=True)
async def run(log: Everlog, settings: CliSettings, /, app: str | None) -> None:
    """Run the projections of APP (module:attribute) until Ctrl-C. Start it several times to share the work.

    Without APP, those that [projections] app names.
    """
    where = app or log.config.projections.app
    if where is None:
        raise InvalidProjection("say what to run: module:attribute, or [projections] app in the configuration")
    found = load_app(where)
    with stop_signals("" if settings.as_json else "stopping … (once more: at once)") as stop:
        async with log.projections.run(*found):
            names = ", ".join(one.name for one in found)
            show(settings.as_json, {"running": [one.name for one in found]}, f"running {names}; Ctrl-C ends it")
            tagged = any(isinstance(one.source, TagSource) for one in found)
            async with warnings_behind(log.slices()) if tagged else nullcontext():
                await stop.wait()


def _document(status: ProjectionStatus) -> dict[str, Any]:
    fields = {name: getattr(status, name) for name in ProjectionStatus.__struct_fields__}
    lags = {name: None if fields[name] is None else fields[name]._asdict() for name in ("lag", "pipeline_lag")}
    return {**fields, "offset": show_offset(status.offset), **lags}


def _offset_text(offset: Offset | None) -> str:
    found = show_offset(offset)
    if found is None:
        return "-"
    return plain(encode(found) if isinstance(found, dict) else str(found))


@projections.command("list", cls=CliCommand)
@click.argument("name", required=False)
@with_log()
async def list_(log: Everlog, settings: CliSettings, /, name: str | None) -> None:
    """List all instances, or those of one projection."""
    found = await log.projections.list(name)
    if settings.as_json:
        for status in found:
            click.echo(encode(_document(status)))
        return
    table = TableRows("name", "key", "state", "events behind", "seconds behind", "dead letters", "offset")
    rows = []
    for status in found:
        lag = ("?", "?") if status.lag is None else (str(status.lag.events), f"{status.lag.seconds:.1f}")
        state = "paused" if status.paused and status.state != "silent" else status.state
        rows.append([status.name, status.key, state, *lag, str(status.dead_letters), _offset_text(status.offset)])
    table.add(rows)
    if not found:
        click.echo("no projection ever ran here")
    for text in dict.fromkeys(f"{status.name}: {status.remedy}" for status in found if status.remedy):
        click.echo(plain(text), err=True)


@projections.command("show", cls=CliCommand)
@name_argument
@key_option
@with_log()
async def show_(log: Everlog, settings: CliSettings, /, name: str, key: str | None) -> None:
    """Print all that is known about one instance."""
    document = _document(await log.projections.get(name, key))
    lines = [f"{field.replace('_', ' '):<14}{_plain(value)}" for field, value in document.items()]
    show(settings.as_json, document, "\n".join(lines))


def _plain(value: Any) -> str:
    return "-" if value is None else plain(value if isinstance(value, str) else encode(value))


def read_offset(text: str, kind: str) -> Offset:
    """An offset from the command line; a map as part=number or part=UUID, with commas between."""
    if kind != "map":
        return parse(text, TYPES[kind])
    found: dict[str, Single] = {}
    for item in text.split(","):
        entry, equals, place = item.rpartition("=")
        if not equals or not entry:
            raise InvalidOffset(f"a map of offsets looks like journal-orders-0=17,journal-orders-1=4, not {text!r}")
        found[entry] = parse_place(place)
    return found


@projections.command(cls=CliCommand, examples=["everlog projections set carts 17 --expected 42"])
@name_argument
@click.argument("offset")
@key_option
@type_option
@click.option("--expected", metavar="OFFSET", help="Only if the offset is this one now ('none': if there is none).")
@with_log()
async def set(  # noqa: A001
    log: Everlog, settings: CliSettings, /, name: str, offset: str, key: str | None, kind: str, expected: str | None
) -> None:
    """Go on after an offset."""
    before: Offset | AnyOffset | None = ANY_OFFSET
    if expected is not None:
        before = None if expected == "none" else read_offset(expected, kind)
    await log.projections.set(name, key, read_offset(offset, kind), expected=before)
    _done(settings, name, key, f"goes on after {offset}", offset=offset)


@projections.command(cls=CliCommand)
@name_argument
@key_option
@with_log()
async def clear(log: Everlog, settings: CliSettings, /, name: str, key: str | None) -> None:
    """Forget the offset: begin at the beginning of the source."""
    await log.projections.clear(name, key)
    _done(settings, name, key, "begins at the beginning")


@projections.command(cls=CliCommand)
@name_argument
@key_option
@wait_option
@with_log()
async def pause(log: Everlog, settings: CliSettings, /, name: str, key: str | None, wait: float | None) -> None:
    """Handle nothing until 'resume'; also after a restart."""
    await log.projections.pause(name, key, wait_s=wait)
    _done(settings, name, key, "paused")


@projections.command(cls=CliCommand)
@name_argument
@key_option
@wait_option
@with_log()
async def resume(log: Everlog, settings: CliSettings, /, name: str, key: str | None, wait: float | None) -> None:
    """Go on after a pause, or after it gave up."""
    await log.projections.resume(name, key, wait_s=wait)
    _done(settings, name, key, "resumed")


@projections.command(cls=CliCommand)
@name_argument
@key_option
@offset_option
@with_log()
async def skip(log: Everlog, settings: CliSettings, /, name: str, key: str | None, offset: str | None) -> None:
    """Leave out the envelope that is failing now. It becomes a dead letter."""
    skipped = await log.projections.skip(name, key, offset=offset)
    _done(settings, name, key, f"leaves out {skipped}", offset=skipped)


@projections.command("dead-letters", cls=CliCommand)
@name_argument
@key_option
@with_log()
async def dead_letters(log: Everlog, settings: CliSettings, /, name: str, key: str | None) -> None:
    """List the envelopes that were given up, with the event and the cause."""
    found = await log.projections.dead_letters(name, key)
    if settings.as_json:
        for letter in found:
            click.echo(encode(letter_body(letter)))
        return
    table = TableRows("key", "offset", "time (UTC)", "attempts", "topic", "id", "seqNr", "payload", "cause")
    table.add([_letter_row(one) for one in found])
    if not found:
        click.echo("no dead letters")


def _letter_row(letter: ShownDeadLetter) -> list[str]:
    event = letter.event or EnvelopeFacts()
    payload = event.payload if isinstance(event.payload, str) else encode(event.payload)
    return [
        letter.key,
        letter.offset,
        moment(letter.created_ms),
        str(letter.attempts),
        *(_plain(fact) for fact in (event.topic, event.id, event.seq_nr)),
        "-" if event.payload is None else plain(payload),
        plain(letter.cause),
    ]


@projections.command(cls=CliCommand)
@name_argument
@key_option
@offset_option
@with_log()
async def replay(log: Everlog, settings: CliSettings, /, name: str, key: str | None, offset: str | None) -> None:
    """Let the projection handle its dead letters again. Those that fail again stay."""
    count = await log.projections.replay(name, key, offset=offset)
    _done(settings, name, key, f"will handle {count} dead letters again", count=count)


@projections.command(cls=CliCommand)
@name_argument
@key_option
@offset_option
@with_log()
async def forget(log: Everlog, settings: CliSettings, /, name: str, key: str | None, offset: str | None) -> None:
    """Drop dead letters for good."""
    count = await log.projections.forget(name, key, offset=offset)
    _done(settings, name, key, f"{count} dead letters dropped", count=count)


@projections.command(cls=CliCommand, examples=["everlog projections wait carts orders:3:42"])
@name_argument
@click.argument("token")
@click.option("--timeout", type=float, default=30.0, metavar="SECONDS", help="Give up after this long.  [30]")
@with_log()
async def wait(log: Everlog, settings: CliSettings, /, name: str, token: str, timeout: float) -> None:  # noqa: ASYNC109
    """Wait until the view has what a token stands for."""
    await log.projections.wait(name, token, seconds=timeout)
    _done(settings, name, None, f"has {token}", token=token)


def _done(settings: CliSettings, name: str, key: str | None, what: str, **facts: Any) -> None:
    document = {"name": name, "key": key, **facts}
    show(settings.as_json, document, f"{plain(name)}{'' if key is None else ' ' + plain(key)}: {what}")


@projections.command(
    cls=CliCommand,
    examples=["everlog projections rebuild owed --app shop.views:app", "everlog projections rebuild owed --request"],
)
@name_argument
@app_option
@click.option(
    "--schema",
    type=click.File(),
    help="A file with statements, each ended by ;, that make the tables that change.",
)
@click.option("--follow", is_flag=True, help="Keep the copy up to date until it is switched to or aborted.")
@click.option("--request", is_flag=True, help="Leave it to the process that runs the projection; it follows, too.")
@with_log()
async def rebuild(
    log: Everlog,
    settings: CliSettings,
    /,
    name: str,
    app: str | None,
    schema: IO[str] | None,
    follow: bool,
    request: bool,
) -> None:
    """Fill a second copy of a view from the beginning, next to the running one.

    Readers see the old copy until 'switch'. A rebuild that was cut off goes on where it was.
    """
    if request:
        if app is not None or schema is not None or follow:
            raise click.UsageError(
                "--request leaves it to the process that runs the projection: without the other options"
            )
        copies = await log.projections.request_rebuild(name)
        show(settings.as_json, copies_document(name, copies), asked(name, "a second copy"))
        return
    projection = declared(log, name, app)
    create = [] if schema is None else [one for one in schema.read().split(";") if one.strip()]
    handled = 0
    with progress_bar("events") as progress:

        def on_progress(done: int, waiting: int | None) -> None:
            nonlocal handled
            handled = done
            progress(done, None if waiting is None else done + waiting)

        number = await log.projections.rebuild(projection, create=create, on_progress=on_progress, follow=follow)
    filled = {"name": name, "copy": number, "handled": handled}
    text = (
        f"copy {number} is filled, {handled:,} events; 'everlog projections switch {plain(name)}' lets readers see it"
    )
    show(settings.as_json, filled, f"{plain(name)}: {text}")


@projections.command(cls=CliCommand, examples=["everlog projections copies owed --json"])
@name_argument
@with_log()
async def copies(log: Everlog, settings: CliSettings, /, name: str) -> None:
    """Say which copies of a view there are, and how far a rebuild or verification is that was asked for."""
    await log.projections.check_view(name)
    found = await log.projections.copies(name)
    show(settings.as_json, copies_document(name, found), "\n".join(_copies_lines(name, found)))


def asked(name: str, what: str) -> str:
    """What to print when something that needs the handler was requested."""
    return (
        f"{plain(name)}: {what} is requested; the process that runs it does that ('everlog projections run'), and "
        f"'everlog projections copies {plain(name)}' says how far it is"
    )


def difference_line(one: Difference) -> str:
    same = "as counted again" if one.equal else f"lacks {one.missing} rows and has {one.surplus} too many"
    return f"{plain(one.table)}: {one.rows} rows, {same}"


def _copies_lines(name: str, found: Copies) -> Iterator[str]:
    version = found.versions.get(found.current)
    parts = [f"copy {found.current}{f' (version {plain(version)})' if version else ''} is read"]
    if found.building is not None:
        parts.append(f"copy {found.building} is {'filled' if found.filled else 'being filled'}")
    if found.previous is not None:
        parts.append(f"copy {found.previous} is kept to go back to")
    yield f"{plain(name)}: {', '.join(parts)}"
    if (remedy := found.remedy(name, round(time.time() * 1000))) is not None:
        yield plain(remedy)
    for kind, request in (("rebuild", found.rebuild), ("verification", found.verify)):
        if request is not None:
            yield f"{kind}: {_request_line(request)}"
            yield from (f"  {difference_line(one)}" for one in request.differences)


def _request_line(request: CopyRequest) -> str:
    if request.state == "waiting":
        return f"asked for at {moment(request.asked_ms)}; it begins when a process with the projection runs"
    if request.silent_s is not None:
        return (
            f"its process stopped reporting {request.silent_s:,.0f} s ago without shutting down: start it again with "
            "'everlog projections run', it goes on where it was"
        )
    if request.state == "running":
        return f"running, {request.handled:,} of {'?' if request.total is None else f'{request.total:,}'} events"
    ended = moment(request.ended_ms or 0)
    return f"done at {ended}" if request.error is None else f"failed at {ended}: {plain(request.error)}"


@projections.command(
    cls=CliCommand, examples=["everlog projections switch owed", "everlog projections switch owed --back"]
)
@name_argument
@click.option("--back", is_flag=True, help="Go back to the copy that was read before.")
@with_log()
async def switch(log: Everlog, settings: CliSettings, /, name: str, back: bool) -> None:
    """Let readers and runners go to the copy that was filled. The old one stays for a way back."""
    copies = await log.projections.switch(name, back=back)
    show(settings.as_json, copies_document(name, copies), f"{plain(name)}: copy {copies.current} is read from now on")


@projections.command(cls=CliCommand)
@name_argument
@with_log()
async def abort(log: Everlog, settings: CliSettings, /, name: str) -> None:
    """Drop the copy that is being built."""
    copies = await log.projections.abort(name)
    show(
        settings.as_json,
        copies_document(name, copies),
        f"{plain(name)}: the copy is dropped, copy {copies.current} stays",
    )


def copies_document(name: str, copies: Copies) -> dict[str, Any]:
    """Copies as JSON."""
    return {"name": name, **copies.shown()}


@click.group(cls=Group)
def verify() -> None:
    """Count again, and compare with what is there."""


@verify.command(
    cls=CliCommand,
    examples=[
        "everlog verify projection owed --app shop.views:app --table owed",
        "everlog verify projection owed --request",
    ],
)
@name_argument
@app_option
@click.option("--table", "tables", multiple=True, metavar="TABLE", help="A table; may be repeated.  [all it declares]")
@click.option("--request", is_flag=True, help="Leave it to the process that runs the projection.")
@click.option("--cancel", is_flag=True, help="Stop what was asked for with --request, or forget what it found.")
@with_log()
async def projection(
    log: Everlog,
    settings: CliSettings,
    /,
    name: str,
    app: str | None,
    tables: tuple[str, ...],
    request: bool,
    cancel: bool,
) -> None:
    """Run a projection again from the beginning, into a copy, and compare tables of its view.

    Exit code 1 if they differ. On Cassandra the projection is paused meanwhile.
    """
    if request or cancel:
        if (request and cancel) or app is not None or tables:
            raise click.UsageError("--request or --cancel, without the other options: it compares all declared tables")
        await _ask(log, settings, name, cancel)
        return
    differences = await log.projections.verify(declared(log, name, app), *tables)
    for one in differences:
        show(settings.as_json, one._asdict(), difference_line(one))
    if not all(one.equal for one in differences):
        raise click.exceptions.Exit(FAILED)


async def _ask(log: Everlog, settings: CliSettings, name: str, cancel: bool) -> None:
    if cancel:
        await log.projections.check_view(name)
        copies = await log.projections.cancel_verify(name)
        show(settings.as_json, copies_document(name, copies), f"{plain(name)}: no verification is asked for any more")
    else:
        copies = await log.projections.request_verify(name)
        show(settings.as_json, copies_document(name, copies), asked(name, "a verification"))
