"""The comparison of journals with a naive model, on Kafka and Cassandra."""

from __future__ import annotations

import msgspec
import pytest

from tests.fixtures.cluster import MakeConfig
from tests.journal.differential import Differential, clients_of
from tests.journal.journal_model import SLOTS

pytestmark = pytest.mark.cluster

CALLS = 400


async def test_every_answer_is_the_models(tmp_path, shared_config: MakeConfig) -> None:
    config = shared_config()
    journal = msgspec.structs.replace(config.journal, max_snapshots=SLOTS)
    async with clients_of(msgspec.structs.replace(config, journal=journal), tmp_path) as (log, clients):
        await Differential(3, log, clients).run(CALLS)
