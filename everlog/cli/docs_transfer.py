"""`everlog docs export` and `everlog docs import`: documents and collections as JSON lines, `{"path", "body"}`.

An import may be repeated, also after it was cut off: it makes what is not there, leaves alone what is equal, and asks
what to do about the rest. So nothing is remembered between two runs, and nothing is written twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

from everlog.cli.bulk import CHUNK_BYTES, LineSource
from everlog.cli.output import encode
from everlog.documents.api import Documents
from everlog.documents.bodies import decode_body, same, stored_body, without_nulls
from everlog.documents.bulk import BulkWrite
from everlog.documents.paths import DocumentPlace, parse_path
from everlog.errors import DocumentConflict, DocumentNotFound, EverlogError, InvalidDocument, PreconditionFailed

PAGE = 500
MAX_GROUP = 1000
MAX_GROUP_BYTES = 4 * 1024 * 1024
MAX_READS = 32
MAX_FAILURES = 1000
MAX_LINE_BYTES = 8 * 1024 * 1024 + CHUNK_BYTES

Existing = Literal["refuse", "replace", "skip"]


class TransferLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line: a document or an element with its body, or a collection without one."""

    path: str
    body: Any = msgspec.UNSET


async def export_lines(docs: Documents, paths: Sequence[str], prefix: str | None) -> AsyncIterator[str]:
    """What is at these paths, and in the collections whose paths begin like this: each as it is when it is read."""
    for path in paths:
        if parse_path(path).kind == "collection":
            async for line in _elements(docs, path):
                yield line
        else:
            yield _line(path, (await docs.get(path)).json)
    after: str | None = "" if prefix is not None else None
    while after is not None:
        page = await docs.collections(prefix or "", after=after, size=PAGE)
        for found in page.collections:
            if not found.view:  # it comes again by itself, with what it shows
                async for line in _elements(docs, found.path):
                    yield line
        after = page.next


async def _elements(docs: Documents, path: str) -> AsyncIterator[str]:
    page = await docs.list(path, size=PAGE)
    yield encode({"path": path})
    while True:
        for element in msgspec.json.decode(page.json, type=list[msgspec.Raw]):
            item = msgspec.json.decode(element, type=_Id).id
            yield _line(DocumentPlace(path, item).path, bytes(element).decode())
        if page.next is None:
            return
        following: dict[str, Any] = page.next
        page = await docs.list(path, size=PAGE, **following)


class _Id(msgspec.Struct):
    id: str


def _line(path: str, body: str) -> str:
    return encode({"path": path, "body": msgspec.Raw(body.encode())})


@dataclass
class ImportSummary:
    """What an import did, line by line."""

    created: int = 0
    unchanged: int = 0
    replaced: int = 0
    skipped: int = 0
    failed: int = 0
    failures: list[tuple[int, EverlogError]] = field(default_factory=list)

    def lost(self, number: int, error: EverlogError) -> None:
        self.failed += 1
        if len(self.failures) < MAX_FAILURES:
            self.failures.append((number, error))

    def __str__(self) -> str:
        return (
            f"{self.created:,} created, {self.unchanged:,} unchanged, {self.replaced:,} replaced, "
            f"{self.skipped:,} skipped, {self.failed:,} failed"
        )


class _Numbered(NamedTuple):
    number: int
    line: TransferLine


class DocumentImport:
    """Takes lines to documents, a group at a time."""

    def __init__(self, docs: Documents, existing: Existing) -> None:
        self._docs = docs
        self._existing = existing
        self.summary = ImportSummary()

    async def run(self, source: LineSource) -> AsyncIterator[int]:
        """Take all lines; gives how many bytes were read, after every group."""
        group: list[_Numbered] = []
        size = 0
        async for number, text in source.lines():
            try:
                group.append(_Numbered(number, _decoded(text)))
            except EverlogError as error:
                self.summary.lost(number, error)
            size += len(text)
            if len(group) >= MAX_GROUP or size >= MAX_GROUP_BYTES:
                await self._take(group)
                group, size = [], 0
                yield source.bytes_read
        await self._take(group)
        yield source.bytes_read

    async def _take(self, group: Sequence[_Numbered]) -> None:
        """Make what is not there, and look at what is."""
        there: list[_Numbered] = []
        results = self._docs.bulk([_write(one.line, if_none_match="*") for one in group])
        async for result in results:
            one = group[result.number - 1]
            if result.error is None:
                self.summary.created += 1
            elif isinstance(result.error, PreconditionFailed) or _exists(result.error):
                there.append(one)
            else:
                self.summary.lost(one.number, result.error)
        other: list[_Numbered] = []
        for at in range(0, len(there), MAX_READS):
            some = there[at : at + MAX_READS]
            for one, equal in zip(some, await asyncio.gather(*[self._is_equal(one.line) for one in some]), strict=True):
                if equal:
                    self.summary.unchanged += 1
                else:
                    other.append(one)
        await self._differing(other)

    async def _is_equal(self, line: TransferLine) -> bool:
        place = parse_path(line.path)
        if place.kind == "collection":
            return True
        try:
            found = await self._docs.get(line.path)
        except DocumentNotFound:
            return False
        wanted = without_nulls(line.body)
        if place.item and isinstance(wanted, dict):
            wanted = {**wanted, "id": place.item}
        return same(stored_body(found.json), wanted)

    async def _differing(self, group: Sequence[_Numbered]) -> None:
        """What is there with another body."""
        if self._existing == "skip":
            self.summary.skipped += len(group)
            return
        if self._existing == "refuse":
            for one in group:
                text = f"{one.line.path} is there with another body: --replace it, or --skip-existing"
                self.summary.lost(one.number, DocumentConflict("already-exists", text))
            return
        async for result in self._docs.bulk([_write(one.line) for one in group]):
            if result.error is None:
                self.summary.replaced += 1
            else:
                self.summary.lost(group[result.number - 1].number, result.error)


def _decoded(text: bytes) -> TransferLine:
    try:
        return msgspec.convert(decode_body(text), TransferLine)
    except msgspec.ValidationError as error:
        raise InvalidDocument("invalid-line", f'a line is {{"path": …, "body": …}}: {error}') from error


def _write(line: TransferLine, if_none_match: str | None = None) -> BulkWrite:
    is_collection = line.path.endswith("~") and line.body is msgspec.UNSET
    return BulkWrite("put", line.path, line.body, if_none_match=None if is_collection else if_none_match)


def _exists(error: EverlogError) -> bool:
    return isinstance(error, DocumentConflict) and error.code == "already-exists"
