"""The operations log as the console has it: its actions are written there, like those over HTTP, and all are shown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from everlog.api import Everlog
from everlog.core.values import MAX_SEQ_NR
from everlog.errors import EverlogError, OutcomeUnknown, StorageFailed
from everlog.server.audit import JOURNAL, TOPIC, Audit, AuditOutcome

BETWEEN = 100


class LoggedOperation(msgspec.Struct, frozen=True, kw_only=True):
    """One action. `target` is what it was done to; `detail` says what became of it."""

    id: str
    seq_nr: int
    time_ms: int
    action: str
    target: Mapping[str, str]
    by: str
    reason: str = ""
    outcome: AuditOutcome = "unknown"
    detail: str = ""


class Operations:
    """The operations log of one server."""

    def __init__(self, log: Everlog, audit: Audit) -> None:
        self._log = log
        self._audit = audit

    async def perform(
        self, action: str, target: Mapping[str, str], work: Callable[[], Awaitable[str]], *, by: str, reason: str
    ) -> LoggedOperation:
        """Note it, do it, note what became of it. An error of the work is noted, too, and raised."""
        begun = await self._audit.begin(action, target, by=by, reason=reason)
        try:
            detail = await work()
        except EverlogError as error:
            unknown = isinstance(error, OutcomeUnknown | StorageFailed)  # perhaps a part of it was done
            await self._audit.end(begun, "unknown" if unknown else "failed", str(error))
            raise
        await self._audit.end(begun, "done", detail)
        return LoggedOperation(
            id=begun.id,
            seq_nr=begun.seq_nr,
            time_ms=self._log.parts.clock.now_ms(),
            action=action,
            target=dict(target),
            by=by,
            reason=reason,
            outcome="done",
            detail=detail,
        )

    async def list(self, *, before: int | None = None, limit: int = 50) -> list[LoggedOperation]:
        """Actions, the newest first; `before` is the seqNr where the last page ended."""
        if await self._log.parts.log.topic(self._log.config.journal.topic_prefix + TOPIC) is None:
            return []
        outcomes: dict[str, tuple[AuditOutcome, str]] = {}
        found: list[LoggedOperation] = []
        # The outcome of an action on this page may lie beyond it: others that run at the same time stand between.
        last = MAX_SEQ_NR if before is None else max(1, before - 1 + BETWEEN)
        async for record in self._log.journal(TOPIC).read(JOURNAL, to_seq=last, reverse=True):
            said = record.payload
            if not isinstance(said, dict) or "id" not in said:
                continue
            if "outcome" in said and "action" not in said:
                outcomes[said["id"]] = (said["outcome"], str(said.get("detail", "")))
            elif before is None or record.seq_nr < before:
                # What was refused is one event alone, with its outcome.
                own = (said.get("outcome", "unknown"), str(said.get("detail", "")))
                outcome, detail = outcomes.get(said["id"], own)
                found.append(_operation(record.seq_nr, record.timestamp, said, outcome, detail))
                if len(found) == limit:
                    break
        return found

    async def get(self, seq_nr: int) -> LoggedOperation | None:
        """The action that begins at this seqNr."""
        found = await self.list(before=seq_nr + 1, limit=1)
        return found[0] if found and found[0].seq_nr == seq_nr else None


def _facts(detail: str) -> dict[str, str]:
    """What a request over HTTP noted about itself: its detail is JSON."""
    try:
        found = msgspec.json.decode(detail) if detail.startswith("{") else {}
    except msgspec.DecodeError:
        found = {}
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _operation(
    seq_nr: int, time_ms: int, said: Mapping[str, Any], outcome: AuditOutcome, detail: str
) -> LoggedOperation:
    target, facts = said.get("target"), _facts(detail)
    reason = str(said.get("reason") or facts.pop("reason", ""))
    return LoggedOperation(
        id=str(said["id"]),
        seq_nr=seq_nr,
        time_ms=time_ms,
        action=str(said.get("action", "")),
        target={str(name): str(value) for name, value in target.items()} if isinstance(target, dict) else {},
        by=str(said.get("by", "")),
        reason=reason,
        outcome=outcome,
        detail=", ".join(f"{name} {value}" for name, value in facts.items()) or detail,
    )
