"""Runs a script with the hooks of a job, and reads what was sampled of its lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from jupyter_amltrain.agent.supervise import job_hooks
from jupyter_amltrain.inside.line_files import ProcessLines, processes_of
from jupyter_amltrain.inside.line_report import LineReader, LineReport, report_of
from jupyter_amltrain.schema.job import JobSpec

#: A script measures its own lines, so that a loaded machine does not change what is true: the time between `now()` and
#: `add(label, start)` on one line is that of the line.
PRELUDE = """
import json as _json, time as _time
_spent, now = {}, _time.perf_counter
def add(label, start): _spent[label] = _spent.get(label, 0.0) + now() - start
def work(seconds):
    end = now() + seconds
    while now() < end:
        sum(range(40))
_start = now()
def report(): print("\\nSPENT", _json.dumps([now() - _start, _spent]))
"""


class Sampled(NamedTuple):
    """A script that has run.

    Attributes
    ----------
    spent
        Part of the time of each label, as the script has measured it.
    """

    done: subprocess.CompletedProcess[str]
    processes: list[ProcessLines]
    report: LineReport
    spent: dict[str, float]
    lines: list[str]

    def share(self, label: str, *, process: str = "", thread: str = "") -> float:
        """Return the sampled part of the time of the line with a label, with the lines that it calls."""
        uses = [use for use in self.report.lines if f"add({label!r}" in use.text or f'add("{label}"' in use.text]
        uses = [use for use in uses if use.process == process and use.thread == thread]
        return sum(use.total_share for use in uses)


def run_sampled(
    folder: Path, script: str, *, python: str = sys.executable, prelude: str = PRELUDE, **env: str
) -> Sampled:
    """Run a script with the hooks of a job; its files are in `folder`."""
    text = prelude + script + ("\nreport()\n" if prelude else "")
    path = folder / "script.py"
    path.write_text(text)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AMLTRAIN_")}
    environ.update(env)
    environ.setdefault("PYTHONPATH", "")
    environ.setdefault("AMLTRAIN_LINES", "1")
    job_hooks.add(environ, str(folder), str(folder / "hooks"), gpus=False)
    command = [python, str(path)]
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=300)
    files = sorted((folder / "lines").glob("*.jsonl")) if (folder / "lines").exists() else []
    processes = [process for file in files for process in processes_of(file.read_bytes())]
    reader = LineReader(JobSpec(name="script", script=text, script_name="script.py"))
    whole, spent = 1.0, {}
    for line in done.stdout.splitlines():
        if line.startswith("SPENT "):
            whole, spent = json.loads(line[6:])
    shares = {label: seconds / whole for label, seconds in spent.items()}
    return Sampled(done, processes, report_of(processes, reader), shares, text.splitlines())
