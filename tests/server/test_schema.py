"""Requests made from the whole OpenAPI document, to a server with data: every answer is one that the document names."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import httpx
import jsonschema_rs
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import everlog
from everlog.config import Config, DocumentsConfig, TagsConfig
from everlog.core.events import Event
from everlog.documents.indexes import IndexNew
from everlog.projections.record_source import records
from everlog.queues.wire import MEDIA_TYPE
from everlog.server.schemas.documents import LINES
from everlog.testing.replication import replicate
from tests.http_support import new_token, server_in_thread
from tests.support import small_config

# They would hold a request open.
ENDLESS = ("live", "feed")
ALWAYS_ENDLESS = ("/hyper-storage/feed",)
PATIENT = ("seconds", "wait", "timeout")
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
# So many requests of each kind are others each time; fewer are the same again.
RANDOM = 300
METHODS = ("get", "head", "put", "post", "patch", "delete")
# What is there, by the names of path parameters, and what is not: made-up names are mostly refused as such.
THERE = {"topic": "orders", "journal_id": "o-1", "tag": "eu", "seq_nr": 1, "first": 0, "last": 511, "reason": "failed"}
IN = {
    "/queues": {"name": "pages", "entry": 1, "token": 1, "schedule": "nightly"},
    "/hyper-storage/content": {"path": "orders~/o-1"},
    "/hyper-storage/batches": {"path": "orders~"},
    "/hyper-storage/indexes": {"path": "orders~"},
    "/hyper-storage/views": {"path": "rich~"},
    "/hyper-storage/schemas": {"schema_id": "order"},
    "/hyper-storage/template-indexes": {"path": "by-name"},
}
ABSENT: dict[str, Any] = dict.fromkeys(("topic", "journal_id", "tag", "name", "key", "reason", "schedule"), "absent")
ABSENT |= {"seq_nr": 999, "entry": 999, "token": 999, "path": "absent~", "schema_id": "absent"}


class Served(NamedTuple):
    """A server, what to send to be let in as an administrator, its document, and names of what it has."""

    address: str
    headers: dict[str, str]
    document: dict[str, Any]
    names: dict[str, dict[str, Any]]

    def names_in(self, path: str) -> dict[str, Any]:
        """What the parameters of a path may be, to name something that is there."""
        return THERE | next((names for start, names in self.names.items() if path.startswith(start)), {})


class Way(NamedTuple):
    """With these names in the path. `bare`: without query and headers, which are mostly wrong."""

    names: dict[str, Any]
    bare: bool = False


@schemathesis.serializer(MEDIA_TYPE, LINES)
def as_bytes(_: Any, value: Any) -> Any:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    config = msgspec.structs.replace(
        small_config(tmp_path_factory.mktemp("schema")),
        documents=DocumentsConfig(max_body_bytes=10_000, request_timeout_s=5.0, max_history=100),
        tags=TagsConfig(token_timeout_s=0.05, slices=True),
    )
    names = asyncio.run(fill(config))
    headers = {"Authorization": f"Bearer {new_token(config, 'admin')}"}
    with server_in_thread(config) as address:
        document = httpx.get(f"{address}/openapi/openapi.json", headers=headers, timeout=60).json()
        yield Served(address, headers, document, IN | names)


async def fill(config: Config) -> dict[str, dict[str, Any]]:
    """Something of everything: events and snapshots, views by tag, a projection, jobs in all states, documents.

    Returns those names that are made up on the way.
    """
    async with everlog.connect(config) as log:
        orders = log.journal("orders")
        await orders.append("o-1", [Event({"n": n}, tags={"eu"}) for n in range(5)])
        await orders.snapshots.save("o-1", seq_nr=1, payload={"total": 1})

        @everlog.projection("seen", source=records("orders"))
        async def handler(event: Any, view: Any) -> None:
            raise ValueError("no such cart")

        async with log.projections.run(handler), asyncio.timeout(60):
            while not await log.projections.list("seen"):  # noqa: ASYNC110 - it is known once it has begun
                await asyncio.sleep(0.01)
        pages = log.queue("pages")
        await pages.put("dead", {"n": 1})
        await pages.fail((await pages.claim(1, owner="me"))[0], "no paper", retry=False)
        await pages.put("running", {"n": 1})
        await pages.claim(1, owner="me")
        await pages.put("waiting", {"n": 1})
        await pages.schedules.set("nightly", cron="@yearly")
        docs = log.documents
        await docs.put_schema("order", "schema-orders~", {"required": ["total"]}, check=True)
        written = await docs.put("orders~/o-1", {"total": 12, "customer": "ann"}, wait=True)
        await docs.put("people/ann", {"money": 2000})
        await docs.create_index("orders~", IndexNew("by-total"))
        await docs.put_view("rich~", "people/{*}")
        await docs.put_template_index("by-name", "team/{*}~", IndexNew())
        await docs.settle("orders~")
        await replicate(log)
        (one,) = await log.projections.list("seen")
        return {
            "/projections": {"name": "seen", "key": one.key},
            "/hyper-storage/transactions": {"path": written.transaction_id},
        }


def operations_of(served: Served) -> list[Any]:
    """All of them; what removes things comes last."""
    schema = schemathesis.openapi.from_url(f"{served.address}/openapi/openapi.json", headers=served.headers)
    found = [one.ok() for one in schema.get_all_operations()]

    def destructive(operation: Any) -> tuple[bool, bool]:
        return operation.method == "delete" or operation.path.endswith("/purge"), operation.method != "get"

    return sorted(found, key=destructive)


@pytest.mark.parametrize(
    "examples",
    [
        4,
        pytest.param(40, marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
        pytest.param(RANDOM, marks=[pytest.mark.soak, pytest.mark.timeout(7200)]),
    ],
)
def test_every_answer_is_documented(served: Served, examples: int) -> None:
    """No error of the server, no status, type, header or body that the document leaves out; for every operation.

    Requests that the document allows, to what is there and to what is not; and requests that it does not allow.
    """
    found = operations_of(served)
    known = {(path, method) for path, item in served.document["paths"].items() for method in item if method in METHODS}
    assert {(one.path, one.method) for one in found} == known
    assert len(known) >= 75
    for operation in found:
        there = served.names_in(operation.path)
        ways = [Way({}), Way(ABSENT), Way(there), Way(there, bare=True)]
        # What is not random is the same for each way: it is drawn once.
        for group in [ways] if examples < RANDOM else [[way] for way in ways]:
            _try(served, operation, GenerationMode.POSITIVE, examples, group)
        if operation.method in ("put", "patch", "post"):
            _try(served, operation, GenerationMode.NEGATIVE, examples, [Way(there)])


def _try(served: Served, operation: Any, mode: GenerationMode, examples: int, ways: Sequence[Way]) -> None:
    """So many requests, each in all of these ways."""
    known = served.document["paths"][operation.path][operation.method].get("parameters", ())
    patience = {one["name"]: 0 for one in known if one["in"] == "query" and one["name"] in PATIENT}

    @settings(
        max_examples=examples,
        derandomize=examples < RANDOM,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        query, headers, path_parameters = case.query, case.headers, case.path_parameters
        for way in ways:
            case.query, case.headers = ({}, None) if way.bare else (query, headers)
            case.path_parameters = path_parameters and dict(path_parameters)
            send(case, way.names)

    def send(case: Any, names: dict[str, Any]) -> None:
        query = dict(case.query or {})
        case.query = {name: value for name, value in query.items() if name not in ENDLESS} | patience
        if operation.path in ALWAYS_ENDLESS:
            case.query["after"] = "no position"
        if isinstance(case.body, dict):
            case.body |= {name: 0 for name in PATIENT if name in case.body}
        if case.path_parameters:
            case.path_parameters |= {name: names[name] for name in case.path_parameters if name in names}
        case.call_and_validate(checks=CHECKS, allow_redirects=False, headers=served.headers, timeout=15)

    try:
        run()
    except Unsatisfiable:  # no such request can be made: of some operations nothing can be wrong
        assert mode is GenerationMode.NEGATIVE


def all_operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method in METHODS:
                yield path, method, operation


def test_every_operation_has_examples_and_they_fit(served: Served) -> None:
    """Every body, sent or received, is shown by an example, which is what its schema says."""
    components = {"components": served.document["components"]}
    count = 0
    for path, method, operation in all_operations(served.document):
        assert operation.get("description"), (path, method)
        assert operation.get("tags"), (path, method)
        fine = [answer for status, answer in operation["responses"].items() if status < "300"]
        assert fine or path == "/logout", (path, method)
        for owner in [operation.get("requestBody"), *fine]:
            for media, content in ((owner or {}).get("content") or {}).items():
                assert "examples" in content, (path, method, media)
                (example,) = content["examples"].values()
                schema = jsonschema_rs.validator_for({**content["schema"], **components})
                assert not [error.message for error in schema.iter_errors(example["value"])], (path, method, media)
                count += 1
    assert count > 90


def test_every_example_of_a_body_is_understood(served: Served) -> None:
    """It may come at the wrong time, but never in the wrong form."""
    with httpx.Client(base_url=served.address, headers=served.headers, timeout=60) as http:
        for path, method, operation in all_operations(served.document):
            for media, content in (operation.get("requestBody") or {}).get("content", {}).items():
                (example,) = content["examples"].values()
                value = example["value"]
                body = value.encode("latin-1") if media in (MEDIA_TYPE, LINES) else msgspec.json.encode(value)
                url = path.format_map(served.names_in(path))
                answer = http.request(method, url, content=body, headers={"Content-Type": media})
                wrong = answer.status_code in (400, 413, 415, 422) or answer.status_code >= 500
                nothing_fails = answer.status_code == 400 and path.endswith("/skip")
                assert not wrong or nothing_fails, (method, path, answer.text)


def test_every_operation_takes_what_it_declares_and_nothing_else(served: Served) -> None:
    """A parameter that is not in the document, or one of it twice, is refused by name before anything is done."""
    count = 0
    with httpx.Client(base_url=served.address, headers=served.headers, timeout=60) as http:
        for path, method, operation in all_operations(served.document):
            if path in ("/login", "/logout", "/session"):
                continue
            url = path.format_map(served.names_in(path))
            known = [one for one in operation.get("parameters", ()) if one["in"] == "query"]
            queries = {"unknown-parameter": ["no-such-parameter=1"], "repeated-parameter": []}
            for one in known:
                if "array" not in msgspec.json.encode(one["schema"]).decode():
                    queries["repeated-parameter"].append(f"{one['name']}=1&{one['name']}=1")
            for code, several in queries.items():
                for query in several:
                    answer = http.request(method, f"{url}?{query}")
                    assert answer.status_code == 400, (method, url, query, answer.text)
                    assert method == "head" or answer.json()["code"] == code, (method, url, query, answer.text)
                    count += 1
            answer = http.request(method, f"{url}?no-such-parameter=1")
            if method != "head":
                assert set(answer.json()["extra"]["allowed"]) == {one["name"] for one in known}, (method, path)
    assert count > 150


def test_every_route_of_documents_says_what_it_takes_and_answers(served: Served) -> None:
    """Their handlers read requests by themselves: nothing of the document is derived from them."""
    routes = {path: item for path, item in served.document["paths"].items() if path.startswith("/hyper-storage")}
    assert len(routes) >= 6
    for path, method, operation in all_operations({"paths": routes}):
        named = {one["name"] for one in operation.get("parameters", ())}
        assert ("path" in named) == ("{path}" in path) or path == "/hyper-storage/transactions"
        # These only say: try again, look through it.
        bodiless = method == "post" and (path == "/hyper-storage/views/{path}" or path.endswith("/check"))
        assert ("requestBody" in operation) == (method in ("put", "patch", "post") and not bodiless), (method, path)
        assert {"400", "414", "500", "503", "507"} <= set(operation["responses"])
    written = routes["/hyper-storage/content/{path}"]["put"]
    assert {"Idempotency-Key", "If-Match", "Hyper-Storage-Wait"} <= {one["name"] for one in written["parameters"]}
    assert set(written["responses"]["201"]["headers"]) >= {"Revision", "Location", "Journal-Position"}
