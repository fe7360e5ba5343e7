"""A live page of products: what is in stock, kept right while shops sell and restock, over a break of the connection.

python examples/live_products.py [folder]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from contextlib import aclosing
from typing import Any

import everlog

FILTER = "stock > 0 and price < 50"


class Page:
    """The products that the page shows, and where it goes on after a break."""

    def __init__(self) -> None:
        self.products: dict[str, Any] = {}
        self.position: str | None = None
        self.news = asyncio.Condition()

    async def follow(self, log: everlog.Everlog) -> None:
        """A map that follows the steps is what the query would answer, at every step that has a position."""
        async with aclosing(log.documents.live("products~", filter=FILTER, after=self.position)) as changes:
            async for change in changes:
                match change.kind:
                    case "present" | "entered" | "changed":
                        self.products[change.id] = change.body
                    case "left":
                        del self.products[change.id]
                    case "reset":
                        self.products.clear()
                if change.position is not None:
                    self.position = change.position
                async with self.news:
                    self.news.notify_all()

    async def shows(self, **stock: int) -> None:
        """Wait until these are the products, and print them."""
        async with self.news:
            await self.news.wait_for(lambda: {name: one["stock"] for name, one in self.products.items()} == stock)
        print(", ".join(f"{name}: {count} left" for name, count in sorted(stock.items())) or "sold out")


async def main(folder: str) -> None:
    async with everlog.connect(folder) as log:
        shop, page = log.documents, Page()
        await shop.put("products~/tea", {"price": 4, "stock": 2})
        await shop.put("products~/pot", {"price": 70, "stock": 1})

        watching = asyncio.create_task(page.follow(log))
        await page.shows(tea=2)
        await shop.patch("products~/pot", {"price": 45})  # it enters
        await page.shows(tea=2, pot=1)
        await shop.patch("products~/pot", {"stock": 0})  # it leaves
        await page.shows(tea=2)

        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        print("a break, while the shop goes on")
        await shop.patch("products~/tea", {"stock": 1})
        await shop.put("products~/cup", {"price": 9, "stock": 6})
        watching = asyncio.create_task(page.follow(log))  # only what happened meanwhile
        await page.shows(tea=1, cup=6)

        await shop.delete("products~")
        await page.shows()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else temporary))
