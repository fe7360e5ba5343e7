"""What a handler's CQL statement does: to which table, and where its partition key is among the bound values.

Only as much of the language is read as that takes. A caller that needs what cannot be told refuses the statement.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from everlog.cassandra.schema import quoted
from everlog.errors import InvalidInput

StatementKind = Literal["select", "insert", "update", "delete", "schema"]

_NAME = r'(?:"(?:[^"]|"")+"|[A-Za-z]\w*)'
_HIDDEN = re.compile(r"'(?:[^']|'')*'|\$\$.*?\$\$|--[^\n]*|//[^\n]*|/\*.*?\*/", re.DOTALL)
_HEAD = re.compile(
    r"\s*(?:(?P<insert>INSERT\s+INTO)|(?P<update>UPDATE)|(?P<delete>DELETE\b.*?\bFROM)|(?P<select>SELECT\b.*?\bFROM)"
    r"|(?P<schema>(?:CREATE|ALTER|DROP)\s+TABLE(?:\s+IF\s+(?:NOT\s+)?EXISTS)?|TRUNCATE(?:\s+TABLE)?"
    r"|CREATE\s+(?:CUSTOM\s+)?INDEX\b.*?\bON))"
    rf"\s+(?:(?P<keyspace>{_NAME})\s*\.\s*)?(?P<table>{_NAME})",
    re.IGNORECASE | re.DOTALL,
)
_INSERT = re.compile(r"\s*\((?P<columns>[^()]*)\)\s*VALUES\s*\(", re.IGNORECASE)
_WHERE = re.compile(r"\bWHERE\b", re.IGNORECASE)
_EQUAL = re.compile(rf"(?P<column>{_NAME})\s*=\s*\?")
_CONDITION = re.compile(r"\bIF\b|\bUSING\b[^?]*\bTIMESTAMP\b", re.IGNORECASE)


class Statement(NamedTuple):
    """A statement, with the keyspace before its table.

    `bound`: which of the bound values is a column's, for those that the statement names with `= ?`.
    `conditional`: it has an IF, or a write time of its own.
    """

    text: str
    kind: StatementKind
    table: str
    bound: Mapping[str, int]
    conditional: bool


@lru_cache(1000)
def read(text: str, keyspace: str, copies: tuple[tuple[str, str], ...] = ()) -> Statement:
    """What a statement does. `copies`: tables that stand under another name.

    >>> read("UPDATE owed SET cents = ? WHERE region = ?", "shop").bound
    {'region': 1}
    """
    plain = _HIDDEN.sub(lambda found: " " * len(found.group()), text)
    head = _HEAD.match(plain)
    if head is None:
        raise InvalidInput(
            f"not understood: {' '.join(text.split())[:100]!r}: a view takes SELECT, INSERT, UPDATE, DELETE, and "
            "CREATE, ALTER, DROP, TRUNCATE of a table"
        )
    kind: StatementKind = next(one for one in ("insert", "update", "delete", "select", "schema") if head[one])
    table = dict(copies).get(name_of(head["table"]), name_of(head["table"]))
    space = quoted(keyspace) if head["keyspace"] is None else head["keyspace"]
    start = head.start("table" if head["keyspace"] is None else "keyspace")
    whole = f'{text[:start]}{space}."{table}"{text[head.end("table") :]}'
    bound = _inserted(plain, head.end()) if kind == "insert" else _compared(plain)
    return Statement(whole, kind, table, bound, _CONDITION.search(plain) is not None)


def name_of(text: str) -> str:
    """A name as the server keeps it: without quotes, capitals do not count."""
    return text[1:-1].replace('""', '"') if text.startswith('"') else text.lower()


def _compared(plain: str) -> dict[str, int]:
    where = _WHERE.search(plain)
    if where is None:
        return {}
    return {
        name_of(found["column"]): plain.count("?", 0, found.end() - 1) for found in _EQUAL.finditer(plain, where.end())
    }


def _inserted(plain: str, start: int) -> dict[str, int]:
    found = _INSERT.match(plain, start)
    if found is None:
        return {}
    marker, bound = plain.count("?", 0, found.end()), {}
    for column, value in zip(found["columns"].split(","), _values(plain, found.end()), strict=False):
        if value.strip() == "?":
            bound[name_of(column.strip())] = marker
        marker += value.count("?")
    return bound


def _values(plain: str, start: int) -> list[str]:
    """What stands between commas, up to the bracket that ends it all."""
    found, depth, begin = [], 0, start
    for at in range(start, len(plain)):
        if plain[at] in "([{":
            depth += 1
        elif plain[at] in ")]}" and depth:
            depth -= 1
        elif plain[at] == ")" or (plain[at] == "," and not depth):
            found.append(plain[begin:at])
            begin = at + 1
            if plain[at] == ")":
                break
    return found
