"""What the OpenAPI document shows of the routes of queues: a body that could be sent, and what could come back."""

from __future__ import annotations

from typing import Any

from everlog.http.openapi import Shape
from everlog.http.queue_requests import (
    BeatBody,
    CancelBody,
    ClaimBody,
    ClaimsBody,
    CountBody,
    DeadPageBody,
    DeclareBody,
    FailBody,
    FlagsBody,
    PageBody,
    PausedBody,
    PutBody,
    QueueBody,
    QueuesBody,
    ReceiptBody,
    StatsBody,
    WokenBody,
)
from everlog.queues.operations import AskDue, DueAnswer
from everlog.queues.wire import MEDIA_TYPE, encode_operations, encode_outcomes

_NOON, _LATER = "2026-01-31T12:00:00Z", "2026-01-31T12:05:00Z"
_ATTEMPT = {"started": _NOON, "ended": _LATER, "owner": "me", "how": "failed", "reason": "no paper"}
_OPTIONS = {"max_wait": "1m"}
_JOB: dict[str, Any] = {
    "entry": 1,
    "key": "page-7",
    "data": {"edit": 1},
    "dataBase64": None,
    "priority": 128,
    "due": _NOON,
    "expires": None,
    "status": "waiting",
    "timeouts": 0,
    "owner": None,
    "schema": 1,
    "attempts": [],
}
_RUNNING = {**_JOB, "status": "running", "owner": "me", "timeouts": 1, "attempts": [_ATTEMPT]}
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
}
_FLAG = {"reason": "max_timeouts", "count": 1, "first": _NOON, "last": _NOON, "owner": "me", "deadEntry": 1}

NAMES = Shape(QueuesBody, {"queues": ["pages"]})
DECLARE = Shape(DeclareBody, {"options": _OPTIONS, "description": "Pages to be rendered"})
QUEUE = Shape(QueueBody, {"declaration": {"name": "pages", "options": _OPTIONS, "schemas": [], "description": "Pages"}})
PUT = Shape(PutBody, {"key": "page-7", "data": {"edit": 1}, "delay": "10s"})
CREATED = Shape(ReceiptBody, {"result": "CREATED", "entry": 1})
MERGED = Shape(ReceiptBody, {"result": "MERGED", "entry": 1})
WAITING = Shape(PageBody, {"jobs": [_JOB], "next": None})
CLAIMED = Shape(PageBody, {"jobs": [_RUNNING], "next": None})
CLAIM = Shape(ClaimBody, {"owner": "me", "limit": 10, "lease": "5m", "wait": 0})
CLAIMS = Shape(ClaimsBody, {"jobs": [_CLAIMED]})
BEAT = Shape(BeatBody, {"deadline": _LATER, "stop": None, "reason": None})
FAIL = Shape(FailBody, {"reason": "no paper", "delay": "1m"})
CANCEL = Shape(CancelBody, {"key": "page-7", "reason": "deleted"})
COUNT = Shape(CountBody, {"count": 1})
PAUSED = Shape(PausedBody, {"paused": True, "changed": True})
RESUMED = Shape(PausedBody, {"paused": False, "changed": True})
DEAD = Shape(DeadPageBody, {"dead": [_DEAD], "next": None})
FLAGS = Shape(FlagsBody, {"flags": [_FLAG]})
STATS = Shape(StatsBody, {"ready": 1, "delayed": 0, "running": 0, "dead": 0, "paused": False, "oldestDue": _NOON})
WOKEN = Shape(WokenBody, {"woken": True})
# Bytes, as a text of characters below 256: a document has no other way to show them.
OPERATIONS = Shape(None, encode_operations([AskDue()]).decode("latin-1"), MEDIA_TYPE)
OUTCOMES = Shape(None, encode_outcomes([DueAnswer(1, None)]).decode("latin-1"), MEDIA_TYPE)
