"""Errors of documents, collections and queries."""

from __future__ import annotations

from everlog.errors.base import EverlogError, InvalidInput


class InvalidDocument(InvalidInput):
    """A document request is wrong; `code` says in which way and never changes its spelling."""

    def __init__(self, code: str, message: str, **facts: object) -> None:
        super().__init__(message)
        self.code = code
        self.facts = facts


class FilterTooExpensive(InvalidDocument):
    """The evaluation of a filter or a sort takes more than its budget; nothing is known of whether it matches."""

    def __init__(self, message: str) -> None:
        super().__init__("filter-too-expensive", message)


class DocumentRefused(EverlogError):
    """The document is not in a state for this request; nothing was stored. `code` never changes its spelling."""

    def __init__(self, code: str, message: str, **facts: object) -> None:
        super().__init__(message)
        self.code = code
        self.facts = facts


class DocumentNotFound(DocumentRefused):
    """There is no such document, element, collection, index or transaction."""


class DocumentConflict(DocumentRefused):
    """What is stored does not allow this request."""


class PreconditionFailed(DocumentRefused):
    """If-Match or If-None-Match does not hold."""


class MessageReused(DocumentRefused):
    """A message id came again, with another request."""


class SchemaViolated(DocumentRefused):
    """The body does not fit a schema."""

    @property
    def errors(self) -> list[dict[str, str]]:
        """Where it does not fit, twenty places at most: schema, path, schemaPath, message."""
        found = self.facts.get("errors")
        return found if isinstance(found, list) else []


class TooManyPending(DocumentRefused):
    """Too many events of this document wait for their publication; try again."""

    retriable = True


class TooManyMessages(DocumentRefused):
    """A document keeps as many message ids as it may; the oldest are forgotten after `retry_after_s`."""

    retriable = True

    def __init__(self, uri: str, limit: int, retry_after_s: int) -> None:
        text = (
            f"{uri} keeps {limit:,} message ids, each for a day: try again in {retry_after_s:,} s, or write without one"
        )
        super().__init__("message_limit", text)
        self.uri = uri
        self.limit = limit
        self.retry_after_s = retry_after_s


class QueryLimited(EverlogError):
    """A query read as much as it may and is not done; an index would help, `explain=1` says which."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class WriteUnfinished(EverlogError):
    """The outcome of the write is unknown, or its event is not published yet; repeat it with its message id."""

    retriable = True

    def __init__(self, message: str, *, message_id: str, transaction_id: str | None = None) -> None:
        super().__init__(message)
        self.code = "request_timeout"
        self.message_id = message_id
        self.transaction_id = transaction_id
