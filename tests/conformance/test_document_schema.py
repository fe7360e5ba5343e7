"""Requests made from the OpenAPI document: no answer is an error of the server, or one that the document leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from everlog.config import DocumentsConfig
from tests.http_support import server_in_thread
from tests.support import small_config

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    documents = DocumentsConfig(max_body_bytes=10_000, request_timeout=5.0, max_history=100)
    config = msgspec.structs.replace(small_config(tmp_path_factory.mktemp("schema")), documents=documents)
    with server_in_thread(config) as found:
        yield found


def test_answers_are_as_documented(address: str) -> None:
    """Requests that the document allows, and requests that it does not, for every operation."""
    schema = schemathesis.openapi.from_url(f"{address}/openapi/openapi.json").include(path_regex="^/hyper-storage")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) >= 16
    for operation in operations:
        _try(operation, GenerationMode.POSITIVE)
        if operation.method in ("put", "patch", "post"):
            _try(operation, GenerationMode.NEGATIVE)


def _try(operation: Any, mode: GenerationMode) -> None:
    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        if case.query:
            case.query.pop("feed", None)  # it does not end
        case.call_and_validate(checks=CHECKS)

    run()


def test_every_route_says_what_it_takes_and_answers(address: str) -> None:
    import httpx

    found = httpx.get(f"{address}/openapi/openapi.json").json()["paths"]
    routes = {path: item for path, item in found.items() if path.startswith("/hyper-storage")}
    assert len(routes) >= 6
    for path, item in routes.items():
        for method, operation in item.items():
            if method not in ("get", "head", "put", "patch", "delete", "post"):
                continue
            named = {one["name"] for one in operation.get("parameters", ())}
            assert ("path" in named) == ("{path}" in path) or path == "/hyper-storage/transactions"
            assert ("requestBody" in operation) == (method in ("put", "patch", "post")), (method, path)
            assert {"400", "414", "500", "503", "507"} <= set(operation["responses"])
    written = routes["/hyper-storage/content/{path}"]["put"]
    assert {"Idempotency-Key", "If-Match", "Hyper-Storage-Wait"} <= {one["name"] for one in written["parameters"]}
    assert set(written["responses"]["201"]["headers"]) >= {"Revision", "Location"}
