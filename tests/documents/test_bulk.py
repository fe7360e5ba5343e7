"""Many writes in one go, each for itself: embedded, over HTTP, and without `await`."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog import sync
from everlog.api import Everlog
from everlog.client import connect
from everlog.config import DocumentsConfig
from everlog.console.server import serving
from everlog.documents import bulk_run
from everlog.documents.api import Documents
from everlog.documents.bulk import BulkWrite, decide_each
from everlog.documents.model import DocumentChange, DocumentCommand, WriteSettings, WrittenDocument, accept_all
from everlog.documents.paths import parse_path
from everlog.errors import Busy, DocumentNotFound, EverlogError, InvalidDocument, MessageReused, PreconditionFailed
from tests.documents.test_model import NOW, World
from tests.documents.test_schema_limits import HOSTILE
from tests.support import small_config

BULK = "/hyper-storage/_bulk"


@pytest.fixture(params=["embedded", "http"])
async def log(request, tmp_path) -> AsyncIterator[Everlog]:
    documents = DocumentsConfig(max_pending=20)
    config = msgspec.structs.replace(small_config(tmp_path / "data"), documents=documents)
    async with connect(config) as local:
        if request.param == "embedded":
            yield local
            return
        async with serving(local, host="127.0.0.1", port=0) as address, connect(address) as remote:
            yield remote


@pytest.fixture
def docs(log: Everlog) -> Documents:
    return log.documents


async def test_each_write_has_its_own_result_in_order(docs: Documents) -> None:
    """What is refused harms no other, and an id that comes again gets its first answer, also within one run."""
    writes: list[Any] = [
        {"method": "put", "path": "c~/a", "body": {"n": 1}},
        {"method": "patch", "path": "none", "body": {}},
        {"method": "put", "path": "d", "body": 1.5, "if_none_match": "*"},
        {"method": "post", "path": "c~", "body": {"n": 2}, "message_id": "m"},
        {"method": "post", "path": "c~", "body": {"n": 2}, "idempotencyKey": "m"},
        {"method": "post", "path": "c~", "body": {"n": 3}, "message_id": "m"},
        {"method": "fetch", "path": "c~"},
        7,
        {"method": "put", "path": "/wrong", "body": 1},
        {"method": "put", "path": "d", "body": object()},
        {"method": "put", "path": "d", "body": 2, "if_match": '"7"'},
        BulkWrite("patch", "c~/a", {"x": None, "m": 1}, if_match='"1"'),
        {"method": "delete", "path": "d"},
        {"method": "put", "path": "e~"},
        {"method": "delete", "path": "e~"},
        {"method": "put", "path": "e~/1", "body": {}},
    ]
    found = [result async for result in docs.bulk(writes)]
    assert [result.number for result in found] == list(range(1, len(writes) + 1))
    errors = {result.number: type(result.error) for result in found if result.error is not None}
    assert errors == {
        2: DocumentNotFound,
        6: MessageReused,
        7: InvalidDocument,
        8: InvalidDocument,
        9: InvalidDocument,
        10: InvalidDocument,
        11: PreconditionFailed,
    }
    written = {result.number: result.written for result in found if result.written is not None}
    shown = {number: (one.path, one.revision, one.created) for number, one in written.items()}
    posted = written[4].path
    assert shown[4] == shown[5] == (posted, 2, True)
    assert [shown[number] for number in (1, 3, 12, 13)] == [
        ("c~/a", 1, True),
        ("d", 1, True),
        ("c~/a", 3, False),
        ("d", 2, False),
    ]
    assert [shown[number] for number in (14, 15, 16)] == [("e~", 1, True), ("e~", 2, False), ("e~/1", 3, True)]
    assert [event.revision async for event in docs.history("c~")] == [1, 2, 3]
    assert (await docs.list("e~")).elements == [{"id": "1"}]
    with pytest.raises(InvalidDocument):
        _ = [result async for result in docs.bulk(7)]  # type: ignore[arg-type]


async def test_many_documents_and_one_with_more_than_may_wait(docs: Documents) -> None:
    """Each document's writes keep their order; a collection that takes no more makes its writes wait, not fail."""
    count = 300

    async def writes() -> AsyncIterator[Any]:
        for number in range(count):
            yield {"method": "put", "path": f"c~/{number % 7}", "body": {"n": number}}
            yield {"method": "put", "path": f"d/{number % 9}", "body": number}

    found = [result async for result in docs.bulk(writes())]
    assert [result.error for result in found if result.error is not None] == []
    assert [result.written.revision for result in found[::2] if result.written] == list(range(1, count + 1))
    page = await docs.list("c~")
    assert {each["id"]: each["n"] for each in page.elements} == {str(n % 7): n for n in range(count)}
    assert [(await docs.get(f"d/{number}")).body for number in range(9)] == [
        297 + n if n < 3 else 288 + n for n in range(9)
    ]
    assert [event.revision async for event in docs.history("c~")] == list(range(1, count + 1))


async def test_a_body_that_does_not_fit_its_schema_harms_no_other(docs: Documents) -> None:
    """Also what comes behind it, of the same element."""
    await docs.put_schema("s", "c~", {"properties": {"n": {"type": "integer"}}})
    values: list[Any] = [1, "no", 2, "no", "no", 3]
    writes = [{"method": "put", "path": "c~/x", "body": {"n": value}} for value in values]
    writes.append({"method": "patch", "path": "c~/x", "body": {"m": 1}})
    found = [result async for result in docs.bulk(writes)]
    assert [type(result.error).__name__ for result in found if result.error] == ["SchemaViolated"] * 3
    assert [result.written.revision for result in found if result.written] == [1, 2, 3, 4]
    assert (await docs.get("c~/x")).body == {"n": 3, "m": 1, "id": "x"}


async def test_a_body_that_costs_too_much_to_validate_harms_no_other(docs: Documents) -> None:
    """Also not the lines behind it, of the same collection and of the same element; nor do several of them."""
    schema, costly = HOSTILE["large-enum"]
    await docs.put_schema("hostile", "c~/{*}", {"properties": {"v": schema}})
    bodies: list[Any] = [{}, {"v": costly}, {"n": 1}, {"v": costly}, {"n": 2}]
    writes: list[Any] = [{"method": "put", "path": "c~/x", "body": body} for body in bodies]
    writes.append({"method": "patch", "path": "c~/x", "body": {"m": 1}})
    writes.append({"method": "put", "path": "d", "body": 1})
    found = [result async for result in docs.bulk(writes)]
    errors = {result.number: getattr(result.error, "code", None) for result in found if result.error is not None}
    assert errors == {2: "schema-too-costly", 4: "schema-too-costly"}
    assert [result.written.revision for result in found if result.written] == [1, 2, 3, 4, 1]
    assert (await docs.get("c~/x")).body == {"n": 2, "m": 1, "id": "x"}


async def test_too_many_bodies_that_wait_fail_alone(tmp_path, monkeypatch) -> None:
    """A write that has to wait for the validator too long is an error of its own; the next one has its own turn."""
    async with connect(small_config(tmp_path / "data")) as log:
        docs = log.documents
        await docs.put_schema("any", "c~/{*}", {"type": "object"})
        examiner = (await docs.open()).schemas.book._examiner
        ask, asked = examiner.examine, []

        async def sometimes(version: str, schema: str, body: str) -> Any:
            asked.append(body)
            if '"busy"' in body:
                raise Busy("200 bodies wait to be validated: try again later")
            return await ask(version, schema, body)

        monkeypatch.setattr(examiner, "examine", sometimes)
        values = ["a", "busy", "b", "busy", "busy", "c"]
        writes = [{"method": "put", "path": f"c~/{n}", "body": {"v": value}} for n, value in enumerate(values)]
        found = [result async for result in docs.bulk(writes)]
        assert [type(one.error).__name__ for one in found if one.error] == ["Busy"] * 3
        assert [one.path for one in found if one.written] == ["c~/0", "c~/2", "c~/5"]
        assert len(asked) <= 3 * len(values), "what stands behind a refusal is not examined over and over"


async def test_results_over_http_have_the_tag_that_the_next_write_may_name(tmp_path) -> None:
    """As the answers to single writes: none where nothing is left, and none of a collection."""
    lines: list[Any] = [
        {"method": "put", "path": "c~/a", "body": {}},
        {"method": "post", "path": "c~", "body": {}},
        {"method": "delete", "path": "c~/a"},
        {"method": "put", "path": "e~"},
        {"method": "put", "path": "d", "body": 1, "idempotencyKey": "m"},
        {"method": "put", "path": "d", "body": 1, "idempotencyKey": "m"},
        {"method": "patch", "path": "none", "body": {}},
    ]
    async with (
        connect(small_config(tmp_path / "data")) as local,
        serving(local, host="127.0.0.1", port=0) as address,
        httpx.AsyncClient(base_url=address) as http,
    ):
        content = "".join([json.dumps(line) + "\n" for line in lines])
        found = [json.loads(line) for line in (await http.post(BULK, content=content)).text.splitlines()]
        assert [one.get("etag") for one in found] == ['"1"', '"2"', None, None, '"1"', '"1"', None]
        again = json.dumps({"method": "put", "path": "d", "body": 2, "ifMatch": found[4]["etag"]})
        assert json.loads((await http.post(BULK, content=again)).text)["status"] == 200


async def test_no_more_is_read_than_may_be_under_way(tmp_path, monkeypatch) -> None:
    """A reader that takes no results holds the source back, and its end ends the run."""
    monkeypatch.setattr(bulk_run, "MAX_RESULTS", 50)
    taken = 0

    def writes() -> Iterator[Any]:
        nonlocal taken
        while True:
            taken += 1
            yield {"method": "put", "path": f"d/{taken % 5}", "body": taken}

    async with connect(tmp_path / "data") as log:
        results = log.documents.bulk(writes())
        for number in range(1, 201):
            assert (await anext(results)).number == number
            assert taken <= number + 50
        await results.aclose()
        before = taken
        await log.documents.settle("d/0")
        assert taken == before
    monkeypatch.setattr(bulk_run, "MAX_BYTES_UNDER_WAY", 1)
    async with connect(tmp_path / "data") as log:
        taken = 0
        await anext(log.documents.bulk(writes()))
        assert taken == 1


async def test_an_error_of_the_source_comes_after_the_results(docs: Documents) -> None:
    async def writes() -> AsyncIterator[Any]:
        yield {"method": "put", "path": "d", "body": 1}
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        _ = [result async for result in docs.bulk(writes())]
    assert (await docs.put("d", 2)).revision in (1, 2)


async def test_lines_over_http(tmp_path) -> None:
    config = msgspec.structs.replace(small_config(tmp_path / "data"), documents=DocumentsConfig(max_body_bytes=500))
    async with (
        connect(config) as log,
        serving(log, host="127.0.0.1", port=0) as address,
        httpx.AsyncClient(base_url=address, timeout=60) as http,
    ):
        lines = [
            b'{"method":"put","path":"d","body":1.50}',
            b"not json",
            b"",
            b"[]",
            b'{"method":"put","path":"e","body":"' + b"x" * 30_000 + b'"}',
            b'{"method":"put","path":"e","body":"' + b"x" * 600 + b'"}',
            b'{"method":"put","path":"e","body":"\xff"}',
            b'{"method":"patch","path":"d","body":{}}\r',
            '{"method":"put","path":"c~/ü","body":{}}'.encode(),
            b'{"method":"put","path":"f","body":"\xe2\x80\xa8","odd":1}',
            b'{"method":"delete","path":"d","ifMatch":"\\"1\\""}',
        ]

        async def pieces() -> AsyncIterator[bytes]:
            """A few bytes at a time: lines do not end where pieces do."""
            whole = b"\n".join(lines)
            for at in range(0, len(whole), 777):
                yield whole[at : at + 777]
                await asyncio.sleep(0)

        answer = await http.post(BULK, content=pieces())
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson")
        found = {one["line"]: one for one in map(json.loads, answer.text.splitlines())}
        assert list(found) == [1, 2, 4, 5, 6, 7, 8, 9, 10, 11]
        assert (found[1]["status"], found[1]["path"], found[1]["revision"]) == (201, "d", 1)
        codes = {number: (one["status"], one["error"]["code"]) for number, one in found.items() if "error" in one}
        assert (found[9]["status"], found[9]["path"]) == (201, "c~/ü")
        assert codes == {
            2: (400, "invalid-json"),
            4: (400, "invalid-line"),
            5: (413, "body-too-large"),
            6: (413, "body-too-large"),
            7: (400, "invalid-json"),
            8: (422, "not-mergeable"),
            10: (400, "invalid-line"),
        }
        assert found[11]["status"] == 200
        assert (await http.post(BULK, content=b"")).text == ""
        many = b"".join(b'{"method":"put","path":"m~/%d","body":{"n":%d}}\n' % (n, n) for n in range(3000))
        answer = await http.post(BULK, content=many)
        assert [json.loads(line)["revision"] for line in answer.text.splitlines()] == list(range(1, 3001))


async def test_a_client_that_stops_sending_hears_why(tmp_path) -> None:
    config = msgspec.structs.replace(small_config(tmp_path / "data"), documents=DocumentsConfig(request_timeout_s=0.5))
    server = msgspec.structs.replace(config.server, body_timeout_s=0.5)
    config = msgspec.structs.replace(config, server=server)
    async with connect(config) as log, serving(log, host="127.0.0.1", port=0) as address:
        host, _, port = address.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        line = b'{"method":"put","path":"d","body":1}\n'
        head = f"POST {BULK} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n".encode()
        writer.write(head + line)
        text = (await reader.read(100_000)).decode()
        while "body-too-slow" not in text:
            piece = await reader.read(100_000)
            assert piece, text
            text += piece.decode()
        assert '"line":1,"status":201' in text
        writer.close()
        assert (await log.documents.get("d")).body == 1


def test_without_await(tmp_path) -> None:
    """The writes may come from the same log."""
    with sync.connect(tmp_path / "data") as log:
        docs = log.documents
        done = docs.bulk({"method": "put", "path": f"d/{n}", "body": n} for n in range(250))
        assert [result.written.revision for result in done if result.written] == [1] * 250
        copies = ({"method": "put", "path": f"e/{n}", "body": docs.get(f"d/{n}").body} for n in range(120))
        assert len(list(docs.bulk(copies))) == 120
        assert docs.get("e/119").body == 119


async def test_a_server_that_is_not_there() -> None:
    async with connect("http://127.0.0.1:9") as log:
        found = [one async for one in log.documents.bulk([{"method": "put", "path": "d", "body": 1}, 7])]
    assert [type(one.error).__name__ for one in found] == ["WriteUnfinished", "InvalidDocument"]


paths = st.sampled_from(["c~/x", "c~/y"])
writes = st.one_of(
    st.tuples(st.just("put"), paths, st.dictionaries(st.sampled_from("ab"), st.integers(0, 2))),
    st.tuples(st.just("patch"), paths, st.just({"a": None})),
    st.tuples(st.just("delete"), st.sampled_from(["c~/x", "c~"]), st.none()),
    st.tuples(st.just("put"), st.just("c~"), st.none()),
)
messages = st.none() | st.sampled_from("mn")


@given(st.lists(st.tuples(writes, messages), max_size=12), st.integers(1, 5))
def test_together_is_one_by_one(given_writes: list[Any], group: int) -> None:
    """Whatever is refused, repeated or deleted in between: the same answers, elements and heads."""
    single, together = World(), World()
    alone: list[Any] = []
    commands: list[DocumentCommand] = []
    for (method, path, body), message in given_writes:
        options = {} if message is None else {"message_id": message, "remembered": True}
        commands.append(DocumentCommand(method, parse_path(path), copy.deepcopy(body), **options))
        try:
            made = single.write(method, path, body, **options)
            alone.append((made.head.revision, made.created) if isinstance(made, DocumentChange) else made.revision)
        except EverlogError as error:
            alone.append(type(error))
    found: list[Any] = []
    while len(found) < len(commands):
        decided = decide_each(
            together.head,
            together.rows,
            together.messages,
            commands[len(found) : len(found) + group],
            now_ms=NOW,
            entropy=1,
            settings=WriteSettings(),
            check=accept_all,
        )
        assert decided
        assert not any(one.clears for one in decided[:-1] if isinstance(one, DocumentChange))
        for one in decided:
            if isinstance(one, DocumentChange):
                together.apply(one)
                found.append((one.head.revision, one.created))
            else:
                found.append(one.revision if isinstance(one, WrittenDocument) else type(one))
    assert found == alone
    assert {item: row.body for item, row in together.rows.items()} == {k: row.body for k, row in single.rows.items()}
    assert [(one.revision, one.item, one.old_body) for one in together.outbox] == [
        (one.revision, one.item, one.old_body) for one in single.outbox
    ]
    if single.head is not None:
        assert together.head is not None
        assert msgspec.structs.replace(together.head, pending=0) == single.head
