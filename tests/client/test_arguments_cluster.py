"""Wrong arguments on Kafka and Cassandra: the library below must not even see them, as it would crash."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import msgspec
import pytest

from everlog.client import connect
from everlog.core.events import Event
from everlog.errors import InvalidInput, UnreadableJson
from everlog.testing import replicate
from tests.client.test_arguments import HALF, NO_HEADERS, put_deep
from tests.fixtures.cluster import MakeConfig
from tests.support import at_depth

pytestmark = pytest.mark.cluster

# Past every check of ours, straight to the log: what a crash would take along are the other appends, and the process.
PAST_THE_DOOR = """
import asyncio, sys
import msgspec
from everlog.config import Config
from everlog.core.record import NewRecord
from everlog.errors import StorageFailed
from everlog.log.kafka.log import KafkaLog

def record(number, headers=()):
    return NewRecord(0, 1, b"k%d" % number, None, b"v", headers)

async def main():
    log = await KafkaLog.open(msgspec.json.decode(sys.stdin.buffer.read(), type=Config))
    topic = await log.create_topic(sys.argv[1])
    wrong = [record(0, headers) for headers in (
        (("\\ud800", b"x"),), (("a\\0b", b"x"),), (("a", "\\ud800"),), (("a", object()),), ((5, b"x"),),
    )] + [NewRecord(0, 1, "\\ud800", None, b"v"), NewRecord(0, "now", b"k", None, b"v"), NewRecord(0, 1, b"k", None, 5)]
    sound = [record(number, (("h\\u00e9", b"\\xff"),)) for number in range(10)]
    answers = await asyncio.gather(
        *(log.append(topic, one) for pair in zip(sound, wrong) for one in pair),
        *(log.append(topic, one) for one in sound[len(wrong):]),
        return_exceptions=True,
    )
    failed = [answer for answer in answers if isinstance(answer, BaseException)]
    assert all(type(answer) is StorageFailed for answer in failed), failed
    assert len(failed) == len(wrong), answers
    assert (await log.bounds(topic, 0)).end == len(sound)
    found = await log.tail(topic, 0, b"k3", after=-1, before=99, limit=9)
    assert [one.headers for one in found] == [(("h\\u00e9", b"\\xff"),)]
    await log.close()
    print("ended well")

asyncio.run(main())
"""


async def test_no_record_crashes_the_library(shared_config: MakeConfig) -> None:
    """In a process of its own: each record that cannot be sent fails by itself, the others are stored."""
    config = shared_config(partitions=1)
    command = [sys.executable, "-c", PAST_THE_DOOR, f"{config.journal.topic_prefix}past"]
    done = await asyncio.to_thread(
        subprocess.run, command, input=msgspec.json.encode(config), capture_output=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"ended well\n"), done.stderr.decode()


async def test_wrong_headers_are_refused_before_they_are_sent(shared_config: MakeConfig) -> None:
    async with connect(shared_config(partitions=1)) as log:
        journal = log.journal("t")
        await journal.append("k", Event(1))
        appends = [journal.append("k", Event(2), headers=headers) for headers in NO_HEADERS]
        appends += [journal.append("k", Event(2), header_metadata=HALF), journal.mark("k", HALF), journal.purge(HALF)]
        appends += [journal.append(f"other-{number}", Event(number)) for number in range(10)]
        answers = await asyncio.gather(*appends, return_exceptions=True)
        assert all(isinstance(answer, InvalidInput) for answer in answers[:-10])
        assert [str(answer.range.first) for answer in answers[-10:]] == ["1"] * 10
        assert [event.payload async for event in journal.read("k")] == [1]


async def test_deep_json_of_others_goes_through_all_tables(shared_config: MakeConfig) -> None:
    """From the tail and from the tables the same, whatever the stack has room for."""
    deep = b"[" * 940 + b"]" * 940
    async with connect(shared_config(partitions=1)) as log:
        column = await put_deep(log, "deep", deep)
        for _ in range(2):
            (event,) = [event async for event in log.journal("t").read("deep")]
            assert (event.data.encode() == deep, event.metadata_json.encode() == column) == (True, True)
            with pytest.raises(UnreadableJson):
                at_depth(300, lambda event=event: event.metadata)
            await replicate(log)
        await log.journal("t").append("deep", Event(2), expected=1)
