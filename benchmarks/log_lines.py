"""From a job's ``print`` to the kernel: 95th percentile, against looking once a second."""

from __future__ import annotations

import os
import tempfile
import threading
import time

from benchmarks.log_tail import log_chunks
from benchmarks.timing import line, p95, verdict

_JOB = """
import time
for i in range({n}):
    print("STAMP", repr(time.time()))
    time.sleep({pause})
"""


def _stamps(text: str) -> list[float]:
    return [float(row.split()[1]) for row in text.splitlines() if row.startswith("STAMP") and len(row.split()) == 2]


def _poll(path: str, stop: threading.Event, out: list[float]) -> None:
    seen = 0
    while not stop.wait(1.0):
        with open(path) as file:
            stamps = _stamps(file.read())
        now = time.time()
        out += [(now - stamp) * 1000 for stamp in stamps[seen:]]
        seen = len(stamps)


def main(lines: int = 120, pause: float = 0.11) -> None:
    """Print the table: both watch the same job at the same time."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(
            AMLTRAIN_HOME=f"{folder}/home",
            AMLTRAIN_QUEUE=f"{folder}/queue",
            AMLTRAIN_DISPATCHER_IDLE="5",
        )
        from jupyter_amltrain import api

        run = api.submit(_JOB.format(n=lines, pause=pause), name="lines")
        controller = api.controller()
        ours: list[float] = []
        polled: list[float] = []
        stop = threading.Event()
        while not os.path.exists(run.log_path or "/nonexistent"):
            time.sleep(0.01)
        poller = threading.Thread(target=_poll, args=(run.log_path, stop, polled))
        poller.start()

        async def follow() -> None:
            rest = ""
            async for chunk in log_chunks(controller.backend("local"), run.run_id):
                now = time.time()
                text = rest + chunk.data.decode()
                whole, _, rest = text.rpartition("\n")
                ours.extend((now - stamp) * 1000 for stamp in _stamps(whole))

        controller.loop.call(follow(), 600)
        run.wait(60)
        stop.wait(1.5)
        stop.set()
        poller.join()
        api.close()
    print("A log line on its way from the job to the kernel (wall)")
    print(line("ours (inotify)", ours, "ms"))
    print(line("a poll every 1 s", polled, "ms"))
    print(f"  p95: ours {p95(ours):.2f} ms, poll {p95(polled):.1f} ms")
    print(verdict("log line p95 / 1 s poll", p95(ours) / p95(polled), 0.05))


if __name__ == "__main__":
    main()
