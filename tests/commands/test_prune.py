from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.commands.prune import PruneRules, select
from jupyter_amltrain.commands.registry import Context, run
from jupyter_amltrain.errors import CommandError, ConfirmationNeeded
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import DAMAGED, Run, RunState, RunStatus, make_handle

from ..helpers import DEADLINE, api_of, until

DAY = 86400.0
NOW = 100 * DAY


def ended(target: str, days: float, state: RunState = RunState.COMPLETED, **more: Any) -> Run:
    status = RunStatus(state=state, reason=more.pop("reason", None))
    spec = JobSpec(name="a")
    return Run(handle=make_handle(target, f"a-{days:g}"), spec=spec, status=status, created=NOW - days * DAY, **more)


RUNS = [
    ended("local", 1),
    ended("local", 5, RunState.FAILED),
    ended("gpu", 8),
    ended("local", 40),
    ended("local", 50, RunState.RUNNING),
    ended("local", 60, RunState.LOST, reason=DAMAGED),
    ended("local", 70, RunState.CANCELED),
    ended("gpu", 80, reachable=False),
    ended("cloud", 90),
]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (PruneRules(older=30 * DAY), ["local/a-70", "local/a-40"]),
        (PruneRules(older=30 * DAY, keep_last=3), ["local/a-70"]),
        (PruneRules(keep_last=1), ["local/a-70", "local/a-40", "local/a-5"]),
        (PruneRules(states=("failed",)), ["local/a-5"]),
        (PruneRules(states=("failed", "canceled"), older=6 * DAY), ["local/a-70"]),
        (PruneRules(older=30 * DAY, target="cloud"), ["cloud/a-90", "local/a-70", "local/a-40"]),
        (PruneRules(older=200 * DAY), []),
    ],
)
def test_rules_select_ended_runs(rules: PruneRules, expected: list[str]) -> None:
    found = select(RUNS, rules, NOW, lambda target: target != "cloud")
    assert [run.handle for run in found] == expected


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with api_of(tmp_path_factory.mktemp("prune")) as api:
        yield api


def prune(*words: str) -> Any:
    return run("runs", ["prune", *words], Context(prog="%aml_runs"))


@pytest.mark.thorough
def test_prune_lists_sizes_first_and_keeps_registered_and_living_runs(api: Any) -> None:
    model = "import os\nopen(os.environ['AML_OUTPUT_DIR'] + '/model.pkl', 'wb').write(bytes(5000))\n"
    kept = api.submit(model, gpus=0, name="kept").wait(DEADLINE)
    until(lambda: kept.run.tracking == "imported")
    api.register_model("prunes", run=kept.handle)
    living = api.submit("import time\ntime.sleep(600)\n", gpus=0, name="living")
    logged = api.submit("import mlflow\nmlflow.log_metric('a', 1)\n" + model, gpus=0, name="old").wait(DEADLINE)
    failed = api.submit("1 / 0", gpus=0, name="bad")
    until(lambda: failed.state == "failed")
    try:
        with pytest.raises(ConfirmationNeeded) as caught:
            prune("--older", "0.001")
        rows = {row["handle"]: row for row in caught.value.details["runs"]}
        assert rows.keys() == {logged.handle, failed.handle} and rows[logged.handle]["bytes"] > 5000
        assert caught.value.code == "confirm.prune" and "--older 0.001s --yes" in caught.value.hint
        assert prune("--state", "failed", "--yes").data["deleted"] == [failed.handle]
        folder, store = Path(logged.run.folder), Path(logged.run.project, ".amltrain", "mlflow.db")
        tracking = logged.run.tracking_id
        result = prune("--older", "0.001", "--yes")
        assert result.data["deleted"] == [logged.handle] and result.data["bytes"] > 5000 and not folder.exists()
        import mlflow

        assert mlflow.MlflowClient(f"sqlite:///{store}").get_run(tracking).data.metrics["a"] == 1.0
        assert {one.handle for one in api.runs()} == {kept.handle, living.handle}
        assert prune("--older", "0.001", "--yes").data["deleted"] == []
    finally:
        living.cancel()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], "prune.no_rule"),
        (["--state", "running"], "flag.value"),
        (["--older", "old"], ""),
        (["--keep-last", "-1"], ""),
    ],
)
def test_prune_with_wrong_line_deletes_nothing(api: Any, words: list[str], code: str) -> None:
    with pytest.raises(CommandError) as caught:
        prune(*words)
    assert "\n" not in str(caught.value) and (not code or caught.value.code == code)
