"""``runs send``: what it says of each run, and of runs that are not for a server."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_amltrain import api
from jupyter_amltrain.commands.send import SEND, send
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.kernel import session
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunHandle, RunState, RunStatus
from jupyter_amltrain.tracking import team_ledger

TEAM = "https://team"


class Team:
    """A queue whose server answers at once; `answers` by id of the run."""

    def __init__(self, answers: dict[str, dict[str, Any]]) -> None:
        self.answers = answers

    def send(self, project: str, run_ids: list[str]) -> dict[str, team_ledger.Entry]:
        return {run_id: {**team_ledger.entry_of(project, run_id), **self.answers[run_id]} for run_id in run_ids}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A project with a refused run ``a``, a waiting run ``b`` and a sent run ``c``, and the run ``d`` of none."""
    answers: dict[str, dict[str, Any]] = {
        "a": {"state": team_ledger.SENT, "experiment": "1", "there": "x"},
        "b": {"error": "https://team does not answer: no route"},
    }
    kernel = SimpleNamespace(team=Team(answers), loop=SimpleNamespace(call=lambda value, timeout: value))
    monkeypatch.setattr(session, "controller", lambda: kernel)
    monkeypatch.chdir(tmp_path)
    for number, (name, state) in enumerate([("a", "refused"), ("b", "waiting"), ("c", "sent")]):
        team_ledger.add(str(tmp_path), name, f"local/{name}", TEAM, float(number))
        team_ledger.update(str(tmp_path), name, state=state)
    return str(tmp_path)


def run_of(project: str, name: str, uri: str) -> Run:
    return Run(
        handle=RunHandle(f"local/{name}"),
        spec=JobSpec(name=name, tracking_uri=uri),
        status=RunStatus(state=RunState.RUNNING),
        created=1.0,
        project=project,
        tracking_id=name,
    )


def test_send_without_names_sends_what_the_server_does_not_have(project: str) -> None:
    result = SEND.run(SimpleNamespace(run=[]), SimpleNamespace())  # type: ignore[arg-type]
    assert result.text.splitlines() == [
        f"local/a is at {TEAM}/#/experiments/1/runs/x",
        "local/b waits, and is tried again while a kernel of this project runs: https://team does not answer: no route",
    ]
    assert result.exit_code == 1 and [row["state"] for row in result.data] == ["sent", "waiting"]


def test_send_in_a_folder_without_waiting_runs_says_so(project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (Path(project) / "other").mkdir()
    monkeypatch.chdir(Path(project) / "other")
    result = SEND.run(SimpleNamespace(run=[]), SimpleNamespace())  # type: ignore[arg-type]
    assert result.text == "No run of this folder waits for a team's server." and result.exit_code == 0


@pytest.mark.parametrize(("uri", "reason"), [("", "none was named"), (TEAM, "not recorded yet")])
def test_send_of_a_run_without_entry_is_refused_with_the_reason(
    project: str, monkeypatch: pytest.MonkeyPatch, uri: str, reason: str
) -> None:
    monkeypatch.setattr(api, "attach", lambda name: SimpleNamespace(run=run_of(project, name, uri)))
    with pytest.raises(CommandError, match=reason):
        send(["d"])
    assert [entry["handle"] for entry in send(["a"])] == ["local/a"]
