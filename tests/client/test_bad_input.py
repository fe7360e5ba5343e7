"""Bad input and bad places: a named error that says what to do, and nothing is stored or lost."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from everlog import sync
from everlog.api import Everlog
from everlog.client import connect
from everlog.config import Config, load_config
from everlog.core.events import Event
from everlog.core.values import MAX_SEQ_NR, Position
from everlog.errors import (
    AppendTooLarge,
    DiskFull,
    EmptyAppend,
    InvalidConfig,
    InvalidId,
    InvalidInput,
    InvalidPosition,
    InvalidRange,
    InvalidSeqNr,
    NewerVersion,
    NotWritable,
    StorageFailed,
)
from everlog.testing import replicate
from everlog.testing.journal_support import events, keys, read
from tests.support import small_config


async def records(log: Everlog) -> int:
    return sum(partition.end for partition in (await log.status()).partitions)


WRONG_APPENDS = {
    "id empty": (InvalidId, "", [Event(1)], {}),
    "id too long": (InvalidId, "x" * 4097, [Event(1)], {}),
    "id too long in bytes": (InvalidId, "ü" * 2049, [Event(1)], {}),
    "id not text": (InvalidId, 7, [Event(1)], {}),
    "id not Unicode": (InvalidId, "\ud800", [Event(1)], {}),
    "no events": (EmptyAppend, "k", [], {}),
    "too large": (AppendTooLarge, "k", [Event("x" * 2_000_000)], {}),
    "too large in sum": (AppendTooLarge, "k", [Event("x" * 1000)] * 1100, {}),
    "numbers upside down": (InvalidRange, "k", [Event(1, seq_nr=5), Event(1, seq_nr=3)], {}),
    "numbers repeated": (InvalidRange, "k", [Event(1, seq_nr=5), Event(1, seq_nr=5)], {}),
    "some numbers": (InvalidInput, "k", [Event(1, seq_nr=5), Event(1)], {}),
    "expected beyond": (InvalidRange, "k", [Event(1, seq_nr=5)], {"expected": 5}),
    "expected negative": (InvalidInput, "k", [Event(1)], {"expected": -1}),
    "not JSON": (InvalidInput, "k", [Event(object())], {}),
    "metadata not JSON": (InvalidInput, "k", [Event(1)], {"metadata": object()}),
    "header of ours": (InvalidInput, "k", [Event(1)], {"headers": {"journal.action": "x"}}),
    "no append id": (InvalidInput, "k", [Event(1)], {"append_id": "nonsense"}),
}


@pytest.mark.parametrize("name", WRONG_APPENDS)
async def test_a_wrong_append_is_refused(small_log, name):
    error, journal_id, wrong, options = WRONG_APPENDS[name]
    journal = small_log.journal("t")
    await journal.append("k", events(1, 2))
    before = await records(small_log)
    with pytest.raises(error) as raised:
        await journal.append(journal_id, wrong, **options)
    assert type(raised.value) is error
    assert str(raised.value)
    assert await records(small_log) == before
    assert await read(journal) == [1, 2]
    await journal.append("k", Event(3), expected=2)


async def test_the_largest_of_everything_is_accepted(small_log):
    journal = small_log.journal("t")
    longest = "ü" * 2048
    await journal.append(longest, Event("x" * 1_000_000))
    await journal.append("k", Event(1, seq_nr=MAX_SEQ_NR))
    await replicate(small_log)
    assert await journal.pointer(longest) == 1
    assert await read(journal) == [MAX_SEQ_NR]
    with pytest.raises(InvalidRange, match="no seqNr is left"):
        await journal.append("k", Event(2))


@pytest.mark.case("kafka-journal", 6)
@pytest.mark.parametrize("seq_nr", [0, -1, MAX_SEQ_NR + 1, True, 1.5, "1"])
async def test_a_wrong_number_is_refused(small_log, seq_nr):
    """SeqNr 0, one beyond 2^63-1, or no number at all: in an event, a read, a delete, a snapshot."""
    journal = small_log.journal("t")
    await journal.append("k", events(1, 2))
    before = await records(small_log)
    with pytest.raises(InvalidSeqNr):
        Event(1, seq_nr=seq_nr)
    with pytest.raises(InvalidSeqNr):
        await journal.delete("k", to=seq_nr)
    with pytest.raises(InvalidSeqNr):
        await journal.snapshots.save("k", seq_nr=seq_nr, payload="s")
    if not isinstance(seq_nr, str):
        with pytest.raises((InvalidSeqNr, InvalidRange)):
            await read(journal, from_seq=seq_nr, to_seq=1 if seq_nr is True or seq_nr == 1.5 else MAX_SEQ_NR)
    assert await records(small_log) == before


@pytest.mark.case("kafka-journal", 6)
async def test_a_range_upside_down_is_refused(small_log):
    """A read from 5 to 3, or of no events, is an error and not an empty answer."""
    journal = small_log.journal("t")
    await journal.append("k", events(1, 9))
    with pytest.raises(InvalidRange):
        await read(journal, from_seq=5, to_seq=3)
    with pytest.raises(InvalidRange):
        await read(journal, limit=0)


async def test_a_token_of_another_place_is_refused(small_log):
    journal = small_log.journal("t")
    token = await journal.append("k", Event(1))
    for wrong in ("nonsense", "t:0", "t:-1:5", Position("u", 0, 0), Position("t", token.partition, 99)):
        with pytest.raises(InvalidPosition):
            await read(journal, after=wrong)


async def test_a_token_of_no_partition_is_refused(small_log):
    """Wherever a token is taken: a partition that is not there never gets as far as the token."""
    journal = small_log.journal("t")
    await journal.append("k", Event(1, tags={"eu"}))
    await replicate(small_log)
    missing = small_log.journal("missing")
    for wrong in ("t:2:0", Position("t", 2, 0), Position("t", 10**6, 0), "missing:0:0"):
        absent = str(wrong).startswith("missing")
        place = missing if absent else journal
        for call in (
            lambda place=place, wrong=wrong: read(place, after=wrong),
            lambda place=place, wrong=wrong: read(place, after=wrong, reverse=True, limit=1),
            lambda place=place, wrong=wrong: place.pointer("k", after=wrong),
            lambda place=place, wrong=wrong: place.pointer("other", after=wrong),
            lambda place=place, wrong=wrong: keys(place, after=wrong),
            lambda wrong=wrong: small_log.status(after=wrong),
            lambda wrong=wrong: small_log.tags(token=wrong),
            lambda wrong=wrong: anext(aiter(small_log.tag("eu").current(after=wrong))),
            lambda wrong=wrong: anext(aiter(small_log.tag("eu").live(token=wrong))),
        ):
            with pytest.raises(InvalidPosition, match="another log"):
                await call()
    with pytest.raises(InvalidPosition, match="no partition"):
        await journal.pointer("k", after="t:2:0", strict=True)
    assert await small_log.topics() == ["t"]


@pytest.mark.parametrize("topic", ["", "a b", "a/b", "x" * 201])
async def test_a_wrong_topic_is_refused(small_log, topic):
    with pytest.raises(InvalidInput):
        small_log.journal(topic)


async def test_a_topic_that_is_not_listed_is_refused(tmp_path):
    """With a list of topics, as after a take-over, no other one is created by a typo."""
    config = small_config(tmp_path, topic_prefix="", topics=("orders",))
    async with connect(config) as log:
        await log.journal("orders").append("k", Event(1))
        with pytest.raises(InvalidInput, match="topics"):
            log.journal("oders")
        assert await log.topics() == ["orders"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[journal]\nsegment_sise = 3", "segment_sise"),
        ("colour = 1", "colour"),
        ("[log]\npartitions = 0", "partitions"),
        ("[log]\npartitions = 'four'", "partitions"),
        ("[log\n", "TOML"),
        ("[pipeline]\nmarker_days = 1", "marker_days"),
        ("[kafka]", r"\[cassandra\] is missing"),
        ("[cassandra]", r"\[kafka\] is missing"),
        ("[kafka]\n[cassandra]\nkeyspace = 'a-b'", "keyspace"),
        ("[kafka]\n[cassandra]\nconsistency = 'ANY'", "consistency"),
        ("[journal]\ntopic_prefix = ''", "topics"),
    ],
)
def test_a_wrong_setting_is_refused(tmp_path, text, words):
    """An unknown or impossible setting is named, not ignored."""
    path = tmp_path / "everlog.toml"
    path.write_text(text)
    with pytest.raises(InvalidConfig, match=words):
        load_config(path)


def test_a_config_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(InvalidConfig, match="there is no file"):
        load_config(tmp_path / "none.toml")


@pytest.mark.parametrize("file", ["log.db", "store.db"])
async def test_a_folder_of_a_newer_version_is_left_alone(tmp_path, file):
    config = small_config(tmp_path)
    async with connect(config) as log:
        await log.journal("t").append("k", Event(1))
    with closing(sqlite3.connect(tmp_path / file)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(NewerVersion, match="upgrade"):
        async with connect(config):
            pass
    with closing(sqlite3.connect(tmp_path / file)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    async with connect(config) as log:
        assert await read(log.journal("t")) == [1]


@pytest.mark.parametrize("file", ["log.db", "store.db"])
@pytest.mark.parametrize("damage", ["overwritten", "truncated"])
async def test_a_damaged_file_is_named(tmp_path, file, damage):
    """The error names the file; opening it again after the repair finds everything."""
    config = small_config(tmp_path)
    async with connect(config) as log:
        for number in range(50):
            await log.journal("t").append("k", Event("x" * 1000 + str(number)))
        await replicate(log)
    path = tmp_path / file
    sound = path.read_bytes()
    path.write_bytes(b"no database" * 1000 if damage == "overwritten" else sound[: len(sound) // 2])
    with pytest.raises(StorageFailed, match=file):
        await _use(config)
    for left in tmp_path.glob(f"{file}-*"):
        left.unlink()
    path.write_bytes(sound)
    async with connect(config) as log:
        assert len(await read(log.journal("t"))) in (50, 51)


async def _use(config: Config) -> None:
    async with connect(config) as log:
        await log.journal("t").append("k", Event(1))
        await read(log.journal("t"))
        await replicate(log)


def test_a_place_that_is_no_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(NotWritable, match="file"):
            _open(target)


def _open(target: Path) -> None:
    with sync.connect(target):
        pass


# Root uses it once first, because the libraries may lie where nobody else can load them.
AS_NOBODY = """
import os, sys
from everlog import Event, sync
from everlog.errors import NotWritable

def use(folder):
    with sync.connect(folder) as log:
        log.journal("t").append("k", Event(1))

use(sys.argv[2])
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
try:
    use(sys.argv[1])
except NotWritable as error:
    print("NotWritable:", error)
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users reach; pytest closes its own to them whenever a run begins."""
    with tempfile.TemporaryDirectory(prefix="everlog-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without rights")
@pytest.mark.parametrize("case", ["no folder yet", "foreign folder", "foreign files"])
async def test_a_folder_without_permission_is_refused(case, open_folder):
    """A user who may not write there gets an error that names the place; what is in it stays."""
    base = open_folder
    data = base / "data"
    if case != "no folder yet":
        async with connect(small_config(data)) as log:
            await log.journal("t").append("k", Event(1))
        data.chmod(0o777 if case == "foreign files" else 0o755)
    command = [sys.executable, "-c", AS_NOBODY, str(data), str(base / "own")]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("NotWritable:"), done.stderr
    assert str(data) in done.stdout
    if case != "no folder yet":
        async with connect(small_config(data)) as log:
            assert await read(log.journal("t")) == [1]


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of four megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", bytes(folder), b"tmpfs", 0, b"size=4m") != 0:
        pytest.skip(f"a small file system cannot be mounted: {os.strerror(ctypes.get_errno())}")
    try:
        yield folder
    finally:
        assert libc.umount2(bytes(folder), 2) == 0


class Filler:
    """Appends until it is told that there is no room."""

    def __init__(self, log: Everlog) -> None:
        self.journal = log.journal("t")
        self.acknowledged = 0

    async def fill(self) -> None:
        while True:
            await self.journal.append("k", Event("x" * 100_000), expected=self.acknowledged)
            self.acknowledged += 1


async def test_a_full_disk_loses_nothing(small_disk):
    """The append that finds no room raises DiskFull; what was acknowledged is there, now and after opening again."""
    config = small_config(small_disk / "data")
    async with connect(config) as log:
        filler = Filler(log)
        with pytest.raises(DiskFull) as raised:
            await filler.fill()
        assert raised.value.retriable
        assert filler.acknowledged > 3
        expected = list(range(1, filler.acknowledged + 1))
        assert await read(log.journal("t")) == expected
    async with connect(config) as log:
        assert await read(log.journal("t")) == expected


async def test_a_disk_with_room_again_goes_on(small_disk):
    """Log and store on a full disk: appends and replication fail by name; with room again both go on."""
    ballast = small_disk / "ballast"
    async with connect(small_config(small_disk / "data")) as log:
        journal = log.journal("t")
        await journal.append("k", [Event("x" * 100_000)] * 5)
        await replicate(log, leave=1)
        _fill(ballast)
        with pytest.raises(DiskFull, match=r"log\.db"):
            await journal.append("k", Event("x" * 500_000), expected=5)
        with pytest.raises(DiskFull, match=r"store\.db"):
            await replicate(log)
        assert await read(journal) == [1, 2, 3, 4, 5]
        ballast.unlink()
        await journal.append("k", Event("second"), expected=5)
        await replicate(log)
        assert await read(journal) == [1, 2, 3, 4, 5, 6]
        assert (await log.status()).lag == 0


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
