"""Following log files as they grow, also when the server begins a new one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

POLL_S = 0.2


class GrowingFile:
    """Hands out the lines that were added since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = 0
        self._position = 0
        self._begun = b""  # a line whose end is not written yet

    def skip(self) -> None:
        """Pass over what is there."""
        self.new_lines()

    def new_lines(self) -> list[str]:
        """Whole lines only."""
        found = _look(self._path)
        if found is None:
            return []
        if found.st_ino != self._inode or found.st_size < self._position:
            self._inode, self._position, self._begun = found.st_ino, 0, b""
        with self._path.open("rb") as file:
            file.seek(self._position)
            added = file.read()
        self._position += len(added)
        *lines, self._begun = (self._begun + added).split(b"\n")
        return [line.decode(errors="replace") for line in lines]


def follow(files: Mapping[str, Path], last: int) -> Iterator[tuple[str, str]]:
    """The last lines of the files, then all that is added to them, without end: which file, and the line."""
    growing = {name: GrowingFile(path) for name, path in files.items()}
    for name, file in growing.items():
        lines = file.new_lines()
        yield from ((name, line) for line in lines[len(lines) - last :])
    while True:
        found = [(name, line) for name, file in growing.items() for line in file.new_lines()]
        yield from found
        if not found:
            time.sleep(POLL_S)


def _look(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None
