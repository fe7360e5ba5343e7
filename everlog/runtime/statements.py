"""SQL and CQL live in files of named blocks, apart from the code that runs them."""

from __future__ import annotations

import re
from importlib import resources

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def load_statements(package: str, file: str = "statements.sql") -> dict[str, str]:
    """The blocks of a file, each under its line `-- name: …`."""
    parts = _NAME.split(resources.files(package).joinpath(file).read_text())
    return dict(zip(parts[1::2], (text.strip() for text in parts[2::2]), strict=True))
