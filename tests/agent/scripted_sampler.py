"""A process of its own for the sampler: pynvml loads the fake driver once and for good.

Time is the test's: the fake's, the wall's and the monotonic clock show what the play says.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.fakes import nvml

#: Unix seconds of the plays' beginning: a whole minute.
EPOCH = 1_700_000_040.0
UUIDS = [f"GPU-fa4e0000-0000-0000-0000-{index:012x}" for index in range(256)]


class ScriptedSampler:
    """Runs plays in child processes, with curves and switches of the fake driver."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"
        (self.run / "telemetry").mkdir(parents=True)
        self.environ: dict[str, str] = {}
        self.without: tuple[str, ...] = ()
        self.switch(EPOCH=EPOCH, CLOCK=folder / "clock", CALLS=folder / "calls", PROCESSES=folder / "processes")
        nvml.set_clock(folder / "clock", 0.0)

    def switch(self, **values: object) -> None:
        """Set switches of the fake driver."""
        self.environ.update({f"AMLTRAIN_FAKE_NVML_{name}": str(value) for name, value in values.items()})

    def curves(self, lines: Sequence[str]) -> None:
        path = self.folder / "curves"
        path.write_text("\n".join(lines) + "\n")
        self.switch(CURVES=path)

    def play(self, times: Sequence[float], code: int = 0, **how: Any) -> dict[str, Any]:
        """Tick at these times (seconds); see :func:`main` for `how`. What the child has printed."""
        how.update(times=list(times), clock=str(self.folder / "clock"), folder=str(self.run))
        done = subprocess.run(
            [sys.executable, "-m", "tests.agent.scripted_sampler"],
            input=json.dumps(how),
            env={**os.environ, **self.environ, "LD_LIBRARY_PATH": str(nvml.needed(self.without))},
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, done
        return json.loads(done.stdout) if done.stdout else {}

    def calls(self) -> dict[str, int]:
        return nvml.calls(self.folder / "calls")

    def lines(self, name: str = "node-0.jsonl") -> list[Any]:
        data = (self.run / "telemetry" / name).read_bytes()
        return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]

    def rows(self) -> list[Any]:
        return [line for line in self.lines() if isinstance(line, list)]

    def summary(self) -> dict[str, Any]:
        return json.loads((self.run / "telemetry" / "summary-0.json").read_text())


def main() -> None:
    """Play.

    ``sampler``: the whole sampler (else only the readings); ``uuids``, ``indices``, ``every``;
    ``kill``: number of ticks after which we kill ourselves, ``kill_at_minute``: do so between
    the minute's line and the summary; ``slow``: also the seldom values, ``members``: own pids;
    ``close``: end well.
    """
    how = json.load(sys.stdin)
    from jupyter_amltrain.agent import protocol
    from jupyter_amltrain.agent.telemetry import sampler
    from jupyter_amltrain.agent.telemetry.gpu_processes import ProcessOwners
    from jupyter_amltrain.agent.telemetry.gpu_slow import SlowMetrics

    now = [0.0]
    path = Path(how["clock"])

    def at(seconds: float) -> None:
        now[0] = seconds
        nvml.set_clock(path, seconds)

    protocol.wall = lambda: EPOCH + now[0]
    protocol.mono = lambda: 1000.0 + now[0]
    every = how.get("every", 1.0)
    at(how.get("open", how["times"][0] - every))
    if how.get("sampler"):
        one = sampler.Sampler(how["folder"], None, every, how.get("uuids"), how.get("indices"))
        if how.get("kill_at_minute"):
            one.summary.save = lambda: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
        for number, seconds in enumerate(how["times"], 1):
            at(seconds)
            one.tick()
            if number == how.get("kill"):
                os.write(one.file.handle, b"[99,1")
                os.kill(os.getpid(), signal.SIGKILL)
        if how.get("close", True):
            one.close()
        return
    readings, note = sampler.find_gpus(how.get("uuids"), how.get("indices"), how.get("known"))
    seldom = SlowMetrics(readings, ProcessOwners(true=how.get("true", True)))
    found: dict[str, Any] = {"gpus": readings.gpus, "note": note, "rows": [], "notes": [], "slow": [], "slow_rows": []}
    for seconds in how["times"]:
        at(seconds)
        values = readings.read()
        found["rows"].append([values[k : k + sampler.WIDTH] for k in range(0, len(values), sampler.WIDTH)])
        found["notes"].append(list(readings.notes))
        readings.notes.clear()
        if how.get("slow"):
            seldom.read(every, how.get("members", ()))
            found["slow"].append(list(seldom.values))
            slow_row, what = seldom.updates()
            seldom.set_written(what)
            found["slow_rows"].append(slow_row)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
