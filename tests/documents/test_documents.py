"""Documents from Python, on the embedded log and store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from everlog.api import Everlog
from everlog.client import connect
from everlog.config import Config, DocumentsConfig
from everlog.documents import completer
from everlog.documents.api import Documents
from everlog.documents.factory import document_journal, make_documents
from everlog.documents.history import DocumentEvent
from everlog.documents.ids import TransactionId, time_uuid
from everlog.documents.indexes import IndexNew, IndexSortItem, IndexStatus
from everlog.documents.model import DocumentTransaction
from everlog.documents.paths import DocumentPlace, partition_of_uri
from everlog.documents.port import DocumentView
from everlog.documents.publisher import JournalPublisher, NotPublished
from everlog.errors import (
    Busy,
    DocumentConflict,
    DocumentNotFound,
    InvalidDocument,
    MessageReused,
    PreconditionFailed,
    TooManyPending,
    WriteUnfinished,
)
from tests.support import ManualClock, small_config

D = {
    "item1": {"a": "hello", "b": 100500},
    "item2": {"a": "goodbye", "b": 1},
    "item3": {"a": "way way", "b": 12},
}


def config_of(folder: Any, **settings: Any) -> Config:
    return msgspec.structs.replace(small_config(folder), documents=DocumentsConfig(**settings))


@pytest.fixture
async def log(tmp_path, clock) -> AsyncIterator[Everlog]:
    async with connect(config_of(tmp_path / "data"), clock=clock) as log:
        yield log


@pytest.fixture
def docs(log: Everlog) -> Documents:
    return log.documents


async def events(docs: Documents, path: str) -> list[tuple[str, str, int, Any]]:
    """The feed of a document: method, path, revision, body."""
    return [(one.method, one.path, one.revision, one.body) async for one in docs.history(path)]


async def fill(docs: Documents, uri: str = "collection-1~") -> None:
    for item, body in D.items():
        await docs.put(f"{uri}/{item}", body)


def ids(page: Any) -> list[str]:
    return [element["id"] for element in page.elements]


@pytest.mark.case("hyperstorage", 1, 2, 3, 5, 7)
async def test_a_document_and_its_events(docs: Documents) -> None:
    created = await docs.put("abc/123", {"a": 10, "x": "hello", "null": None})
    assert (created.path, created.revision, created.created) == ("abc/123", 1, True)
    assert created.transaction_id.endswith(":1")
    assert (await docs.get("abc/123")).body == {"a": 10, "x": "hello"}
    replaced = await docs.put("abc/123", {"a": 11})
    assert (replaced.revision, replaced.created) == (2, False)
    await docs.delete("abc/123")
    with pytest.raises(DocumentNotFound):
        await docs.get("abc/123")
    assert await events(docs, "abc/123") == [
        ("feed:put", "abc/123", 1, {"a": 10, "x": "hello"}),
        ("feed:put", "abc/123", 2, {"a": 11}),
        ("feed:delete", "abc/123", 3, None),
    ]
    await docs.put("s", "Hello")
    assert (await docs.get("s")).body == "Hello"
    assert await events(docs, "s") == [("feed:put", "s", 1, "Hello")]


@pytest.mark.case("hyperstorage", 8, 9, 21, 33)
async def test_what_is_refused_leaves_no_trace(docs: Documents) -> None:
    await docs.put("c~/x", {})
    for call in (
        docs.delete("never"),
        docs.patch("never", {}),
        docs.delete("c~/absent"),
        docs.patch("c~/absent", {}),
        docs.delete("never~"),
        docs.get("never"),
        docs.list("missing~"),
    ):
        with pytest.raises(DocumentNotFound):
            await call
    assert await events(docs, "never") == []
    assert (await docs.list("c~")).revision == 1


@pytest.mark.case("hyperstorage", 14)
async def test_a_hundred_writes_are_a_hundred_events_in_order(docs: Documents) -> None:
    for number in range(1, 101):
        await docs.put("d", number)
    assert (await docs.get("d")).revision == 100
    found = await events(docs, "d")
    assert [revision for _, _, revision, _ in found] == list(range(1, 101))
    assert [body for *_, body in found] == list(range(1, 101))


@pytest.mark.case("hyperstorage", 15)
async def test_parallel_writers_through_several_connections(tmp_path) -> None:
    """Every write is accepted with a revision of its own, and its event is out once."""
    config = config_of(tmp_path / "data")
    revisions: list[int] = []
    async with connect(config) as one, connect(config) as two, connect(config) as three:

        async def put(docs: Documents, number: int) -> None:
            revisions.append((await docs.put("d", number)).revision)

        await asyncio.gather(*[put(log.documents, n) for n in range(17) for log in (one, two, three)])
        assert sorted(revisions) == list(range(1, 52))
        assert (await one.documents.get("d")).revision == 51
        assert [revision for _, _, revision, _ in await events(two.documents, "d")] == list(range(1, 52))


@pytest.mark.case("hyperstorage", 23, 32, 34, 37)
async def test_a_collection(docs: Documents) -> None:
    await fill(docs)
    assert (await docs.get("collection-1~/item1")).revision == 3
    page = await docs.list("collection-1~")
    assert (ids(page), page.revision, page.count) == (["item1", "item2", "item3"], 3, 3)
    await docs.delete("collection-1~/item2")
    assert (await events(docs, "collection-1~"))[-1] == ("feed:delete", "collection-1~/item2", 4, None)
    assert ids(await docs.list("collection-1~")) == ["item1", "item3"]
    for item in ("item1", "item3"):
        await docs.delete(f"collection-1~/{item}")
    page = await docs.list("collection-1~")
    assert (ids(page), page.revision, page.count) == ([], 6, 0)
    await fill(docs)
    await docs.delete("collection-1~")
    for call in (docs.list("collection-1~"), docs.get("collection-1~/item1")):
        with pytest.raises(DocumentNotFound):
            await call
    assert (await docs.put("collection-1~/new", {})).created
    assert ids(await docs.list("collection-1~")) == ["new"]


@pytest.mark.case("hyperstorage", 26)
async def test_generated_ids_grow_over_restarts(tmp_path) -> None:
    """Also when the clock of the second process is behind."""
    clock = ManualClock()
    made = []
    for _ in range(4):
        async with connect(config_of(tmp_path / "data"), clock=clock) as log:
            made += [(await log.documents.post("c~", {"n": n})).path.removeprefix("c~/") for n in range(50)]
            clock.advance(-3600)
    assert made == sorted(set(made), key=str.encode)
    async with connect(config_of(tmp_path / "data")) as log:
        assert ids(await log.documents.list("c~", size=1000)) == made


async def test_messages_are_applied_once(docs: Documents) -> None:
    first = await docs.post("c~", {"a": 1}, message_id="m1")
    again = await docs.post("c~", {"a": 1}, message_id="m1")
    assert (again.path, again.revision, again.repeated) == (first.path, 1, True)
    with pytest.raises(MessageReused):
        await docs.post("c~", {"a": 2}, message_id="m1")
    assert len(await events(docs, "c~")) == 1


@pytest.mark.case("hyperstorage", 12)
async def test_events_carry_the_ids_of_the_request(docs: Documents) -> None:
    await docs.put("d", 1, correlation_id="abc123", message_id="m")
    (event,) = [one async for one in docs.history("d")]
    assert (event.correlation_id, event.message_id) == ("abc123", "m")
    for bad in ("", "x" * 201, "a\nb"):
        with pytest.raises(InvalidDocument):
            await docs.put("d", 1, message_id=bad)


async def test_conditional_writes(docs: Documents) -> None:
    await docs.put("d", 1, if_none_match="*")
    with pytest.raises(PreconditionFailed):
        await docs.put("d", 2, if_none_match="*")
    with pytest.raises(PreconditionFailed):
        await docs.delete("d", if_match='"9"')
    await docs.delete("d", if_match=(await docs.get("d")).etag)
    assert (await docs.put("d", 3, if_none_match="*")).created


class Faulty(JournalPublisher):
    """Fails for some methods, until it is told otherwise."""

    def __init__(self, journal: Any) -> None:
        super().__init__(journal)
        self.failing: set[str] = set()
        self.tried: list[str] = []

    async def publish(self, transaction: DocumentTransaction) -> None:
        method = msgspec.json.decode(transaction.event)["method"]
        self.tried.append(method)
        if method in self.failing:
            raise NotPublished(f"{method} is down")
        await super().publish(transaction)


@pytest.fixture
async def faulty(log: Everlog) -> AsyncIterator[tuple[Documents, Faulty]]:
    """Documents whose events may fail to go out."""
    publisher = Faulty(document_journal(log.parts))
    docs = make_documents(log.parts)
    docs._make_publisher = lambda: publisher
    yield docs, publisher
    publisher.failing.clear()
    await docs.close()


async def idle(docs: Documents) -> None:
    await (await docs.open()).completer.idle()


async def forget_retries(docs: Documents) -> None:
    """As if the process had died: only recovery completes what failed."""
    completer = (await docs.open()).completer
    for timer in completer._timers:
        timer.cancel()
    completer._timers.clear()


@pytest.mark.case("hyperstorage", 65)
async def test_a_failing_event_holds_back_the_later_ones_of_its_document_only(faulty) -> None:
    docs, publisher = faulty
    publisher.failing = {"feed:put"}
    await docs.put("d", {})
    await docs.patch("d", {"a": 1})
    await idle(docs)
    assert [one.revision for one in await docs.pending("d")] == [1, 2]
    assert set(publisher.tried) == {"feed:put"}
    publisher.failing = {"feed:patch"}
    with pytest.raises(NotPublished):
        await docs.settle("d")
    assert [one.revision for one in await docs.pending("d")] == [2]
    publisher.failing = set()
    await docs.settle("d")
    assert await docs.pending("d") == []
    assert [revision for _, _, revision, _ in await events(docs, "d")] == [1, 2]


async def test_events_go_out_in_the_order_of_revisions_and_once(log: Everlog) -> None:
    """A later one waits for the earlier; one that is out already is no error."""
    journal = document_journal(log.parts)
    publisher = JournalPublisher(journal)
    first, second = [DocumentTransaction("d", "", revision, "", '{"n":1}') for revision in (1, 2)]
    with pytest.raises(NotPublished):
        await publisher.publish(second)
    for one in (first, first, second, first, second):
        await publisher.publish(one)
    assert [event.seq_nr async for event in journal.read("d")] == [1, 2]


async def test_a_write_does_not_wait_for_later_ones(faulty) -> None:
    """A later event of the same document that does not get out is none of its business."""
    docs, publisher = faulty
    first = await docs.put("d", {}, message_id="m")
    await docs.settle("d")
    publisher.failing = {"feed:patch"}
    await docs.patch("d", {"a": 1})
    await idle(docs)
    again = await docs.put("d", {}, message_id="m", wait=True)
    assert (again.revision, again.repeated, again.position is not None) == (first.revision, True, True)
    with pytest.raises(WriteUnfinished):
        await docs.patch("d", {"a": 2}, wait=True)


async def test_a_write_that_lost_its_revision_has_no_place_in_the_log(log: Everlog) -> None:
    """What stands at its revision is the event of the write that won."""
    docs = log.documents
    won = await docs.put("d", 1, wait=True)
    lost = TransactionId("d", time_uuid(log.parts.clock.now_ms(), 7), won.revision)
    history = (await docs.open()).history
    assert await history.position(won.transaction_id) == won.position
    assert await history.position(str(lost)) is None


@pytest.mark.case("hyperstorage", 66)
async def test_recovery_completes_what_a_crash_left(faulty, clock) -> None:
    """Nobody writes again; the event appears when the write is older than the fail-timeout."""
    docs, publisher = faulty
    publisher.failing = {"feed:put"}
    await docs.put("d", 1)
    await docs.put("bad", 2)
    await idle(docs)
    await forget_retries(docs)
    publisher.failing = set()
    recovery = (await docs.open()).recovery
    assert (await recovery.hot()).completed == 0
    clock.advance(240)
    found = await recovery.hot()
    assert (found.completed, found.failed) == (2, 0)
    assert await docs.pending("d") == []


@pytest.mark.case("hyperstorage", 67)
async def test_an_orphan_is_abandoned_without_an_event(faulty, clock) -> None:
    """Also of a document that was never stored; and a document that always fails holds nobody back."""
    docs, publisher = faulty
    await docs.put("d", 1)
    await docs.settle("d")
    publisher.failing = {"feed:put"}
    await docs.put("bad", 1)
    await idle(docs)
    store = (await docs.open()).store
    for uri, number in (("d", 7), ("never", 8)):
        await store.add_transaction(DocumentTransaction(uri, str(time_uuid(clock.now_ms(), number)), 2, "", "{}"))
    recovery = (await docs.open()).recovery
    assert [(await one()).abandoned for one in (recovery.hot, recovery.everything)] == [0, 0]  # its writer may be slow
    clock.advance(240)
    found = await (await docs.open()).recovery.hot()
    assert (found.abandoned, found.failed, found.completed) == (2, 1, 0)
    assert (await docs.get("d")).revision == 1
    publisher.failing = set()
    assert len(await events(docs, "d")) == 1
    assert (await (await docs.open()).recovery.hot()).abandoned == 0


@pytest.fixture
def config(tmp_path) -> Config:
    return config_of(tmp_path / "data")


@pytest.mark.case("hyperstorage", 68)
async def test_the_checkpoint_stops_before_what_cannot_be_completed(
    config: Config, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of its partition; all others go on, and it does too once the event is out."""
    for name in ("MIN_RETRY_S", "MAX_RETRY_S"):  # recovery is to do it, not the one who wrote
        monkeypatch.setattr(completer, name, 3600.0)
    short = DocumentsConfig(fail_timeout_s=10.0, hot_recovery_s=30.0, stale_recovery_s=60.0)
    async with connect(msgspec.structs.replace(config, documents=short), clock=clock) as log:
        publisher = Faulty(document_journal(log.parts))
        docs = make_documents(log.parts)
        docs._make_publisher = lambda: publisher
        parts = await docs.open()
        start = clock.now_ms() // 60_000
        stuck, free = partition_of_uri("d"), partition_of_uri("e")
        await parts.store.save_checkpoints({stuck: start, free: start})
        clock.advance(300)
        publisher.failing = {"feed:put"}
        await docs.put("d", 1)
        await idle(docs)
        at = clock.now_ms() // 60_000
        clock.advance(300)
        assert (await parts.recovery.stale()).failed == 1
        last = clock.now_ms() // 60_000 - 1
        found = await parts.store.checkpoints()
        assert (found[stuck], found[free], len(found)) == (at - 1, last, 1024)
        publisher.failing = set()
        assert (await parts.recovery.stale()).completed == 1
        assert (await parts.store.checkpoints())[stuck] == last
        assert (await parts.recovery.stale()).completed == 0
        await docs.close()


async def test_nodes_share_the_partitions(faulty, clock) -> None:
    """What another node owns is left to it; a checkpoint is only of one's own partitions."""
    docs, publisher = faulty
    publisher.failing = {"feed:put"}
    await docs.put("d", 1)
    await docs.put("e", 1)
    await idle(docs)
    await forget_retries(docs)
    publisher.failing = set()
    recovery = (await docs.open()).recovery
    recovery.owns = lambda partition: partition != partition_of_uri("d")
    clock.advance(240)
    assert (await recovery.hot()).completed == 1
    assert (len(await docs.pending("d")), len(await docs.pending("e"))) == (1, 0)
    clock.advance(2400)
    assert (await recovery.stale()).completed == 0
    assert partition_of_uri("d") not in await (await docs.open()).store.checkpoints()
    recovery.owns = lambda partition: True
    assert (await recovery.stale()).completed == 1


async def test_writers_are_held_back_while_events_do_not_go_out(tmp_path, clock) -> None:
    async with connect(config_of(tmp_path / "data", max_pending=2), clock=clock) as log:
        publisher = Faulty(document_journal(log.parts))
        publisher.failing = {"feed:put"}
        docs = make_documents(log.parts)
        docs._make_publisher = lambda: publisher
        await docs.put("d", 1)
        await docs.put("d", 2)
        with pytest.raises(TooManyPending):
            await docs.put("d", 3)
        with pytest.raises(WriteUnfinished):
            await docs.put("e", 1, wait=True)
        publisher.failing = set()
        await docs.settle("d")
        assert (await docs.put("d", 3, wait=True)).revision == 3
        await docs.close()


async def test_a_start_completes_what_the_last_run_left(tmp_path, clock) -> None:
    config = config_of(tmp_path / "data")
    async with connect(config, clock=clock) as log:
        publisher = Faulty(document_journal(log.parts))
        publisher.failing = {"feed:put"}
        docs = make_documents(log.parts)
        docs._make_publisher = lambda: publisher
        await docs.put("d", 1)
        await docs.close()
    async with connect(config, clock=clock) as log:
        assert (await (await log.documents.open()).recovery.everything()).completed == 1
        assert len(await events(log.documents, "d")) == 1


async def build(docs: Documents) -> None:
    await docs.build_indexes()


@pytest.mark.case("hyperstorage", 50, 51, 53)
async def test_indexes_are_defined_built_and_used(docs: Documents) -> None:
    await fill(docs)
    await docs.create_index("collection-1~", IndexNew("index1", (), "b > 10"))
    assert (await docs.index("collection-1~", "index1")).status is IndexStatus.INDEXING
    page = await docs.list("collection-1~", filter="b > 10", explain=True)
    assert (ids(page), page.explanation.index) == (["item1", "item3"], None)
    await build(docs)
    assert (await docs.index("collection-1~", "index1")).status is IndexStatus.READY
    page = await docs.list("collection-1~", filter="b > 10", explain=True)
    assert (ids(page), page.explanation.index, page.count, page.revision) == (["item1", "item3"], "index1", 2, 3)
    with pytest.raises(DocumentConflict) as caught:
        await docs.create_index("collection-1~", IndexNew("index1"))
    assert caught.value.code == "already-exists"
    generated = await docs.create_index("abc/xyz~", IndexNew())
    assert len(generated.index_id) == 30


@pytest.mark.case("hyperstorage", 52)
@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("doc", IndexNew()),
        ("c~/x", IndexNew()),
        ("c~", IndexNew(filter_by="b >")),
        ("c~", IndexNew(sort_by=(IndexSortItem("a b"),))),
        ("c~", IndexNew(sort_by=(IndexSortItem("a"), IndexSortItem("a")))),
        ("c~", IndexNew(filter_by="a < unix_time()")),
        ("c~", IndexNew(index_id="")),
        ("c~", IndexNew(index_id="a/b")),
    ],
)
async def test_a_bad_index_is_refused(docs: Documents, path: str, new: IndexNew) -> None:
    with pytest.raises(InvalidDocument):
        await docs.create_index(path, new)
    assert await docs.indexes("c~") == []


@pytest.mark.case("hyperstorage", 59, 60)
async def test_indexes_follow_every_change(docs: Documents) -> None:
    await fill(docs)
    await docs.create_index("collection-1~", IndexNew("index1", (), "b > 10"))
    await docs.create_index("collection-1~", IndexNew("index2", (IndexSortItem("a"),), "b > 10"))
    await build(docs)

    async def seen() -> list[list[str]]:
        await docs.settle("collection-1~")
        queries = [{"filter": "b > 10"}, {"filter": "b > 10", "sort": "a"}]
        pages = [await docs.list("collection-1~", **query, explain=True) for query in queries]
        assert [page.explanation.index for page in pages] == ["index1", "index2"]
        revision = (await docs.list("collection-1~")).revision
        assert {page.revision for page in pages} == {revision}
        return [ids(page) for page in pages]

    await docs.patch("collection-1~/item1", {"a": "zzz"})
    assert await seen() == [["item1", "item3"], ["item3", "item1"]]
    await docs.patch("collection-1~/item1", {"b": 5})
    assert await seen() == [["item3"], ["item3"]]
    await docs.patch("collection-1~/item1", {"b": 30})
    assert await seen() == [["item1", "item3"], ["item3", "item1"]]
    await docs.delete("collection-1~/item1")
    assert await seen() == [["item3"], ["item3"]]
    await docs.delete_index("collection-1~", "index1")
    with pytest.raises(DocumentNotFound) as caught:
        await docs.delete_index("collection-1~", "index1")
    assert caught.value.code == "index-not-found"
    await docs.delete("collection-1~")
    await docs.settle("collection-1~")
    await build(docs)
    assert await docs.indexes("collection-1~") == []
    await docs.create_index("collection-1~", IndexNew("index1"))
    assert len(await docs.indexes("collection-1~")) == 1


@pytest.mark.case("hyperstorage", 61)
async def test_odd_values_never_block_the_feed_nor_a_build(docs: Documents) -> None:
    for item, b in (("1", 100), ("2", 9), ("3", 10), ("4", None), ("5", "x")):
        await docs.put(f"c~/{item}", {"b": b})
    await docs.create_index("c~", IndexNew("i", (IndexSortItem("b", "decimal"),)))
    await docs.create_index("c~", IndexNew("two", (IndexSortItem("a"), IndexSortItem("b", "decimal"))))
    await build(docs)
    page = await docs.list("c~", sort="b", explain=True)
    assert (ids(page), page.explanation.index) == (["4", "2", "3", "1", "5"], "i")
    page = await docs.list("c~", sort="a,b", explain=True)
    assert (ids(page), page.explanation.index) == (["4", "2", "3", "1", "5"], "two")
    await docs.put("c~/6", {"b": "y" * 20_000})
    await docs.settle("c~")
    assert len(await events(docs, "c~")) == 6
    failed = await docs.index("c~", "i")
    assert failed.status is IndexStatus.FAILED
    assert "16 KiB" in (failed.reason or "")
    assert ids(await docs.list("c~", sort="b")) == ["4", "2", "3", "1", "5", "6"]


async def test_a_defect_in_indexing_never_blocks_the_feed(docs: Documents, monkeypatch) -> None:
    """Whatever goes wrong with an index, it is given up and the event goes out; a store that is busy is tried again."""
    await docs.put("c~/1", {"a": 1})
    await docs.create_index("c~", IndexNew("i", (IndexSortItem("a"),)))
    await docs.build_indexes()

    def broken(index: Any, body: str, budget: Any) -> bytes:
        raise TypeError("a defect")

    def busy(index: Any, body: str, budget: Any) -> bytes:
        raise Busy("locked")

    monkeypatch.setattr("everlog.documents.evaluator.locate", busy)
    await docs.put("c~/2", {"a": 2})
    with pytest.raises(Busy):
        await docs.settle("c~")
    assert (await docs.index("c~", "i")).status is IndexStatus.READY
    monkeypatch.setattr("everlog.documents.evaluator.locate", broken)
    assert len(await events(docs, "c~")) == 2
    failed = await docs.index("c~", "i")
    assert (failed.status, failed.reason) == (IndexStatus.FAILED, "a defect")
    assert ids(await docs.list("c~", sort="-a")) == ["2", "1"]


async def test_a_query_finds_what_was_just_written(docs: Documents) -> None:
    """From an index, whatever the completer has done since: ascending, descending, filtered, and page by page."""
    await docs.put("c~/first", {"n": -1, "even": False}, wait=True)
    for name, order, condition in (("up", "asc", None), ("even", "desc", "even = true")):
        await docs.create_index("c~", IndexNew(name, (IndexSortItem("n", order=order),), condition))
    await docs.build_indexes()
    for number in range(60):
        await docs.put(f"c~/{number}", {"n": number, "even": number % 2 == 0})
        page = await docs.list("c~", sort="-n", size=1, explain=True)
        assert (ids(page), page.explanation.index) == ([str(number)], "up")
        assert page.revision == number + 2
        page = await docs.list("c~", filter=f"n >= {number}", sort="n")
        assert ids(page) == [str(number)]
        page = await docs.list("c~", filter="even = true", sort="-n", size=2)
        assert ids(page)[0] == str(number - number % 2)
    await docs.patch("c~/59", {"n": -5})
    await docs.delete("c~/58")
    assert ids(await docs.list("c~", sort="n", size=2)) == ["59", "first"]
    found: list[str] = []
    following: dict[str, str] | None = {}
    while following is not None:
        page = await docs.list("c~", sort="n", size=7, **following)
        found, following = found + ids(page), page.next
    assert found == ["59", "first", *map(str, range(58))]


async def test_a_query_after_the_deletion_of_its_collection(faulty) -> None:
    """While events do not go out: of the old elements none is found, of the new ones all are."""
    docs, publisher = faulty
    for number in range(5):
        await docs.put(f"c~/{number}", {"n": number}, wait=True)
    await docs.create_index("c~", IndexNew("by-n", (IndexSortItem("n"),)))
    await docs.build_indexes()
    publisher.failing = {"feed:delete"}
    await docs.delete("c~")
    await docs.put("c~/new", {"n": 2})
    await docs.put("c~/newer", {"n": 1})
    page = await docs.list("c~", sort="n", explain=True)
    assert (ids(page), page.revision, page.count) == (["newer", "new"], 8, 2)
    assert page.explanation.index is None
    await docs.create_index("c~", IndexNew("again", (IndexSortItem("n"),)))
    await docs.build_indexes()
    await docs.put("c~/newest", {"n": 0})
    page = await docs.list("c~", sort="n", explain=True)
    assert (ids(page), page.revision) == (["newest", "newer", "new"], 9)
    assert page.explanation.index == "again"
    assert page.explanation.rows_pending == 3


async def test_history_and_the_past(docs: Documents, clock) -> None:
    await docs.put("d", {"a": 1})
    clock.advance(10)
    await docs.patch("d", {"b": {"c": 2}})
    clock.advance(10)
    await docs.delete("d")
    clock.advance(10)
    await docs.put("d", {"a": 3})
    assert await docs.at("d", 1) == {"a": 1}
    assert await docs.at("d", 2) == {"a": 1, "b": {"c": 2}}
    with pytest.raises(DocumentNotFound):
        await docs.at("d", 3)
    with pytest.raises(DocumentNotFound):
        await docs.at("d", 5)
    assert await docs.diff("d", 2, 4) == {"a": 3, "b": None}
    assert await docs.diff("d", 2, 2) == {}
    moments = [datetime.fromtimestamp((clock.now_ms() - ago) / 1000, UTC) for ago in (40_000, 30_000, 15_000, 0)]
    assert [await docs.revision_at("d", moment) for moment in moments] == [0, 1, 2, 4]
    newest = [one.revision async for one in docs.history("d", reverse=True, limit=2)]
    assert newest == [4, 3]
    assert [one.revision async for one in docs.history("d", after=2)] == [3, 4]


async def test_the_past_of_elements_and_collections(docs: Documents) -> None:
    await docs.put("c~/x", {"n": 1})
    await docs.put("c~/y", {"n": 2})
    await docs.patch("c~/x", {"n": 3})
    await docs.delete("c~")
    await docs.put("c~/y", {"n": 4})
    assert await docs.at("c~", 2) == [{"n": 1, "id": "x"}, {"n": 2, "id": "y"}]
    assert await docs.at("c~/x", 2) == {"n": 1, "id": "x"}
    assert await docs.at("c~/x", 3) == {"n": 3, "id": "x"}
    for path, revision in (("c~/x", 5), ("c~", 4)):
        with pytest.raises(DocumentNotFound):
            await docs.at(path, revision)
    assert [one.revision async for one in docs.history("c~/x")] == [1, 3, 4]
    with pytest.raises(InvalidDocument):
        await docs.diff("c~", 1, 2)


async def take(feed: AsyncIterator[DocumentEvent | int], count: int) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(60):
        async for item in feed:
            if isinstance(item, DocumentEvent):
                found.append(item.revision)
            if len(found) == count:
                return found
    raise AssertionError("the feed ended")


async def test_a_feed_goes_on_where_it_ended(docs: Documents) -> None:
    await docs.put("d", 1)
    await docs.put("d", 2, wait=True)
    assert await take(docs.feed("d", after=0), 2) == [1, 2]
    live = asyncio.create_task(take(docs.feed("d", after=1), 3))
    for number in (3, 4):
        await docs.put("d", number)
    assert await live == [2, 3, 4]


async def test_a_view_shows_what_matches(docs: Documents) -> None:
    parts = await docs.open()
    await parts.store.put_view(DocumentView("abcs~", "abc/{*}", "a > 5"))
    parts.followers.forget()
    await docs.put("abc/123", {"a": 10}, wait=True)
    await docs.put("abc/4", {"a": 1}, wait=True)
    await docs.put("other/5", {"a": 10}, wait=True)
    await idle(docs)
    assert ids(await docs.list("abcs~")) == ["123"]
    assert (await docs.get("abcs~/123")).body == {"a": 10, "id": "123"}
    await docs.patch("abc/123", {"a": 2}, wait=True)
    await idle(docs)
    with pytest.raises(DocumentNotFound):
        await docs.get("abcs~/123")


async def test_a_view_shows_what_was_there_before(docs: Documents) -> None:
    """Documents and elements that match, and no other; a fill that was cut off is done again."""
    await fill(docs, "shop/orders~")
    await docs.put("shop/other~/1", {"b": 100})
    await docs.put("shop/orders", {"b": 100})
    await docs.put("people/ann", {"b": 100})
    await docs.put("people/list", [1])
    assert not (await docs.put_view("big~", "shop/orders~/{*}", "b > 10")).filled
    await docs.put_view("all~", "{kind}/{*}")
    await docs.build_indexes()
    assert (await docs.view("big~")).filled
    assert ids(await docs.list("big~")) == ["item1", "item3"]
    assert ids(await docs.list("all~")) == ["people:ann", "shop:orders"]
    await docs.put("shop/orders~/item2", {"b": 50}, wait=True)
    await idle(docs)
    assert ids(await docs.list("big~")) == ["item1", "item2", "item3"]
    parts = await docs.open()
    revision = (await docs.list("big~")).revision
    assert await parts.followers.fill(lambda uri: True) == 0
    assert (await docs.list("big~")).revision == revision
    await docs.delete_view("big~")
    assert await parts.followers.fill(lambda uri: True) == 0
    with pytest.raises(DocumentNotFound):
        await docs.list("big~")


async def test_a_late_copy_into_a_view_is_put_right(docs: Documents, monkeypatch) -> None:
    """Two nodes copy at once: one read the source before it changed, and writes after the other."""
    await docs.put("a/1", {"n": 1})
    parts = await docs.open()
    # The two copies of this test are the only ones: none comes from the background.
    await parts.completer.complete("a/1")
    monkeypatch.setattr(parts.completer, "kick_indexes", lambda *_: None)
    view = await docs.put_view("v~", "a/{*}")
    followers, apply = parts.followers.copies, docs._writer.apply
    overtaken = False

    async def slow(command: Any) -> Any:
        nonlocal overtaken
        if not overtaken and command.place.uri == "v~":
            overtaken = True
            await docs.put("a/1", {"n": 2})
            await followers.show(view, DocumentPlace("a/1"))
        return await apply(command)

    monkeypatch.setattr(followers, "_apply", slow)
    await followers.show(view, DocumentPlace("a/1"))
    assert overtaken
    assert (await docs.get("v~/1")).body == {"n": 2, "id": "1"}


async def test_documents_survive_a_restart(tmp_path) -> None:
    config = config_of(tmp_path / "data")
    async with connect(config) as log:
        await log.documents.put("d", {"n": 1.5, "big": 12345678901234567890123})
    async with connect(config) as log:
        found = await log.documents.get("d")
        assert found.json == '{"n":1.5,"big":12345678901234567890123}'
        assert [event.revision async for event in log.documents.history("d")] == [1]
