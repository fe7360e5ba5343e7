"""The root of all errors, and of those for wrong calls."""

from __future__ import annotations

from typing import Any


class EverlogError(Exception):
    """The root of all errors of this package."""

    retriable = False

    def __reduce__(self) -> tuple[Any, ...]:
        """For copies, and on the way from another process: as it is, because not every error is made of its text."""
        return _made_again, (type(self), self.args, vars(self))


def _made_again(kind: type[EverlogError], args: tuple[Any, ...], facts: dict[str, Any]) -> EverlogError:
    error = kind.__new__(kind, *args)
    vars(error).update(facts)
    return error


class InvalidInput(EverlogError, ValueError):
    """The call is wrong; nothing was sent or stored."""
