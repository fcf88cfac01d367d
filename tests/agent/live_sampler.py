"""A live process with the sampler over the switchable driver: a test ticks it and switches in between.

The clocks are the test's: they show what the tick says.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.fakes.driver import SwitchableDriver

#: Unix seconds of the plays' beginning: a whole minute.
EPOCH = 1_700_000_040.0


class LiveSampler:
    """A sampler in a child process.

    Parameters
    ----------
    folder
        The run folder.
    uuids
        GPUs of the run; ``None``: all that are here.
    members
        Pids that count as the run's processes.
    true
        Whether pids are the machine's own.
    """

    def __init__(
        self, driver: SwitchableDriver, folder: Path, uuids: Sequence[str] | None = None,
        members: Sequence[int] = (), true: bool = True, t: float = 0.0,
    ) -> None:  # fmt: skip
        self.folder, self.rows = folder, list[dict[str, Any]]()
        (folder / "telemetry").mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.agent.live_sampler"], cwd=Path(__file__).parents[2], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **driver.environment()},
        )  # fmt: skip
        start = {"folder": str(folder), "uuids": uuids, "members": list(members), "true": true, "t": t}
        self.gpus: list[dict[str, Any]] = self._ask(start)["gpus"]

    def _ask(self, what: dict[str, Any]) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the sampler ended with code {self.process.wait(60)}"
        return json.loads(line)

    def tick(self, t: float) -> list[dict[str, Any]]:
        """Sample at `t` seconds; of each GPU its columns and slow values."""
        self.rows = self._ask({"tick": t})["gpus"]
        return self.rows

    def probe(self) -> dict[str, Any]:
        """What a probe of the dispatcher reads now, in a child of the sampler's process image."""
        return self._ask({"probe": True})

    def close(self) -> dict[str, Any]:
        """End well; the summary."""
        self._ask({"close": True})
        self.kill()
        return json.loads((self.folder / "telemetry" / "summary-0.json").read_text())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def notes(self) -> list[str]:
        """Sentences in the file so far."""
        data = (self.folder / "telemetry" / "node-0.jsonl").read_text()
        return [
            line["note"] for line in map(json.loads, data.splitlines()) if isinstance(line, dict) and "note" in line
        ]


def main() -> None:
    """Serve one test."""
    from jupyter_amltrain.agent import protocol
    from jupyter_amltrain.agent.telemetry import sampler
    from jupyter_amltrain.agent.telemetry.gpu_processes import ProcessOwners

    now = [0.0]
    protocol.wall = lambda: EPOCH + now[0]
    protocol.mono = lambda: 1000.0 + now[0]
    start = json.loads(sys.stdin.readline())
    members = {int(pid): None for pid in start["members"]}
    now[0] = start["t"]
    one = sampler.Sampler(start["folder"], None, 1.0, start["uuids"])
    one.slow_metrics.owners = ProcessOwners(true=start["true"])

    def usage() -> list[Any]:
        one.usage.rows = members  # type: ignore[assignment]
        return [None] * len(one.names)

    one.usage.read = usage  # type: ignore[method-assign]
    values: list[Any] = []
    read = one.readings.read

    def kept() -> list[Any]:
        values[:] = read()
        return list(values)

    one.readings.read = kept  # type: ignore[method-assign]
    columns = [column.name for column in sampler.TICKS]
    print(json.dumps({"gpus": one.readings.gpus}), flush=True)
    for line in sys.stdin:
        what = json.loads(line)
        if "close" in what:
            one.close()
            print("{}", flush=True)
            return
        if "probe" in what:
            from jupyter_amltrain.agent.telemetry import nvml

            pid, reader = nvml.start_probe()
            with open(reader, "rb") as pipe:
                os.set_blocking(reader, True)
                data = pipe.read()
            os.waitpid(pid, 0)
            print(json.dumps(nvml.parse_probe(data)), flush=True)
            continue
        now[0] = what["tick"]
        one.tick()
        width = len(columns)
        gpus = [
            dict(zip(columns, values[width * i : width * (i + 1)], strict=True), **slow, processes=listed)
            for i, (slow, listed) in enumerate(zip(one.slow_metrics.values, one.slow_metrics.processes, strict=True))
        ]
        print(json.dumps({"gpus": gpus}), flush=True)


if __name__ == "__main__":
    main()
