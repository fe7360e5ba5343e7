"""What was refused goes into the operations log: bad tokens, failed log-ins, requests without the scope they need.

The invariant: however many requests are refused, the log grows by at most `MAX_KINDS` + 1 entries per window, and the
counts of the entries add up to the refusals. An entry that cannot be written is kept and written later, once, also if
it was not known whether it had been; only what the server has not written when it ends is lost. The first refusal of a
kind is written at once; what else comes of that kind within the window is one entry with its number at the window's
end. A kind is what happened, to whom, and from where; beyond `MAX_KINDS` of them, as from many addresses, all others
are one kind. No entry holds a token.
"""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote

from litestar.types import HTTPScope

from everlog.errors import EverlogError, OutcomeUnknown
from everlog.runtime.clock import Clock
from everlog.server.audit import Audit

log = logging.getLogger("everlog.http")

WINDOW_S = 60.0
MAX_KINDS = 50
MAX_PATH = 200
LOGIN = "/login"
_TOKEN = re.compile(r"evl_[^/]*")


class RefusalKind(NamedTuple):
    """What was refused, of whom, from where."""

    action: str
    by: str = ""
    host: str = ""


OTHERS = RefusalKind("refusals of many")


@dataclass
class UnwrittenEntry:
    """An entry that is to be written; `append_id`: of an attempt whose outcome is unknown."""

    entry: dict[str, Any]
    append_id: str | None = None


@dataclass
class RefusalCount:
    """Refusals of one kind that are not written yet. `due`: when they are; `target` is that of the last one."""

    due: float
    since_ms: int
    count: int = 0
    target: dict[str, str] = field(default_factory=dict)
    entry: UnwrittenEntry | None = None


class Refusals:
    """Counts refusals and writes them into the operations log, a bounded number of entries per window."""

    def __init__(self, audit: Audit, clock: Clock, *, window_s: float = WINDOW_S) -> None:
        self._audit = audit
        self._clock = clock
        self._window_s = window_s
        self._counts: dict[RefusalKind, RefusalCount] = {}
        self._news = asyncio.Event()

    def note(self, kind: RefusalKind, target: dict[str, str]) -> None:
        """One more; it is written soon, alone or with others like it."""
        if kind not in self._counts and len(self._counts) >= MAX_KINDS:
            kind = OTHERS
        found = self._counts.get(kind)
        if found is None:
            found = self._counts[kind] = RefusalCount(self._clock.monotonic(), self._clock.now_ms())
            self._news.set()
        if found.count == 0:
            found.since_ms = self._clock.now_ms()
        found.count += 1
        found.target = target

    async def run(self) -> None:
        """Write what is due, until this is cancelled."""
        while True:
            self._news.clear()
            await self.write()
            dues = [one.due for one in self._counts.values()]
            pause = min(dues) - self._clock.monotonic() if dues else None
            try:
                async with asyncio.timeout(None if pause is None else max(0.0, pause)):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def write(self, *, everything: bool = False) -> None:
        """Write what is due; `everything`: also what is not, because the server ends."""
        now = self._clock.monotonic()
        for kind, found in list(self._counts.items()):
            if found.due > now and not everything:
                continue
            if found.count == 0 and found.entry is None:
                del self._counts[kind]
                continue
            found.due = now + self._window_s
            kept = found.entry is not None
            if await self._write(kind, found) and kept and everything and found.count:
                await self._write(kind, found)

    async def _write(self, kind: RefusalKind, found: RefusalCount) -> bool:
        """Write what could not be written before, else what was counted; False if it is still to be written."""
        if found.entry is None:
            entry = self._audit.refusal(
                kind.action, found.target, by=kind.by, count=found.count, since_ms=found.since_ms
            )
            found.entry, found.count = UnwrittenEntry(entry), 0
        try:
            await self._audit.refused(found.entry.entry, found.entry.append_id)
        except EverlogError as error:
            if isinstance(error, OutcomeUnknown):
                found.entry.append_id = error.append_id
            log.error("%s (%s) is missing in the operations log: %s", kind.action, found.entry.entry["detail"], error)
            return False
        found.entry = None
        return True


def refusal_of(scope: HTTPScope, status: int) -> tuple[RefusalKind, dict[str, str]] | None:
    """What an answer says about its request; None if it is no refusal, or only a page that asks for a log-in."""
    if status not in (401, 403):
        return None
    state, client = scope["state"], scope["client"]
    action = "refused" if status == 403 else _unknown(scope)
    if action is None:
        return None
    host = "" if client is None else client[0]
    by = "" if status == 401 else getattr(state.get("principal"), "name", "")
    target = {"method": scope["method"], "path": shown_path(scope["path"])}
    return RefusalKind(action, by, host), target | ({"from": host} if host else {})


def _unknown(scope: HTTPScope) -> str | None:
    """Why it is not known who asks; None for one that only looks and says nothing about itself."""
    if scope["path"] == LOGIN:
        return "failed log-in"
    if any(name == b"authorization" for name, _ in scope["headers"]):
        return "bad token"
    return None if scope["method"] in ("GET", "HEAD", "OPTIONS") else "no token"


def shown_path(path: str) -> str:
    """A path without what may be a token, and not too long.

    >>> shown_path("/journals/evl%5F0123_secret/x")
    '/journals/evl_…/x'
    """
    return _TOKEN.sub("evl_…", unquote(path, errors="replace"))[:MAX_PATH]
