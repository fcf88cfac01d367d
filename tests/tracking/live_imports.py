"""Imports of a run while it lives; run as a process of its own, because MLflow is slow to load.

``python -m tests.tracking.live_imports <run folder> <work folder>`` prints JSON: what each case left in the store.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

from tests.agent.mlflow_jobs import RUN_ID, finish_folder
from tests.tracking.killed_imports import dump, files

#: What a live import leaves before the last line is whole.
STEP = 5


def tags(project: Path) -> dict[str, str]:
    with sqlite3.connect(project / ".amltrain/mlflow.db") as database:
        return dict(database.execute("SELECT key, value FROM tags WHERE run_uuid = ?", [RUN_ID]))


def row(project: Path) -> list[Any]:
    with sqlite3.connect(project / ".amltrain/mlflow.db") as database:
        return list(database.execute("SELECT status, end_time FROM runs WHERE run_uuid = ?", [RUN_ID]).fetchone())


class Cases:
    """The cases; each begins with an empty store and the run's folder without its journal."""

    def __init__(self, run: Path, work: Path) -> None:
        from jupyter_amltrain.tracking import importer, worker
        from jupyter_amltrain.tracking import live_import as live

        worker.warm()
        live.FILES_INTERVAL_S, live.FILES_SHARE = 0.0, 1e9  # pictures and artifacts with every import
        self.live, self.project, self.empty = live, work / "project", work / "empty"
        self.run, self.journal = work / "run", work / "run/metrics/rank-0.jsonl"
        self.whole = (run / "metrics/rank-0.jsonl").read_bytes()
        self.lines = self.whole.splitlines(keepends=True)
        nothing = work / "nothing"
        shutil.copytree(run, nothing, ignore=shutil.ignore_patterns("metrics", "artifacts"))
        importer.import_run(str(nothing), str(self.project))
        with sqlite3.connect(self.project / ".amltrain/mlflow.db") as database:
            for table in ("tags", "params", "runs"):
                database.execute(f"DELETE FROM {table}")
        database.close()
        self.project.rename(self.empty)
        self.source = run

    def begin(self, whole: bytes | None = None) -> None:
        for folder in (self.project, self.run):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.empty, self.project)
        shutil.copytree(self.source, self.run)
        self.live._living.clear()
        if whole is not None:
            self.lines = whole.splitlines(keepends=True)
            self.whole = whole
        self.journal.write_bytes(b"")
        finish_folder(self.run, "running")

    def grow(self, lines: int) -> dict[str, Any]:
        """The script has logged `lines` lines, and a part of the next one; then a live import."""
        torn = self.lines[lines][:9] if lines < len(self.lines) else b""
        self.journal.write_bytes(b"".join(self.lines[:lines]) + torn)
        reply: dict[str, Any] = self.live.record_live(str(self.run), str(self.project), handle="local/digits-k3f9")
        return reply

    def end(self) -> dict[str, Any]:
        from jupyter_amltrain.tracking import importer

        self.journal.write_bytes(self.whole)
        finish_folder(self.run, "failed")
        importer.import_run(str(self.run), str(self.project))
        return importer.import_run(str(self.run), str(self.project))

    def all(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        self.begin()
        self.end()
        want, want_files = dump(self.project), files(self.project)

        def compare(name: str) -> None:
            found = dump(self.project)
            out[name] = {
                "differing": [table for table in want if found.get(table) != want[table]],
                "files_equal": files(self.project) == want_files,
                "left": (self.run / "tracking-live.json").exists(),
            }

        counts = range(0, len(self.lines) + 1, STEP)
        self.begin()
        out["states"], out["rows"] = [], []
        for count in counts:
            out["states"].append(self.grow(count)["state"])
            if count:
                out["rows"].append(row(self.project))
        out["tracking"] = (self.run / "tracking.json").exists()
        self.end()
        out["ended"] = self.live.record_live(str(self.run), str(self.project), handle="x")["state"]
        compare("grown")

        self.begin()
        for count in counts:  # two kernels in turn: each has a position of its own
            self.grow(count)
            other, self.live._living = self.live._living, {}
            self.grow(min(count + 2, len(self.lines)))
            self.live._living = other
        self.end()
        compare("two")

        self.begin()
        for number, count in enumerate(counts):
            self.killed(count, ("import_before_commit", "import_after_commit", "import_before_end")[number % 3])
        self.end()
        compare("killed")

        self.begin()
        self.grow(10)
        with sqlite3.connect(self.project / ".amltrain/mlflow.db") as database:  # as `mlflow gc`
            for table in ("metrics", "latest_metrics", "params", "tags"):
                database.execute(f"DELETE FROM {table} WHERE run_uuid = ?", [RUN_ID])
            database.execute("DELETE FROM runs WHERE run_uuid = ?", [RUN_ID])
        self.grow(15)
        self.end()
        compare("purged")

        self.begin()
        self.grow(10)
        with sqlite3.connect(self.project / ".amltrain/mlflow.db") as database:  # written by an older version
            for name in ("cursor", "system"):
                sql = "UPDATE tags SET key = ? WHERE key = ?"
                database.execute(sql, [f"amltrain.{name}", f"mlflow.amltrain.{name}"])
        out["older"] = self.grow(12)["seq"]
        self.end()
        compare("old")

        shutil.rmtree(self.run)
        out["gone"] = self.live.record_live(str(self.run), str(self.project), handle="x")["state"]

        bad = b'{"seq": 9000, "t": 1, "op": "runs/update", "b": {"run_id": "%s", "status": "x"}}\n' % RUN_ID.encode()
        self.begin(self.whole + bad)
        self.grow(len(self.lines))
        result = self.end()
        out["rejects"], out["tags"] = [entry["seq"] for entry in result["rejects"]], tags(self.project)
        return out

    def killed(self, lines: int, failpoint: str) -> None:
        """A live import in a process that is killed."""
        if (pid := os.fork()) == 0:
            os.environ["AMLTRAIN_FAILPOINT"] = failpoint
            try:
                self.grow(lines)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    print(json.dumps(Cases(Path(sys.argv[1]), Path(sys.argv[2])).all()))
