"""The follower beside MLflow's calls, on a real journal: nothing twice, nothing lost after a restart."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent import sink_notes
from jupyter_amltrain.agent.mlflow.sink_state import Recorder
from jupyter_amltrain.agent.protocol import TRACKER_NOTES
from jupyter_amltrain.agent.trackers.follower import SOURCES_TAG, FollowedJob, MetricFollower
from jupyter_amltrain.agent.trackers.tracker_files import TrackerFiles
from tests.helpers import until

RUN = "0" * 32


class Run:
    """One run folder."""

    def __init__(self, folder: Path, *patterns: str, has_autolog: bool = False) -> None:
        self.folder, self.patterns, self.has_autolog = folder, patterns, has_autolog
        (folder / "log").mkdir(parents=True, exist_ok=True)
        (folder / "metrics").mkdir(exist_ok=True)
        self.log = folder / "log" / "rank-0.txt"
        self.recorder = self.open()

    def open(self) -> Recorder:
        return Recorder(
            journal=str(self.folder / "metrics" / "rank-0.jsonl"), artifacts=str(self.folder / "artifacts"), run_id=RUN,
            run_name="a", experiment_name="e", on_note=lambda text: None,
        )  # fmt: skip

    def print(self, text: str) -> None:
        with self.log.open("a") as file:
            file.write(text)

    def wrote(self, path: Path, python: str = "python", search: str = "") -> None:
        """Note a file as the hook does."""
        with (self.folder / TRACKER_NOTES).open("a") as file:
            file.write(json.dumps({"path": str(path), "python": python, "search": [search]}) + "\n")

    def mlflow(self, name: str, value: float, step: int) -> None:
        body = {"run_id": RUN, "key": name, "value": value, "step": step, "timestamp": 1}
        self.recorder.change("runs/log-metric", body, {})

    def follow(self) -> None:
        job = FollowedJob(str(self.folder), str(self.log), self.patterns, self.has_autolog, is_contained=False)
        MetricFollower(self.recorder, job).finish()

    def points(self, name: str) -> list[tuple[int, float]]:
        return [(point["step"], float(point["value"])) for point in self.recorder.journal.history(RUN, name)]

    @property
    def notes(self) -> list[str]:
        """The notes of the run."""
        state: dict[str, Any] = {}
        sink_notes.SinkNotes(str(self.folder)).take(state)
        return list(state.get("notes", []))

    @property
    def names(self) -> set[str]:
        return set(self.recorder.state.runs[RUN].metrics)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_printed_lines_are_recorded_with_their_source(folder: Path) -> None:
    run = Run(folder, "loss=loss {value} at {step}", "acc=acc {value}")
    run.print("loss 0.5 at 10\nacc 1\nacc 2\r\nloss 0.25 at 20\nloss 0.1 at 3")
    run.follow()
    assert run.points("loss") == [(10, 0.5), (20, 0.25), (3, 0.1)]
    assert run.points("acc") == [(0, 1.0), (1, 2.0)]
    assert run.recorder.state.runs[RUN].tags[SOURCES_TAG] == "printed lines"
    assert run.notes == []


def test_restarted_sink_continues_after_last_recorded_line(folder: Path) -> None:
    run = Run(folder, "loss=loss {value}")
    run.print("".join(f"loss {number}\n" for number in range(2500)))
    run.follow()
    run.recorder.journal.close()
    lines = (folder / "metrics" / "rank-0.jsonl").read_text().splitlines(True)
    kept = [line for line in lines if "log-batch" not in line] + [line for line in lines if "log-batch" in line][:1]
    (folder / "metrics" / "rank-0.jsonl").write_text("".join(sorted(kept, key=lambda line: json.loads(line)["seq"])))
    again = Run(folder, "loss=loss {value}")
    again.print("loss 2500\n")
    again.follow()
    assert again.points("loss") == [(number, float(number)) for number in range(2501)]


@pytest.mark.parametrize("call", ["metric", "param", "join"])
def test_program_that_logs_to_mlflow_has_no_points_of_known_lines(folder: Path, call: str) -> None:
    run = Run(folder, "own=rmse {value}")
    if call == "metric":
        run.mlflow("rmse", 0.5, 0)
    elif call == "param":
        run.recorder.change("runs/log-parameter", {"run_id": RUN, "key": "a", "value": "1"}, {})
    else:
        run.recorder.change("runs/update", {"run_id": RUN, "status": "RUNNING"}, {"joined": ["script", ""]})
    run.print("[0]\ttrain-rmse:0.5\nrmse 3\n")
    run.follow()
    assert run.names == ({"rmse"} if call == "metric" else set()) | {"own"}


def test_autolog_leaves_known_lines_to_mlflow(folder: Path) -> None:
    run = Run(folder, has_autolog=True)
    run.print("[0]\ttrain-rmse:0.5\n")
    run.follow()
    assert run.names == set()


def test_csv_and_state_of_trainer_give_each_value_once(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "metrics.csv"
    table.write_text("epoch,step,train_loss,val_loss\n0,10,0.5,\n0,10,,0.75\n1,20,0.25,\n")
    state = tmp_path / "checkpoint-20" / "trainer_state.json"
    state.parent.mkdir()
    rows: list[dict[str, Any]] = [{"step": 10, "loss": 0.5, "epoch": 0.5}, {"step": 20, "eval_loss": 0.875}]
    state.write_text(json.dumps({"log_history": rows}))
    run = Run(folder)
    run.print("{'loss': 0.5, 'epoch': 0.5}\n")
    run.wrote(table)
    run.wrote(state)
    run.follow()
    assert run.names == {"train_loss", "val_loss", "eval_loss"}  # the loss of the Trainer is that of the table
    assert run.points("train_loss") == [(10, 0.5), (20, 0.25)]
    assert run.points("val_loss") == [(10, 0.75)]


def test_files_beside_mlflow_add_what_mlflow_does_not_have(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "metrics.csv"
    table.write_text("step,train_loss,lr\n1,0.5,0.125\n2,0.25,0.0625\n")
    run = Run(folder)
    run.mlflow("loss", 0.5, 1)
    run.mlflow("loss", 0.25, 2)
    run.wrote(table)
    run.follow()
    assert run.names == {"loss", "lr"}
    assert run.points("loss") == [(1, 0.5), (2, 0.25)]


def test_file_that_the_script_logs_as_artifact_is_read_once(folder: Path, tmp_path: Path) -> None:
    copy = folder / "artifacts" / "runs" / RUN / "artifacts" / "logs" / "metrics.csv"
    copy.parent.mkdir(parents=True)
    run = Run(folder)
    for path in (tmp_path / "metrics.csv", copy):
        path.write_text("step,loss\n1,0.5\n2,0.5\n")
        run.wrote(path)
    run.follow()
    assert run.points("loss") == [(1, 0.5), (2, 0.5)]


def test_names_that_mlflow_does_not_take_are_changed(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "metrics.csv"
    table.write_text("step,acc@5,../x\n1,0.5,2\n")
    run = Run(folder)
    run.wrote(table)
    run.follow()
    assert run.names == {"acc_5", "x"}


def test_run_without_metric_proposes_a_pattern(folder: Path) -> None:
    run = Run(folder)
    run.print("".join(f"Loss: {1 / number:.4f} after {number} batches\n" for number in range(1, 9)))
    run.follow()
    (note,) = run.notes
    assert "--metric 'loss=Loss: {value} after {step} batches'" in note


def event_files(run: Run, folder: Path, python: str, code: str) -> list[Path]:
    """Two files of events, of a Python whose package ``tensorboard`` is this code."""
    package = folder / "search" / "tensorboard"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(code)
    paths = [folder / f"events.out.tfevents.{number}" for number in (1, 2)]
    for path in paths:
        path.write_bytes(b"")
        run.wrote(path, python, str(package.parent))
    return paths


def test_absent_package_of_a_tracker_is_noted_once_with_what_to_do(folder: Path, tmp_path: Path) -> None:
    run = Run(folder)
    event_files(run, tmp_path, sys.executable, "raise ModuleNotFoundError(name='tensorboard')")
    run.follow()
    run.follow()  # a sink that was killed and started again
    assert run.notes == [
        "TensorBoard's files of this run were not read: the job's Python has no package tensorboard."
        " Install it there: pip install tensorboard"
    ]


def test_file_that_the_package_cannot_read_is_noted_with_the_reason(folder: Path, tmp_path: Path) -> None:
    run = Run(folder)
    path, _ = event_files(run, tmp_path, sys.executable, "raise ValueError('bad magic')")
    run.follow()
    (note,) = run.notes
    assert note.startswith("A file of TensorBoard was not read") and f"{path} (ValueError: bad magic)" in note


@pytest.mark.parametrize("python", ["", "/absent/python"], ids=["reader ends", "no such Python"])
def test_reader_that_cannot_run_is_noted_and_lines_are_still_read(folder: Path, tmp_path: Path, python: str) -> None:
    run = Run(folder, "loss=loss {value}")
    event_files(run, tmp_path, python or sys.executable, "import os; os._exit(3)")
    run.print("loss 1\n")
    run.follow()
    assert run.points("loss") == [(0, 1.0)]
    (note,) = run.notes
    assert note.startswith("TensorBoard's files of this run were not read: the reader in ")


def test_reader_that_ends_each_time_is_left_alone(tmp_path: Path) -> None:
    run, notes = Run(tmp_path / "run"), list[str]()
    event_files(run, tmp_path, "/bin/false", "")
    files = TrackerFiles(str(run.folder), False, notes.append)
    until(lambda: list(files.read({}, None)) or notes)
    assert "it ended 5 times" in notes[0]
    assert not list(files.read({}, None)) and len(notes) == 1


def test_log_that_the_job_has_shortened_is_read_from_its_beginning(folder: Path) -> None:
    run = Run(folder, "loss=loss {value}")
    run.print("loss 1\nloss 2\n")
    run.follow()
    run.log.write_text("loss 3\n")
    run.follow()
    assert run.points("loss") == [(0, 1.0), (1, 2.0), (2, 3.0)]


def test_files_that_are_none_change_nothing(folder: Path, tmp_path: Path) -> None:
    run = Run(folder, "loss=loss {value}", "bad pattern")
    (tmp_path / "metrics.csv").mkdir()
    (tmp_path / "trainer_state.json").write_text("[" * 2000)
    for path in (tmp_path / "metrics.csv", tmp_path / "trainer_state.json", tmp_path / "absent" / "metrics.csv"):
        run.wrote(path)
    with (folder / TRACKER_NOTES).open("ab") as file:
        file.write(b'\xff\xfe{}\n[]\n{"path": 3}\n\n')
    run.print("loss 1\n")
    run.log.open("ab").write(b"\xff\xfe" * 3000 + b"\0\n")
    run.follow()
    assert run.points("loss") == [(0, 1.0)]
