"""From the request for a dashboard to its whole picture: a fresh kernel, a run of 24 hours and 8 GPUs.

The run's folder holds 86,400 ticks. The time ends when the feed's model arrives with its
snapshot: what follows is one drawing in the page. A run whose minutes file is lost is
read from its ticks.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.kernels import running_kernel
from benchmarks.page import Page
from benchmarks.timing import interleaved, line
from tests import telemetry_files as files
from tests.conftest import end_all

GPUS, DAY, ROUNDS = 8, 86_400, 5
WITH, WITHOUT = "with its minutes", "without minutes"
RUN = {WITH: "day-22222", WITHOUT: "bare-33333"}
GOLDEN = Path(files.__file__).parent / "golden" / "schema-1" / "golden-22222"
#: Seconds that are allowed.
GOAL = 2.0


def prepare(home: Path) -> None:
    """Ended runs of a day, as the agent leaves them."""
    home.mkdir(mode=0o700)
    for name, run_id in RUN.items():
        folder = home / "runs" / run_id
        shutil.copytree(GOLDEN, folder)
        for path in (folder / "job.json", folder / "state.json"):
            path.write_text(path.read_text().replace(GOLDEN.name, run_id).replace("/home/user/project", str(home)))
        shutil.rmtree(folder / "telemetry")
        files.write_node(folder, gpus=GPUS, seconds=DAY, minutes=name == WITH)


def attach(environ: dict[str, str], folder: str, handle: str, sizes: list[int]) -> float:
    """Seconds in a kernel that has done nothing yet but load the extension."""
    with running_kernel(environ, folder) as kernel:
        kernel.run("%load_ext jupyter_amltrain")
        page = Page(kernel)
        page.collect(0.5)
        begin = time.time()
        page.open(handle)
        found = page.collect(60, lambda message: message.model == "StreamFeedModel")
        feed = found[-1]
        (node,) = feed.content["data"]["state"]["snapshot"]["nodes"]
        assert node["b"] * node["w"] > 0.95 * DAY and node["k"] >= 3500, "the whole day is in it"
        sizes.append(sum(message.size for message in found))
        return feed.at - begin


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        environ = {
            **os.environ,
            "AMLTRAIN_HOME": str(home),
            "AMLTRAIN_QUEUE": f"{folder}/queue",
            "AMLTRAIN_DISPATCHER_IDLE": "5",
            "IPYTHONDIR": f"{folder}/ipython",
        }
        prepare(home)
        sizes: dict[str, list[int]] = {name: [] for name in RUN}
        try:
            figures = interleaved(
                {name: (lambda n=name: attach(environ, folder, f"local/{RUN[n]}", sizes[n])) for name in RUN}, ROUNDS
            )
        finally:
            end_all(home)
    print(f"Dashboard of a run of 24 h and {GPUS} GPUs in a fresh kernel (wall)")
    for name, values in figures.items():
        print(line(name, values, "s") + f"  {max(sizes[name]) / 1e6:.1f} MB to the page")
    for name, values in figures.items():
        middle = sorted(values)[len(values) // 2]
        word = "goal met" if middle <= GOAL else "MISSED"
        print(f"  {'attach, ' + name:<58} {middle:7.2f} s   goal <= {GOAL:g} s   {word}")


if __name__ == "__main__":
    main()
