"""Parameters and conditions that a request should not carry: refused by name, before anything is done."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.http_support import send, server
from tests.support import small_config

C = "/hyper-storage/content/"
UNKNOWN, UNFIT, REPEATED, INVALID = "unknown-parameter", "unfit-parameter", "repeated-parameter", "invalid-parameter"


@pytest.fixture
async def http(tmp_path) -> AsyncIterator[httpx.AsyncClient]:
    """A server with a document, a collection of two elements, an index, a view and a template index."""
    async with server(small_config(tmp_path / "data")) as (_, client):
        await send(client, "PUT", C + "d", {"a": 1}, 201)
        for item in ("1", "2"):
            await send(client, "PUT", f"{C}c~/{item}", {"a": 1}, 201)
        await send(client, "POST", "/hyper-storage/indexes/c~", {"indexId": "i"}, 201)
        await send(client, "PUT", "/hyper-storage/views/v~", {"template_uri": "p/{*}"}, 201)
        await send(client, "PUT", "/hyper-storage/template-indexes/t", {"template_uri": "p/{*}~"}, 201)
        yield client


async def code_of(http: httpx.AsyncClient, method: str, path: str, **options) -> tuple[int, str]:
    answer = await http.request(method, path, **options)
    return answer.status_code, answer.json()["code"] if answer.status_code >= 400 else ""


async def test_nothing_is_written_with_a_parameter_that_says_something_else(http):
    """A deletion with a filter deletes nothing, and so on for every write; the refusal lists what is allowed."""
    answer = await send(http, "DELETE", C + "c~?filter=a>5", status=400)
    assert answer.json()["code"] == UNKNOWN
    assert answer.json()["extra"] == {"parameter": "filter", "allowed": []}
    for method, path, body in (
        ("DELETE", C + "c~", None),
        ("DELETE", C + "c~/1", None),
        ("DELETE", C + "d", None),
        ("PUT", C + "d", "2"),
        ("PATCH", C + "d", '{"a": 2}'),
        ("POST", C + "c~", "{}"),
        ("POST", "/hyper-storage/indexes/c~", '{"indexId": "j"}'),
        ("DELETE", "/hyper-storage/indexes/c~/i", None),
        ("PUT", "/hyper-storage/views/w~", '{"template_uri": "p/{*}"}'),
        ("DELETE", "/hyper-storage/views/v~", None),
        ("PUT", "/hyper-storage/template-indexes/u", '{"template_uri": "p/{*}~"}'),
        ("DELETE", "/hyper-storage/template-indexes/t", None),
    ):
        for query in ("filter=a", "size=1", "at=1", "If-Match=1", "x", "=", "%66ilter="):
            assert await code_of(http, method, f"{path}?{query}", content=body) == (400, UNKNOWN), (method, path, query)
    assert (await send(http, "GET", C + "c~")).headers["revision"] == "2"
    assert (await send(http, "GET", C + "d")).json() == {"a": 1}
    for path in ("indexes/c~/i", "views/v~", "template-indexes/t"):
        await send(http, "GET", "/hyper-storage/" + path)
    for path in ("indexes/c~/j", "views/w~", "template-indexes/u"):
        await send(http, "GET", "/hyper-storage/" + path, status=404)


MISFITS = [
    ("d", "filter=a", UNFIT), ("d", "sort=a", UNFIT), ("d", "size=1", UNFIT), ("d", "explain", UNFIT),
    ("d", "skipMax=1", UNFIT), ("d", "after=1", INVALID), ("d", "Filter=a", UNKNOWN), ("d", "limit=1", UNKNOWN),
    ("c~/1", "filter=a", UNFIT), ("c~/1", "after=1", INVALID), ("c~", "filters=a", UNKNOWN),
    ("c~", "filter=a&filter=b", REPEATED), ("c~", "size=1&size=1", REPEATED), ("c~", "size=abc", INVALID),
    ("c~", "size=", INVALID), ("c~", "size=-1", INVALID), ("c~", "size=1e3", INVALID), ("c~", "%ff=1", INVALID),
    ("c~", "diff=1,2", UNFIT), ("c~", "feed&sort=a", UNFIT), ("c~", "feed&filter=a", UNFIT),
    ("d", "feed&size=1", UNFIT), ("d", "feed&history", UNFIT), ("d", "feed=0", INVALID),
    ("d", "feed&after=x", INVALID), ("d", "feed&after=-1", INVALID),
    ("d", "history&at=1", UNFIT), ("d", "at=1&diff=1,1", UNFIT), ("c~", "history&filter=a", UNFIT),
    ("c~", "at=1&filter=a", UNFIT), ("c~", "at=1&sort=a", UNFIT), ("d", "at=1&size=1", UNFIT),
    ("d", "history=backwards", INVALID), ("d", "history&size=abc", INVALID), ("d", "history&size=0", INVALID),
    ("d", "at=x", INVALID), ("d", "diff=1", INVALID), ("d", "diff=1,2&size=1", UNFIT), ("d", "x", UNKNOWN),
]  # fmt: skip


async def test_reads_take_what_fits_them(http):
    for path, query, code in MISFITS:
        answer = await send(http, "GET", f"{C}{path}?{query}", status=400)
        assert answer.json()["code"] == code, (path, query)
        assert code in (REPEATED, INVALID) or answer.json()["extra"]["allowed"], (path, query)
        await send(http, "HEAD", f"{C}{path}?{query}", status=400)


async def test_definitions_and_transactions_take_no_parameters(http):
    written = (await send(http, "PUT", C + "e", 1, 201)).json()["transactionId"]
    for path in ("indexes/c~", "indexes/c~/i", "views/v~", "template-indexes/t", f"transactions/{written}", "nodes"):
        code = UNFIT if path.startswith("views") else UNKNOWN
        assert await code_of(http, "GET", f"/hyper-storage/{path}?size=1") == (400, code), path
    assert await code_of(http, "GET", "/hyper-storage/transactions?path=d&incomplete=1&size=1") == (400, UNKNOWN)
    assert await code_of(http, "GET", "/hyper-storage/transactions?path=d&path=e&incomplete=1") == (400, REPEATED)


async def test_conditions_that_cannot_be_evaluated_hold_nowhere(http):
    """A write that relies on a tag is not carried out where nothing has one; a tag that nothing has is no obstacle."""
    view, index = "/hyper-storage/views/v~", "/hyper-storage/indexes/c~/i"
    for headers in ({"If-Match": '"1"'}, {"If-Match": "*"}, {"If-None-Match": "*"}):
        for path in (view, index, "/hyper-storage/template-indexes/t"):
            assert await code_of(http, "DELETE", path, headers=headers) == (412, "not_matched")
    await send(http, "DELETE", view, status=204, headers={"If-None-Match": '"1"', "If-Range": '"1"'})
    await send(http, "GET", index, headers={"If-Range": '"1"'})


async def test_a_flag_says_yes_or_no_and_nothing_else(http):
    """A value that is neither might have been meant either way."""
    for path in (C + "c~?explain", C + "c~?count&explain", "/hyper-storage/transactions?path=d&incomplete"):
        for value in ("maybe", "2", "-1", "TRUE!", "off", "none"):
            assert await code_of(http, "GET", f"{path}={value}") == (400, INVALID), (path, value)
        for value in ("", "1", "true", "YES"):
            assert await code_of(http, "GET", f"{path}={value}") == (200, ""), (path, value)
    for value in ("0", "False", "no"):
        assert "explain" not in (await send(http, "GET", f"{C}c~?explain={value}")).json()
    for value in ("maybe", "0", "no"):
        for name in ("count", "feed", "live", "history"):
            assert await code_of(http, "GET", f"{C}c~?{name}={value}") == (400, INVALID), (name, value)
    schema = '{"template_uri": "x~", "schema": {}}'
    path = "/hyper-storage/schemas/s?check=maybe"
    assert await code_of(http, "PUT", path, content=schema) == (400, INVALID)
    await send(http, "GET", "/hyper-storage/schemas/s", status=404)
