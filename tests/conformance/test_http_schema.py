"""Requests made from the whole OpenAPI document: none of them fails the server, every status is documented."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from everlog.config import DocumentsConfig, TagsConfig
from tests.http_support import server_in_thread
from tests.support import small_config

# They would hold a request open.
ENDLESS = ("live", "feed")
PATIENT = ("seconds", "wait", "timeout")
# Those who wrote these routes check their promises beside them; here they only must not fail.
ELSEWHERE = ("/hyper-storage", "/queues")
PROMISES = [not_a_server_error, status_code_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    config = msgspec.structs.replace(
        small_config(tmp_path_factory.mktemp("schema")),
        documents=DocumentsConfig(max_body_bytes=10_000, request_timeout=5.0, max_history=100),
        tags=TagsConfig(token_timeout=0.05),
    )
    with server_in_thread(config, writable=True) as found:
        yield found


def test_no_request_fails_the_server(address: str) -> None:
    """Requests that the document allows, and requests that it does not, for every operation."""
    schema = schemathesis.openapi.from_url(f"{address}/openapi/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 40
    for operation in operations:
        if operation.path.startswith(ELSEWHERE):
            _try(operation, GenerationMode.POSITIVE, 1, [not_a_server_error])
            continue
        _try(operation, GenerationMode.POSITIVE, 4, PROMISES)
        if operation.method in ("put", "post"):
            _try(operation, GenerationMode.NEGATIVE, 2, PROMISES)


def _try(operation: Any, mode: GenerationMode, examples: int, checks: list[Any]) -> None:
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        query = case.query if isinstance(case.query, dict) else {}
        for name in ENDLESS:
            query.pop(name, None)
        for name in PATIENT:
            if name in query:
                query[name] = 0
            if isinstance(case.body, dict) and name in case.body:
                case.body[name] = 0
        case.call_and_validate(checks=checks, allow_redirects=False)

    try:
        run()
    except Unsatisfiable:  # no such request can be made: of some operations nothing can be wrong
        assert mode is GenerationMode.NEGATIVE or operation.path.startswith(ELSEWHERE)
