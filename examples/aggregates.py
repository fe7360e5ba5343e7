"""A theatre that sells each seat once, however many clerks sell at the same time.

python examples/aggregates.py [folder]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from dataclasses import dataclass, field

import everlog


@everlog.event("seat-sold")
@dataclass
class SeatSold:
    seat: int
    to: str


@everlog.event("seat-returned")
@dataclass
class SeatReturned:
    seat: int


class SoldOut(Exception):
    """There is no seat left."""


class Show(everlog.Aggregate, topic="shows", events=SeatSold | SeatReturned, snapshot_every=10):
    """The state is who has which seat; the rule is that a seat is sold once."""

    seats: dict[int, str] = field(default_factory=dict)

    def apply(self, event: SeatSold | SeatReturned) -> None:
        match event:
            case SeatSold(seat, to):
                self.seats[seat] = to
            case SeatReturned(seat):
                del self.seats[seat]

    def sell(self, to: str) -> None:
        free = sorted(set(range(1, 21)) - self.seats.keys())
        if not free:
            raise SoldOut
        self.emit(SeatSold(free[0], to), tags={"sales"})

    def give_back(self, name: str) -> None:
        for seat in [seat for seat, owner in self.seats.items() if owner == name]:
            self.emit(SeatReturned(seat))


async def clerk(log: everlog.Everlog, name: str) -> int:
    """Sell until there is nothing left; how many that were."""
    sold = 0
    while True:
        try:
            await log.update(Show, "hamlet", lambda show: show.sell(name), retries=50)
        except SoldOut:
            return sold
        sold += 1


async def main(folder: str) -> None:
    async with everlog.connect(folder) as one, everlog.connect(folder) as two:  # as two processes would
        clerks = [clerk(one, "ann"), clerk(one, "bob"), clerk(two, "eve")]
        print(f"{sum(await asyncio.gather(*clerks))} seats are sold")
        show = await one.load(Show, "hamlet")
        print(f"{len(show.seats)} have an owner, after {show.version} events")
        show = await one.update(Show, "hamlet", lambda show: show.give_back("eve"))
        print("eve has none left" if "eve" not in show.seats.values() else "eve has some left")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else temporary))
