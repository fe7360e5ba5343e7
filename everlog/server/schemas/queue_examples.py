"""What the OpenAPI document shows of the routes of queues: a body that could be sent, and what could come back."""

from __future__ import annotations

from typing import Any

from everlog.queues.operations import AskDue, DueAnswer
from everlog.queues.wire import MEDIA_TYPE, encode_operations, encode_outcomes
from everlog.server.schemas.openapi import SchemaShape
from everlog.server.schemas.queues import (
    BeatBody,
    CancelBody,
    ClaimBody,
    ClaimsBody,
    CountBody,
    DeadPageBody,
    DeclareBody,
    FailBody,
    FlagsBody,
    HistoryBody,
    JobDoneBody,
    JobReportBody,
    PageBody,
    PausedBody,
    PurgeBody,
    PutBody,
    PutManyBody,
    QueueBody,
    QueuesBody,
    ReceiptBody,
    ReceiptsBody,
    StatsBody,
    WokenBody,
)

_NOON, _LATER = "2026-01-31T12:00:00Z", "2026-01-31T12:05:00Z"
_ATTEMPT = {"started": _NOON, "ended": _LATER, "owner": "me", "how": "failed", "reason": "no paper"}
_OPTIONS = {"max_wait": "1m"}
_JOB: dict[str, Any] = {
    "entry": 1,
    "key": "page-7",
    "data": {"edit": 1},
    "dataBase64": None,
    "priority": 128,
    "inserted": _NOON,
    "due": _NOON,
    "claimed": None,
    "expires": None,
    "status": "waiting",
    "timeouts": 0,
    "owner": None,
    "schema": 1,
    "kind": None,
    "group": "tenant-7",
    "attempts": [],
}
_RUNNING = {**_JOB, "status": "running", "claimed": _NOON, "owner": "me", "timeouts": 1, "attempts": [_ATTEMPT]}
_CLAIMED = {**_RUNNING, "token": 4, "attempt": 2, "deadline": _LATER}
_DEAD = {
    "entry": 1,
    "key": "page-7",
    "data": {"edit": 1},
    "dataBase64": None,
    "cause": "max_timeouts",
    "reason": None,
    "time": _LATER,
    "attempts": [_ATTEMPT],
    "kind": None,
    "group": None,
}
_ENDED = {
    "entry": 1,
    "token": 2,
    "key": "page-7",
    "how": "done",
    "reason": None,
    "inserted": _NOON,
    "claimed": _NOON,
    "ended": _LATER,
    "owner": "me",
    "attempts": [_ATTEMPT],
    "result": {"pages": 3},
    "resultLeftOut": False,
    "kind": None,
    "group": "tenant-7",
    "due": _NOON,
}
_REPORT: dict[str, Any] = {
    **{name: value for name, value in _JOB.items() if name not in ("status", "schema")},
    "state": "waiting",
    "due": _LATER,
    **dict.fromkeys(("deadline", "ended", "successor", "stop", "how", "reason", "result")),
    "token": 0,
    "lifetime": 0,
    "resultLeftOut": False,
    "ends": [],
    "why": [{"code": "not_due", "what": "It is not due: it may start in 5 min.", "remedy": "", "level": ""}],
}
_FLAG = {"reason": "max_timeouts", "count": 1, "first": _NOON, "last": _NOON, "owner": "me", "deadEntry": 1}

NAMES = SchemaShape(QueuesBody, {"queues": ["pages"]})
DECLARE = SchemaShape(DeclareBody, {"options": _OPTIONS, "description": "Pages to be rendered"})
QUEUE = SchemaShape(
    QueueBody, {"declaration": {"name": "pages", "options": _OPTIONS, "schemas": [], "description": "Pages"}}
)
PUT = SchemaShape(PutBody, {"key": "page-7", "data": {"edit": 1}, "delay": "10s"})
CREATED = SchemaShape(ReceiptBody, {"result": "CREATED", "entry": 1})
PUT_MANY = SchemaShape(PutManyBody, {"jobs": [{"key": "page-7", "data": {"edit": 1}}, {"key": "page-8"}]})
RECEIPTS = SchemaShape(
    ReceiptsBody, {"receipts": [{"result": "CREATED", "entry": 1}, {"result": "CREATED", "entry": 2}]}
)
MERGED = SchemaShape(ReceiptBody, {"result": "MERGED", "entry": 1})
WAITING = SchemaShape(PageBody, {"jobs": [_JOB], "next": None})
JOB = SchemaShape(JobReportBody, _REPORT)
CLAIMED = SchemaShape(PageBody, {"jobs": [_RUNNING], "next": None})
CLAIM = SchemaShape(ClaimBody, {"owner": "me", "limit": 10, "lease": "5m", "wait": 0})
CLAIMS = SchemaShape(ClaimsBody, {"jobs": [_CLAIMED]})
BEAT = SchemaShape(BeatBody, {"deadline": _LATER, "stop": None, "reason": None})
DONE = SchemaShape(JobDoneBody, {"result": {"pages": 3}})
FAIL = SchemaShape(FailBody, {"reason": "no paper", "delay": "1m"})
CANCEL = SchemaShape(CancelBody, {"key": "page-7", "reason": "deleted"})
PURGE = SchemaShape(PurgeBody, {"running": False})
COUNT = SchemaShape(CountBody, {"count": 1})
PAUSED = SchemaShape(PausedBody, {"paused": True, "changed": True})
RESUMED = SchemaShape(PausedBody, {"paused": False, "changed": True})
DEAD = SchemaShape(DeadPageBody, {"dead": [_DEAD], "next": None})
HISTORY = SchemaShape(HistoryBody, {"jobs": [_ENDED], "next": None})
FLAGS = SchemaShape(FlagsBody, {"flags": [_FLAG]})
STATS = SchemaShape(StatsBody, {"ready": 1, "delayed": 0, "running": 0, "dead": 0, "paused": False, "oldestDue": _NOON})
WOKEN = SchemaShape(WokenBody, {"woken": True})
# Bytes, as a text of characters below 256: a document has no other way to show them.
OPERATIONS = SchemaShape(None, encode_operations([AskDue()]).decode("latin-1"), MEDIA_TYPE)
OUTCOMES = SchemaShape(None, encode_outcomes([DueAnswer(1, None)]).decode("latin-1"), MEDIA_TYPE)
