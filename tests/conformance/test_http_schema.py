"""Requests made from the whole OpenAPI document: none of them fails the server, every status is documented."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import status_code_conformance

from everlog.config import DocumentsConfig, TagsConfig
from tests.http_support import server_in_thread
from tests.support import small_config

# They would hold a request open.
ENDLESS = ("live", "feed")
PATIENT = ("seconds", "wait", "timeout")


@pytest.fixture(scope="module")
def document(tmp_path_factory) -> Iterator[Any]:
    config = msgspec.structs.replace(
        small_config(tmp_path_factory.mktemp("schema")),
        documents=DocumentsConfig(max_body_bytes=10_000, request_timeout=5.0, max_history=100),
        tags=TagsConfig(token_timeout=0.05),
    )
    with server_in_thread(config, writable=True) as address:
        yield schemathesis.openapi.from_url(f"{address}/openapi/openapi.json")


schema = schemathesis.pytest.from_fixture("document")


@schema.parametrize()
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_fails_the_server(case: Any) -> None:
    for name in ENDLESS:
        (case.query or {}).pop(name, None)
    for name in PATIENT:
        if name in (case.query or {}):
            case.query[name] = 0
        if isinstance(case.body, dict) and name in case.body:
            case.body[name] = 0
    checks = [not_a_server_error]
    if not case.path.startswith(("/hyper-storage", "/queues")):
        checks.append(status_code_conformance)  # of those others see to it, with the rest of what they promise
    case.call_and_validate(checks=checks, allow_redirects=False)
