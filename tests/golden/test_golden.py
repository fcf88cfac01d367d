"""Run folders that earlier versions left: listed, read and imported; newer ones are refused."""

from __future__ import annotations

import json
import math
import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.errors import ProtocolError, ResultMissing, RunFailed

from ..helpers import DEADLINE, api_of, until

GOLDEN = Path(__file__).parent / "schema-1"
RUNS = ["broken-33333", "golden-22222"]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("golden")
    with api_of(folder) as module:
        runs = folder / "home" / "runs"
        runs.parent.mkdir(mode=0o700)
        shutil.copytree(GOLDEN, runs)
        for job in runs.glob("*/job.json"):  # the store of this test, not of that user
            text = job.read_text().replace('"project":"/home/user/project"', f'"project":"{folder / "work"}"')
            job.write_text(text)
        future = runs / "future-44444"
        future.mkdir()
        (future / "job.json").write_text('{"schema":99,"run":"future-44444"}')
        (future / "state.json").write_text('{"schema":99,"state":"completed"}')
        yield module


def test_golden_folders_contain_no_machine_paths() -> None:
    files = [path for path in GOLDEN.rglob("*") if path.is_file()]
    assert len(files) > 12
    paths = re.compile(r"(?<![\w.])/(?:\w[\w.-]*/)+[\w.-]*")
    for path in files:
        for found in paths.findall(path.read_text()):
            assert found.startswith(("/home/user/", "/usr/bin/python3")), (path, found)


def test_golden_runs_are_listed_without_newer_schema(api: Any) -> None:
    assert [run.run_id for run in api.runs()] == RUNS
    assert [run.state for run in api.runs()] == ["failed", "completed"]


def test_golden_completed_run_is_complete(api: Any) -> None:
    run = api.attach("golden")
    status = run.wait(DEADLINE).status
    assert (status.state.value, status.exit_code, status.reason) == ("completed", 0, "exit")
    assert [phase.name for phase in status.phases] == ["queued", "running", "finalizing"]
    assert run.logs() == "epoch 0\nepoch 1\nepoch 2\nepoch 3\n"
    assert [(step, value) for step, _, value in run.metrics()["loss"]] == [(0, 1.0), (1, 0.5), (2, 1 / 3), (3, 0.25)]
    telemetry = run.telemetry()
    assert list(telemetry["seq"]) == list(range(len(telemetry))) and len(telemetry) > 5
    assert (telemetry["time"].dt.year >= 2023).all()
    assert run.result("accuracy") == 0.97
    for name, why in (("thing", "not JSON: object"), ("never", "never set")):
        with pytest.raises(ResultMissing, match=why):
            run.result(name)
    assert run.spec.params == {"lr": 0.1} and run.spec.tags == {"team": "a"} and run.spec.env == {"A": "1"}
    record = run.record()
    assert record.done and record.experiment == "golden" and record.telemetry.cpus == 2


def test_golden_failed_run_names_cause(api: Any) -> None:
    run = api.attach("local/broken-33333")
    with pytest.raises(RunFailed, match="ValueError: no such digit .*line 6") as caught:
        run.wait(DEADLINE)
    assert caught.value.exit_code == 1 and "Traceback" in caught.value.log_tail
    ((step, _, value),) = run.metrics()["loss"]
    assert step == 0 and math.isnan(value)
    assert run.record().metrics["loss"].value == (None,)


def test_golden_runs_are_imported(api: Any) -> None:
    for run_id in RUNS:
        api.attach(run_id).record()
    until(lambda: all(api.attach(run_id).run.tracking == "imported" for run_id in RUNS))
    project = Path(api.attach("golden").run.project)
    with sqlite3.connect(project / ".amltrain" / "mlflow.db") as database:
        rows = dict(database.execute("SELECT name, status FROM runs"))
        points = database.execute(
            "SELECT step, value FROM metrics WHERE key='loss' AND is_nan=0 ORDER BY step"
        ).fetchall()
    database.close()
    assert rows == {"golden": "FINISHED", "broken": "FAILED"}
    assert points == [(0, 1.0), (1, 0.5), (2, 1 / 3), (3, 0.25)]
    assert len(list(project.glob(".amltrain/mlartifacts/**/facts.json"))) == 1


def test_golden_newer_schema_is_refused(api: Any) -> None:
    for text in ("local/future-44444", "future-44444"):
        with pytest.raises(ProtocolError) as caught:
            api.attach(text)
        message = str(caught.value)
        assert "schema 99, this one reads up to 1" in message and "pip install -U" in message
        assert "\n" not in message


def test_golden_newer_schema_error_is_same_in_magic(api: Any) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    from jupyter_amltrain import magics

    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "jupyter_amltrain")
    try:
        for text in ("local/future-44444", "future-44444"):
            error = shell.run_cell(f"%aml_runs show {text}").error_in_exec
            assert isinstance(error, ProtocolError), (text, error)
            assert len(error._render_traceback_()) == 1 and "schema 99" in error._render_traceback_()[0]
    finally:
        magics.unregister(shell)


def test_golden_delete_leaves_other_runs(api: Any) -> None:
    api.attach("broken").delete()
    assert [run.run_id for run in api.runs()] == ["golden-22222"]
    assert json.loads((Path(api.attach("golden").run.folder) / "job.json").read_text())["schema"] == 1
