"""A trace: a function that gets every statement and how many seconds it took."""

from __future__ import annotations

from collections.abc import Callable

Trace = Callable[[str, float], None]
