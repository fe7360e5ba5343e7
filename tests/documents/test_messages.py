"""A write that comes again with its message id gets its first answer, over restarts, servers and lives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from everlog.client import connect
from everlog.config import Config, DocumentsConfig
from everlog.console.server import serving
from everlog.errors import TooManyMessages
from tests.support import small_config

C = "/hyper-storage/content/"
# Method, path, body, and the status that the first one gets.
WRITES: tuple[tuple[str, str, Any, int], ...] = (
    ("PUT", "c~/x", {"n": 1}, 201),
    ("PUT", "c~/x", {"n": 2}, 200),
    ("PATCH", "c~/x", {"n": 3}, 200),
    ("POST", "c~", {"n": 4}, 201),
    ("DELETE", "c~/x", None, 200),
    ("DELETE", "c~", None, 200),
    ("PUT", "c~", None, 201),
)


@pytest.fixture
def config(tmp_path) -> Config:
    documents = DocumentsConfig(max_messages=80)
    return msgspec.structs.replace(small_config(tmp_path / "data"), documents=documents)


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=60) as http:
        yield http


async def send(http: httpx.AsyncClient, address: str, number: int) -> httpx.Response:
    """One of the writes, under an id of its own."""
    method, path, body, _ = WRITES[number]
    content = None if body is None else msgspec.json.encode(body)
    url, headers = f"{address}{C}{path}", {"Idempotency-Key": f"m{number}"}
    return await http.request(method, url, content=content, headers=headers)


def shown(answer: httpx.Response) -> tuple[Any, ...]:
    names = ("revision", "hyperbus-revision", "hyperbus-message-id", "etag", "location")
    return answer.status_code, answer.json(), {name: answer.headers.get(name) for name in names}


async def test_every_method_may_be_repeated_at_any_server_and_after_a_restart(config: Config, http) -> None:
    async with (
        connect(config) as one,
        connect(config) as two,
        serving(one, host="127.0.0.1", port=0) as first,
        serving(two, host="127.0.0.1", port=0) as second,
    ):
        answers = [await send(http, first, number) for number in range(len(WRITES))]
        assert [answer.status_code for answer in answers] == [status for *_, status in WRITES]
        for number in range(70):  # more than a head could hold
            await one.documents.put("c~/y", {"n": number}, message_id=f"other-{number}")
        for address in (first, second):
            for number, answer in enumerate(answers):
                assert shown(await send(http, address, number)) == shown(answer)
    async with connect(config) as again, serving(again, host="127.0.0.1", port=0) as address:
        for number, answer in enumerate(answers):
            assert shown(await send(http, address, number)) == shown(answer)
            method, path = ("PUT", "c~") if number != 6 else ("DELETE", "c~/y")
            headers = {"Idempotency-Key": f"m{number}"}
            other = await http.request(method, f"{address}{C}{path}", headers=headers)
            assert (other.status_code, other.json()["code"]) == (422, "message-id-reused")
        page = await again.documents.list("c~")
        assert (page.elements, page.revision) == ([{"n": 69, "id": "y"}], 77)
        assert [event.revision async for event in again.documents.history("c~")] == list(range(1, 78))


async def test_a_document_takes_so_many_ids_a_day_and_says_when_it_takes_more(config: Config, http) -> None:
    async with (
        connect(config) as log,
        serving(log, host="127.0.0.1", port=0) as address,
        connect(address) as remote,
    ):
        for number in range(80):
            await log.documents.put("d", number, message_id=f"m{number}")
        answer = await http.put(f"{address}{C}d", content="1", headers={"Idempotency-Key": "more"})
        assert (answer.status_code, answer.json()["code"]) == (429, "message_limit")
        seconds = answer.json()["extra"]["retryAfter"]
        assert answer.headers["retry-after"] == str(seconds)
        assert 86_400 - 60 < seconds <= 86_400 + 901
        for docs in (log.documents, remote.documents):
            with pytest.raises(TooManyMessages) as caught:
                await docs.put("d", 1, message_id="more")
            assert (caught.value.uri, caught.value.limit) == ("d", 80)
            assert abs(caught.value.retry_after_s - seconds) <= 60
        assert (await remote.documents.put("d", 0, message_id="m0")).revision == 1
        assert (await remote.documents.put("d", 0)).revision == 81
        assert (await remote.documents.put("e", 0, message_id="more")).revision == 1
