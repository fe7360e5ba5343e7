"""What a topic needs so that an acknowledged record is never lost, and what is missing of it."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import TopicDescription

COPIES = 3
IN_SYNC = 2


def concerns(topic: TopicDescription, settings: Mapping[str, str] | None, brokers: int) -> list[str]:
    """One sentence for every weakness of a topic; `settings` is None if we may not see them."""
    found: list[str] = []
    copies = min((len(partition.replicas) for partition in topic.partitions), default=0)
    if brokers == 1:
        found.append("there is one broker only: good for trying things, but its disk is the only copy")
    elif copies < COPIES:
        found.append(f"it has {copies} of {COPIES} copies: raise its replication factor")
    if settings is None:
        return [*found, "its settings cannot be seen: allow DescribeConfigs on it"]
    in_sync = int(settings.get("min.insync.replicas", "1"))
    if brokers > 1 and in_sync < IN_SYNC:
        found.append(f"min.insync.replicas is {in_sync}: an append may be acknowledged by one broker; set {IN_SYNC}")
    if settings.get("unclean.leader.election.enable") == "true":
        found.append("unclean.leader.election.enable is true: acknowledged appends may be lost; set it to false")
    policy = settings.get("cleanup.policy", "delete")
    if policy != "delete":
        found.append(f"cleanup.policy is {policy}: events will be lost; set cleanup.policy=delete")
    return found
