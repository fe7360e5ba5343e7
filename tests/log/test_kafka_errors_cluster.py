"""What can go wrong with Kafka: every error has a name and says what to do, and nobody waits in vain."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from confluent_kafka import KafkaError

from everlog.cluster.kafka import Broker, find_kafka_java
from everlog.cluster.secure import ca_file, make_keys
from everlog.cluster.state import Logins, new_state
from everlog.config import CassandraConfig, Config, JournalConfig, KafkaConfig, LogConfig
from everlog.errors import (
    AccessDenied,
    Busy,
    InvalidConfig,
    RecordTooLarge,
    Refused,
    StorageFailed,
    TooFewReplicas,
    TopicMissing,
    Unacknowledged,
    Unreachable,
    UnsuitableTopic,
)
from everlog.log.kafka.log import KafkaLog
from everlog.log.kafka.topics import Topics
from everlog.log.port import LogTopic
from tests.fixtures.kafka import Traced, make_topic, new_record, opened, put_foreign, remove_topic, with_kafka
from tests.fixtures.servers import require_servers

pytestmark = pytest.mark.cluster


@pytest.fixture
def config(shared_config) -> Config:
    return shared_config(partitions=2)


@pytest.fixture
def name(config) -> str:
    return f"{config.journal.topic_prefix}t"


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("everlog-kafka")]


# At the start.


async def test_a_broker_that_is_not_there_is_named(config):
    with socket.socket() as silent:  # no other process gets the port, and nothing listens there
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Unreachable, match=address) as caught:
            await KafkaLog.open(with_kafka(config, bootstrap_servers=address, request_timeout_s=1.0))
    assert "bootstrap_servers" in str(caught.value)
    assert threads() == []


async def test_a_server_that_says_nothing_is_not_waited_for_endlessly(config):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Unreachable, match=address):
            await KafkaLog.open(with_kafka(config, bootstrap_servers=address, request_timeout_s=1.0))


async def test_a_name_that_nobody_knows_is_named(config):
    with pytest.raises(Unreachable, match=r"nowhere\.invalid"):
        await KafkaLog.open(with_kafka(config, bootstrap_servers="nowhere.invalid:9092", request_timeout_s=1.0))


async def test_credentials_that_the_broker_does_not_ask_for_are_no_way_in(config):
    """It takes them for something else and hangs up; the error names what to look at."""
    wrong = with_kafka(config, username="u", password="p", request_timeout_s=2.0)
    with pytest.raises((AccessDenied, Unreachable), match="username"):
        await KafkaLog.open(wrong)


async def test_settings_that_are_wrong_are_named(config):
    with pytest.raises(InvalidConfig, match=r"no\.such"):
        await KafkaLog.open(with_kafka(config, conf={"no.such": "1"}))
    with pytest.raises(InvalidConfig, match=r"ca|file"):
        await KafkaLog.open(with_kafka(config, tls=True, ca_file="/no/such/file.pem"))
    assert threads() == []


async def test_more_replicas_than_brokers_are_refused_with_the_setting(config, name):
    async with opened(with_kafka(config, replication_factor=9)) as log:
        with pytest.raises(InvalidConfig, match="replication factor"):
            await log.create_topic(name)
        assert await log.topic(name) is None


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
async def test_a_compacted_topic_is_refused(config, name, policy):
    make_topic(config, name, {"cleanup.policy": policy})
    async with opened(config) as log:
        with pytest.raises(UnsuitableTopic, match=r"cleanup\.policy=delete"):
            await log.create_topic(name)


async def test_a_broker_that_does_not_know_a_new_topic_yet_is_asked_again(config, name, monkeypatch):
    """Of several brokers, one may be asked for the settings before it has heard of the topic."""
    right, asked = Topics.settings, []

    async def settings(topics: Topics, name: str) -> dict[str, str] | None:
        asked.append(name)
        if len(asked) == 1:
            raise TopicMissing("not yet")
        return await right(topics, name)

    monkeypatch.setattr(Topics, "settings", settings)
    async with opened(config) as log:
        assert (await log.create_topic(name)).name == name
    assert asked == [name, name]


async def test_those_who_make_a_topic_at_once_share_one_answer(config, name):
    """Whoever gives up does not end it for the others."""
    trace = Traced()
    async with opened(config, trace) as log:
        first, *others = [asyncio.create_task(log.create_topic(name)) for _ in range(500)]
        await asyncio.sleep(0)
        first.cancel()
        assert len(set(await asyncio.gather(*others))) == 1
        assert first.cancelled()
    assert trace.lines.count(f"create {name}") == 1
    assert trace.lines.count(f"describe {name}") < 50


async def test_what_may_lose_records_one_day_is_said(config, name):
    """By topic; `everlog status` shows it. One broker cannot do better than one copy, and says so."""
    make_topic(config, name, {"cleanup.policy": "compact", "unclean.leader.election.enable": "true"})
    async with opened(config) as log:
        one, unclean, policy = (await log.concerns())[name]
    assert one.startswith("there is one broker only")
    assert unclean.startswith("unclean.leader.election.enable is true")
    assert policy.startswith("cleanup.policy is compact")


# Appends.


async def test_a_record_over_our_limit_is_refused(config, name):
    async with opened(with_kafka(config, max_record_bytes=20_000)) as log:
        topic = await log.create_topic(name)
        with pytest.raises(RecordTooLarge, match="max_record_bytes"):
            await log.append(topic, new_record(value=os.urandom(30_000)))
        assert (await log.append(topic, new_record())).offset == 0


async def test_a_record_over_the_brokers_limit_is_refused(config, name, caplog):
    """And it was said before, when the topic was opened."""
    make_topic(config, name, {"max.message.bytes": "20000"})
    async with opened(config) as log:
        topic = await log.create_topic(name)
        assert "at most 20000 bytes" in caplog.text
        with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes"):
            await log.append(topic, new_record(value=os.urandom(30_000)))
        assert (await log.append(topic, new_record(value=os.urandom(10_000)))).offset == 0
        assert (await log.bounds(topic, 0)).end == 1


async def test_a_record_of_the_largest_size_goes_through(config, name):
    size = config.kafka.max_record_bytes - 1000
    async with opened(config) as log:
        topic = await log.create_topic(name)
        value = os.urandom(size)
        assert (await log.append(topic, new_record(value=value))).offset == 0
        (found,) = await log.tail(topic, 0, b"k", after=-1, before=1, limit=5)
        assert found.value == value
    async with opened(config) as other:
        (found,) = await other.tail(topic, 0, b"k", after=-1, before=1, limit=5)
        assert found.value == value


async def test_a_clock_that_is_far_ahead_is_refused(config, name):
    async with opened(config) as log:
        topic = await log.create_topic(name)
        with pytest.raises(Refused, match="clock"):
            await log.append(topic, new_record(at=int(time.time() * 1000) + 30 * 24 * 3_600_000))
        assert (await log.append(topic, new_record())).offset == 0


async def test_a_full_queue_makes_appends_wait(config, name):
    async with opened(with_kafka(config, conf={"queue.buffering.max.messages": "10"})) as log:
        topic = await log.create_topic(name)
        acks = await asyncio.gather(*(log.append(topic, new_record(b"%d" % at)) for at in range(500)))
        assert sorted(ack.offset for ack in acks) == list(range(500))


async def test_an_append_that_nobody_waits_for_is_stored_if_it_was_sent(config, name):
    async with opened(config) as log:
        topic = await log.create_topic(name)
        await log.append(topic, new_record())
        early, late = (asyncio.create_task(log.append(topic, new_record(value=value))) for value in (b"1", b"2"))
        await asyncio.sleep(0)
        early.cancel()
        while log._producer._gathered:  # noqa: ASYNC110
            await asyncio.sleep(0)
        late.cancel()
        ack = await log.append(topic, new_record())
        found = await log.tail(topic, 0, b"k", after=-1, before=ack.offset + 1, limit=5)
        assert [record.value for record in found] == [b"v", b"2", b"v"]


async def test_a_producer_that_gave_up_is_replaced(config, name):
    """What the old one had accepted is answered, and the next append takes another one."""
    async with opened(config) as log:
        topic = await log.create_topic(name)
        await log.append(topic, new_record())
        old = log._producer._sender
        pending = [asyncio.create_task(log.append(topic, new_record())) for _ in range(20)]
        await asyncio.sleep(0)
        old.notice(KafkaError(KafkaError._FATAL, "out of order", fatal=True))
        acks = await asyncio.gather(*(log.append(topic, new_record()) for _ in range(20)))
        assert log._producer._sender is not old
        before = await asyncio.gather(*pending)
        assert sorted(ack.offset for ack in [*before, *acks]) == list(range(1, 41))
    assert threads() == []


async def test_closing_finishes_what_was_accepted(config, name):
    log = await KafkaLog.open(config)
    topic = await log.create_topic(name)
    pending = [asyncio.create_task(log.append(topic, new_record(b"%d" % at))) for at in range(300)]
    await asyncio.sleep(0)
    await log.close()
    acks = await asyncio.gather(*pending)
    assert sorted(ack.offset for ack in acks) == list(range(300))
    with pytest.raises(StorageFailed, match="closed"):
        await log.append(topic, new_record())
    with pytest.raises(StorageFailed, match="closed"):
        await log.end(topic, 0)
    with pytest.raises(StorageFailed, match="closed"):
        await log.tail(topic, 0, b"k", after=-1, before=10, limit=5)
    assert threads() == []


async def test_a_deleted_topic_is_named(config, name):
    async with opened(config) as log:
        topic = await log.create_topic(name)
        await log.append(topic, new_record())
        remove_topic(config, name)
        while await log.topic(name) is not None:  # noqa: ASYNC110 (servers learn of it one after the other)
            await asyncio.sleep(0.02)
        with pytest.raises(TopicMissing, match=name):
            await log.end(topic, 0)


# A broker of our own, which stops answering.


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Iterator[Broker]:
    require_servers()
    broker = Broker(tmp_path_factory.mktemp("kafka"), new_state(1, secure=False), 1)
    broker.start()
    try:
        broker.wait(120)
        yield broker
    finally:
        end(broker)


def end(broker: Broker) -> None:
    broker.process.kill()
    broker.process.wait_until_gone(30)


def config_of(broker: Broker, *, seconds: float = 30.0, **kafka: Any) -> Config:
    return Config(
        log=LogConfig(partitions=1),
        kafka=KafkaConfig(bootstrap_servers=broker.address, **kafka),
        cassandra=CassandraConfig(),
        journal=JournalConfig(append_timeout_s=seconds, topic_prefix="", topics=["open", "closed"]),
    )


async def made(broker: Broker, name: str) -> LogTopic:
    """A topic; a broker that hung a moment ago may have to come to itself first."""
    async with opened(config_of(broker, request_timeout_s=30.0)) as log:
        found: LogTopic = await until_it_works(lambda: log.create_topic(name))
        return found


@contextmanager
def hanging(broker: Broker) -> Iterator[None]:
    """The broker is there and takes connections, but does not answer."""
    pid = broker.process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def until_it_works(work: Callable[[], Awaitable[Any]]) -> Any:
    deadline = time.monotonic() + 120
    while True:
        try:
            return await work()
        except StorageFailed:
            if time.monotonic() > deadline:
                raise


@asynccontextmanager
async def impatient(broker: Broker, **settings: Any) -> AsyncIterator[KafkaLog]:
    """A log with short time-outs; to open it may take a broker that was hanging more than one of them."""
    log: KafkaLog = await until_it_works(lambda: KafkaLog.open(config_of(broker, **settings)))
    try:
        yield log
    finally:
        await log.close()


async def test_a_broker_that_hangs_leaves_the_outcome_open(broker):
    """Reads say who does not answer, appends that nobody knows; all goes on when the broker does."""
    topic = await made(broker, "hangs")
    async with impatient(broker, seconds=2.0, request_timeout_s=2.0) as log:
        await until_it_works(lambda: log.append(topic, new_record(value=b"before")))
        first = await until_it_works(lambda: log.end(topic, 0))
        with hanging(broker):
            found = await asyncio.gather(
                log.append(topic, new_record(value=b"during")),
                log.end(topic, 0),
                log.bounds(topic, 0),
                log.tail(topic, 0, b"k", after=-1, before=first, limit=5),
                log.tail_keys(topic, 0, after=-1, before=first),
                return_exceptions=True,
            )
        assert [type(error) for error in found] == [Unacknowledged, *[Unreachable] * 4]
        assert all(broker.address in str(error) for error in found)
        ack = await until_it_works(lambda: log.append(topic, new_record(value=b"after")))
        assert await until_it_works(lambda: log.end(topic, 0)) == ack.offset + 1
        tail = await until_it_works(lambda: log.tail(topic, 0, b"k", after=-1, before=ack.offset + 1, limit=9))
        assert len(tail) == ack.offset + 1
        assert {record.value for record in tail} - {b"during"} == {b"before", b"after"}


async def test_a_queue_that_stays_full_is_not_waited_for_endlessly(broker):
    """What had no room was surely not sent; what was accepted may have been."""
    topic = await made(broker, "full")
    conf = {"queue.buffering.max.messages": "2", "message.timeout.ms": "4000"}
    async with impatient(broker, seconds=1.0, request_timeout_s=1.0, conf=conf) as log:
        await until_it_works(lambda: log.append(topic, new_record()))
        with hanging(broker):
            found = await asyncio.gather(*(log.append(topic, new_record()) for _ in range(5)), return_exceptions=True)
        assert sorted(type(error).__name__ for error in found) == ["Busy"] * 3 + ["Unacknowledged"] * 2
        assert Busy.retriable


async def test_a_broker_that_was_killed_is_found_again(broker):
    """Nothing that was acknowledged is lost, and each record is there once."""
    topic = await made(broker, "killed")
    config = config_of(broker, seconds=120.0, request_timeout_s=60.0)
    async with opened(config) as log:
        done: list[int] = []
        enough = asyncio.Event()

        async def write(key: bytes) -> None:
            for number in range(200):
                done.append((await log.append(topic, new_record(key, b"%d" % number))).offset)
                if len(done) == 100:
                    enough.set()

        writers = asyncio.gather(*(write(b"%d" % at) for at in range(8)))
        await enough.wait()
        end(broker)
        await asyncio.to_thread(broker.start)
        await writers
        assert sorted(done) == list(range(1600))
        assert await log.end(topic, 0) == 1600
        for at in range(8):
            found = await log.tail(topic, 0, b"%d" % at, after=-1, before=1600, limit=1000)
            assert [record.value for record in found] == [b"%d" % number for number in range(200)]
        put_foreign(config, topic, [{"key": b"0", "value": b"more"}])
        assert len(await log.tail(topic, 0, b"0", after=-1, before=1601, limit=1000)) == 201


async def test_a_question_outlives_the_broker_that_was_asked(broker):
    """The broker dies with the question in its hands; the one that comes back answers it."""
    topic = await made(broker, "asked")
    async with opened(config_of(broker, request_timeout_s=60.0)) as log:
        assert broker.process.pid is not None
        os.kill(broker.process.pid, signal.SIGSTOP)
        asked = asyncio.create_task(log.topic("asked"))
        await asyncio.sleep(0.3)  # it is on its way
        end(broker)
        await asyncio.to_thread(broker.start)
        assert (await asked) == topic


# A broker that asks who comes.


@pytest.fixture(scope="module")
def guarded_broker(tmp_path_factory) -> Iterator[tuple[Broker, Config, Logins]]:
    """With TLS and users, and a configuration for its administrator, who may do everything."""
    require_servers()
    state, folder = new_state(1, secure=True), tmp_path_factory.mktemp("secure")
    assert state.logins is not None
    make_keys(find_kafka_java(), folder, ["127.0.0.1"], state.logins.keystore)
    broker = Broker(folder, state, 1)
    broker.start()
    try:
        broker.wait(120)
        login = state.logins.admin
        access = {"tls": True, "ca_file": str(ca_file(folder)), "username": login.user, "password": login.password}
        yield broker, config_of(broker, request_timeout_s=30.0, **access), state.logins
    finally:
        end(broker)


async def test_those_with_a_right_password_are_let_in(guarded_broker):
    _, config, _ = guarded_broker
    async with opened(config) as log:
        topic = await log.create_topic("open")
        ack = await log.append(topic, new_record())
        assert len(await log.tail(topic, 0, b"k", after=-1, before=ack.offset + 1, limit=5)) == 1


@pytest.mark.parametrize(
    ("wrong", "error", "remedy"),
    [
        ({"password": "wrong"}, AccessDenied, "password"),
        ({"username": "nobody"}, AccessDenied, "username"),
        ({"mechanism": "PLAIN"}, AccessDenied, "mechanism"),
        ({"username": None}, (AccessDenied, Unreachable), "username"),
        ({"ca_file": None}, AccessDenied, "ca_file"),
        ({"tls": False, "ca_file": None}, (AccessDenied, Unreachable), "tls"),
    ],
    ids=lambda found: "-".join(found) if isinstance(found, dict) else "",
)
async def test_others_learn_what_to_look_at(guarded_broker, wrong, error, remedy):
    broker, config, _ = guarded_broker
    patience = 30.0 if error is AccessDenied else 5.0  # somebody who is not refused waits until it is over
    with pytest.raises(error, match=remedy) as caught:
        await KafkaLog.open(with_kafka(config, **{"request_timeout_s": patience, **wrong}))
    assert broker.address in str(caught.value)
    assert config.kafka.password not in str(caught.value)


async def test_a_user_without_rights_is_told_so(guarded_broker):
    """Whatever it does: nothing is stored, and nobody waits for it."""
    _, config, logins = guarded_broker
    async with opened(config) as log:
        topic = await log.create_topic("closed")
        await log.append(topic, new_record())
    user = logins.application
    powerless = with_kafka(config, username=user.user, password=user.password, request_timeout_s=5.0)
    async with opened(powerless) as log:
        for work in (
            log.create_topic("new"),
            log.append(topic, new_record()),
            log.end(topic, 0),
            log.tail(topic, 0, b"k", after=-1, before=1, limit=5),
        ):
            with pytest.raises(AccessDenied, match="right"):
                await work
        assert "closed" not in [found.name for found in await log.topics()]
    async with opened(config) as log:
        assert (await log.bounds(topic, 0)).end == 1


def supposed_controller(log: KafkaLog, topic: str) -> int:
    """The broker that the log's client takes for the controller now: any one, a broker names another each time.

    Not the topic's leader: a new one could not say where the log ends before all replicas are back.
    """
    while True:
        found = log._topics._admin.list_topics(timeout=30)
        if found.controller_id != found.topics[topic].partitions[0].leader:
            return found.controller_id


async def refusal(log: KafkaLog, topic: LogTopic, *, saying: str) -> bool:
    """Append until the answer names the reason: it takes the brokers a while to agree on who is missing."""
    for _ in range(3):
        with pytest.raises((Unacknowledged, TooFewReplicas)) as caught:
            await log.append(topic, new_record())
        if saying in str(caught.value):
            return True
    return False


@pytest.mark.faults
async def test_too_few_replicas_are_named_before_and_after_the_append(tmp_path):
    """Three brokers, three replicas that must all be in sync, and one broker dies: the one that we would ask why."""
    require_servers()
    state = new_state(3, secure=False)
    brokers = [Broker(tmp_path, state, number) for number in (1, 2, 3)]
    try:
        for broker in brokers:
            broker.start()
        for broker in brokers:
            broker.wait(120)
        all_three = ",".join(broker.address for broker in brokers)
        kafka = {"bootstrap_servers": all_three, "replication_factor": 3, "min_insync_replicas": 3}
        config = config_of(brokers[0], seconds=10.0, request_timeout_s=30.0)
        config = with_kafka(config, **kafka)
        async with opened(config) as log:
            topic = await log.create_topic("t")
            assert (await log.append(topic, new_record())).offset == 0
            assert await log.concerns() == {}
            end(brokers[supposed_controller(log, "t") - 1])  # their ids begin with 1
            assert await refusal(log, topic, saying="2 of 3 replicas in sync")
            assert (await log.end(topic, 0)) == 1
        async with opened(config) as log:
            with pytest.raises(TooFewReplicas, match=r"2 of 3 .* min\.insync\.replicas is 3: start"):
                await log.create_topic("t")
    finally:
        for broker in brokers:
            end(broker)
