"""The hook in a job's Python notes its trackers' files, and never disturbs the program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from jupyter_amltrain.agent.protocol import TRACKER_NOTES
from jupyter_amltrain.agent.supervise import job_hooks

PROGRAM = """
import os, sys, types
sys.path.insert(0, "libraries")
import wandb
os.makedirs("a/b/wandb/offline-run-1"), os.makedirs("a/offline-run-2")
for name in ("events.out.tfevents.1", "metrics.csv", "other.csv"):
    open(os.path.join(b"a", name.encode()), "w").close()
    open("a/" + name).read()
open(os.open("a/x", os.O_CREAT | os.O_WRONLY), "w").close()
for wrong in (3.5, "\\0metrics.csv", "absent/metrics.csv"):
    try:
        open(wrong, "w")
    except (TypeError, ValueError, OSError) as error:
        print(type(error).__name__)
os.makedirs("gone"); os.chdir("gone"); os.rmdir("../gone")
try:
    open("metrics.csv", "w")
except OSError as error:
    print(type(error).__name__)
"""


def test_files_of_trackers_are_noted_and_errors_are_the_programs_own(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / "wandb.py").touch()
    env = dict(os.environ)
    job_hooks.add(env, str(tmp_path), str(tmp_path / "home"), gpus=False)
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stdout.split() == ["TypeError", "ValueError", "FileNotFoundError", "FileNotFoundError"], done.stderr
    notes = [json.loads(line) for line in (tmp_path / TRACKER_NOTES).read_text().splitlines()]
    names = ["a/b/wandb/offline-run-1", "a/events.out.tfevents.1", "a/metrics.csv", "absent/metrics.csv"]
    assert [note["path"] for note in notes] == [str(tmp_path / name) for name in names]
    assert {note["python"] for note in notes} == {sys.executable}
