"""A folder that this user may not write can be read; writes say why they fail."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from everlog import Event
from everlog.client import connect
from everlog.errors import NotWritable, StorageFailed
from everlog.sqlite.connection import connect as open_file
from everlog.sqlite.connection import open_unchanging
from everlog.testing import replicate
from tests.support import small_config

READER = [sys.executable, "-m", "tests.client.read_only_reader"]
FOUND = {
    "events": [1, 2],
    "pointer": 2,
    "keys": ["o-1", "o-2"],
    "snapshot": "s",
    "tagged": [1],
    "document": {"lines": 1},
    "topics": ["documents", "orders"],
    "lag": 2,
    "jobs": 1,
}


async def fill(folder: Path) -> None:
    async with connect(str(folder)) as log:
        orders = log.journal("orders")
        await orders.append("o-1", [Event(1, tags={"eu"}), Event(2)])
        await orders.snapshots.save("o-1", seq_nr=1, payload="s")
        await replicate(log)
        await orders.append("o-2", Event("in the tail"))
        await log.documents.put("carts/c-1", {"lines": 1})
        await log.queue("mails").put("m-1")


@pytest.fixture(scope="module")
def filled() -> Iterator[Path]:
    """In a place that every user may enter."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        asyncio.run(fill(Path(made) / "data"))
        yield Path(made) / "data"


@pytest.fixture
def folder(filled: Path) -> Iterator[Path]:
    copied = filled.with_name("copy")
    shutil.copytree(filled, copied)
    yield copied
    _allow(copied, 0o700, 0o600)
    shutil.rmtree(copied)


def _allow(folder: Path, folders: int, files: int) -> None:
    for found in [folder, *folder.rglob("*")]:
        found.chmod(folders if found.is_dir() else files)


def read(folder: Path, *before: str) -> dict[str, Any]:
    """What a process finds that may not write there. What it does with all rights before, it does in a copy."""
    other = folder.with_name("other")
    shutil.copytree(folder.with_name("data"), other)
    words = [*before, *READER, str(folder), str(other)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    finally:
        shutil.rmtree(other)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def killed_writer(folder: Path) -> Iterator[None]:
    """As one that was killed leaves it: the WAL holds an event that the file does not."""
    script = (
        "import asyncio, os, sys, everlog\n"
        "async def main():\n"
        "    async with everlog.connect(sys.argv[1]) as log:\n"
        "        await log.journal('orders').append('o-1', everlog.Event(3))\n"
        "        os._exit(7)\n"
        "asyncio.run(main())"
    )
    assert subprocess.run([sys.executable, "-c", script, str(folder)], check=False).returncode == 7
    _allow(folder, 0o755, 0o644)
    yield


def test_a_folder_of_another_user_can_be_read(folder):
    """Nothing is written beside the files, either; each kind of write names its file."""
    _allow(folder, 0o555, 0o444)
    (folder / "log.db").chmod(0o666)
    before = sorted(folder.rglob("*"))
    found = read(folder)
    assert found["read"] == FOUND
    for name, error in found["written"].items():
        assert error.startswith("NotWritable: "), name
        assert "check the folder's owner and permissions" in error
    assert sorted(folder.rglob("*")) == before


def test_what_a_killed_writer_left_in_the_wal_is_read(folder):
    with killed_writer(folder):
        found = read(folder)
    assert found["read"]["events"] == [1, 2, 3]


def test_a_wal_that_cannot_be_read_is_named(folder):
    """Without the -shm file, only a process that can make one knows what is in the WAL."""
    with killed_writer(folder):
        (folder / "log.db-shm").unlink()
        error = read(folder)["error"]
    assert error.startswith("NotWritable: ")
    assert "log.db-wal" in error
    assert "copy the folder" in error


def test_a_read_only_mount_can_be_read(folder):
    mount = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"']
    if os.geteuid() != 0 or subprocess.run([*mount, str(folder), "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounts need rights that this process lacks")
    found = read(folder, *mount, str(folder))
    assert found["read"] == FOUND
    assert all(error.startswith("NotWritable: ") for error in found["written"].values())


def test_an_empty_folder_that_may_not_be_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    with pytest.raises(NotWritable, match="not writable for this user"):
        asyncio.run(fill(tmp_path))


def test_a_reader_without_rights_notices_a_writer(tmp_path):
    """It cannot follow what others write, so it says so instead of reading half of it."""
    path = tmp_path / "a.db"
    writer = open_file(path)
    writer.execute("CREATE TABLE t (a)")
    writer.close()
    reader = open_unchanging(path)
    assert reader.execute("SELECT count(*) FROM t").fetchone() == (0,)
    rows = reader.execute("SELECT count(*) FROM t")
    writer = open_file(path)
    writer.execute("INSERT INTO t VALUES (1)")
    for call in (rows.fetchone, rows.fetchall, lambda: next(rows), lambda: reader.execute("SELECT 1")):
        with pytest.raises(StorageFailed, match="connect again"):
            call()
    writer.close()
    with pytest.raises(StorageFailed, match="connect again"):
        reader.execute("SELECT count(*) FROM t")
    reader.close()


async def test_a_writer_may_work_while_others_read(folder):
    """The files by which they find each other are there: a reader sees what is written meanwhile."""
    config = small_config(folder)
    async with connect(config) as log:
        await log.journal("orders").append("o-1", Event(3))
        _allow(folder, 0o755, 0o644)
        found = await asyncio.to_thread(read, folder)
        assert found["read"]["events"] == [1, 2, 3]
        assert all(error.startswith("NotWritable: ") for error in found["written"].values())
