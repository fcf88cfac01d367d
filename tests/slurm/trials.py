"""Sweeps of one parameter on a cluster, and what is true of all their trials."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

#: A trial that says its parameter and where it ran.
TRIAL = """
import argparse, os, time
parser = argparse.ArgumentParser()
parser.add_argument('--x', type=float)
parser.add_argument('--wait', type=float, default=0)
args = parser.parse_args()
print(f"task={os.environ.get('SLURM_ARRAY_TASK_ID', '')}", flush=True)
time.sleep(args.wait)
print(f'loss={args.x * args.x}', flush=True)
"""


def grid(api: Any, target: str, file: Path, count: int, **fields: Any) -> Any:
    """Start a sweep over the first numbers."""
    values = ",".join(map(str, range(count)))
    given = {"goal": "minimize loss", "params": {"x": f"choice({values})"}, "sampler": "grid", "target": target}
    return api.sweep(str(file), metrics=["loss=loss={value}"], **{**given, **fields})


def check_each_once(runs: Path, run: Any, count: int) -> None:
    """Each point has one run below the folder `runs`, one row, and the loss of its own parameter."""
    children = run.children()
    assert len(children) == count and len({child.id for child in children}) == count
    assert sorted(child.value for child in children) == [float(x * x) for x in range(count)]
    folders = [path for path in runs.iterdir() if path.name in {child.id for child in children}]
    assert len(folders) == count
    for child in children:
        log = (runs / child.id / "log" / "rank-0.txt").read_text()
        assert len(re.findall("loss=", log)) == 1, log


def jobs_of(runs: Path, run: Any) -> list[str]:
    """Jobs of the trials of a sweep; tasks of an array are ``7_0`` and so on."""
    return [json.loads((runs / child.id / "slurm.json").read_text())["job"] for child in run.children()]
