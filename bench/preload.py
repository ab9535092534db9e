"""What preloading torch saves: cells of the matrix in fresh and in forked processes, alternating.

``python bench/preload.py [--repeat N]``: median wall-clock times, one cell at a time, and their ratio.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import matrix  # noqa: F401 isort: skip  takes the checkout, whose dsfix/ has no patches, off sys.path again

from dsfix.catalogue import registry
from matrix.cells import Cells

CELLS = (("zero3_offload_clip_device", ("0.12.6", "0.14.2", "0.19.8")), ("torch_elastic_log", ("0.12.6", "0.19.8")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    with Cells() as cells:
        for patch_id, releases in CELLS:
            entry = registry.catalogue()[patch_id]
            for release in releases:
                cells.run(entry, release)  # installs the release and starts the preloading process
                seconds: dict[bool, list[float]] = {True: [], False: []}
                for _ in range(repeat):
                    for fresh in (True, False):
                        begun = time.monotonic()
                        cell = cells.run(entry, release, fresh=fresh)
                        seconds[fresh].append(time.monotonic() - begun)
                        assert cell.preloaded is not fresh
                fresh_time, forked_time = (statistics.median(seconds[each]) for each in (True, False))
                print(
                    f"{patch_id} on {release}: fresh {fresh_time:.1f} s, forked {forked_time:.1f} s, "
                    f"{forked_time / fresh_time:.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
