"""Two kinds of mail in one queue: typed arguments, retries, a job that puts another one, and a count around all jobs.

python examples/queue_mails.py [folder]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from datetime import date

import everlog
from everlog import Job, RetryPolicy

outbox: list[str] = []
ran: Counter[str] = Counter()


@dataclass(frozen=True)
class Address:
    """Where a mail goes to; on its way through the queue it is JSON."""

    name: str
    mail: str


@everlog.job("mails", kind="welcome", retries=RetryPolicy(max_attempts=3, backoff="20ms", jitter=0.2))
async def welcome(job: Job, to: Address, since: date) -> None:
    """The first attempt is in vain. One job leads to the next."""
    if job.attempt == 1:
        raise everlog.Retry("the mail server does not answer")
    outbox.append(f"welcome {to.name}, a member since {since:%B %Y}")
    await survey.options(delay="50ms").put(to=to)


@everlog.job("mails", kind="survey")
def survey(to: Address, questions: int = 3) -> None:
    """A plain function: it runs in a thread."""
    outbox.append(f"{questions} questions to {to.mail}")


async def count(job: Job, call_next: everlog.CallNext) -> object:
    """Around every job, whatever its kind is."""
    ran[str(job.kind)] += 1
    return await call_next(job)


async def main(folder: str) -> None:
    async with everlog.connect(folder) as log:
        worker = log.worker([welcome, survey], middleware=[count])
        working = asyncio.create_task(worker.run())
        await welcome.put(to=Address("Eve", "eve@example.org"), since=date(2026, 1, 31))
        try:
            await welcome.put(to="eve@example.org", since=date(2026, 1, 31))
        except everlog.InvalidInput as error:
            print(error)
        while len(outbox) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        worker.stop()
        await working
    print(*outbox, sep="\n")
    print(f"{ran['welcome']} attempts of a welcome, {ran['survey']} of a survey")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else temporary))
