"""CPU of Chromium's main thread at one tick a second: our dashboard against plain bqplot.

The peer draws the same series of the GPUs in one chart each, 600 points, and its kernel
sends the whole arrays with each tick. All notebooks are open in the same browser and
measured over the same stretches of time. Ours also draws the run's record, the age of its
data, the CPU chart and, for many GPUs (as mean and range), the heat map.
"""

from __future__ import annotations

import statistics
import time

from benchmarks.browsers import lab
from benchmarks.timing import line, verdict

WINDOWS, SECONDS = 8, 3.0
SOURCE = "from benchmarks import live_source"


def main() -> None:
    """Print the table."""
    with lab() as show:
        pages = {}
        for gpus in (8, 64):
            pages[f"ours, {gpus} GPUs"] = show(f"ours{gpus}", "%load_ext jupyter_amltrain", SOURCE,
                                               f"live_source.play({gpus})")  # fmt: skip
            pages[f"bqplot, {gpus} GPUs"] = show(f"plain{gpus}", SOURCE, f"live_source.plain({gpus})")
            pages[f"bqplot, one chart of {gpus} lines"] = show(f"one{gpus}", SOURCE, f"live_source.plain({gpus}, 1)")
        time.sleep(4)
        drawn = {name: page.drawn() for name, page in pages.items()}
        figures: dict[str, list[float]] = {name: [] for name in pages}
        for _ in range(WINDOWS):
            before = {name: (page.cpu(), time.monotonic()) for name, page in pages.items()}
            time.sleep(SECONDS)
            for name, page in pages.items():
                cpu, at = before[name]
                figures[name].append(100 * (page.cpu() - cpu) / (time.monotonic() - at))
        for name, page in pages.items():
            assert drawn[name] != page.drawn() and len(drawn[name]) > 5000, f"{name} stands still"
    print(f"Main thread of Chromium at 1 Hz, in {WINDOWS} windows of {SECONDS:g} s (CPU, % of a core)")
    for name, values in figures.items():
        print(line(name, values, "%"))
    middle = {name: statistics.median(values) for name, values in figures.items()}
    for gpus in (8, 64):
        ours = middle[f"ours, {gpus} GPUs"]
        print(verdict(f"{gpus} GPUs: main thread / bqplot resend", ours / middle[f"bqplot, {gpus} GPUs"], 1.0))
        print(f"  (and {ours / middle[f'bqplot, one chart of {gpus} lines']:.2f} of one chart of utilization alone)")


if __name__ == "__main__":
    main()
