"""Places of the log as the pipeline counts them: per log partition, the next offset."""

from __future__ import annotations

LogOffsets = dict[str, int]
"""`{"journal-orders/0": 17, …}`"""


def place_name(topic: str, partition: int) -> str:
    return f"{topic}/{partition}"


def parse_place(name: str) -> tuple[str, int]:
    """The topic and the partition.

    >>> parse_place("journal-orders/3")
    ('journal-orders', 3)
    """
    topic, _, partition = name.rpartition("/")
    return topic, int(partition)
