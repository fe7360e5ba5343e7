"""Work queues on Cassandra: no-op jobs put and drained by one process, which owns the queue."""

from __future__ import annotations

from functools import partial

from bench.cluster.connected import Connected
from bench.cluster.servers import Servers
from bench.cluster.settings import Settings
from bench.own_queue import PER_CALL, OwnQueue
from bench.report import Line, Target, line_of
from bench.rounds import Contender, alternate

UNIT = "jobs/s"
WANTED = 5_000


def queues(settings: Settings, servers: Servers) -> tuple[list[Line], list[str]]:
    """Each round drains what it put."""
    jobs, at_once = settings.queue_jobs, settings.queue_concurrency
    with servers.fresh("queues") as config, Connected(config) as side:
        own = OwnQueue(side)
        contenders = [
            Contender(f"Everlog: put, {PER_CALL:,} in one go", partial(own.together, jobs)),
            Contender(f"Everlog: drain, {at_once} at a time", partial(own.drain, jobs, at_once)),
        ]
        with servers.processor.watch() as usage:
            alternate(contenders, settings.rounds)
        usage.operations = jobs * (settings.rounds + 1)
    lines = [line_of("queues", one, UNIT, jobs=jobs) for one in contenders]
    for line, what in zip(lines, ("put", "drain"), strict=True):
        assert line.rate is not None
        line.target = Target(f"queues: {what}, jobs/s", line.rate, WANTED, "at least", "/s")
    return lines, [f"queues, put and drained: {usage}"]
