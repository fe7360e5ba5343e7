"""Runs tests in two lanes at once: those that `--beside` picks, which wait for servers most of the time, and the rest.

    python scripts/lanes.py --beside cluster MARKERS [OPTIONS OF PYTEST]

The other lane is shown while it runs, then this one. What fails in either fails the run; one of them may be empty.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

NO_TESTS = 5  # pytest's own
INTERRUPTED = 130
LOOK_S = 0.2
# A person looks at one run, or has chosen the tests already.
ALONE = ("-m", "-s", "--pdb", "--capture=no", "--collect-only", "--co")


def pytest(markers: str, options: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "pytest", "-m", markers, *options]


def is_alone(options: Sequence[str]) -> bool:
    return any(option in ALONE for option in options)


def verdict(codes: Sequence[int]) -> int:
    """One exit code for all lanes: the first failure; no tests only if there are none in any."""
    failed = [code for code in codes if code not in (0, NO_TESTS)]
    if failed:
        return failed[0]
    return 0 if 0 in codes else NO_TESTS


def run_lanes(beside: str, markers: str, options: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="everlog-lane-") as folder:
        output = Path(folder) / "output"
        # Both would remember their failures in the same file.
        cache = ["-o", "cache_dir=.pytest_cache/beside"]
        with output.open("wb") as file:
            second = subprocess.Popen(
                pytest(f"({markers}) and ({beside})", [*cache, *options]), stdout=file, stderr=subprocess.STDOUT
            )
        first = subprocess.Popen(pytest(f"({markers}) and not ({beside})", options))
        try:
            codes = [first.wait()]
            print(f"\n{beside}:", flush=True)
            follow(output, second)
            codes.append(second.wait())
        except KeyboardInterrupt:  # pytest has heard it, too, and cleans up
            first.wait()
            second.wait()
            return INTERRUPTED
        finally:
            for process in (first, second):
                process.terminate()
    return verdict(codes)


def follow(output: Path, process: subprocess.Popen[bytes]) -> None:
    """Print what a process has written and what it goes on to write, until it ends."""
    with output.open("rb") as file:
        while True:
            ended = process.poll() is not None
            sys.stdout.buffer.write(file.read())
            sys.stdout.flush()
            if ended:
                return
            time.sleep(LOOK_S)


def main(arguments: Sequence[str]) -> int:
    option, beside, markers, *options = arguments
    if option != "--beside":
        print(__doc__)
        return 2
    if is_alone(options):
        return subprocess.run(pytest(markers, options), check=False).returncode
    return run_lanes(beside, markers, options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
