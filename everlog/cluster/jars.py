"""The servers' jars: brought by Maven, once, into a cache, and exactly the ones that jars.sha256 lists."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from everlog.cluster.processes import java_environment
from everlog.config import prepare_folder
from everlog.config.private import make_folder, private
from everlog.errors import DownloadFailed, InvalidConfig, MissingProgram

DownloadProgress = Callable[[str, int, int], None]
"""What is being done, how much of it is done, how much there is: `progress("jars of kafka", 12, 46)`."""

HERE = Path(__file__).parent
POM = HERE / "pom.xml"
_DOWNLOADED = re.compile(r"Downloaded from .*/([^/ ]+\.jar) ")
# Maven waits half an hour for a server that went silent. The first two are for Maven 3.8 and older.
_MAVEN_TIMEOUTS = (
    "-Dmaven.wagon.rto=60000",
    "-Dmaven.wagon.http.connectionTimeout=20000",
    "-Daether.connector.requestTimeout=60000",
    "-Daether.connector.connectTimeout=20000",
)


def find_jars(profile: str, progress: DownloadProgress | None = None) -> Path:
    """The folder with the jars of `kafka` or `cassandra`; they are brought if they are not there yet.

    >>> find_jars("kafka").name.split("-")[0]  # doctest: +SKIP
    'kafka'
    """
    digests = expected_jars(profile)
    folder = _place(profile, digests)
    if _is_whole(folder, digests):
        return folder
    prepare_folder(folder.parent)
    with exclusively(folder.with_suffix(".lock")):
        if not _is_whole(folder, digests):  # else another process brought them while this one waited
            _bring(profile, digests, folder, progress or silent)
    return folder


def expected_jars(profile: str) -> dict[str, str]:
    """The jars of a profile by name, with their SHA-256."""
    listed = (line.split() for line in (HERE / "jars.sha256").read_text().splitlines())
    digests = {Path(path).name: digest for digest, path in listed if Path(path).parent.name == profile}
    if not digests:
        raise InvalidConfig(f"there are no jars of {profile!r}: name kafka or cassandra")
    return digests


def cache_folder() -> Path:
    """`$EVERLOG_CACHE`, else `everlog` in `$XDG_CACHE_HOME`, else `~/.cache/everlog`."""
    own, shared = os.environ.get("EVERLOG_CACHE"), os.environ.get("XDG_CACHE_HOME")
    folder = Path(own) if own else (Path(shared) if shared else Path.home() / ".cache") / "everlog"
    if os.pathsep in str(folder):
        raise InvalidConfig(
            f"{folder} cannot hold jars: Java ends a path at {os.pathsep!r}; set EVERLOG_CACHE to another folder"
        )
    return folder.absolute()


@contextmanager
def exclusively(path: Path) -> Iterator[None]:
    """One process at a time. Its holder may remove the file: a process that waited for that one waits for the next."""
    while True:
        make_folder(path.parent)
        with open(path, "a", opener=private) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is_there(lock, path):
                yield
                return


def _is_there(file: IO[str], path: Path) -> bool:
    """Whether an open file is still the one at its path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _place(profile: str, digests: dict[str, str]) -> Path:
    """Named by what is in it, so that versions never mix and a change of one profile leaves the others alone."""
    contents = "".join(f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return cache_folder() / "jars" / f"{profile}-{hashlib.sha256(contents.encode()).hexdigest()[:12]}"


def _is_whole(folder: Path, digests: dict[str, str]) -> bool:
    return all((folder / name).is_file() for name in digests)


def _bring(profile: str, digests: dict[str, str], folder: Path, progress: DownloadProgress) -> None:
    """Bring the jars beside their place, check them, then move them there at once."""
    maven = _find_maven()
    with tempfile.TemporaryDirectory(prefix=f".{profile}-", dir=folder.parent) as scratch:
        brought = Path(scratch) / "jars"
        _run_maven(maven, profile, digests, brought, progress)
        _check(digests, brought)
        shutil.rmtree(folder, ignore_errors=True)  # an incomplete one, after the cache was tidied
        brought.replace(folder)
    progress(_title(profile), len(digests), len(digests))


def _find_maven() -> str:
    named = os.environ.get("EVERLOG_MVN") or "mvn"
    found = shutil.which(named)
    if found is None:
        raise MissingProgram(
            f"the servers' jars come with Maven, and there is no program {named!r}: install maven, "
            "or set EVERLOG_MVN to the path of mvn"
        )
    return found


def _run_maven(maven: str, profile: str, digests: dict[str, str], target: Path, progress: DownloadProgress) -> None:
    """Maven names each jar that it downloads; what it has already it copies at the end without naming it."""
    done: set[str] = set()
    progress(_title(profile), 0, len(digests))
    command = [maven, "-B", "-f", str(POM), "validate", f"-P{profile}", f"-DoutputDirectory={target}", *_MAVEN_TIMEOUTS]
    lines: list[str] = []
    with subprocess.Popen(  # noqa: S603
        command,
        env=java_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                lines = [*lines[-99:], line]
                if (found := _DOWNLOADED.search(line)) and found[1] in digests:
                    done.add(found[1])
                    progress(_title(profile), len(done), len(digests))
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        raise DownloadFailed(
            f"Maven could not bring the jars of {profile}: {_complaint(lines)}: look whether this machine reaches "
            "Maven's repository (a mirror or a proxy goes into ~/.m2/settings.xml), then try again"
        )


def _complaint(lines: list[str]) -> str:
    """Maven's own words: its first error, or else its last line (no Java, for example)."""
    texts = [text for line in lines if (text := re.sub(r"\x1b\[[0-9;]*m", "", line).strip())]
    errors = [text.removeprefix("[ERROR]").strip() for text in texts if text.startswith("[ERROR]")]
    found = next((text for text in errors if text), None) or (texts[-1] if texts else "it said nothing")
    return re.sub(r" -> \[Help \d+\]$", "", found).rstrip(". ")


def _check(digests: dict[str, str], folder: Path) -> None:
    """All that is listed must be there and be what is listed; what is not listed goes."""
    for path in folder.iterdir():
        if path.name not in digests:
            path.unlink()
    for name, digest in digests.items():
        path = folder / name
        if not path.is_file():
            raise DownloadFailed(f"Maven brought no {name}: a mirror may hold other versions; {_REPAIR}")
        if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise DownloadFailed(f"{name} is damaged or not the one that was published; {_REPAIR}")


_REPAIR = "remove ~/.m2/repository, or name another mirror in ~/.m2/settings.xml, then try again"


def _title(profile: str) -> str:
    return f"jars of {profile}"


def silent(what: str, done: int, total: int) -> None:
    """Progress that is not shown."""
