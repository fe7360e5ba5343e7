"""The statements of the embedded store, by name."""

from __future__ import annotations

from everlog.runtime.statements import load_statements

SQL = load_statements("everlog.store.sqlite")
