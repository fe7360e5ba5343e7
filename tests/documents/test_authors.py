"""Every change says who made it: in history, feed, transactions, the journal, the console and on the command line."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from everlog.client import connect
from everlog.config import Config
from everlog.documents.history import DocumentEvent
from everlog.errors import InvalidDocument
from tests.cli_support import Cli
from tests.http_support import frames, new_token, send, server
from tests.support import small_config
from tests.waiting import until

C = "/hyper-storage/content/"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return small_config(tmp_path / "data")


async def authors(docs: Any, path: str) -> list[str]:
    return [event.by async for event in docs.history(path)]


async def test_in_python_the_caller_says_who_it_is(config):
    """Every kind of write; without a name it stays empty, and none that is no name is taken."""
    async with connect(config) as log:
        docs = log.documents
        await docs.put("orders~/1", {"n": 1}, by="ann")
        await docs.patch("orders~/1", {"n": 2}, by="bob")
        await docs.post("orders~", {"n": 3}, by="eve")
        await docs.delete("orders~/1", by="ann")
        await docs.delete("orders~")
        await docs.batch(
            "orders~", [{"method": "put", "id": "1", "body": {}}, {"method": "delete", "id": "1"}], by="ben"
        )
        assert await authors(docs, "orders~") == ["ann", "bob", "eve", "ann", "", "ben", "ben"]
        for wrong in ("x" * 201, "a\nb", 7):
            with pytest.raises(InvalidDocument, match="by is a name"):
                await docs.put("a", 1, by=wrong)
        stored = [event.payload["headers"]["by"] async for event in log.journal("documents").read("orders~")]
        assert stored == ["ann", "bob", "eve", "ann", "", "ben", "ben"]


async def test_over_http_it_is_the_token_and_never_the_client(config):
    """Wherever a change is shown."""
    ann, bob = (new_token(config, "read", "write", name=name) for name in ("ann", "bob"))
    async with server(config) as (log, http):
        address = str(http.base_url)
        of_ann, of_bob = ({"Authorization": f"Bearer {one}", "Hyper-Storage-Wait": "full"} for one in (ann, bob))
        written = await send(http, "PUT", C + "orders~/1", {"n": 1}, 201, headers=of_ann)
        await send(http, "PATCH", C + "orders~/1", {"by": "eve"}, headers=of_bob | {"By": "eve"})
        await send(http, "POST", C + "orders~", {"n": 3}, 201, headers=of_bob)
        await send(http, "DELETE", C + "orders~/1", headers=of_ann)
        batch = [{"method": "post", "body": {}}]
        await send(http, "POST", "/hyper-storage/batches/orders~", batch, headers=of_bob)
        wanted = ["ann", "bob", "bob", "ann", "bob"]
        history = (await send(http, "GET", C + "orders~?history", headers=of_ann)).json()["_embedded"]["els"]
        assert [one["headers"]["by"] for one in history] == wanted
        fed = await frames(http, C + "orders~?feed&after=0", 5, only=None, headers=of_ann)
        assert [json.loads(one["data"])["headers"]["by"] for one in fed] == wanted
        transaction = written.json()["transactionId"]
        shown = (await send(http, "GET", f"/hyper-storage/transactions/{transaction}", headers=of_bob)).json()
        assert shown["by"] == "ann"
        page = (await send(http, "GET", "/console/documents.json?path=orders~", headers=of_ann)).json()
        assert [one["by"] for one in page["history"]] == wanted[::-1]
        assert ">by bob<" in (await send(http, "GET", "/console/documents?path=orders~", headers=of_ann)).text
        assert await authors(log.documents, "orders~") == wanted
        async with connect(address, token=bob) as remote:
            assert await authors(remote.documents, "orders~") == wanted
            assert (await remote.documents.transaction(transaction)).by == "ann"
            async with contextlib.aclosing(remote.documents.feed("orders~", after=3)) as items:
                event = await anext(items)
                assert isinstance(event, DocumentEvent)
                assert event.by == "ann"
            for call in (
                remote.documents.batch("a~", batch, by="eve"),
                remote.documents.put("a", 1, by="eve"),
                remote.documents.delete_view("a~", by="eve"),
            ):
                with pytest.raises(InvalidDocument, match="the token says who"):
                    await call


async def test_without_tokens_it_is_a_user_of_this_machine(config):
    async with server(config) as (log, http):
        await send(http, "PUT", C + "a", 1, 201, headers={"Hyper-Storage-Wait": "full"})
        assert await authors(log.documents, "a") == ["local"]


def test_on_the_command_line_it_is_one_too(tmp_path):
    cli = Cli(tmp_path / "data")
    cli.run("docs", "put", "a", "1", "--wait")
    assert [one["by"] for one in cli.lines("docs", "history", "a")] == ["local"]
    assert "local" in cli.out("docs", "history", "a")
    assert [one["by"] for one in cli.lines("docs", "feed", "a", "--after", "0", "--once")] == ["local"]


async def test_what_a_view_does_says_so_and_who_made_it_is_known(config):
    async with connect(config) as log:
        docs = log.documents
        await docs.put("people/ann", {"age": 41}, by="ann")
        await docs.put_view("old~", "people/{*}", by="bob")

        async def shown() -> bool:
            return len(await authors(docs, "old~")) > 1

        await until(shown)
        first, *others = await authors(docs, "old~")
        assert (first, set(others)) == ("bob", {"everlog.views"})
        await docs.delete_view("old~", by="eve")
        assert (await authors(docs, "old~"))[-1] == "eve"


async def test_a_write_that_waits_says_who_made_it(config):
    """In the list of transactions that are not complete, too."""
    async with connect(config) as log:
        docs = log.documents
        parts = await docs.open()
        parts.completer.kick = lambda uri: None  # type: ignore[method-assign]
        await docs.put("a", 1, by="ann")
        assert [one.by for one in await docs.pending("a")] == ["ann"]
