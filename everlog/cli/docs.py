"""`everlog docs …`: JSON documents and collections."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from everlog.api import Everlog
from everlog.cli.bulk import LineSource
from everlog.cli.commands import CliCommand, Group
from everlog.cli.exit_codes import FAILED, exit_code
from everlog.cli.output import TableRows, encode, moment, plain, progress_bar, show
from everlog.cli.schema import schema
from everlog.cli.settings import CliSettings, run_with_log, with_log
from everlog.cli.status import stop_signals
from everlog.cli.views import view

if TYPE_CHECKING:
    from everlog.documents.change_stream import StreamedChange
    from everlog.documents.live_change import LiveChange

# Who writes: as on a server without tokens, a user of this machine.
LOCAL = "local"
SHOWN_FAILURES = 20

path_argument = click.argument("path")
body_argument = click.argument("body", metavar="[BODY]", required=False)
fields_option = click.option("--fields", default="", metavar="FIELDS", help="Only these fields: 'total,customer.name'.")
spark_option = click.option("--spark", is_flag=True, help="As a Spark job.")


message_id_option = click.option(
    "--message-id", metavar="ID", help="A repetition with the same id is not applied again."
)
wait_option = click.option("--wait", is_flag=True, help="Return when what was written is in the log.")


def _write_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--if-match", metavar="ETAG", help="Only if the document has this entity tag."),
        click.option("--if-none-match", metavar="ETAG", help="Only if it has not; '*': only if there is none."),
        message_id_option,
        wait_option,
    ):
        command = option(command)
    return command


ttl_option = click.option(
    "--ttl",
    "ttl_s",
    type=int,
    metavar="SECONDS",
    help="Delete it after so long, unless it is written again.",
)


def _parse(body: str | None) -> Any:
    """JSON from the line, or from standard input with '-' or nothing."""
    from everlog.documents.bodies import decode_body

    return decode_body(sys.stdin.buffer.read() if body in (None, "-") else str(body))


@click.group(cls=Group)
def docs() -> None:
    """Store JSON documents and collections, query them, follow their changes.

    The path of a collection ends with '~': 'shop/orders~'; its elements are 'shop/orders~/1' and so on.
    """


def _show_written(settings: CliSettings, written: Any) -> None:
    document = {
        "transactionId": written.transaction_id,
        "path": written.path,
        "revision": written.revision,
        "created": written.created,
    }
    if written.position is not None:
        document["position"] = str(written.position)
    if written.expires_ms is not None:
        document["expires"] = moment(written.expires_ms)
    show(settings.as_json, document, f"{plain(written.path)} is at revision {written.revision}")


@docs.command(cls=CliCommand, examples=["everlog docs get shop/settings", "everlog docs get shop/orders~/1 --at 3"])
@path_argument
@click.option("--at", type=int, metavar="N", help="The body at this revision.")
@fields_option
@with_log()
async def get(log: Everlog, settings: CliSettings, /, path: str, at: int | None, fields: str) -> None:
    """Print a document or an element: its body, or with --json all about it."""
    from everlog.documents.bodies import encode_body

    if at is not None:
        if fields:
            raise click.UsageError("--fields and --at do not go together")
        click.echo(encode_body(await log.documents.at(path, at, exact=True)))
        return
    found = await log.documents.get(path, fields=fields)
    if settings.as_json:
        about = {"path": path, "revision": found.revision, "etag": found.etag, "modified": moment(found.modified_ms)}
        if found.expires_ms is not None:
            about["expires"] = moment(found.expires_ms)
        click.echo(encode({**about, "body": msgspec.Raw(found.json.encode())}))
    else:
        click.echo(found.json)


@docs.command(
    cls=CliCommand,
    examples=[
        'everlog docs put shop/settings \'{"currency": "EUR"}\'',
        "everlog docs put shop/orders~/1 '{\"total\": 12}' --wait",
    ],
)
@path_argument
@body_argument
@_write_options
@ttl_option
@with_log(create=True)
async def put(log: Everlog, settings: CliSettings, /, path: str, body: str | None, **options: Any) -> None:
    """Store a document or an element. Without a body, or with '-', it comes from standard input."""
    _show_written(settings, await log.documents.write("put", path, _parse(body), by=LOCAL, **options))


@docs.command(cls=CliCommand, examples=["everlog docs post shop/orders~ '{\"total\": 12}'"])
@path_argument
@body_argument
@_write_options
@ttl_option
@with_log(create=True)
async def post(log: Everlog, settings: CliSettings, /, path: str, body: str | None, **options: Any) -> None:
    """Add an element to a collection under a new id."""
    _show_written(settings, await log.documents.write("post", path, _parse(body), by=LOCAL, **options))


@docs.command(cls=CliCommand, examples=["everlog docs patch shop/settings '{\"currency\": null}'"])
@path_argument
@body_argument
@_write_options
@ttl_option
@with_log()
async def patch(log: Everlog, settings: CliSettings, /, path: str, body: str | None, **options: Any) -> None:
    """Merge into a document or an element; null removes a field."""
    _show_written(settings, await log.documents.write("patch", path, _parse(body), by=LOCAL, **options))


@docs.command(
    cls=CliCommand,
    examples=[
        'everlog docs batch shop/orders~ \'[{"method": "delete", "id": "1"}]\'',
        "everlog docs batch d < operations.json",
    ],
)
@path_argument
@click.argument("operations", metavar="[OPERATIONS]", required=False)
@message_id_option
@wait_option
@with_log(create=True)
async def batch(
    log: Everlog, settings: CliSettings, /, path: str, operations: str | None, message_id: str | None, wait: bool
) -> None:
    """Carry out several writes of one document or collection, all of them or none.

    OPERATIONS is a JSON list of {"method", "id", "body", "ifMatch", "ifNoneMatch", "ttl"}. Without it, or with '-', it
    comes from standard input.
    """
    for written in await log.documents.batch(path, _parse(operations), message_id=message_id, wait=wait, by=LOCAL):
        _show_written(settings, written)


@docs.command(cls=CliCommand)
@path_argument
@_write_options
@with_log()
async def delete(log: Everlog, settings: CliSettings, /, path: str, **options: Any) -> None:
    """Delete a document, an element, or a collection with all its elements and indexes."""
    _show_written(settings, await log.documents.delete(path, by=LOCAL, **options))


@docs.command(
    "list",
    cls=CliCommand,
    examples=["everlog docs list shop/orders~ --filter 'total>10' --sort=-total --size 20"],
)
@path_argument
@click.option("--filter", "condition", default="", metavar="FILTER", help="Which elements: 'total > 10'.")
@click.option("--sort", default="", metavar="FIELDS", help="In which order: '-total,name'.")
@click.option("--size", type=int, metavar="N", help="How many.  [100]")
@click.option("--after", metavar="TOKEN", help="The next page, as the last one said.")
@fields_option
@click.option("--explain", is_flag=True, help="Say which index was used and how much was read.")
@with_log()
async def list_(
    log: Everlog, settings: CliSettings, /, path: str, condition: str, explain: bool, **options: Any
) -> None:
    """List the elements of a collection, one per line."""
    page = await log.documents.list(path, filter=condition, explain=explain, **options)
    for element in msgspec.json.decode(page.json, type=list[msgspec.Raw]):
        click.echo(bytes(element))
    if page.explanation is not None:
        click.echo(encode(page.explanation), err=True)
    if page.next is not None and not settings.as_json:
        hint = " ".join(f"--{name} '{value}'" for name, value in page.next.items())
        click.echo(f"there may be more: {hint}", err=True)


@docs.command(cls=CliCommand, examples=["everlog docs count shop/orders~ --filter 'total>10'"])
@path_argument
@click.option("--filter", "condition", default="", metavar="FILTER", help="Which elements: 'total > 10'.  [all]")
@click.option("--explain", is_flag=True, help="Say which index was used and how much was read.")
@with_log()
async def count(log: Everlog, settings: CliSettings, /, path: str, condition: str, explain: bool) -> None:
    """Count the elements of a collection that match."""
    found = await log.documents.count(path, filter=condition, explain=explain)
    show(settings.as_json, {"count": found.count, "revision": found.revision}, str(found.count))
    if found.explanation is not None:
        click.echo(encode(found.explanation), err=True)


@docs.command(cls=CliCommand, examples=["everlog docs collections", "everlog docs collections shop/"])
@click.argument("prefix", default="")
@click.option("--after", default="", metavar="PATH", help="Only behind this path.")
@click.option("--limit", type=int, default=1000, metavar="N", help="At most N.  [1000]")
@with_log()
async def collections(log: Everlog, settings: CliSettings, /, prefix: str, after: str, limit: int) -> None:
    """List the collections whose paths begin with PREFIX, with how many elements and indexes they have."""
    rows = TableRows("collection", "revision", "elements", "indexes", "")
    following: str | None = after
    while following is not None and limit > 0:
        page = await log.documents.collections(prefix, after=following, size=min(limit, 1000))
        following, limit = page.next, limit - len(page.collections)
        for one in page.collections:
            if settings.as_json:
                click.echo(encode(one))
            else:
                numbers = [str(one.revision), str(one.count), str(one.indexes)]
                rows.add([[plain(one.path), *numbers, "view" if one.view else ""]])


@docs.command(cls=CliCommand)
@path_argument
@click.option("--after", type=int, default=0, metavar="N", help="Only above this revision.")
@click.option("--before", type=int, metavar="N", help="Only below this revision.")
@click.option("--reverse", is_flag=True, help="The newest first.")
@click.option("--limit", type=int, default=100, metavar="N", help="At most N.  [100]")
@with_log()
async def history(log: Everlog, settings: CliSettings, /, path: str, **options: Any) -> None:
    """List the changes of a document, an element or a collection."""
    rows = TableRows("revision", "time (UTC)", "by", "change", "body")
    async for event in log.documents.history(path, **options):
        body = event.json
        if settings.as_json:
            about: dict[str, Any] = {
                "revision": event.revision,
                "time": moment(event.time_ms),
                "method": event.method,
                "by": event.by,
            }
            click.echo(encode({**about, "path": event.path, "body": msgspec.Raw(body.encode())}))
        else:
            change = f"{event.method} {plain(event.path)}"
            rows.add([[str(event.revision), moment(event.time_ms), plain(event.by) or "-", change, plain(body)]])


@docs.command(cls=CliCommand, examples=["everlog docs feed shop/orders~ --after 0 --json"])
@path_argument
@click.option("--after", type=int, metavar="N", help="Begin behind this revision.  [now]")
@click.option("--once", is_flag=True, help="End when all that is there now was printed.")
@with_log()
async def feed(log: Everlog, settings: CliSettings, /, path: str, after: int | None, once: bool) -> None:
    """Print changes as they come, until Ctrl-C."""
    if once:
        await log.documents.settle(path)
    await _until_stopped(_print_feed(log, path, after, once=once, as_json=settings.as_json))


async def _until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run this to its end, or until Ctrl-C."""
    with stop_signals() as stop:
        printing = asyncio.create_task(work)
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([printing, stopped], return_when=asyncio.FIRST_COMPLETED)
        for task in (printing, stopped):
            task.cancel()
        results = await asyncio.gather(printing, stopped, return_exceptions=True)
    if isinstance(results[0], Exception):
        raise results[0]


async def _print_feed(log: Everlog, path: str, after: int | None, *, once: bool, as_json: bool) -> None:
    from everlog.documents.history import DocumentEvent

    async with contextlib.aclosing(log.documents.feed(path, after=after)) as items:
        async for item in items:
            if not isinstance(item, DocumentEvent):
                if once:
                    return
                continue
            body = item.json
            if as_json:
                about = {"revision": item.revision, "method": item.method, "path": item.path, "by": item.by}
                click.echo(encode({**about, "body": msgspec.Raw(body.encode())}))
            else:
                click.echo(f"{item.revision}  {item.method}  {plain(item.path)}  {plain(body)}")


@docs.command(
    cls=CliCommand,
    examples=[
        "everlog docs follow shop/orders~ --filter 'total>10'",
        "everlog docs follow shop/orders~ --filter 'total>10' --once --json",
    ],
)
@path_argument
@click.option("--filter", "condition", default="", metavar="FILTER", help="Which elements: 'total > 10'.  [all]")
@click.option("--after", metavar="POSITION", help="Go on behind this position, which --json shows.  [the present]")
@click.option("--once", is_flag=True, help="End when all that is there now was printed.")
@with_log()
async def follow(
    log: Everlog, settings: CliSettings, /, path: str, condition: str, after: str | None, once: bool
) -> None:
    """Print which elements match, then which enter, change and leave, until Ctrl-C."""
    upto = None
    if once:
        await log.documents.settle(path)
        newest = [event.revision async for event in log.documents.history(path, limit=1, reverse=True)]
        upto = newest[0] if newest else 0
    live = log.documents.live(path, filter=condition, after=after)
    await _until_stopped(_print_live(live, upto, as_json=settings.as_json))


async def _print_live(live: AsyncGenerator[LiveChange, None], upto: int | None, *, as_json: bool) -> None:
    async with contextlib.aclosing(live) as changes:
        async for change in changes:
            if as_json:
                about = {"kind": change.kind, "revision": change.revision, "position": change.position}
                click.echo(encode({**about, "id": change.id, "body": msgspec.Raw(change.json.encode())}))
            elif change.kind != "checkpoint":
                body = "" if change.json == "null" else plain(change.json)
                click.echo(f"{change.kind:8}  {change.revision}  {plain(change.id)}  {body}".rstrip())
            if upto is not None and change.position is not None and change.revision >= upto:
                return


@docs.command(
    "export",
    cls=CliCommand,
    examples=["everlog docs export shop/orders~ > orders.jsonl", "everlog docs export --prefix shop/ > shop.jsonl"],
)
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.option("--prefix", metavar="TEXT", help="All collections whose paths begin like this, but for views.")
@with_log()
async def export(log: Everlog, settings: CliSettings, /, paths: tuple[str, ...], prefix: str | None) -> None:
    """Print documents and collections as JSON lines that 'everlog docs import' takes back.

    A prefix stands for collections; plain documents are printed if they are named.
    """
    from everlog.cli.docs_transfer import export_lines

    if not paths and prefix is None:
        raise click.UsageError("what? Name documents or collections, or give a --prefix")
    if prefix is not None:
        click.echo("of what --prefix covers, collections are exported, not plain documents: name these", err=True)
    if sys.stdout.isatty():
        async for line in export_lines(log.documents, paths, prefix):
            click.echo(line)
        return
    count = 0
    with progress_bar("lines") as told:
        async for line in export_lines(log.documents, paths, prefix):
            click.echo(line)
            count += 1
            told(count, None)


@docs.command(
    "import",
    cls=CliCommand,
    examples=["everlog docs import shop.jsonl", "everlog docs import shop.jsonl --replace --json"],
)
@click.argument("file")
@click.option("--replace", is_flag=True, help="Replace what is there with another body.")
@click.option("--skip-existing", is_flag=True, help="Leave alone what is there with another body.")
@with_log(create=True)
async def import_(log: Everlog, settings: CliSettings, /, file: str, replace: bool, skip_existing: bool) -> None:
    """Store documents and elements from the JSON lines of a file, or of standard input with '-'.

    It may be repeated, also after it was cut off: what is there with the same body stays as it is. What is there with
    another body is an error of its line, unless --replace or --skip-existing says what to do.
    """
    from everlog.cli.docs_transfer import MAX_LINE_BYTES, DocumentImport

    if replace and skip_existing:
        raise click.UsageError("--replace or --skip-existing, not both")
    source = _line_source(file, MAX_LINE_BYTES)
    work = DocumentImport(log.documents, "replace" if replace else "skip" if skip_existing else "refuse")
    with progress_bar("bytes") as told:
        async for done in work.run(source):
            told(done, source.size)
    _show_imported(settings, work.summary)


def _line_source(file: str, max_line: int) -> LineSource:
    if file != "-" and not Path(file).is_file():
        raise click.UsageError(f"there is no file {file!r}")
    return LineSource(file, max_line=max_line)


def _show_imported(settings: CliSettings, summary: Any) -> None:
    """What an import did; it fails if a line did."""
    if not settings.as_json:
        for number, error in summary.failures[:SHOWN_FAILURES]:
            click.echo(f"line {number}: {plain(str(error))}", err=True)
        if summary.failed > SHOWN_FAILURES:
            click.echo(f"and {summary.failed - SHOWN_FAILURES:,} more lines", err=True)
    counts = {name: getattr(summary, name) for name in ("created", "unchanged", "replaced", "skipped", "failed")}
    failures = [{"line": number, "error": str(error)} for number, error in summary.failures]
    show(settings.as_json, {**counts, "failures": failures}, str(summary))
    codes = {exit_code(error) for _, error in summary.failures}
    if codes:
        sys.exit(codes.pop() if len(codes) == 1 else FAILED)


@docs.command(
    cls=CliCommand,
    examples=[
        "everlog docs changes shop/",
        "everlog docs changes --template 'shop/{*}~/{*}' --filter 'total>10' --json",
    ],
)
@click.argument("path", required=False, default="")
@click.option("--template", metavar="TEMPLATE", help="Only of paths that match: 'shop/{*}~/{*}'.")
@click.option("--filter", "condition", default="", metavar="FILTER", help="Only what leads to a body that matches.")
@click.option("--after", metavar="POSITION", help="Go on behind this position; 0: from the beginning.  [now]")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="End after N changes.")
@with_log()
async def changes(
    log: Everlog,
    settings: CliSettings,
    /,
    path: str,
    template: str | None,
    condition: str,
    after: str | None,
    limit: int | None,
) -> None:
    """Print the changes of all documents below a path as they come, until Ctrl-C."""
    found = log.documents.changes(path, template=template, filter=condition, after=after)
    await _until_stopped(_print_changes(found, limit, as_json=settings.as_json))


async def _print_changes(found: AsyncGenerator[StreamedChange, None], limit: int | None, *, as_json: bool) -> None:
    count = 0
    async with contextlib.aclosing(found) as stream:
        async for change in stream:
            event = change.event
            if event is None:
                continue
            if as_json:
                about = {"position": change.position, "revision": event.revision, "method": event.method}
                click.echo(encode({**about, "path": event.path, "body": msgspec.Raw(event.json.encode())}))
            else:
                click.echo(f"{event.revision}  {event.method}  {plain(event.path)}  {plain(event.json)}")
            count += 1
            if count == limit:
                return


@docs.command(cls=CliCommand, examples=["everlog docs expire"])
@with_log()
async def expire(log: Everlog, settings: CliSettings, /) -> None:
    """Delete documents and elements whose time to live is over. Servers do this by themselves."""
    from everlog.documents.documents import LocalDocuments

    if not isinstance(log.documents, LocalDocuments):
        raise click.UsageError("a server deletes what has expired by itself: name the folder or the file of the data")
    found = await log.documents.expire()
    document = {"expired": found.expired, "failed": found.failed}
    show(settings.as_json, document, f"{found.expired} deleted, {found.failed} to be tried again")


@docs.command(cls=CliCommand, examples=["everlog docs recover", "everlog docs recover --spark"])
@spark_option
@click.pass_context
def recover(context: click.Context, spark: bool) -> None:
    """Complete what crashes have left: events that are not out, writes that never happened.

    Servers do this by themselves, for the last day. With --spark, a job looks through all that is older than the hot
    window, from where the last pass ended: for an outbox that no server has looked after for long.
    """
    settings = context.ensure_object(CliSettings)
    if spark:
        import everlog.spark.session  # noqa: F401 - says what to install, if anything
        from everlog.documents.spark.recovery import recover as run

        _show_recovered(settings, run(settings.open().config))
    else:
        run_with_log(_recover)


async def _recover(log: Everlog, settings: CliSettings) -> None:
    recovery = (await log.documents.open()).recovery
    _show_recovered(settings, await recovery.everything() + await recovery.stale())


def _show_recovered(settings: CliSettings, found: Any) -> None:
    show(settings.as_json, msgspec.to_builtins(found), str(found))


docs.add_command(view)


@docs.group(cls=Group)
def index() -> None:
    """Define, look at, build and delete the indexes of a collection."""


@index.command(cls=CliCommand, examples=["everlog docs index create shop/orders~ --sort=-total --filter 'total>0'"])
@path_argument
@click.option("--id", "index_id", metavar="ID", help="Its name.  [a new one]")
@click.option("--sort", default="", metavar="FIELDS", help="Its order: '-total,name'.  [by id]")
@click.option("--filter", "condition", metavar="FILTER", help="Which elements it holds.  [all]")
@with_log(create=True)
async def create(
    log: Everlog, settings: CliSettings, /, path: str, index_id: str | None, sort: str, condition: str | None
) -> None:
    """Define an index and build it."""
    from everlog.documents.indexes import IndexNew, IndexSortItem
    from everlog.documents.order import parse_sort

    items = tuple(
        IndexSortItem(str(item).removeprefix("-"), order="desc" if item.descending else "asc")
        for item in parse_sort(sort)
    )
    made = await log.documents.create_index(path, IndexNew(index_id, items, condition))
    await log.documents.build_indexes()
    show(settings.as_json, {"indexId": made.index_id, "path": path}, f"{plain(path)} has the index {made.index_id}")


@index.command(cls=CliCommand, examples=["everlog docs index build", "everlog docs index build shop/orders~ --spark"])
@click.argument("path", required=False)
@spark_option
@click.pass_context
def build(context: click.Context, path: str | None, spark: bool) -> None:
    """Build the indexes that wait for it, of one collection or of all.

    With --spark, a job divides each collection over its tasks: for collections of millions, or those above
    [documents] index_spark_above, which servers leave to it.
    """
    settings = context.ensure_object(CliSettings)
    if not spark:
        if path is not None:
            raise click.UsageError("PATH goes with --spark: without it, all are built")
        run_with_log(_build)
        return
    import everlog.spark.session  # noqa: F401 - says what to install, if anything
    from everlog.documents.spark.indexes import build_indexes

    done = build_indexes(settings.open().config, path=path)
    text = f"{done.ready:,} indexes are ready, {done.failed:,} failed"
    show(settings.as_json, {"ready": done.ready, "failed": done.failed, "tasks": done.tasks}, text)


async def _build(log: Everlog, settings: CliSettings) -> None:
    count = await log.documents.build_indexes()
    show(settings.as_json, {"indexes": count}, f"built or dropped {count:,} indexes")


@index.command("list", cls=CliCommand)
@path_argument
@with_log()
async def list_indexes(log: Everlog, settings: CliSettings, /, path: str) -> None:
    """List the indexes of a collection."""
    found = await log.documents.indexes(path)
    if settings.as_json:
        for one in found:
            click.echo(encode({**msgspec.to_builtins(one), "status": one.status.name.lower()}))
        return
    TableRows("index", "status", "elements", "order", "filter").add(
        [
            [
                one.index_id,
                one.status.name.lower(),
                "-" if one.count is None else str(one.count),
                ",".join(map(str, one.sort)),
                one.filter_by or "-",
            ]
            for one in found
        ]
    )


@index.command("delete", cls=CliCommand)
@path_argument
@click.argument("index_id", metavar="ID")
@with_log()
async def delete_index(log: Everlog, settings: CliSettings, /, path: str, index_id: str) -> None:
    """Delete an index."""
    await log.documents.delete_index(path, index_id)
    await log.documents.build_indexes()
    show(settings.as_json, {"indexId": index_id, "path": path}, f"deleted the index {plain(index_id)} of {plain(path)}")


docs.add_command(schema)
