"""What a sweep has found: its trials, the best one, and the importance of its parameters; for kernels and MLflow."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import time
import urllib.error
import urllib.request
from pathlib import Path

import msgspec

from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.child_run import ChildRun, ChildRuns
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import RunHandle
from jupyter_amltrain.schema.sweep import Sweep
from jupyter_amltrain.sweeps.samplers import importances
from jupyter_amltrain.sweeps.trial import Best, Trial, finite
from jupyter_amltrain.sweeps.trials_file import TrialsFile, thinned

log = logging.getLogger(__name__)

#: Seconds between two versions of the file with all trials.
WRITE_INTERVAL_S = 1.0
#: Time between two versions of that file, as a multiple of the time that one takes, if this is longer.
WRITE_INTERVAL_FACTOR = 10
#: Seconds between two computations of the importance of the parameters.
IMPORTANCE_INTERVAL_S = 5.0
#: Seconds for one request on loopback.
_LOG_TIMEOUT_S = 5.0


class SweepResults:
    """The trials of a sweep and what follows from them. Loop thread only.

    Parameters
    ----------
    spec
        Job of the driver.
    folder
        Its run folder.

    Attributes
    ----------
    trials
        By number in this sweep.
    history
        Ended trials of the sweep that this one continues.
    first
        Number of the first trial of this sweep.
    message
        One sentence about the state of the sweep.
    """

    def __init__(self, loop: LoopThread, spec: JobSpec, sweep: Sweep, folder: Path) -> None:
        self._loop, self._spec, self._sweep = loop, spec, sweep
        self._file = TrialsFile(folder)
        self.trials: dict[int, Trial] = {}
        self.history: tuple[ChildRun, ...] = ()
        self.first = 0
        self.message = ""
        self._written_at = self._importance_at = -math.inf
        self._write_interval_s = WRITE_INTERVAL_S
        self._importance: dict[str, float] = {}
        self._importance_of = 0  #: number of trials that it was computed from
        self._computing: asyncio.Task[None] | None = None

    @property
    def living(self) -> list[Trial]:
        """Trials that have not ended."""
        return [trial for trial in self.trials.values() if not trial.is_ended]

    @property
    def ended(self) -> list[Trial]:
        """Trials whose ends are in the journal."""
        return [trial for trial in self.trials.values() if trial.is_ended]

    @property
    def best(self) -> Best | None:
        """The completed trial with the best value, the first one of equal ones."""
        sign = 1.0 if self._sweep.objective.goal == "minimize" else -1.0
        known = [
            Best(trial.number or 0, trial.value, RunHandle(trial.handle), trial.params)
            for trial in self.history
            if trial.state == "completed" and trial.value is not None
        ]
        known += [
            Best(self.first + trial.number, trial.value, trial.handle, trial.params)
            for trial in self.ended
            if trial.state == "completed" and trial.value is not None and math.isfinite(trial.value)
        ]
        return min(known, key=lambda one: (sign * one.value, one.number), default=None)

    def print_end(self, trial: Trial, is_best: bool) -> None:
        """Print one line about the end of a trial."""
        values = ", ".join(f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
                           for name, value in trial.params.items())  # fmt: skip
        end = "stopped early" if trial.early else trial.state
        value = "" if trial.value is None else f", {self._sweep.objective.metric} {trial.value:.6g}"
        best = " (best so far)" if is_best else ""
        reason = f": {trial.reason}" if trial.reason else ""
        print(f"Trial {self.first + trial.number} {end}{value}{best} with {values}{reason}", flush=True)

    async def log_best(self, run_id: str) -> None:
        """Log the best value so far as a metric of the sweep's own run."""
        if (best := self.best) is not None:
            metric = self._sweep.objective.metric
            await self._loop.offload(_log_metric, run_id, metric, best.value, len(self.ended))

    async def write(self, now: bool = False) -> None:
        """Write the file with all trials, which the kernels read; `now`: even if the last version is young."""
        began = time.monotonic()
        if not now and began - self._written_at < self._write_interval_s:
            return
        if now:
            await self._compute_importance()
        elif time.monotonic() - self._importance_at >= IMPORTANCE_INTERVAL_S and not self._is_computing:
            # The first one imports for a second: trials that end meanwhile must not wait for it.
            self._computing = self._loop.start(self._compute_importance(), "importance")
        best = self.best
        number = None if best is None else best.number
        self.history = thinned(self.history, self._file.points)
        rows = [msgspec.structs.replace(trial, best=trial.number == number) for trial in self.history]
        rows += [self.row(trial, self.first + trial.number == number) for trial in self.trials.values()]
        children = ChildRuns(runs=tuple(rows), first=self.first, importance=self._importance, message=self.message)
        await self._loop.offload(self._file.write, children)
        self._written_at = time.monotonic()
        self._write_interval_s = max(WRITE_INTERVAL_S, WRITE_INTERVAL_FACTOR * (self._written_at - began))

    @property
    def _is_computing(self) -> bool:
        return self._computing is not None and not self._computing.done()

    async def _compute_importance(self) -> None:
        known = [(one.params, one.value, one.state) for one in self.history]
        known += [(trial.params, trial.value, trial.state) for trial in self.ended]
        pairs = [(params, value) for params, value, state in known if value is not None and state == "completed"]
        if len(pairs) != self._importance_of:
            self._importance = await self._loop.offload(importances, self._sweep, pairs)
            self._importance_of = len(pairs)
        self._importance_at = time.monotonic()

    def row(self, trial: Trial, is_best: bool) -> ChildRun:
        """Return a trial as kernels read it."""
        curve = trial.curve
        return ChildRun(
            id=trial.run_id,
            name=f"{self._spec.name}-{self.first + trial.number}",
            kind="trial",
            state=trial.state,
            detail=trial.reason,
            metric=self._sweep.objective.metric,
            value=trial.value if trial.is_ended else finite(trial.latest),
            best=is_best,
            created=trial.created,
            started=trial.started,
            ended=trial.ended,
            number=self.first + trial.number,
            params=trial.params,
            handle=trial.handle if trial.sent else "",
            early=trial.early,
            steps=tuple(step for step, _ in curve),
            values=tuple(value if math.isfinite(value) else None for _, value in curve),
        )


def _log_metric(run_id: str, metric: str, value: float, step: int) -> None:
    """Log a metric to the agent's MLflow endpoint; a failure is only noted. Blocks.

    MLflow itself needs seconds to import.
    """
    uri, token = os.environ.get("MLFLOW_TRACKING_URI", ""), os.environ.get("MLFLOW_TRACKING_TOKEN", "")
    if not uri.startswith("http://127.0.0.1") or not run_id:
        return
    body = {"run_id": run_id, "key": metric, "value": value, "timestamp": int(time.time() * 1000), "step": step}
    request = urllib.request.Request(
        f"{uri}/api/2.0/mlflow/runs/log-metric",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {token}"},
    )
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        opener.open(request, timeout=_LOG_TIMEOUT_S).close()
    except (OSError, urllib.error.URLError) as error:
        log.info("logging %s: %s", metric, error)
