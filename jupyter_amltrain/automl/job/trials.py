"""Trials of a search: FLAML's log is their journal, from which the board of the run is written and a search continues.

The journal is in the checkpoint folder: one file for each attempt of the run, to which FLAML appends a line after each
trial. A thread reads them, and replaces the file ``children.json`` of the run folder.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from .metrics import value_of_loss

#: File of the run folder with trials; ``schema/child_run.py`` has the same name.
CHILDREN = "children.json"
#: Seconds between two looks at the journal, and trials that the board has.
INTERVAL_S, MAX_TRIALS = 0.5, 600
#: Parameter of FLAML that no model has: rows of a trial.
_SAMPLE = "FLAML_sample_size"
_RATE = "learning_rate"
_CLOCK, _OPTIONS = "clock.json", "options.json"


class ModelTrial:
    """One trial: its model, parameters and value."""

    def __init__(self, number: int, metric: str, line: dict[str, Any], started: float) -> None:
        self.number, self.learner = number, str(line["learner"])
        self.config = {str(name): value for name, value in line["config"].items()}
        self.loss = float(line["validation_loss"])
        self.value = value_of_loss(metric, self.loss)
        self.seconds = float(line["trial_time"])
        self.rows = int(line["sample_size"])
        self.ended = started + float(line["wall_clock_time"])

    @property
    def params(self) -> dict[str, Any]:
        """What people read of it."""
        shown = {name: value for name, value in self.config.items() if name != _SAMPLE}
        if isinstance(shown.get(_RATE), str):  # of one model it is a number, of another the name of a schedule
            shown[f"{_RATE}_schedule"] = shown.pop(_RATE)
        return {"learner": self.learner, **shown}


class TrialJournal:
    """The trials of all attempts of a run.

    Parameters
    ----------
    folder
        The checkpoint folder; trials of other options there are removed.
    options
        What the search depends on; of more trials than ``max_trials`` the later ones are left out.
    began
        When the process of this attempt started, in Unix seconds.

    Attributes
    ----------
    earlier_s
        Seconds that the attempts before this one took.
    """

    def __init__(self, folder: str, metric: str, options: dict[str, Any], began: float) -> None:
        self._folder, self._metric, self._process_began = folder, metric, began
        self._limit = options.get("max_trials")
        os.makedirs(folder, exist_ok=True)
        text = json.dumps(options, sort_keys=True, default=str)
        if _read(os.path.join(folder, _OPTIONS)) != text:
            for name in os.listdir(folder):
                if name == _CLOCK or (name.startswith("trials-") and name.endswith(".jsonl")):
                    os.remove(os.path.join(folder, name))
            _replace(os.path.join(folder, _OPTIONS), text)
        self.earlier_s = float(_json(_read(os.path.join(folder, _CLOCK))).get("seconds") or 0.0)
        self.trials: list[ModelTrial] = []
        done = sorted(name for name in os.listdir(folder) if name.startswith("trials-") and name.endswith(".jsonl"))
        for name in done:
            began = os.path.getmtime(os.path.join(folder, name)) - 1.0
            self._read(os.path.join(folder, name), 0, began, whole=True)
        self.continued = len(self.trials)
        self.path = os.path.join(folder, f"trials-{len(done):04}.jsonl")
        self._offset, self._began = 0, time.time()

    @property
    def seconds(self) -> float:
        """Seconds that the run has taken, in all attempts."""
        return self.earlier_s + time.time() - self._process_began

    def begin(self) -> None:
        """Start the clock of this attempt's trials."""
        self._began = time.time()

    def update(self) -> bool:
        """Read new lines, and keep the time; return whether there were any. Blocks on the disk."""
        before = len(self.trials)
        self._offset = self._read(self.path, self._offset, self._began)
        _replace(os.path.join(self._folder, _CLOCK), json.dumps({"seconds": round(self.seconds, 2)}))
        return len(self.trials) > before

    def _read(self, path: str, offset: int, began: float, whole: bool = False) -> int:
        try:
            with open(path, "rb") as file:
                file.seek(offset)
                data = file.read()
        except FileNotFoundError:
            return offset
        end = data.rfind(b"\n") + 1
        if whole and end < len(data):  # a line that a kill has cut
            with open(path, "r+b") as file:
                file.truncate(end)
        for line in data[:end].splitlines():
            found = _json(line.decode(errors="replace"))
            is_wanted = self._limit is None or len(self.trials) < self._limit
            if is_wanted and "learner" in found and "config" in found:
                self.trials.append(ModelTrial(len(self.trials), self._metric, found, began))
        return offset + end

    @property
    def best(self) -> ModelTrial | None:
        """The trial with the smallest loss, the first one of equal ones."""
        known = [trial for trial in self.trials if trial.value is not None]
        return min(known, key=lambda trial: (trial.loss, trial.number), default=None)

    def starting_points(self) -> dict[str, Any]:
        """Return the best parameters of each model so far, from which FLAML continues."""
        found: dict[str, ModelTrial] = {}
        for trial in self.trials:
            if trial.value is not None and (trial.learner not in found or trial.loss < found[trial.learner].loss):
                found[trial.learner] = trial
        return {name: {k: v for k, v in trial.config.items() if k != _SAMPLE} for name, trial in found.items()}


class Board(threading.Thread):
    """Writes the trials for the board of the run, and reports new best values, while the search runs."""

    def __init__(self, journal: TrialJournal, metric: str, folder: str, report: Callable[[ModelTrial], None]) -> None:
        super().__init__(name="automl board", daemon=True)
        self._journal, self._metric, self._folder, self._report = journal, metric, folder, report
        self._closing, self._best = threading.Event(), -1
        self.message = ""

    def run(self) -> None:
        """Follow the journal until :meth:`close`."""
        interval = INTERVAL_S
        while not self._closing.wait(interval):
            began = time.monotonic()
            self.draw()
            interval = max(INTERVAL_S, 20 * (time.monotonic() - began))

    def close(self, message: str = "") -> None:
        """Write the last state, with a sentence about the end."""
        self._closing.set()
        if self.is_alive():
            self.join(timeout=10)
        self.message = message or self.message
        self.draw(always=True)

    def draw(self, always: bool = False) -> None:
        """Write the file if there are new trials; a full disk must not end the search."""
        try:
            if not self._journal.update() and not always:
                return
            best = self._journal.best
            if best is not None and best.number != self._best:
                self._best = best.number
                self._report(best)
            write_children(self._folder, children(self._journal.trials, best, self._metric, self.message))
        except OSError as error:
            print(f"The board of the trials cannot be written: {error}", flush=True)


def children(trials: list[ModelTrial], best: ModelTrial | None, metric: str, message: str) -> dict[str, Any]:
    """Return trials as the kernel reads them: the best, and the newest."""
    shown = trials[-MAX_TRIALS:]
    if best is not None and best.number < shown[0].number:
        shown = [best, *shown[1:]]
    rows = [
        {
            "id": f"trial-{trial.number}",
            "name": f"{trial.learner} {trial.number}",
            "kind": "trial",
            "state": "completed" if trial.value is not None else "failed",
            "metric": metric,
            "value": trial.value,
            "best": trial is best,
            "started": trial.ended - trial.seconds,
            "ended": trial.ended,
            "number": trial.number,
            "params": trial.params,
        }
        for trial in shown
    ]
    return {"runs": rows, "hidden": len(trials) - len(shown), "message": message}


def write_children(folder: str, content: dict[str, Any]) -> None:
    """Replace the file with the trials in the run's folder; without one nothing is written."""
    if folder:
        _replace(os.path.join(folder, CHILDREN), json.dumps(content))


def run_folder() -> str:
    """Return the folder of this run on this machine; empty outside of a run of the agent."""
    outputs = os.environ.get("AML_OUTPUT_DIR", "")
    folder = os.path.dirname(outputs) if outputs else ""
    return folder if folder and os.path.exists(os.path.join(folder, "job.json")) else ""


def _replace(path: str, text: str) -> None:
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".part", path)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
