"""Which Java runs a server: each server works only with some versions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec

from everlog.errors import MissingProgram

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
INSTALLED = Path("/usr/lib/jvm")


class Java(msgspec.Struct, frozen=True):
    """A Java that was asked for its version."""

    program: Path
    version: int

    @property
    def keytool(self) -> Path:
        """The program that makes keys and certificates; every Java has it."""
        return self.program.resolve().with_name("keytool")


def find_java(server: str, versions: range | tuple[int, ...], variable: str | None = None) -> Java:
    """The first Java of these versions: the variable's, JAVA_HOME's, the one on PATH, an installed one."""
    seen: list[str] = []
    for program in _candidates(variable):
        version = _ask_version(program)
        if version is not None and version in versions:
            return Java(program, version)
        seen.append(f"{program} is {version or 'no Java'}")
    wanted = f"{versions[0]} or newer" if isinstance(versions, range) else " or ".join(map(str, versions))
    remedy = f"set {variable or 'JAVA_HOME'} to the folder of one"
    raise MissingProgram(
        f"{server} needs Java {wanted}, and there is none ({', '.join(seen) or 'no java was found'}): "
        f"install openjdk-17-jre-headless, or {remedy}"
    )


def _candidates(variable: str | None) -> Iterator[Path]:
    seen: set[Path] = set()
    for home in (os.environ.get(variable) if variable else None, os.environ.get("JAVA_HOME")):
        if home:
            seen.add(Path(home, "bin", "java"))
            yield Path(home, "bin", "java")
    found = shutil.which("java")
    others = [Path(found)] if found else []
    others += sorted(INSTALLED.glob("*/bin/java"))
    for program in others:
        if program.resolve() not in seen:
            seen.add(program.resolve())
            yield program


def _ask_version(program: Path) -> int | None:
    """What the program says, not what its folder is called: `java` may be a link or a shim."""
    try:
        answer = subprocess.run(  # noqa: S603
            [program, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(answer.stderr + answer.stdout)
    return int(found[1]) if found else None
