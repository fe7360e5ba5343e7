"""The root of all errors, and of those for wrong calls."""

from __future__ import annotations


class EverlogError(Exception):
    """The root of all errors of this package."""

    retriable = False


class InvalidInput(EverlogError, ValueError):
    """The call is wrong; nothing was sent or stored."""
