"""Fills a state root with runs of the past, each a copy of a golden run with another name, time and end."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

from tests.telemetry_files import write_node

GOLDEN = Path(__file__).parent / "golden" / "schema-1"
#: How the runs ended, and how many of twenty.
ENDS = {"completed": 14, "failed": 4, "canceled": 2}
NAMES = ("digits", "resnet", "bert-base", "lr-search", "ablation")


def write_runs(root: Path, count: int, newest: float, *, gpus: int = 2, seconds: float = 180) -> list[str]:
    """Write `count` ended runs below the state root `root`, ten minutes apart; returns their ids, newest first.

    Parameters
    ----------
    newest
        Unix seconds of the newest run's submission.
    gpus, seconds
        GPUs of each run, and how long it was sampled.
    """
    chance = random.Random(count)
    ends = [state for state, share in ENDS.items() for _ in range(share)]
    telemetry = root / "made-once"
    shutil.copytree(GOLDEN / "golden-22222", telemetry)
    shutil.rmtree(telemetry / "telemetry")
    write_node(telemetry, gpus=gpus, seconds=seconds)
    ids = []
    for i in range(count):
        begin = newest - 600.0 * i
        state = chance.choice(ends)
        run_id = f"{NAMES[i % len(NAMES)]}-{i:05d}"
        folder = root / "runs" / run_id
        shutil.copytree(telemetry, folder)
        job = json.loads((folder / "job.json").read_text().replace("golden-22222", run_id))
        job["submitted"] = begin
        spec = job["spec"]
        spec["name"] = NAMES[i % len(NAMES)]
        spec["params"] = {"lr": round(chance.uniform(0.001, 0.1), 4), "epochs": chance.randint(1, 50)}
        (folder / "job.json").write_text(json.dumps(job))
        status = json.loads((folder / "state.json").read_text().replace("golden-22222", run_id))
        shift = begin - status["phases"][0]["start"]
        for phase in status["phases"]:
            phase["start"], phase["end"] = phase["start"] + shift, phase["end"] + shift
        status["state"], status["changed"] = state, status["changed"] + shift
        status["reason"] = "canceled" if state == "canceled" else "exit"
        status["exit_code"] = {"completed": 0, "failed": 1}.get(state)
        (folder / "state.json").write_text(json.dumps(status))
        ids.append(run_id)
    shutil.rmtree(telemetry)
    return ids
