"""Steps of pipelines and trials of sweeps and AutoML jobs as rows of their run, on the emulated Azure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.errors import CommandError, RunFailed
from tests.azure import yaml_files
from tests.azure.conftest import Azure
from tests.azure.connected_api import lab, log, submit
from tests.helpers import DEADLINE, until

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def api(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with lab(azure, tmp_path_factory.mktemp("children")) as module:
        yield module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return yaml_files.write(tmp_path, "scored", "pipeline", "failing_pipeline", "automl")


def test_sweep_trials_have_metric_and_best(api: Any, azure: Azure, folder: Path) -> None:
    run = submit(f"{folder}/scored.yml --target cpu").wait(DEADLINE)
    children = run.children()
    assert [(one.kind, one.state, one.metric, one.value, one.best) for one in children] == [
        ("trial", "completed", "loss", 0.5, False),
        ("trial", "completed", "loss", 0.125, True),
        ("trial", "completed", "loss", 0.25, False),
    ]
    for number, one in enumerate(children):
        assert one.id == one.name == f"{run.run_id}_{number}"
        assert one.url.startswith(f"https://ml.azure.com/runs/{one.id}?wsid=")
        assert one.seconds is not None and one.created <= one.started <= one.ended
    record = run.record()
    assert record.children == () and record.sweep.value == (0.5, 0.125, 0.25) and record.sweep.best == 1
    assert record.sweep.params["word"] == tuple(one.params["word"] for one in children)
    assert run.logs(step=children[2].id) == "scored 0.25\n"


@pytest.mark.parametrize("target", ["cpu", "free"])
def test_pipeline_steps_have_own_logs(api: Any, folder: Path, target: str) -> None:
    run = submit(f"{folder}/pipeline.yml --target {target} --param word=there").wait(DEADLINE)
    assert run.handle in [one.handle for one in api.runs()]
    lines = log(run).splitlines()
    assert "2 steps." in lines  # a file of the job; our own notes on the steps may come first
    assert [line.split()[2] for line in lines if line.endswith("Completed ---")] == ["writes", "reads"]
    assert [(one.name, one.kind, one.state, one.metric) for one in run.children()] == [
        ("writes", "step", "completed", ""),
        ("reads", "step", "completed", ""),
    ]
    assert run.logs(step="reads") == "there\n" and run.logs(step="writes") == ""
    assert run.logs(step=run.child("rea").id) == "there\n"
    with pytest.raises(CommandError, match="writes, reads"):
        run.logs(step="nobody")


def test_step_log_is_followed_in_terminal(api: Any, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from jupyter_amltrain import cli
    from jupyter_amltrain.commands import run_log

    talks = "for i in 1 2 3; do echo line $i; sleep 0.2; done; grep -x"
    (folder / "talks.yml").write_text(yaml_files.PIPELINE.replace("grep -x", talks))
    run = submit(f"{folder}/talks.yml --target cpu")
    until(lambda: [one.name for one in run.children()] == ["writes", "reads"], "the second step")
    lines: list[str] = []
    run_log.follow_child(run, "reads", lines.append)
    assert "".join(lines) == "line 1\nline 2\nline 3\nhello\n"
    run.wait(DEADLINE)
    assert cli.main(["runs", "logs", run.handle, "--step", "reads", "--tail", "2"]) == 0
    assert capsys.readouterr().out.rstrip("\n") == "line 3\nhello"
    assert cli.main(["runs", "logs", run.handle, "--step", "nobody"]) != 0
    assert "writes, reads" in capsys.readouterr().err


def test_failed_step_has_cause(api: Any, folder: Path) -> None:
    run = submit(f"{folder}/failing_pipeline.yml --target cpu")
    with pytest.raises(RunFailed, match="/wrong"):
        run.wait(DEADLINE)
    text = log(run)
    assert re.search(r"amltrain: --- wrong \(.*\): .*Failed, .*status code 3", text)
    assert "[stderrlogs.txt] Step wrong" in text
    (wrong,) = run.children()
    assert (wrong.name, wrong.state) == ("wrong", "failed") and "3" in wrong.detail
    assert run.logs(step="wrong") == "about to fail\n"


def test_automl_best_trial_follows_service_tag(api: Any, folder: Path) -> None:
    run = submit(f"{folder}/automl.yml --target cpu").wait(DEADLINE)
    (trial,) = run.children()
    assert (trial.metric, trial.value, trial.best) == ("accuracy", 0.9, True)
    assert [value for _, _, value in run.metrics()["accuracy"]] == [0.9]
    assert log(run).endswith("Completed ---\n")


def test_children_of_live_run_are_rows(api: Any, folder: Path) -> None:
    """A live run's row in the panel and its record have them before its end."""
    text = yaml_files.PIPELINE.replace("grep -x", "sleep 600; grep -x")
    (folder / "slow.yml").write_text(text)
    run = submit(f"{folder}/slow.yml --target cpu")

    def reads_runs() -> bool:
        return [(one.name, one.state) for one in run.children()] == [("writes", "completed"), ("reads", "running")]

    until(reads_runs, "the second step to run")
    assert run.children()[1].seconds is None and not run.status.state.terminal
    run.cancel()
    until(lambda: run.status.state.terminal, "its end")


def test_other_kernel_finds_children_of_ended_run(api: Any, azure: Azure, folder: Path) -> None:
    from jupyter_amltrain.azure import mirror_store
    from jupyter_amltrain.frontend.log_handlers import GetLog, LogHandlers
    from jupyter_amltrain.kernel.run_row import row_of
    from jupyter_amltrain.kernel.session import controller

    run = submit(f"{folder}/pipeline.yml --target cpu --param word=there").wait(DEADLINE)
    steps = run.children()
    mirror = Path(run.run.folder)
    (mirror / mirror_store.CHILDREN).unlink()  # as an earlier version has left it
    api.close()
    found = api.attach(run.handle)
    assert found.children() == steps
    c = controller()
    row = row_of(c.loop.call(_entry(c, run.handle)))
    assert row.children == tuple(steps)
    log = LogHandlers(c)
    reply = c.loop.call(log.read(GetLog(handle=run.handle, child=steps[1].id)))
    assert (reply.text, reply.ended) == ("there\n", True)
    reply = c.loop.call(log.read(GetLog(handle=run.handle, child=steps[1].id, screen="tab")))
    assert (reply.lines, reply.fresh, reply.marks) == (("there", ""), True, ((1, 6),))
    reply = c.loop.call(log.read(GetLog(handle=run.handle, child=steps[1].id, limit=6, earlier=9)))
    assert reply.lines == ("there",)
    with pytest.raises(CommandError, match="no step"):
        c.loop.call(log.read(GetLog(handle=run.handle, child="../../secret")))
    assert json.loads((mirror / mirror_store.CHILDREN).read_text())["hidden"] == 0


async def _entry(c: Any, handle: str) -> Any:
    return c.entry(handle)
