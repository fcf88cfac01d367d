"""A note says where a script sends MLflow's calls, and whether its record has them, too."""

from __future__ import annotations

import pytest

from jupyter_amltrain.jobs.tracking_uri import elsewhere_note
from jupyter_amltrain.schema.job import JobSpec


def note_of(script: str, follows: bool = True, **fields: object) -> str:
    spec = {"name": "a", "script": script, "cell": script, "project": "/p", "notebook_dir": "/p", **fields}
    return elsewhere_note(JobSpec(**spec), follows)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("mlflow.set_tracking_uri('sqlite:///mine.db')", "sqlite:///mine.db"),
        ("mlflow.set_tracking_uri(uri='http://team:5000')", "http://team:5000"),
        ("set_tracking_uri(SERVER)", "SERVER"),
        ("os.environ['MLFLOW_TRACKING_URI'] = 'file:/tmp/runs'", "file:/tmp/runs"),
    ],
)
def test_other_store_is_named_with_its_line(line: str, shown: str) -> None:
    note = note_of(f"import mlflow, os\n\n{line}\nmlflow.log_metric('a', 1)\n")
    assert shown in note and "Line 3" in note and "also in this run's output" in note


@pytest.mark.parametrize(
    ("uri", "fields"),
    [
        ("databricks://prod", {}),
        ("sqlite:///mine.db", {"env": {"AMLTRAIN_FOLLOW": "0"}}),
        ("sqlite:///mine.db", {"follows": False}),
    ],
    ids=["scheme", "variable", "target"],
)
def test_other_store_that_is_not_followed_is_named_so(uri: str, fields: dict[str, object]) -> None:
    assert "is not in this run's output" in note_of(f"mlflow.set_tracking_uri({uri!r})\n", **fields)


@pytest.mark.parametrize(
    "script",
    [
        "import mlflow\nmlflow.log_metric('a', 1)\n",
        "mlflow.set_tracking_uri(os.environ['MLFLOW_TRACKING_URI'])\n",
        "mlflow.set_tracking_uri(mlflow.get_tracking_uri())\n",
        "print('set_tracking_uri')\n",
        "def (\nset_tracking_uri('x')\n",
    ],
)
def test_own_store_has_no_note(script: str) -> None:
    assert note_of(script) == ""


def test_direct_tracking_has_no_note() -> None:
    assert note_of("mlflow.set_tracking_uri('http://team')\n", tracking="direct") == ""


def test_password_in_address_is_not_shown() -> None:
    note = note_of("mlflow.set_tracking_uri('https://anna:hunter2@team/x')\n")
    assert "https://team/x" in note and "hunter2" not in note and "anna" not in note
