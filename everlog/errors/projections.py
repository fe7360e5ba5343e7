"""Errors of projections and their handlers."""

from __future__ import annotations

from everlog.errors.base import EverlogError, InvalidInput


class InvalidProjection(InvalidInput):
    """A projection is declared in a way that cannot work: a blank name, a handler that does not fit."""


class UnknownProjection(EverlogError):
    """No projection of this name and key was ever started here."""

    def __init__(self, name: str, key: str | None = None) -> None:
        what = name if key is None else f"{name}, key {key}"
        super().__init__(
            f"there is no projection {what}: 'everlog projections list' shows those that were started here"
        )
        self.name = name
        self.key = key


class OffsetConflict(EverlogError):
    """The stored offset is not the one that the change expected; nothing was changed."""

    def __init__(self, projection: str, expected: object, actual: object) -> None:
        super().__init__(f"{projection}: expected the offset {expected}, it is {actual}: look at it again, then decide")
        self.projection = projection
        self.expected = expected
        self.actual = actual


class StillBehind(EverlogError):
    """A projection has not got that far yet, or its owner has not followed a command yet."""

    retriable = True


class OwnershipLost(EverlogError):
    """Another instance, or a command, took this projection over; nothing of this write was stored."""

    def __init__(self, projection: str, epoch: int) -> None:
        super().__init__(f"{projection}: taken over by another instance or a command since epoch {epoch}")
        self.projection = projection
        self.epoch = epoch


class HandlerFailed(EverlogError):
    """A handler returned what no handler may return, or its flow is out of order."""


class HandlerTimeout(HandlerFailed):
    """A handler did not come back in time."""
