"""What the OpenAPI document says about the routes of documents: parameters, headers, bodies, every answer.

The handlers read requests by themselves, so that every refusal has a code of ours; so nothing of this is derived from
their signatures, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar

from litestar.openapi.spec import (
    Example,
    OpenAPIHeader,
    OpenAPIMediaType,
    OpenAPIResponse,
    OpenAPIType,
    Operation,
    Parameter,
    Reference,
    RequestBody,
    Schema,
)

from everlog.server.errors import JSON
from everlog.server.schemas.readings import read_parameters
from everlog.wire.http import EXPIRES, TTL

_ALWAYS = (400, 401, 403, 404, 412, 414, 431, 500, 503, 507)

ANY = Schema(description="Any JSON value.")
OBJECT = Schema(type=OpenAPIType.OBJECT)
TEXT = Schema(type=OpenAPIType.STRING)
NAME = Schema(type=OpenAPIType.STRING, min_length=1)  # in a path: without one, it is the address of something else
NUMBER = Schema(type=OpenAPIType.INTEGER)


def _object(required: Sequence[str] = (), *, closed: bool = False, **properties: Schema | Reference) -> Schema:
    return Schema(
        type=OpenAPIType.OBJECT,
        properties=dict(properties),
        required=list(required) or None,
        additional_properties=False if closed else None,
    )


def _list(items: Schema) -> Schema:
    return Schema(type=OpenAPIType.ARRAY, items=items)


def elements(items: Schema) -> Schema:
    """A list as HAL has it."""
    return _object(["_embedded"], _embedded=_object(["els"], els=_list(items)), _links=OBJECT)


def _optional(*types: OpenAPIType) -> Schema:
    return Schema(type=[*types, OpenAPIType.NULL])


ERROR = _object(["code", "description", "errorId"], code=TEXT, description=TEXT, errorId=TEXT, extra=ANY)
WRITTEN = _object(["transactionId"], transactionId=TEXT)
CREATED = _object(["transactionId", "path", "_links"], transactionId=TEXT, path=TEXT, _links=OBJECT)
EVENT = _object(
    ["method", "path", "headers", "time", "position", "body"],
    method=TEXT,
    path=TEXT,
    headers=OBJECT,
    time=NUMBER,
    position=TEXT,
    body=ANY,
)
TRANSACTION = _object(
    ["transactionId", "revision", "completedAt", "position", "by"],
    transactionId=TEXT,
    revision=NUMBER,
    completedAt=_optional(OpenAPIType.INTEGER),
    position=_optional(OpenAPIType.STRING),
    by=TEXT,
)
COLLECTION = _object(
    ["path", "revision", "count", "view", "indexes"],
    path=TEXT,
    revision=NUMBER,
    count=NUMBER,
    view=Schema(type=OpenAPIType.BOOLEAN),
    indexes=NUMBER,
)
SORT_ITEM = _object(
    ["fieldName"],
    closed=True,
    fieldName=TEXT,
    fieldType=Schema(type=OpenAPIType.STRING, enum=["text", "decimal"]),
    order=Schema(type=OpenAPIType.STRING, enum=["asc", "desc"]),
)
INDEX_NEW = _object(
    closed=True,
    indexId=_optional(OpenAPIType.STRING),
    sortBy=_list(SORT_ITEM),
    filterBy=_optional(OpenAPIType.STRING),
)
INDEX = _object(
    ["indexId", "sortBy", "status", "revision", "count"],
    indexId=TEXT,
    sortBy=_list(SORT_ITEM),
    filterBy=TEXT,
    status=Schema(type=OpenAPIType.STRING, enum=["indexing", "ready", "failed"]),
    revision=NUMBER,
    count=_optional(OpenAPIType.INTEGER),
    reason=TEXT,
)
INDEX_CREATED = _object(["indexId", "path", "_links"], indexId=TEXT, path=TEXT, _links=OBJECT)
VIEW_NEW = _object(["template_uri"], closed=True, template_uri=TEXT, filter=_optional(OpenAPIType.STRING))
VIEW = _object(
    ["path", "template_uri", "filter", "status"],
    path=TEXT,
    template_uri=TEXT,
    filter=_optional(OpenAPIType.STRING),
    status=Schema(type=OpenAPIType.STRING, enum=["filling", "checking", "ready"]),
    unshown=NUMBER,
)
UNSHOWN = _object(
    ["source", "code", "reason", "revision", "since", "attempts"],
    source=TEXT,
    code=TEXT,
    reason=TEXT,
    revision=NUMBER,
    since=NUMBER,
    attempts=NUMBER,
)
VIEW_OR_UNSHOWN = Schema(any_of=[VIEW, elements(UNSHOWN)])
RETRIED = _object(["shown", "left", "next"], shown=NUMBER, left=NUMBER, next=_optional(OpenAPIType.STRING))
TEMPLATE_NEW = _object(
    ["template_uri"],
    closed=True,
    template_uri=TEXT,
    sort_by=_list(SORT_ITEM),
    filter=_optional(OpenAPIType.STRING),
)
TEMPLATE_CREATED = _object(["indexId", "template_uri"], indexId=TEXT, template_uri=TEXT)
TEMPLATE = _object(
    ["indexId", "template_uri", "sortBy", "filterBy"],
    indexId=TEXT,
    template_uri=TEXT,
    sortBy=_list(SORT_ITEM),
    filterBy=_optional(OpenAPIType.STRING),
)
METHOD = Schema(type=OpenAPIType.STRING, enum=["put", "patch", "delete", "post"])
OPERATION = _object(
    ["method"],
    closed=True,
    method=METHOD,
    id=TEXT,
    body=ANY,
    ifMatch=_optional(OpenAPIType.STRING),
    ifNoneMatch=_optional(OpenAPIType.STRING),
)
BATCH = _list(OPERATION)
BATCH_RESULT = _object(
    ["status", "path", "revision", "transactionId"],
    status=NUMBER,
    path=TEXT,
    revision=NUMBER,
    transactionId=TEXT,
    etag=_optional(OpenAPIType.STRING),
    expires=_optional(OpenAPIType.INTEGER),
)
BATCH_RESULTS = _object(["results"], results=_list(BATCH_RESULT))
SCHEMA_TEXT = Schema(type=[OpenAPIType.OBJECT, OpenAPIType.BOOLEAN], description="A JSON Schema.")
SCHEMA_NEW = _object(["template_uri", "schema"], closed=True, template_uri=TEXT, schema=SCHEMA_TEXT)
SCHEMA = _object(
    ["schemaId", "template_uri", "schema", "version", "modifiedAt"],
    schemaId=TEXT,
    template_uri=TEXT,
    schema=SCHEMA_TEXT,
    version=TEXT,
    modifiedAt=NUMBER,
)
SCHEMA_VIOLATION = _object(["path", "schemaPath", "message"], path=TEXT, schemaPath=TEXT, message=TEXT)
SCHEMA_CHECK = _object(
    ["schemaId", "checkId", "version", "status", "checked", "total", "violations", "problems", "startedAt", "endedAt"],
    schemaId=TEXT,
    checkId=TEXT,
    version=TEXT,
    status=Schema(type=OpenAPIType.STRING, enum=["running", "done", "failed"]),
    checked=NUMBER,
    total=_optional(OpenAPIType.INTEGER),
    violations=NUMBER,
    problems=_list(_object(["path", "errors"], path=TEXT, errors=_list(SCHEMA_VIOLATION))),
    startedAt=NUMBER,
    endedAt=_optional(OpenAPIType.INTEGER),
    reason=_optional(OpenAPIType.STRING),
    runs=NUMBER,
)
LINES = "application/x-ndjson"
BULK_LINES = Schema(
    type=OpenAPIType.STRING,
    description='One JSON object per line: `{"method": "put", "path": "orders~/o-1", "body": {…}, "ifMatch": …, '
    '"ifNoneMatch": …, "idempotencyKey": …, "correlationId": …}`',
)
BULK_RESULTS = Schema(
    type=OpenAPIType.STRING,
    description="Per line: `line`, `status`, and `path`, `revision`, `transactionId`, `etag`, `expires`, or `error`",
)
PAGE_OR_BODY = Schema(
    any_of=[
        Schema(description="The body of a document or an element."),
        elements(OBJECT),
        elements(EVENT),
    ]
)


class LiteralExample(Example):
    """An example as it is: the framework's own would lose its nulls."""

    def to_schema(self) -> dict[str, Any]:
        return {"value": self.value}


def path_parameter(text: str, example: str) -> Parameter:
    shown = {"example": Example(value=example)}
    return Parameter("path", "path", schema=NAME, description=text, required=True, examples=shown)


def query(name: str, text: str, schema: Schema = TEXT) -> Parameter:
    return Parameter(name, "query", schema=schema, description=text)


def header(name: str, text: str) -> Parameter:
    return Parameter(name, "header", schema=TEXT, description=text)


CONTENT_PATH = path_parameter("`a/b` a document, `a/b~` a collection, `a/b~/1` an element", "orders~/o-1")
COLLECTION_PATH = path_parameter(
    "The collection's path, one segment: a slash is %2F. An index of it: `…/{indexId}`", "orders~"
)
CORRELATION = header("Hyperbus-Correlation-Id", "Comes back with the answer, and is in the event")
READ_HEADERS = (
    CORRELATION,
    header("Accept", "`application/json`: that type instead of `application/hal+json`; `application/x-ndjson`: lines"),
    header("Accept-Encoding", "gzip: large bodies are packed"),
    header("If-Match", "RFC 9110: 412 if it does not match"),
    header("If-None-Match", "RFC 9110: 304 if it matches"),
)
WRITE_HEADERS = (
    CORRELATION,
    header("If-Match", "RFC 9110: 412 if it does not match"),
    header("If-None-Match", "RFC 9110: 412 if it matches; `*`: only if there is none"),
    header("Hyperbus-Message-Id", "A repetition with the same id gets the first answer"),
    header("Idempotency-Key", "The same, under its other name"),
    header(TTL, "With a body: it is deleted after so many seconds, unless it is written again before"),
    Parameter(
        "Hyper-Storage-Wait",
        "header",
        schema=Schema(type=OpenAPIType.STRING, enum=["none", "full"]),
        description="full: answer when the event is in the log, with its Journal-Position",
    ),
)
BATCH_WRITE_HEADERS = tuple(one for one in WRITE_HEADERS if not one.name.startswith("If-") and one.name != TTL)
READ_PARAMETERS = read_parameters()
REVISION = {"Revision": "The revision", "Hyperbus-Revision": "The same"}
WRITING = REVISION | {
    "ETag": "Of what is stored now, for If-Match",
    EXPIRES: "When it will be deleted, if it has a time to live",
    "Everlog-Node": "Which of several nodes did it",
    "Journal-Position": "Where the event is in the log, with Hyper-Storage-Wait: full; otherwise it is not there yet",
}


def answer(
    text: str,
    schema: Schema | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    examples: Mapping[str, Any] | None = None,
) -> OpenAPIResponse:
    """An answer with its body, one example per media type, and the headers that it may carry."""
    known = {name: OpenAPIHeader(schema=TEXT, description=about) for name, about in (headers or {}).items()}
    content = None if schema is None else {kind: _media(schema, one) for kind, one in (examples or {}).items()}
    return OpenAPIResponse(text, headers=dict(known) or None, content=content)


def _media(schema: Schema, example: Any) -> OpenAPIMediaType:
    return OpenAPIMediaType(
        schema=schema, examples=None if example is None else {"example": LiteralExample(value=example)}
    )


def _refusal(status: int) -> OpenAPIResponse:
    headers = {"Hyperbus-Correlation-Id": "The request's own"}
    if status in (429, 503):
        headers["Retry-After"] = "Seconds"
    if status == 405:
        headers["Allow"] = "Methods"
    return answer(HTTPStatus(status).phrase, ERROR, headers, examples={JSON: None})


def operation(
    *parameters: Parameter,
    answers: Mapping[int, OpenAPIResponse],
    refusals: Sequence[int] = (),
    body: Schema | None = None,
    example: Any = None,
    optional: bool = False,
    media: str = JSON,
) -> type[Operation]:
    """The description of a route; `example` is of its body. `optional`: it may come without one."""
    known: dict[str, Any] = {str(status): answer for status, answer in answers.items()}
    known |= {str(status): _refusal(status) for status in sorted({*refusals, *_ALWAYS})}
    content = None if body is None else {media: _media(body, example)}

    @dataclass
    class DescribedOperation(Operation):
        declared: ClassVar[tuple[Parameter, ...]] = parameters

        def __post_init__(self) -> None:
            self.tags = ["documents"]
            self.parameters = list(parameters)
            self.responses = known
            self.request_body = None if content is None else RequestBody(content, required=not optional)

    return DescribedOperation
