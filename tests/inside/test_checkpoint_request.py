"""``runs save``: a script that is asked for a checkpoint saves one between two steps."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.asking import checkpoint_request, kinds
from jupyter_amltrain.agent.asking.asked_run import AskedRun
from jupyter_amltrain.agent.protocol import ASKS, CHECKPOINTS_VARIABLE, SAVE_REQUEST, AgentError
from jupyter_amltrain.inside.run_questions import CheckpointAnswer, checkpoint_text


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for name in (ASKS, "checkpoints"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoints" / "old.pt").write_text("1")
    return tmp_path


class Script(threading.Thread):
    """Saves when it is asked to."""

    def __init__(self, place: Path, name: str) -> None:
        super().__init__(daemon=True)
        self.place, self.saved = place, name
        self.start()

    def run(self) -> None:
        end = time.monotonic() + 30
        while not (self.place / SAVE_REQUEST).exists() and time.monotonic() < end:
            time.sleep(0.01)
        (self.place / f"{self.saved}.part").write_text("2")
        (self.place / f"{self.saved}.part").replace(self.place / self.saved)
        (self.place / SAVE_REQUEST).unlink()


def save(run: Path, job: dict[str, Any]) -> dict[str, Any]:
    return kinds.answer(AskedRun(str(run), job, list), {"kind": "save"})


@pytest.mark.parametrize("name", ["new.pt", "old.pt"])
def test_checkpoint_that_the_script_saves_is_named(run: Path, name: str) -> None:
    Script(run / "checkpoints", name)
    answer = save(run, {})
    assert answer["is_saved"] and answer["name"] == name and answer["folder"] == str(run / "checkpoints")


def test_folder_of_the_job_itself_is_used(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    Script(other, "a.pt")
    assert save(run, {"env": {CHECKPOINTS_VARIABLE: str(other)}})["name"] == "a.pt"


def test_script_that_does_not_look_leaves_the_request(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_request, "WAIT_S", 0.1)
    answer = save(run, {})
    assert not answer["is_saved"] and answer["name"] == "old.pt" and answer["time"] > 0
    assert (run / "checkpoints" / SAVE_REQUEST).exists()


@pytest.mark.parametrize("missing", ["checkpoints", ASKS])
def test_run_that_cannot_be_asked_is_refused(run: Path, missing: str) -> None:
    for path in (run / missing).iterdir():
        path.unlink()
    (run / missing).rmdir()
    with pytest.raises(AgentError):
        save(run, {})


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (CheckpointAnswer(True, "/c", "a.pt", 5.0), ["Saved", "/c/a.pt"]),
        (CheckpointAnswer(True, "/c", "", 0.0), ["empty"]),
        (CheckpointAnswer(False, "/c", "a.pt", 5.0), ["save-now", "5.0 s", "/c/a.pt"]),
        (CheckpointAnswer(False, "/c", "", 0.0), ["save-now"]),
    ],
)
def test_sentence_says_where_the_checkpoint_is(answer: CheckpointAnswer, words: list[str]) -> None:
    text = checkpoint_text(answer, 10.0)
    assert all(word in text for word in words)
