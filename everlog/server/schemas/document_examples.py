"""What the OpenAPI document shows of the routes of documents: bodies that could be sent, and what could come back."""

from __future__ import annotations

from typing import Any

from everlog.server.errors import JSON

MERGE_PATCH = "application/merge-patch+json"
EVENTS = "text/event-stream"
LINES = "application/x-ndjson"
HAL = "application/hal+json"


def hal(body: Any) -> dict[str, Any]:
    """A body with links, under both types that it may come with."""
    return {HAL: body, JSON: body}


TRANSACTION_ID = "orders~:6f2d5c40-fe9c-11f0-8080-808080808080:7"
_POSITION = "documents:3:42"
_EVENT = (
    'id: 7\nevent: feed:put\ndata: {"method":"feed:put","path":"orders~/o-1","headers":{"messageId":"m-1",'
    f'"correlationId":"m-1","revision":7,"transactionId":"{TRANSACTION_ID}","by":"ann"}},"time":1769860800000,'
    f'"position":"{_POSITION}","body":{{"total":12,"id":"o-1"}}}}\n\n'
)
_SORT = [{"fieldName": "total", "fieldType": "decimal", "order": "desc"}]

ORDER = {"total": 12, "customer": "ann"}
STORED = {**ORDER, "id": "o-1"}
CHANGE = {"total": 13, "note": None}
_NEXT = {"next": {"href": "/hyper-storage/content/orders~?size=1&filter=id+%3E+%22o-1%22"}}
CONTENT = {
    JSON: STORED,
    HAL: {"_embedded": {"els": [STORED]}, "_links": _NEXT},
    MERGE_PATCH: CHANGE,
    LINES: '{"method":"feed:delete","path":"orders~/o-1","headers":{"revision":8},"time":1769860800000,"body":null}\n',
    EVENTS: _EVENT,
}
CHANGES = {EVENTS: _EVENT.replace("id: 7", "id: 0=41,3=42")}
WRITTEN = {JSON: {"transactionId": TRANSACTION_ID}}
CREATED = hal(
    {
        "transactionId": TRANSACTION_ID,
        "path": "orders~/o-1",
        "_links": {
            "self": {"href": "/hyper-storage/transactions/{transactionId}", "templated": True},
            "location": {"href": "/hyper-storage/content/{path}", "templated": True},
        },
    }
)
_DONE: dict[str, Any] = {"transactionId": TRANSACTION_ID, "revision": 7, "by": "ann"}
BATCH = [
    {"method": "put", "id": "o-1", "body": ORDER, "ifNoneMatch": "*"},
    {"method": "patch", "id": "o-2", "body": {"total": 8}, "ifMatch": '"6"'},
]
BATCH_RESULTS = {
    JSON: {
        "results": [
            {"status": 201, "path": "orders~/o-1", "revision": 7, "transactionId": TRANSACTION_ID, "etag": '"7"'},
            {
                "status": 200,
                "path": "orders~/o-2",
                "revision": 8,
                "transactionId": TRANSACTION_ID[:-1] + "8",
                "etag": '"8"',
            },
        ]
    }
}
BULK = '{"method":"put","path":"orders~/o-1","body":{"total":12}}\n{"method":"delete","path":"none"}\n'
_BULK_DONE = (
    f'{{"line":1,"status":201,"path":"orders~/o-1","revision":7,"transactionId":"{TRANSACTION_ID}","etag":"\\"7\\""}}'
)
_NOT_FOUND = '{"code":"not_found","description":"there is no none","errorId":"97Uu"}'
BULK_RESULTS = {LINES: f'{_BULK_DONE}\n{{"line":2,"status":404,"path":"none","error":{_NOT_FOUND}}}\n'}
TRANSACTION = {JSON: {**_DONE, "completedAt": 1769860800012, "position": _POSITION}}
TRANSACTIONS = hal({"_embedded": {"els": [{**_DONE, "completedAt": None, "position": None}]}})
COLLECTIONS = hal(
    {
        "_embedded": {"els": [{"path": "orders~", "revision": 7, "count": 2, "view": False, "indexes": 1}]},
        "_links": {"next": {"href": "/hyper-storage/collections?size=1&after=orders~"}},
    }
)
INDEX_NEW = {"indexId": "by-total", "sortBy": _SORT, "filterBy": "total > 5"}
INDEX_CREATED = hal(
    {
        "indexId": "by-total",
        "path": "orders~",
        "_links": {"self": {"href": "/hyper-storage/indexes/orders~"}},
    }
)
INDEX = {**hal({"_embedded": {"els": []}}), JSON: {**INDEX_NEW, "status": "ready", "revision": 7, "count": 2}}
VIEW_NEW = {"template_uri": "people/{*}", "filter": "money > 1000"}
VIEW = {JSON: {"path": "rich~", **VIEW_NEW, "status": "ready"}}
VIEWS = {JSON: {"_embedded": {"els": [VIEW[JSON]]}}}
RETRIED = {JSON: {"shown": 3, "left": 1, "next": None}}
TEMPLATE_NEW = {"template_uri": "team/{*}~", "sort_by": [{"fieldName": "name"}], "filter": None}
TEMPLATE_CREATED = {JSON: {"indexId": "by-name", "template_uri": "team/{*}~"}}
TEMPLATE = {
    JSON: {
        "indexId": "by-name",
        "template_uri": "team/{*}~",
        "sortBy": [{"fieldName": "name", "fieldType": "text", "order": "asc"}],
        "filterBy": None,
    }
}
SCHEMA_NEW = {
    "template_uri": "orders~",
    "schema": {"type": "object", "properties": {"total": {"type": "number", "minimum": 0}}, "required": ["total"]},
}
_VERSION = {"version": "0c6ad8f2-3b0e-4c5e-9f8b-1f0f3a6f1c11"}
SCHEMA = {JSON: {"schemaId": "order", **SCHEMA_NEW, **_VERSION, "modifiedAt": 1769860800000}}
SCHEMAS = {JSON: {"_embedded": {"els": [SCHEMA[JSON]]}}}
SCHEMA_CHECK = {
    JSON: {
        "schemaId": "order",
        "checkId": "5f1d5c0e-6f57-4c27-a3a9-8d1cbb1d9f3e",
        **_VERSION,
        "status": "done",
        "checked": 2,
        "total": 2,
        "violations": 1,
        "problems": [
            {
                "path": "orders~/o-2",
                "errors": [
                    {"path": "/total", "schemaPath": "/properties/total/type", "message": '"7" is not of type "number"'}
                ],
            }
        ],
        "startedAt": 1769860800000,
        "endedAt": 1769860800120,
        "reason": None,
        "runs": 1,
    }
}
NODE = {JSON: {"id": "6f2d5c40", "state": "active", "view": "a1b2c3"}}
