"""Topics on Kafka: found, made and checked through the administrator's client."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType, TopicDescription

from everlog.config import Config
from everlog.core.duration import HOUR_MS
from everlog.errors import EverlogError, TooFewReplicas, TopicMissing, Unreachable, UnsuitableTopic
from everlog.log.kafka.client import admin_settings, make_client
from everlog.log.kafka.errors import explain, is_denied, is_missing, is_silence, kafka_error
from everlog.log.port import LogTopic
from everlog.runtime.retry import pause_after
from everlog.runtime.trace import Trace

Found = TypeVar("Found")

logger = logging.getLogger("everlog.log.kafka")

# What a record has on top of the bytes that [kafka] max_record_bytes counts.
ENVELOPE_BYTES = 64 * 1024
# How many topics are asked about at once.
TOPICS_PER_REQUEST = 500
# If no server is up at all, waiting longer than this does not help.
DOWN_S = 2.0
PAUSE_S = 0.02
# A controller that has not answered for this long may be dead: see `Topics._ask`.
CONTROLLER_S = 1.0
# The settings of topics change seldom.
JUDGE_S = 60.0
JUDGED_AT_ONCE = 32
COPIES = 3
IN_SYNC = 2


class ClientWatch:
    """Keeps what a client says about its connections."""

    def __init__(self) -> None:
        self.last: KafkaError | None = None
        self.denied: KafkaError | None = None

    def take(self, error: KafkaError, *, denied: bool) -> None:
        """An error that concerns no single request; `denied` if it will not go away by itself."""
        self.last = error
        if denied:
            self.denied = error


class Topics:
    """The topics of a cluster."""

    def __init__(self, config: Config, *, trace: Trace | None = None) -> None:
        assert config.kafka is not None
        self._config = config
        self._kafka = config.kafka
        self._servers = config.kafka.bootstrap_servers
        self._timeout_s = config.kafka.request_timeout_s
        self._trace = trace
        self._watch = ClientWatch()
        self._admin = make_client(
            AdminClient, {**admin_settings(config.kafka), "error_cb": self._notice, "socket.timeout.ms": 10_000}
        )
        self._checked: set[LogTopic] = set()
        self._making: dict[str, asyncio.Task[LogTopic]] = {}
        self._brokers = 0
        self._concerns: dict[str, list[str]] = {}
        self._judged_until = 0.0

    def _notice(self, error: KafkaError) -> None:
        self._watch.take(error, denied=is_denied(error))

    async def connect(self) -> None:
        """Wait for a server that answers; a named error if there is none, or if it does not let us in."""
        started, watch = time.monotonic(), self._watch
        while True:
            try:
                await asyncio.to_thread(self._admin.list_topics, timeout=min(0.5, self._timeout_s))
                return
            except KafkaException as error:
                self._admin.poll(0)  # calls `_notice`
                found = watch.denied or watch.last or kafka_error(error)
            waited = time.monotonic() - started
            down = found.code() in {KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE}
            if watch.denied is not None or waited >= (min(DOWN_S, self._timeout_s) if down else self._timeout_s):
                raise self._cannot_connect(found)

    def _cannot_connect(self, error: KafkaError) -> EverlogError:
        if is_denied(error):
            return explain(error, "Kafka refuses the connection", self._servers)
        return Unreachable(
            f"no Kafka broker answers at {self._servers}: {error.str()}: start it, or correct [kafka] "
            "bootstrap_servers (and tls and username, if the broker wants them)"
        )

    async def names(self) -> list[str]:
        """The names of all topics that may hold journals; a cluster may have many others."""
        started = time.perf_counter()
        try:
            found = await asyncio.to_thread(self._admin.list_topics, timeout=self._timeout_s)
        except KafkaException as error:
            raise explain(self._watch.denied or kafka_error(error), "the list of topics", self._servers) from error
        self._report("list topics", started)
        self._brokers = len(found.brokers)
        return sorted(filter(self._config.journal.includes, found.topics))

    async def all(self) -> list[LogTopic]:
        """All topics that may hold journals, by name."""
        return list((await self.find(await self.names())).values())

    async def find(self, names: Collection[str]) -> dict[str, LogTopic]:
        """Those of the topics that exist, by name."""
        ordered = list(names)
        found: dict[str, LogTopic] = {}
        for at in range(0, len(ordered), TOPICS_PER_REQUEST):
            some = await self._describe(ordered[at : at + TOPICS_PER_REQUEST])
            found |= {topic.name: _log_topic(topic) for topic in some}
        return found

    async def describe(self, name: str) -> LogTopic | None:
        """The topic, or None if it does not exist."""
        found = await self._describe([name])
        return _log_topic(found[0]) if found else None

    async def _describe(self, names: Sequence[str]) -> list[TopicDescription]:
        """Those of the topics that exist, in their order."""
        started = time.perf_counter()
        topics = TopicCollection(list(names))
        answers = await self._ask(lambda wait: self._admin.describe_topics(topics, request_timeout=wait))
        found: list[TopicDescription] = []
        for name in names:
            answer = answers[name]
            if not isinstance(answer, KafkaException):
                found.append(answer)
            elif not is_missing(kafka_error(answer)):
                raise explain(kafka_error(answer), f"the topic {name}", self._servers) from answer
        self._report(f"describe {names[0]}" if len(names) == 1 else f"describe {len(names)} topics", started)
        return found

    async def _ask(self, request: Callable[[float], Mapping[Any, concurrent.futures.Future[Any]]]) -> dict[Any, Any]:
        """The answers to a request that may be made twice; an error is an answer, if it does not pass by itself.

        The library sends it to the broker that it takes for the controller. If that one is dead, it waits for it until
        the time is over, and if it dies meanwhile, it gives up at once. Listing the topics, which any broker does,
        tells it of another one.
        """
        deadline, attempt = time.monotonic() + self._timeout_s, 0
        while True:
            attempt += 1
            patience_s = pause_after(attempt, CONTROLLER_S, self._timeout_s)  # it may also be alive and slow
            wait = max(min(patience_s, deadline - time.monotonic()), 0.05)
            answers: dict[Any, Any] = {}
            for name, future in request(wait).items():
                try:
                    answers[name] = await _answer_of(future)
                except KafkaException as error:
                    answers[name] = error
            if time.monotonic() >= deadline or not any(map(_may_pass, answers.values())):
                return answers
            await asyncio.sleep(PAUSE_S)
            with contextlib.suppress(KafkaException):
                rest = max(min(wait, deadline - time.monotonic()), 0.05)
                await asyncio.to_thread(self._admin.list_topics, timeout=rest)

    def _report(self, what: str, started: float) -> None:
        if self._trace is not None:
            self._trace(what, time.perf_counter() - started)

    async def create(self, name: str) -> LogTopic:
        """The topic, made if it does not exist; when this returns, all brokers know it, and it is fit for journals.

        Calls at the same time share one answer: thousands of first appends would be thousands of requests.
        """
        making = self._making.get(name)
        if making is None:
            making = self._making[name] = asyncio.create_task(self._create(name))
            making.add_done_callback(partial(self._made, name))
        return await asyncio.shield(making)

    def _made(self, name: str, making: asyncio.Task[LogTopic]) -> None:
        del self._making[name]
        if not making.cancelled():
            making.exception()  # the callers that wait get it; without any, it must not be reported as lost

    async def close(self) -> None:
        """Cancel what is under way: no caller waits for it any more."""
        making = list(self._making.values())
        for one in making:
            one.cancel()
        await asyncio.gather(*making, return_exceptions=True)

    async def _create(self, name: str) -> LogTopic:
        deadline = time.monotonic() + self._timeout_s
        made = False
        while True:
            found = await self._describe([name])
            if found and all(partition.leader is not None for partition in found[0].partitions):
                topic = _log_topic(found[0])
                if await self._is_checked(topic, found[0]):
                    return topic
            if not found and not made:
                made = await self._make(name)
            if time.monotonic() > deadline:
                raise Unreachable(
                    f"the topic {name} has no leader after {self._timeout_s:g} s: are all brokers of "
                    f"{self._servers} up? Try again"
                )
            await asyncio.sleep(PAUSE_S)

    async def _make(self, name: str) -> bool:
        """Make the topic; False if that has to wait until a broker is ready."""
        topic = NewTopic(
            name,
            num_partitions=self._config.log.partitions,
            replication_factor=-1 if self._kafka.replication_factor is None else self._kafka.replication_factor,
            config=topic_settings(self._config),
        )
        started = time.perf_counter()
        answer = (await self._ask(lambda wait: self._admin.create_topics([topic], request_timeout=wait)))[name]
        if isinstance(answer, KafkaException):
            why = kafka_error(answer)
            # A broker that has just started takes part a moment later.
            if why.code() == KafkaError.INVALID_REPLICATION_FACTOR and "fenced" in why.str():
                return False
            # Another process was quicker, which makes no difference.
            if why.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise explain(why, f"the new topic {name}", self._servers) from answer
        self._report(f"create {name}", started)
        return True

    async def _is_checked(self, topic: LogTopic, found: TopicDescription) -> bool:
        """Check the topic; False if the broker that was asked does not know it yet."""
        try:
            await self._check(topic, found)
        except TopicMissing:
            return False
        return True

    async def _check(self, topic: LogTopic, found: TopicDescription) -> None:
        """Refuse a topic that would lose records, or that takes none. Looked at once."""
        if topic in self._checked:
            return
        settings = await self.settings(topic.name)
        if settings is not None:
            if "compact" in settings.get("cleanup.policy", "delete"):
                raise UnsuitableTopic(
                    f"the topic {topic.name} has cleanup.policy={settings['cleanup.policy']}: it would keep only the "
                    "last record of every journal; set cleanup.policy=delete, or use another topic"
                )
            check_replicas(topic.name, found, int(settings.get("min.insync.replicas", "1")))
            self._check_size(topic.name, int(settings.get("max.message.bytes", "0")))
        self._checked.add(topic)

    def _check_size(self, name: str, limit: int) -> None:
        if limit < self._config.journal.max_append_bytes + ENVELOPE_BYTES:
            logger.warning(
                "the topic %s takes records of at most %d bytes: larger appends will be refused; raise its "
                "max.message.bytes, or lower [journal] max_append_bytes",
                name,
                limit,
            )

    async def settings(self, name: str) -> dict[str, str] | None:
        """The topic's settings; None if we may not see them."""
        started = time.perf_counter()
        resource = ConfigResource(ResourceType.TOPIC, name)
        answers = await self._ask(lambda wait: self._admin.describe_configs([resource], request_timeout=wait))
        (found,) = answers.values()
        if isinstance(found, KafkaException):
            if is_denied(kafka_error(found)):
                logger.warning("the settings of the topic %s cannot be checked: %s", name, kafka_error(found).str())
                return None
            raise explain(kafka_error(found), f"the settings of {name}", self._servers) from found
        self._report(f"settings of {name}", started)
        return {entry.name: entry.value for entry in found.values() if entry.value is not None}

    async def concerns(self) -> dict[str, list[str]]:
        """By topic: what may lose acknowledged records one day. Looked at once a minute."""
        if time.monotonic() >= self._judged_until:
            names = await self.names()
            judged: dict[str, list[str]] = {}
            for at in range(0, len(names), JUDGED_AT_ONCE):
                some = names[at : at + JUDGED_AT_ONCE]
                judged |= zip(some, await asyncio.gather(*map(self._judge, some)), strict=True)
            self._concerns = {name: found for name, found in judged.items() if found}
            self._judged_until = time.monotonic() + JUDGE_S
        return self._concerns

    async def _judge(self, name: str) -> list[str]:
        try:
            found, settings = await self._describe([name]), await self.settings(name)
        except TopicMissing:  # it comes or goes
            return []
        return concerns(found[0], settings, self._brokers) if found else []

    async def too_few_replicas(self, name: str) -> str | None:
        """Why the topic takes no records now, if it is for want of replicas."""
        found, settings = await self._describe([name]), await self.settings(name)
        try:
            if found and settings is not None:
                check_replicas(name, found[0], int(settings.get("min.insync.replicas", "1")))
        except TooFewReplicas as error:
            return str(error)
        return None


def _may_pass(answer: object) -> bool:
    return isinstance(answer, KafkaException) and is_silence(kafka_error(answer))


def check_replicas(name: str, found: TopicDescription, needed: int) -> None:
    """Raise TooFewReplicas if some partition has fewer replicas in sync than the topic asks for.

    A topic that asks for more than it has replicas means all of them.
    """
    for partition in found.partitions:
        if len(partition.isr) < min(needed, len(partition.replicas)):
            raise TooFewReplicas(
                f"partition {partition.id} of the topic {name} has {len(partition.isr)} of {len(partition.replicas)} "
                f"replicas in sync, and min.insync.replicas is {needed}: start the missing brokers"
            )


def topic_settings(config: Config) -> dict[str, str]:
    """The settings of a topic that we make."""
    kafka, log = config.kafka, config.log
    assert kafka is not None
    settings = {
        "cleanup.policy": "delete",
        "message.timestamp.type": "CreateTime",
        "max.message.bytes": str(kafka.max_record_bytes + ENVELOPE_BYTES),
    }
    if kafka.min_insync_replicas is not None:
        settings["min.insync.replicas"] = str(kafka.min_insync_replicas)
    if log.retention_hours is not None:
        settings["retention.ms"] = str(round(log.retention_hours * HOUR_MS))
    if log.retention_bytes is not None:
        settings["retention.bytes"] = str(log.retention_bytes)
    return settings


def _log_topic(found: TopicDescription) -> LogTopic:
    # As Kafka's own tools write it.
    topic_id = str(found.topic_id).replace("+", "-").replace("/", "_")
    return LogTopic(found.name, topic_id, len(found.partitions))


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


async def _answer_of(future: concurrent.futures.Future[Found]) -> Found:
    """What the administrator's client answers. A caller that gives up leaves the future to the library."""
    waiting = asyncio.wrap_future(future)
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(waiting)
