"""Search: a key, a tag, a queue, a job, a projection or a document, by its exact name or a part of it."""

from __future__ import annotations

from typing import Any

from everlog.console.actions import key_text, read_entry
from everlog.console.console import ConsolePage, Context, Model
from everlog.errors import DocumentNotFound, InvalidInput, QueueNotFound
from everlog.queues.job import parse_key
from everlog.queues.queue import Queue

MAX_FOUND = 50
MAX_ENDED = 5
# So many dead letters of a queue are looked at for a key: they are in the order of time.
MAX_LETTERS = 200


async def build_search(context: Context) -> Model:
    text = context.text("q").strip()
    if not text:
        return {"q": "", "found": [], "asked": False}
    found = [
        *await _journals(context, text),
        *await _documents(context, text),
        *await _names(context, text),
        *await _jobs(context, text),
    ]
    return {"q": text, "found": found[:MAX_FOUND], "asked": True}


def _hit(kind: str, name: str, page: str, /, **state: str) -> dict[str, Any]:
    return {"kind": kind, "name": name, "page": page, "state": state}


async def _journals(context: Context, text: str) -> list[dict[str, Any]]:
    """Journals with exactly this id, in every topic; `topic:id` names one."""
    found = []
    for topic in await context.log.topics():
        names = [text, text.removeprefix(f"{topic}:")]
        for name in dict.fromkeys(names):
            try:
                head = await context.log.journal(topic).head(name)
            except InvalidInput:
                continue  # no key can look like this
            if head is not None:
                found.append(_hit("journal", f"{topic}:{name}", "journal", topic=topic, id=name))
    return found


async def _documents(context: Context, text: str) -> list[dict[str, Any]]:
    """A document, an element or a collection at this path."""
    path = text.strip("/")
    try:
        if not path.endswith("~"):
            await context.log.documents.get(path)
        else:
            await context.log.documents.list(path, size=1)
    except (InvalidInput, DocumentNotFound):
        return []
    return [_hit("document", path, "documents", path=path)]


async def _jobs(context: Context, text: str) -> list[dict[str, Any]]:
    """Jobs of every queue with this number or exactly this key; `queue:text` looks in one queue."""
    observation = await context.sampler.latest(5.0)
    hits = []
    for one in observation.queues:
        if one.unknown is not None:  # to look would make this process the owner of the queue
            continue
        queue = context.log.queue(one.name)
        jobs: dict[int, str] = {}
        for name in dict.fromkeys((text, text.removeprefix(f"{one.name}:"))):
            jobs |= await _with_number(queue, name)
            jobs |= await _with_key(queue, name, dead=one.dead > 0)
        hits += [
            _hit("job", f"{one.name} {entry} {key}", "job", queue=one.name, entry=str(entry))
            for entry, key in jobs.items()
        ]
        if len(hits) >= MAX_FOUND:
            break
    return hits


async def _with_number(queue: Queue, text: str) -> dict[int, str]:
    try:
        found = await queue.job(read_entry(text))
    except (InvalidInput, QueueNotFound):  # a queue may be deleted meanwhile
        return {}
    return {} if found is None else {found.entry: key_text(found.key)}


async def _with_key(queue: Queue, text: str, *, dead: bool) -> dict[int, str]:
    """What waits, runs, is dead or has ended, the last ones of each."""
    try:
        key = parse_key(await queue.declaration(), text)
        waiting = [one.entry for one in await queue.get(key)]
        letters = await queue.dead(MAX_LETTERS) if dead else []
        ended = await queue.history(MAX_ENDED, key=key)
    except (InvalidInput, QueueNotFound):
        return {}  # no key of this queue can look like this, or the queue is deleted
    found = [*waiting, *(one.entry for one in letters if one.key == key), *(one.entry for one in ended)]
    return dict.fromkeys(found, key_text(key))


async def _names(context: Context, text: str) -> list[dict[str, Any]]:
    """Tags, projections and queues whose names contain the text."""
    wanted = text.casefold()
    observation = await context.sampler.latest(5.0)
    tags = [] if observation.tags is None or not observation.tags.enabled else await context.log.tags()
    hits = [_hit("tag", one.tag, "tags", tag=one.tag) for one in tags if wanted in one.tag.casefold()]
    hits += [
        _hit("projection", f"{one.name} {one.key}", "projections", name=one.name, key=one.key)
        for one in observation.projections
        if wanted in f"{one.name} {one.key}".casefold()
    ]
    hits += [
        _hit("queue", one.name, "queues", name=one.name) for one in observation.queues if wanted in one.name.casefold()
    ]
    return hits


SEARCH = ConsolePage("search", "Search", "search.html", build_search, live=False)
