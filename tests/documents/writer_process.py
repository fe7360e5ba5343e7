"""A process that writes documents until it is done or dies at a labelled point, and notes what was acknowledged.

Usage: python -m tests.documents.writer_process FOLDER NAME COUNT

A file `config.json` in the folder says where the documents are; without one, they are in the folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path

import everlog
from everlog.config import Config
from everlog.documents.indexes import IndexNew, IndexSortItem
from everlog.errors import DocumentConflict
from tests.pipeline.backends import read_config

URIS = ("d", "c~")


def target(folder: str) -> Config | str:
    config = Path(folder) / "config.json"
    return read_config(str(config)) if config.exists() else folder


async def run(folder: str, name: str, count: int) -> None:
    with (Path(folder) / f"acknowledged-{name}.jsonl").open("a", buffering=1) as history:
        async with everlog.connect(target(folder)) as log:
            docs = log.documents

            async def write(method: str, path: str, body: object) -> None:
                written = await getattr(docs, method)(path, body)
                history.write(json.dumps([written.path, written.revision, method, body]) + "\n")

            with contextlib.suppress(DocumentConflict):
                await docs.create_index("c~", IndexNew("by-n", (IndexSortItem("n"),), "n >= 0"))
            # A view that shows all, one whose collection is deleted again and again, and one that cannot show `d:e/x`.
            await docs.put_view("v~", "c~/{*}")
            await docs.put_view("g~", "gone~/{*}")
            await docs.put_view("u~", "{kind}/{name}")
            for number in range(count):
                await docs.put("gone~/1", {"n": number})
                await docs.put("d:e/x", {"n": number})
                await docs.delete("gone~")
                await write("put", "d", {"by": name, "n": number})
                await write("patch", "d", {"n": -number})
                await write("put", f"c~/{name}-{number % 3}", {"n": number})
                await write("post", "c~", {"n": -number})
                operations = [
                    {"method": "put", "id": f"{name}-batch-{each}", "body": {"n": number}} for each in range(3)
                ]
                made = await docs.batch("c~", operations, correlation_id=f"batch-{name}-{number}")
                for one in made:
                    history.write(json.dumps([one.path, one.revision, "put", {"n": number}]) + "\n")


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3])))
