"""A script that logs a metric which is not a number ends there, if it was submitted with ``--stop-on-nan``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.failures import nan_hook
from jupyter_amltrain.errors import RunFailed
from tests.agent.test_failure_hook import named, run
from tests.helpers import api_of

#: Has the calls of MLflow's client, and prints what is logged.
CLIENT = """
class Metric:
    def __init__(self, key, value, step):
        self.key, self.value, self.step = key, value, step
class MlflowClient:
    def log_metric(self, run_id, key, value, timestamp=None, step=None):
        print("logged", key)
    def log_batch(self, run_id, metrics=(), params=(), tags=(), synchronous=None):
        print("logged", *[one.key for one in metrics])
"""
SCRIPT = """
from mlflow.tracking.client import Metric, MlflowClient
client = MlflowClient()
def train(rate):
    loss = float("nan") if rate > 1 else 0.5
    try:
        {call}
    except Exception:
        pass
for rate in (0.1, 2.0):
    train(rate)
print("end")
"""
ONE = "client.log_metric('r', 'loss', loss, 1, step=7)"


def run_script(folder: Path, call: str, name: str) -> tuple[Any, dict[str, Any]]:
    (folder / "mlflow" / "tracking").mkdir(parents=True)
    for path, text in (("__init__.py", ""), ("tracking/__init__.py", ""), ("tracking/client.py", CLIENT)):
        (folder / "mlflow" / path).write_text(text)
    return run(folder, SCRIPT.format(call=call), **({nan_hook.VARIABLE: name} if name else {}))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "call",
    [
        ONE,
        "client.log_metric(run_id='r', key='loss', value=loss, step=7)",
        "client.log_batch('r', [Metric('other', 1.0, 7), Metric('loss', loss, 7)])",
        "client.log_batch('r', metrics=(Metric('loss', loss, 7),), synchronous=False)",
    ],
)
@pytest.mark.parametrize("name", ["loss", "*"])
def test_script_ends_where_the_metric_is_nan(tmp_path: Path, call: str, name: str) -> None:
    done, kept = run_script(tmp_path, call, name)
    assert done.returncode == 1 and "end" not in done.stdout and done.stdout.count("loss") == 2
    assert done.stderr.splitlines()[-1] == "MetricIsNaN: loss is NaN at step 7 (--stop-on-nan)"
    error = kept["rank-0"]["errors"][0]
    frame = next(one for one in error["frames"] if one["function"] == "train")
    assert error["type"] == "MetricIsNaN" and frame["code"] == call and named(kept["rank-0"])["loss"] == "nan"


@pytest.mark.parametrize("name", ["", "0", "accuracy"])
def test_other_metric_may_be_nan(tmp_path: Path, name: str) -> None:
    done, kept = run_script(tmp_path, ONE, name)
    assert done.returncode == 0 and done.stdout.endswith("end\n") and not kept


@pytest.mark.parametrize("value", ["1.0", "float('inf')", "None", "'text'"])
def test_other_values_end_nothing(tmp_path: Path, value: str) -> None:
    done, _ = run_script(tmp_path, ONE.replace("loss,", f"{value},"), "*")
    assert done.returncode == 0, done.stderr


def test_metric_of_another_thread_ends_the_main_thread(tmp_path: Path) -> None:
    call = f"import threading, time; threading.Thread(target=lambda: {ONE}).start(); time.sleep(0.2)"
    done, kept = run_script(tmp_path, call, "loss")
    assert done.returncode == 1 and "loss is NaN at step 7" in done.stderr.splitlines()[-1] and kept


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with api_of(tmp_path_factory.mktemp("nan")) as module:
        yield module


@pytest.mark.thorough
def test_run_whose_loss_becomes_nan_fails_in_its_line(api: Any) -> None:
    code = "import mlflow\nscale = 1.0\nfor step in range(9):\n    scale *= 1e200\n    loss = scale - scale\n"
    code += "    mlflow.log_metrics({'loss': loss, 'ok': 1}, step=step)\n"
    run = api.submit(code, stop_on_nan="loss", name="n")
    with pytest.raises(RunFailed) as raised:
        run.wait(120)
    assert "loss is NaN at step 1" in str(raised.value) and raised.value.cell_line == 6
    values = {value.name: value.text for frame in raised.value.frames for value in frame.values}
    assert values["loss"] == "nan" and run.metrics()["loss"][-1][0] == 1
