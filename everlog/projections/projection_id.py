"""The name of one instance of a projection, and the five partitions that offsets are spread over."""

from __future__ import annotations

from functools import lru_cache

from everlog.core.values import java_hash
from everlog.errors import InvalidProjection

PARTITIONS = 5
MAX_LENGTH = 1000


class ProjectionId:
    """A projection's name, and the key of the part of its source that this instance takes.

    Two ids are equal if their text is: as in Akka Projection, ("a-b", "c") is ("a", "b-c").

    >>> str(ProjectionId("carts", "carts-0"))
    'carts-carts-0'
    """

    __slots__ = ("key", "name")

    def __init__(self, name: str, key: str) -> None:
        self.name = check_part("name", name)
        self.key = check_part("key", key)

    @property
    def partition(self) -> int:
        """Which of the five partitions of `offset_store` holds its row.

        >>> ProjectionId("carts", "carts-0").partition
        3
        """
        return partition_of_key(self.key)

    def __str__(self) -> str:
        return f"{self.name}-{self.key}"

    def __repr__(self) -> str:
        return f"ProjectionId({self.name!r}, {self.key!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProjectionId) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


@lru_cache(maxsize=10_000)
def partition_of_key(key: str) -> int:
    """|javaHash(key) mod 5|; Java's remainder keeps the sign, so its absolute value is the remainder of |hash|."""
    return abs(java_hash(key)) % PARTITIONS


def check_instance(name: str, key: str | None) -> None:
    """Which projection a caller means, and which instance of it; None: its only one."""
    check_part("name", name)
    if key is not None:
        check_part("key", key)


def check_part(what: str, text: str) -> str:
    """A name or a key: text that is not blank and that every store can hold."""
    if not isinstance(text, str):
        raise InvalidProjection(f"a projection's {what} is text, not {type(text).__name__}")
    if not text.strip():
        raise InvalidProjection(f"a projection's {what} must not be blank")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidProjection(f"a projection's {what} is not valid Unicode text: {text!r}") from error
    if size > MAX_LENGTH:
        raise InvalidProjection(f"a projection's {what} has {size:,} bytes, at most {MAX_LENGTH:,} are allowed")
    return text
