"""Which process this is, without asking the kernel every time: what a process opened must not be used by its forks."""

from __future__ import annotations

import os


class Process:
    """This process. `pid` is right in a fork, too."""

    __slots__ = ("pid",)

    def __init__(self) -> None:
        self.pid = os.getpid()
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.pid = os.getpid()


PROCESS = Process()
