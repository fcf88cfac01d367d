"""Imports of one run folder, killed at every failpoint; run as a process of its own.

``python -m tests.tracking.killed_imports <run folder> <work folder>``: MLflow is imported once, each import
is a fork, so that a kill is a kill. Prints JSON: what each place left behind.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

#: Times of the import itself; everything else must be equal.
VOLATILE = {
    "experiments": {"creation_time", "last_update_time"},
    "registered_models": {"creation_time", "last_updated_time"},
    "model_versions": {"creation_time", "last_updated_time"},
}
CHUNK = 7
POINTS = (
    "import_before_commit",
    "import_after_commit",
    "import_between_copies",
    "import_after_model",
    "import_new_store",
)


def forked(run: Path, project: Path, failpoint: str = "", chunk: int = CHUNK) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.environ["AMLTRAIN_FAILPOINT"] = failpoint
            from jupyter_amltrain.tracking import importer

            importer.import_run(str(run), str(project), chunk=chunk)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def dump(project: Path) -> dict[str, list[Any]]:
    """Every table of the store, without times of the import and the project's path."""
    with sqlite3.connect(project / ".amltrain/mlflow.db") as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        found = {}
        for table in tables:
            cursor = database.execute(f'SELECT * FROM "{table}"')
            names = [column[0] for column in cursor.description]
            kept = [i for i, name in enumerate(names) if name not in VOLATILE.get(table, set())]
            rows = [[row[i] for i in kept] for row in cursor]
            text = json.dumps(sorted(rows, key=repr), default=repr)
            found[table] = json.loads(text.replace(str(project), "<project>"))
    return found


def files(project: Path) -> dict[str, int]:
    root = project / ".amltrain/mlartifacts"
    return {str(p.relative_to(root)): p.stat().st_size for p in sorted(root.rglob("*")) if p.is_file()}


def main(run: Path, work: Path) -> dict[str, Any]:
    from jupyter_amltrain.tracking import worker

    worker.warm()
    project = work / "project"  # always the same path: it is part of what is stored
    nothing = work / "nothing"
    shutil.copytree(run, nothing, ignore=shutil.ignore_patterns("metrics", "artifacts"))
    forked(nothing, project)
    empty = work / "empty"  # so that each case need not run MLflow's migrations again
    with sqlite3.connect(project / ".amltrain/mlflow.db") as database:
        for table in ("tags", "params", "runs"):
            database.execute(f"DELETE FROM {table}")
    database.close()
    project.rename(empty)

    out: dict[str, Any] = {"clean": forked(run, project)}
    want, want_files = dump(project), files(project)
    out["rows"] = {table: len(rows) for table, rows in want.items() if rows}
    out["files"] = len(want_files)
    out["cases"] = {}
    for point in POINTS:
        shutil.rmtree(project)
        if point != "import_new_store":
            shutil.copytree(empty, project)
        times = 1 if point == "import_new_store" else 3  # each dies one chunk or file further
        codes = [forked(run, project, point) for _ in range(times)]
        final = forked(run, project)
        again = forked(run, project, chunk=5000)
        found = dump(project)
        out["cases"][point] = {
            "codes": codes,
            "final": [final, again],
            "differing": [table for table in want if found.get(table) != want[table]],
            "files_equal": files(project) == want_files,
            "left": [p.name for p in (project / ".amltrain").glob("mlflow.db.new*")],
        }
    shutil.rmtree(project)
    shutil.copytree(empty, project)
    out["one_chunk"] = forked(run, project, chunk=5000)
    out["one_chunk_equal"] = dump(project) == want
    out["result"] = json.loads((run / "tracking.json").read_text())
    return out


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
