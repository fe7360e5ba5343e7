"""The routes of schemas: they are defined, looked at and deleted, and what is stored is checked against them."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Response, delete, get, post, put
from litestar.openapi.spec import Parameter
from litestar.params import FromPath

from everlog.documents.schemas.registry import SchemaRegistry
from everlog.server.answers import json_answer
from everlog.server.documents import body_bytes, documents_of, typed_body
from everlog.server.requests import AnyRequest, flag, parameters
from everlog.server.schemas import document_examples as examples
from everlog.server.schemas.documents import (
    NAME,
    SCHEMA,
    SCHEMA_CHECK,
    SCHEMA_NEW,
    answer,
    elements,
    operation,
    query,
)
from everlog.wire.documents import check_body, schema_body

SCHEMA_ID = Parameter("schema_id", "path", schema=NAME, description="The id of the schema", required=True)
CHECKED = answer("How far it is", SCHEMA_CHECK, examples=examples.SCHEMA_CHECK)


class SchemaBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a schema is for, and the schema."""

    template_uri: str
    schema: Any


async def _registry(request: AnyRequest) -> SchemaRegistry:
    return (await documents_of(request).open()).schemas


@get(
    "/hyper-storage/schemas",
    operation_class=operation(answers={200: answer("All of them", elements(SCHEMA), examples=examples.SCHEMAS)}),
)
async def list_schemas(request: AnyRequest) -> Response[bytes]:
    """All schemas."""
    found = [schema_body(one) for one in await documents_of(request).schemas()]
    return json_answer({"_embedded": {"els": found}})


@put(
    "/hyper-storage/schemas/{schema_id:str}",
    status_code=200,
    operation_class=operation(
        SCHEMA_ID,
        query("check", "1: begin to look through what is stored"),
        answers={
            200: answer("Replaced", SCHEMA, examples=examples.SCHEMA),
            201: answer("Defined", SCHEMA, examples=examples.SCHEMA),
        },
        refusals=(408, 409, 413, 422),
        body=SCHEMA_NEW,
        example=examples.SCHEMA_NEW,
    ),
)
async def put_schema(request: AnyRequest, schema_id: FromPath[str]) -> Response[bytes]:
    """Define or replace a JSON Schema: each write of what matches the template must fit it."""
    checking = flag(parameters(request), "check")
    body: SchemaBody = await typed_body(request, await body_bytes(request), SchemaBody)
    registry = await _registry(request)
    made, created = await registry.put(schema_id, body.template_uri, body.schema)
    if checking:
        await registry.check(schema_id)
    return json_answer(schema_body(made), status=201 if created else 200)


@get(
    "/hyper-storage/schemas/{schema_id:str}",
    operation_class=operation(SCHEMA_ID, answers={200: answer("The schema", SCHEMA, examples=examples.SCHEMA)}),
)
async def get_schema(request: AnyRequest, schema_id: FromPath[str]) -> Response[bytes]:
    """One schema."""
    return json_answer(schema_body(await documents_of(request).schema(schema_id)))


@delete(
    "/hyper-storage/schemas/{schema_id:str}",
    status_code=204,
    operation_class=operation(SCHEMA_ID, answers={204: answer("Gone")}),
)
async def delete_schema(request: AnyRequest, schema_id: FromPath[str]) -> Response[None]:
    """Delete a schema: writes need not fit it any more."""
    await documents_of(request).delete_schema(schema_id)
    return Response(None, status_code=204)


@post(
    "/hyper-storage/schemas/{schema_id:str}/check",
    status_code=202,
    operation_class=operation(SCHEMA_ID, answers={202: CHECKED}),
)
async def check_schema(request: AnyRequest, schema_id: FromPath[str]) -> Response[bytes]:
    """Begin to look through what is stored; if that goes on already, say how far it is."""
    return json_answer(check_body(await documents_of(request).check_schema(schema_id)), status=202)


@get("/hyper-storage/schemas/{schema_id:str}/check", operation_class=operation(SCHEMA_ID, answers={200: CHECKED}))
async def get_schema_check(request: AnyRequest, schema_id: FromPath[str]) -> Response[bytes]:
    """How far the newest check is, and the first documents that do not fit."""
    return json_answer(check_body(await documents_of(request).schema_check(schema_id)))


SCHEMA_ROUTES = [list_schemas, put_schema, get_schema, delete_schema, check_schema, get_schema_check]
