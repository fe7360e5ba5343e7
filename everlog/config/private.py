"""Files and folders for their owner's eyes only, whatever the umask of the process is.

The invariant: a file that Everlog makes has the mode 0600 and a folder 0700 from its first moment. What is there
already keeps its mode: a folder that its user made may be meant for a group.
"""

from __future__ import annotations

import os
from pathlib import Path

FILE_MODE = 0o600
FOLDER_MODE = 0o700


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing; OSError if that is not possible."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent)
    try:
        folder.mkdir(mode=FOLDER_MODE)
    except FileExistsError:
        if not folder.is_dir():  # else another process was quicker
            raise


def make_file(path: Path) -> None:
    """Make an empty file unless there is one; OSError if that is not possible."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))
    except FileExistsError:
        return


def private(path: str, flags: int) -> int:
    """For `open(…, opener=private)`: a file that is made is private."""
    return os.open(path, flags, FILE_MODE)
