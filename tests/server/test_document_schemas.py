"""Schemas of documents over HTTP: statuses, the OpenAPI document, who may define them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.http_support import new_token, send, server
from tests.support import small_config
from tests.waiting import until

SCHEMAS, CONTENT = "/hyper-storage/schemas", "/hyper-storage/content"
ORDER: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "properties": {
        "total": {"$ref": "#/$defs/money"},
        "parts": {"items": {"$ref": "#"}},
        "$ref": {"const": {"$ref": 1}},
    },
    "$defs": {"money": {"type": "number", "multipleOf": 0.01}},
}


@pytest.fixture
async def http(tmp_path) -> AsyncIterator[httpx.AsyncClient]:
    async with server(small_config(tmp_path / "data")) as (_, client):
        yield client


async def put(http: httpx.AsyncClient, schema_id: str, template: str, schema: Any, status: int = 201) -> Any:
    body = {"template_uri": template, "schema": schema}
    return (await send(http, "PUT", f"{SCHEMAS}/{schema_id}", body, status)).json()


async def test_a_schema_over_http(http):
    made = await put(http, "order", "orders~", ORDER)
    assert {name: made[name] for name in ("schemaId", "template_uri", "schema")} == {
        "schemaId": "order",
        "template_uri": "orders~",
        "schema": ORDER,
    }
    again = await put(http, "order", "orders~", ORDER, 200)
    assert again["version"] != made["version"]
    assert (await send(http, "GET", f"{SCHEMAS}/order")).json() == again
    assert (await send(http, "GET", SCHEMAS)).json() == {"_embedded": {"els": [again]}}
    refused = await send(http, "PUT", f"{CONTENT}/orders~/1", {"total": "1", "parts": [{"total": 0.001}]}, 422)
    found = refused.json()
    assert (found["code"], len(found["extra"]["errors"])) == ("schema-violated", 2)
    assert {error["path"] for error in found["extra"]["errors"]} == {"/total", "/parts/0/total"}
    for method, body in (("GET", ...), ("DELETE", ...)):
        await send(http, method, f"{SCHEMAS}/absent", body, 404)
        await send(http, method, f"{SCHEMAS}/a%2Fb", body, 404)
    await send(http, "POST", f"{SCHEMAS}/absent/check", status=404)
    await send(http, "GET", f"{SCHEMAS}/order/check", status=404)
    await send(http, "PUT", f"{SCHEMAS}/order", {"template_uri": "orders~"}, 400)
    await send(http, "PUT", f"{SCHEMAS}/order", {"template_uri": "orders~", "schema": True, "more": 1}, 400)
    await send(http, "DELETE", f"{SCHEMAS}/order", status=204)
    await send(http, "PUT", f"{CONTENT}/orders~/1", {"total": "1"}, 201)


async def test_numbers_are_exact(http):
    """A tenth is no number of computers; 0.3 is a multiple of it all the same."""
    await put(http, "tenths", "t/{*}", {"multipleOf": 0.1, "maximum": 9007199254740993})
    for text, status in (("0.3", 201), ("0.35", 422), ("9007199254740993", 201), ("9007199254740994", 422)):
        answer = await http.put(f"{CONTENT}/t/{text}", content=text)
        assert answer.status_code == status, (text, answer.text)
    assert '"multipleOf":0.1,"maximum":9007199254740993' in (await http.get(f"{SCHEMAS}/tenths")).text


async def test_a_check_over_http(http):
    await send(http, "PUT", f"{CONTENT}/orders~/1", {"total": "much"}, 201)
    await send(http, "PUT", f"{SCHEMAS}/order?check=1", {"template_uri": "orders~", "schema": ORDER}, 201)
    running = (await send(http, "POST", f"{SCHEMAS}/order/check", status=202)).json()

    async def ended() -> Any:
        found = (await send(http, "GET", f"{SCHEMAS}/order/check")).json()
        return found if found["status"] != "running" else None

    found = await until(ended, seconds=30)
    assert found["checkId"] == running["checkId"]
    assert (found["status"], found["checked"], found["violations"], found["total"]) == ("done", 1, 1, 1)
    (problem,) = found["problems"]
    assert (problem["path"], problem["errors"][0]["path"]) == ("orders~/1", "/total")


async def document(http: httpx.AsyncClient) -> Any:
    return (await send(http, "GET", "/openapi/openapi.json")).json()


def resolve(found: Any, reference: str) -> Any:
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found


async def test_the_openapi_document_shows_schemas(http):
    before = await document(http)
    await put(http, "order", "orders~", ORDER)
    await put(http, "closed", "closed~", False)
    await put(http, "odd", "odd~", {"$anchor": "a", "items": {"$ref": "#a"}})
    found = await document(http)
    shown = found["components"]["schemas"]["document.order"]
    reference = shown["properties"]["total"]["$ref"]
    assert resolve(found, reference) == {"type": "number", "multipleOf": 0.01}
    assert resolve(found, shown["properties"]["parts"]["items"]["$ref"]) == shown
    assert shown["properties"]["$ref"] == {"const": {"$ref": 1}}
    assert found["components"]["schemas"]["document.closed"]["not"] == {}
    assert set(found["components"]["schemas"]["document.odd"]) == {"description"}
    text = found["paths"]["/hyper-storage/content/{path}"]["put"]["requestBody"]["description"]
    assert "`orders~`: `document.order`" in text
    for schema_id in ("order", "closed", "odd"):
        await send(http, "DELETE", f"{SCHEMAS}/{schema_id}", status=204)
    assert await document(http) == before


async def test_who_may_define_schemas(tmp_path):
    config = small_config(tmp_path / "data")
    tokens = {scope: new_token(config, scope) for scope in ("read", "write")}
    async with server(config) as (_, http):
        body = {"template_uri": "orders~", "schema": {}}
        for method, path in (("PUT", "order"), ("POST", "order/check"), ("DELETE", "order")):
            for scope, refused in ((None, 401), ("read", 403)):
                headers = {} if scope is None else {"Authorization": f"Bearer {tokens[scope]}"}
                answer = await http.request(method, f"{SCHEMAS}/{path}", content=json.dumps(body), headers=headers)
                assert answer.status_code == refused, (method, path, scope)
        writer = {"Authorization": f"Bearer {tokens['write']}"}
        await send(http, "PUT", f"{SCHEMAS}/order", body, 201, headers=writer)
        await send(http, "GET", f"{SCHEMAS}/order", status=403, headers=writer)
        await send(http, "GET", f"{SCHEMAS}/order", headers={"Authorization": f"Bearer {tokens['read']}"})
