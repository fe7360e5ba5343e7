"""Bearer tokens: made once, shown once, kept as hashes.

A token is `evl_<id>_<secret>`. The secret has 256 random bits, so one round of SHA-256 is enough: there is nothing to
guess that a slower hash would protect. The id says which hash to compare with; the comparison takes the same time
whatever is wrong.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from everlog.config import Config, TokenConfig, prepare_folder
from everlog.config.private import private
from everlog.config.scopes import checked_scopes
from everlog.errors import InvalidConfig, InvalidInput, StorageFailed

log = logging.getLogger("everlog.http")

MARK = "evl"
# Compared with when the id is unknown, so that a wrong id takes as long as a wrong secret.
_NOBODY = "sha256:" + "0" * 64


class _File(msgspec.Struct, forbid_unknown_fields=True):
    tokens: list[TokenConfig]


def hash_of(token: str) -> str:
    return "sha256:" + hashlib.sha256(token.encode()).hexdigest()


def make_token(name: str, scopes: Sequence[str], now_ms: int) -> tuple[str, TokenConfig]:
    """A new token, and what is kept of it.

    >>> token, kept = make_token("ci", ["read"], 0)
    >>> kept.hash == hash_of(token), token in str(kept)
    (True, False)
    """
    if not scopes:
        raise InvalidInput("a token needs at least one scope: read, write or admin")
    if len(name) > 200 or not name.isprintable():
        raise InvalidInput("the name of a token is at most 200 printable characters")
    try:
        granted = checked_scopes(scopes)
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    token_id = secrets.token_hex(6)
    token = f"{MARK}_{token_id}_{secrets.token_urlsafe(32)}"
    return token, TokenConfig(token_id, hash_of(token), name, granted, now_ms)


def tokens_path(config: Config) -> Path:
    """The file of tokens; a relative name is taken from the data folder."""
    return config.folder / config.server.tokens_file


class TokenFile:
    """A file of tokens that commands change and servers read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[TokenConfig]:
        """All tokens; none if there is no file."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=_File).tokens
        except FileNotFoundError:
            return []
        except msgspec.DecodeError as error:
            raise InvalidConfig(f"{self.path} is not a file of tokens: {error}: repair it, or delete it") from error
        except OSError as error:
            raise StorageFailed(f"{self.path} cannot be read: {error.strerror}") from error

    def add(self, token: TokenConfig) -> None:
        self._change(lambda found: [*found, token])

    def revoke(self, which: str) -> TokenConfig:
        """Remove a token by its id, or by its name if only one has it. Servers notice with their next request."""
        revoked: list[TokenConfig] = []

        def without(found: list[TokenConfig]) -> list[TokenConfig]:
            revoked[:] = [one for one in found if one.id == which] or [one for one in found if one.name == which]
            if not revoked:
                raise InvalidInput(f"there is no token {which!r}: 'everlog token list' shows them")
            if len(revoked) > 1:
                ids = ", ".join(one.id for one in revoked)
                raise InvalidInput(f"several tokens are named {which!r}: revoke one by its id: {ids}")
            return [one for one in found if one.id != revoked[0].id]

        self._change(without)
        return revoked[0]

    def _change(self, change: Callable[[list[TokenConfig]], list[TokenConfig]]) -> None:
        """Replace the file as a whole, so that a reader sees the old one or the new one; only its owner may read it."""
        prepare_folder(self.path.parent)
        with _locked(self.path.with_suffix(".lock")):
            data = msgspec.json.format(msgspec.json.encode(_File(change(self.read()))))
            fresh = self.path.with_suffix(".new")
            fresh.unlink(missing_ok=True)
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w", opener=private) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Tokens:
    """The tokens that a server knows: those of its configuration, and those of the file as it is now."""

    def __init__(self, fixed: Sequence[TokenConfig], path: Path | None) -> None:
        self._fixed = list(fixed)
        self._file = None if path is None else TokenFile(path)
        self._where = str(path)
        self._stamp: tuple[int, int, int] | None = None
        self._known: dict[str, TokenConfig] = {}
        self._load()
        # Once there were tokens they stay necessary: a file that is deleted locks out, it does not let in.
        self._needed = bool(self._known)

    @property
    def needed(self) -> bool:
        """Whether a request must name one."""
        self._look()
        self._needed = self._needed or bool(self._known)
        return self._needed

    def find(self, token: str) -> TokenConfig | None:
        """Who this token is of."""
        self._look()
        parts = token.split("_", 2)
        found = self._known.get(parts[1]) if len(parts) == 3 else None
        right = hmac.compare_digest(hash_of(token), _NOBODY if found is None else found.hash)
        return found if right else None

    def get(self, token_id: str) -> TokenConfig | None:
        """A token that is still valid."""
        self._look()
        return self._known.get(token_id)

    def _look(self) -> None:
        """Read the file again if it is another one. A file that cannot be read lets no caller in."""
        if self._file is None:
            return
        try:
            found = os.stat(self._where)  # noqa: PTH116 - at every request, and Path.stat costs four times as much
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        except FileNotFoundError:
            stamp = None
        if stamp == self._stamp:
            return
        try:
            self._load()
        except (InvalidConfig, StorageFailed) as error:
            log.error("%s", error)
            self._known = {one.id: one for one in self._fixed}
            self._needed = True
        self._stamp = stamp

    def _load(self) -> None:
        found = [] if self._file is None else self._file.read()
        self._known = {one.id: one for one in [*found, *self._fixed]}
