"""Documents: a small to-do list, its history, and a feed that is resumed."""

from __future__ import annotations

import asyncio
import tempfile

import everlog


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with everlog.connect(folder) as log:
            docs = log.documents

            # A collection: elements have ids, of our choice or new ones.
            await docs.put("todo~/milk", {"what": "buy milk", "done": False, "priority": 2})
            await docs.put("todo~/call", {"what": "call Eve", "done": False, "priority": 1})
            await docs.patch("todo~/milk", {"done": True})

            page = await docs.list("todo~", filter="!done", sort="priority")
            print("open:", [item["what"] for item in page.elements])

            # Only if no other writer changed it since: the entity tag says so.
            call = await docs.get("todo~/call")
            await docs.patch("todo~/call", {"priority": 3}, if_match=call.etag)
            try:
                await docs.patch("todo~/call", {"priority": 4}, if_match=call.etag)
            except everlog.EverlogError as error:
                print("refused:", error)

            # Every change is an event, and the past can be asked for.
            async for event in docs.history("todo~/milk"):
                print(event.revision, event.method, event.body)
            print("at revision 1:", await docs.at("todo~/milk", 1))

            # A feed goes on behind the revision that was seen last.
            await docs.put("todo~/rest", {"what": "rest", "done": False, "priority": 9}, wait=True)
            async for item in docs.feed("todo~", after=4):
                if not isinstance(item, int):
                    print("new:", item.path)
                    break


if __name__ == "__main__":
    asyncio.run(main())
