"""The blocking API, used by plain threads: no `await`, and their appends still share commits.

python examples/threads.py [folder]
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

from everlog import Event, sync

SENSORS = 4
READINGS = 25


def main(folder: str) -> None:
    with sync.connect(folder) as log:
        sensors = log.journal("sensors")

        def measure(number: int) -> str:
            name = f"sensor-{number}"
            token = ""
            for step in range(READINGS):
                token = str(sensors.append(name, Event({"celsius": 20 + (number * step) % 5}, tags={"indoor"})))
            return token

        with ThreadPoolExecutor(SENSORS) as pool:
            tokens = list(pool.map(measure, range(1, SENSORS + 1)))

        for name, token in zip(sorted(sensors.keys()), tokens, strict=True):
            # The token makes sure that the read includes what the thread wrote.
            readings = [event.payload["celsius"] for event in sensors.read(name, after=token)]
            print(f"{name}: {len(readings)} readings, mean {sum(readings) / len(readings):.1f}")
        sensors.delete("sensor-1", to=20)
        print("left of sensor-1:", [event.seq_nr for event in sensors.read("sensor-1")])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(sys.argv[1] if len(sys.argv) > 1 else temporary)
