"""Whatever Everlog makes in a folder is for its owner's eyes only, however careless the umask is."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, os, sys
from pathlib import Path

os.umask(int(sys.argv[2], 8))

import everlog
from everlog.config import load_config
from everlog.console.server import serving
from everlog.core.events import Event
from everlog.queues.worker import Worker
from everlog.server.security.tokens import TokenFile, make_token, tokens_path
from everlog.testing.replication import replicate


def modes(folder):
    found = {}
    for path in [folder, *folder.rglob("*")]:
        kind = "folder" if path.is_dir() else "file"
        found[str(path.relative_to(folder.parent))] = (kind, oct(path.stat().st_mode & 0o7777))
    return found


@everlog.projection("seen", source=everlog.records("orders"))
async def seen(event, view):
    pass


async def main():
    config = load_config(sys.argv[1])
    async with everlog.connect(config) as log:
        await log.journal("orders").append("o-1", Event(1, tags={"eu"}))
        await log.journal("orders").snapshots.save("o-1", seq_nr=1, payload=1)
        await replicate(log)
        await log.documents.put("a~/1", {"n": 1}, wait=True)
        await log.queue("mails").put("k", 1)
        await log.queue("mails").claim(1, owner="w")
        TokenFile(tokens_path(config)).add(make_token("ci", ["read"], 0)[1])
        async with serving(log, host="127.0.0.1", port=0), log.projections.run(seen):
            await log.projections.wait("seen", await log.journal("orders").append("o-2", Event(2)))
            during = modes(Path(config.data))
    for name, mode in sorted({**during, **modes(Path(config.data))}.items()):
        print(name, *mode)


asyncio.run(main())
"""


def made_under(umask: str, folder: Path, tmp_path: Path, **options: object) -> dict[str, tuple[str, str]]:
    """What is in a folder after a bit of everything, and with which mode."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    program.chmod(0o644)
    command = [sys.executable, str(program), str(folder), umask]
    here = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": here, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    lines = [line.rsplit(" ", 2) for line in done.stdout.splitlines()]
    return {name: (kind, mode) for name, kind, mode in lines}


@pytest.mark.parametrize("umask", ["000", "022", "077"])
def test_every_file_and_folder_is_private(tmp_path, umask):
    found = made_under(umask, tmp_path / "new" / "data", tmp_path)
    wal = [name for name in found if name.endswith(("-wal", "-shm"))]
    assert len(found) > 10
    assert len(wal) > 4
    assert set(found.values()) == {("folder", "0o700"), ("file", "0o600")}
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_a_folder_that_was_there_keeps_its_mode(tmp_path):
    """It may be meant for a group; what is made in it is private all the same."""
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o750)
    found = made_under("000", folder, tmp_path)
    assert found.pop("data") == ("folder", "0o750")
    assert {mode for kind, mode in found.values() if kind == "file"} == {"0o600"}


def test_another_user_reads_nothing(tmp_path):
    """Not even a file whose name it knows, in a folder that is open to all."""
    nobody = shutil.which("setpriv")
    if os.geteuid() != 0 or nobody is None:
        pytest.skip("needs to be root, to become another user")
    folder = tmp_path / "data"
    folder.mkdir()
    for parent in [folder, *folder.parents]:
        if parent.is_relative_to("/tmp") and parent != Path("/tmp"):
            parent.chmod(0o755)
    found = made_under("000", folder, tmp_path)
    files = [str(folder.parent / name) for name, (kind, _) in found.items() if kind == "file"]
    present = [name for name in files if Path(name).exists()]
    assert present
    for name in present:
        reading = [nobody, "--reuid=65534", "--regid=65534", "--clear-groups", "cat", name]
        assert subprocess.run(reading, capture_output=True, check=False).returncode != 0, name
