"""Sessions of browsers: a random cookie instead of the token, and a second secret that a foreign page cannot know."""

from __future__ import annotations

import hashlib
import secrets
from typing import NamedTuple

from everlog.core.bounded_map import BoundedMap
from everlog.runtime.clock import Clock

MAX_SESSIONS = 1000


class BrowserSession(NamedTuple):
    """One log-in. It ends with its time, with its token, or with the server."""

    token_id: str
    csrf: str
    expires_ms: int


class Sessions:
    """The sessions of this process, by the hash of their cookie; beyond the limit the oldest one ends."""

    def __init__(self, clock: Clock, hours: float) -> None:
        self._clock = clock
        self.seconds = round(hours * 3600)
        self._open: BoundedMap[bytes, BrowserSession] = BoundedMap(MAX_SESSIONS)

    def begin(self, token_id: str) -> tuple[str, BrowserSession]:
        """A cookie's value, and its session."""
        cookie = secrets.token_urlsafe(32)
        session = BrowserSession(token_id, secrets.token_urlsafe(32), self._clock.now_ms() + self.seconds * 1000)
        self._open.put(_key(cookie), session)
        return cookie, session

    def find(self, cookie: str) -> BrowserSession | None:
        """The session of a cookie, unless it is over."""
        session = self._open.get(_key(cookie))
        if session is not None and session.expires_ms <= self._clock.now_ms():
            del self._open[_key(cookie)]
            return None
        return session

    def end(self, cookie: str) -> None:
        self._open.pop(_key(cookie), None)


def _key(cookie: str) -> bytes:
    """Looked up by its hash: how long that takes says nothing about the cookie."""
    return hashlib.sha256(cookie.encode()).digest()
