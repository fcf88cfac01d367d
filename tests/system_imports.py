"""Imports of runs with telemetry; run as a process of its own, because MLflow is slow to load.

``python -m tests.system_imports <work folder>``: one store, a run for each case. Prints JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

from .agent.mlflow_jobs import finish_folder
from .telemetry_files import START, busy, idle, write_node

GOLDEN = Path(__file__).parent / "golden" / "schema-1"


class Case:
    """One run folder and what the store has of it."""

    def __init__(self, work: Path, number: int) -> None:
        self.project = work / "project"
        self.id = f"{number:032x}"
        self.folder = work / f"run-{number}"
        self.folder.mkdir()

    def imported(self, state: str = "completed", failpoint: str = "") -> Any:
        """Import in a fork; its result, or how it died."""
        finish_folder(self.folder, state, tracking={"run_id": self.id, "mode": "sink"})
        pid = os.fork()
        if pid == 0:
            os.environ["AMLTRAIN_FAILPOINT"] = failpoint
            with contextlib.suppress(BaseException):
                from jupyter_amltrain.tracking import importer

                importer.import_run(str(self.folder), str(self.project))
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return json.loads((self.folder / "tracking.json").read_text()) if code == 0 else code

    def rows(self) -> list[Any]:
        """Every point in the store, and MLflow's table of last points."""
        with contextlib.closing(sqlite3.connect(self.project / ".amltrain/mlflow.db")) as database:
            columns = "key, value, timestamp, step"
            return [
                database.execute(
                    f"SELECT {columns} FROM {table} WHERE run_uuid=? ORDER BY 1, 4, 3", [self.id]
                ).fetchall()
                for table in ("metrics", "latest_metrics")
            ]

    def journal(self, *batches: dict[str, float]) -> None:
        """Write a journal in which the script logs `batches`."""
        names = {"exp_id": "0", "exp_name": "numbers", "id": self.id, "name": "digits"}
        lines = [{"seq": 1, "op": "init", "t": 1_700_000_000_000, "b": {}, "a": names}]
        for step, batch in enumerate(batches):
            points = [{"key": k, "value": v, "timestamp": 1_700_000_001_000, "step": step} for k, v in batch.items()]
            body = {"run_id": self.id, "metrics": points}
            lines.append({"seq": step + 2, "op": "runs/log-batch", "t": 1_700_000_001_000, "b": body})
        (self.folder / "metrics").mkdir(exist_ok=True)
        (self.folder / "metrics/rank-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def short(case: Case) -> Any:
    write_node(case.folder, gpus=2, seconds=90, curve=lambda gpu, t: busy(gpu, t) if gpu else [None] * 6)
    return {"result": case.imported(), "again": case.imported()["system"], "rows": case.rows()}


def fast(case: Case) -> Any:
    write_node(case.folder, gpus=1, seconds=100, period=0.1)
    return {"result": case.imported(), "rows": case.rows()}


def long(case: Case) -> Any:
    out: dict[str, Any] = {}
    for name, seconds, state in (("young", 100, "running"), ("half", 470, "running"), ("more", 800, "running")):
        write_node(case.folder, gpus=2, seconds=seconds)
        out[name] = case.imported(state)["system"]
        out[name + " rows"] = case.rows()
    out["nothing new"] = case.imported("running")["system"]
    write_node(case.folder, gpus=2, seconds=930)
    out["killed"] = [case.imported(failpoint="import_before_end") for _ in range(2)]
    out["after kills"] = case.rows() == out["more rows"]
    out["ended"] = case.imported()["system"]
    out["again"] = case.imported()["system"]
    out["rows"] = case.rows()
    return out


def clean(case: Case) -> Any:
    write_node(case.folder, gpus=2, seconds=930)
    return {"ended": case.imported()["system"], "rows": case.rows()}


def nodes(case: Case) -> Any:
    write_node(case.folder, node=0, gpus=1, seconds=60)
    case.imported("running")  # before the other has written anything
    write_node(case.folder, node=1, gpus=1, seconds=60, curve=idle)
    return {"result": case.imported(), "rows": case.rows()}


def own(case: Case) -> Any:
    write_node(case.folder, gpus=1, seconds=90)
    case.journal({"loss": 1.0})
    before = case.imported("running")["system"]
    theirs = {"system/gpu_0_utilization_percentage": 12.0, "system/disk_usage_percentage": 3.0}
    case.journal({"loss": 1.0}, theirs)
    return {"before": before, "during": case.imported("running")["system"], "end": case.imported(), "rows": case.rows()}


def untagged(case: Case) -> Any:
    """Theirs were imported by a version that had no system metrics of its own."""
    case.journal({"system/gpu_0_utilization_percentage": 12.0})
    case.imported("running")
    with sqlite3.connect(case.project / ".amltrain/mlflow.db") as database:
        database.execute("DELETE FROM tags WHERE run_uuid=? AND key='mlflow.amltrain.system'", [case.id])
    database.close()
    write_node(case.folder, gpus=1, seconds=90, summary=False)
    case.imported()
    return {"rows": case.rows()}


def golden(case: Case) -> Any:
    shutil.copytree(GOLDEN / "golden-22222" / "telemetry", case.folder / "telemetry")
    return {"result": case.imported(), "rows": case.rows()}


def damaged(case: Case) -> Any:
    write_node(case.folder, gpus=1, seconds=400)
    place = case.folder / "telemetry"
    (place / "summary-0.json").write_text("{")
    whole = (place / "node-0.jsonl").read_bytes()
    (place / "node-0.jsonl").write_bytes(whole[:-10])  # torn last line
    with (place / "minutes-0.jsonl").open("a") as file:
        file.write("nonsense\n[1,2")
    return {"result": case.imported(), "rows": case.rows()}


def without(case: Case) -> Any:
    return {"result": case.imported(), "rows": case.rows()}


def main(work: Path) -> dict[str, Any]:
    from jupyter_amltrain.tracking import worker

    worker.warm()
    cases = (without, short, fast, long, clean, nodes, own, untagged, golden, damaged)
    return {case.__name__: case(Case(work, i)) for i, case in enumerate(cases, 1)} | {"start": START}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
