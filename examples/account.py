"""An account whose balance is recovered from a snapshot and the events after it.

python examples/account.py [folder]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from dataclasses import dataclass

import everlog
from everlog import Event, EventRecord, Journal

SNAPSHOT_EVERY = 10


@dataclass
class Account:
    """The state: what the events up to `seq_nr` add up to."""

    balance: int = 0
    seq_nr: int = 0

    def apply(self, event: EventRecord) -> None:
        self.balance += event.payload["amount"]
        self.seq_nr = event.seq_nr


async def load(accounts: Journal, account_id: str) -> Account:
    """The newest snapshot, then only the events after it."""
    found = await accounts.recover(account_id)
    account = Account()
    if found.snapshot is not None:
        account = Account(found.snapshot.payload["balance"], found.snapshot.seq_nr)
    replayed = 0
    async for event in found.events:
        account.apply(event)
        replayed += 1
    print(f"recovered at event {account.seq_nr} by replaying {replayed}: balance {account.balance}")
    return account


async def pay(accounts: Journal, account_id: str, account: Account, amount: int) -> None:
    """Book an amount, if the account allows it and no other writer booked since we looked."""
    if account.balance + amount < 0:
        print(f"refused: {amount} with a balance of {account.balance}")
        return
    token = await accounts.append(account_id, Event({"amount": amount}), expected=account.seq_nr)
    account.balance, account.seq_nr = account.balance + amount, token.range.last
    if account.seq_nr % SNAPSHOT_EVERY == 0:
        await accounts.snapshots.save(account_id, seq_nr=account.seq_nr, payload={"balance": account.balance})


async def main(folder: str) -> None:
    async with everlog.connect(folder) as log:
        accounts = log.journal("accounts")
        account = await load(accounts, "alice")
        for amount in [100, -30, 25, -200, *range(1, 21)]:
            await pay(accounts, "alice", account, amount)
    async with everlog.connect(folder) as log:  # as after a restart
        await load(log.journal("accounts"), "alice")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else temporary))
