"""Schemas of documents and their checks as JSON, both ways."""

from __future__ import annotations

from typing import Any

import msgspec

from everlog.documents.schemas.model import CheckState, DocumentSchema, SchemaCheck, SchemaProblem


class SchemaCheckBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """How far a check is. `problems`: the first 100 documents that do not fit; `total`: null where it is unknown."""

    schema_id: str
    check_id: str
    version: str
    status: CheckState
    checked: int
    total: int | None
    violations: int
    problems: tuple[SchemaProblem, ...]
    started_at: int
    ended_at: int | None
    reason: str | None
    runs: int


def schema_body(schema: DocumentSchema) -> dict[str, Any]:
    """A schema with its text as it was put."""
    return {
        "schemaId": schema.schema_id,
        "template_uri": schema.template,
        "schema": msgspec.Raw(schema.text.encode()),
        "version": schema.version,
        "modifiedAt": schema.modified_ms,
    }


def check_body(check: SchemaCheck) -> SchemaCheckBody:
    """A check without what only the servers need."""
    return SchemaCheckBody(
        schema_id=check.schema_id,
        check_id=check.check_id,
        version=check.version,
        status=check.state,
        checked=check.checked,
        total=check.total,
        violations=check.violations,
        problems=check.problems,
        started_at=check.started_ms,
        ended_at=check.ended_ms,
        reason=check.reason,
        runs=check.runs,
    )


def check_of(body: SchemaCheckBody) -> SchemaCheck:
    """The check again."""
    return SchemaCheck(
        body.check_id,
        body.schema_id,
        body.version,
        body.status,
        body.checked,
        body.violations,
        body.problems,
        body.total,
        started_ms=body.started_at,
        ended_ms=body.ended_at,
        reason=body.reason,
        runs=body.runs,
    )
