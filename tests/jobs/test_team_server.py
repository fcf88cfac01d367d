from __future__ import annotations

import pytest

from jupyter_amltrain.jobs import team_server


@pytest.mark.parametrize("uri", ["", "https://mlflow.team", "http://127.0.0.1:5000/base", "https://mlflow.team:8443"])
def test_address_of_a_server_is_accepted(uri: str) -> None:
    assert team_server.error_of(uri) == ""


@pytest.mark.parametrize(
    "uri",
    ["mlflow.team", "ftp://mlflow.team", "sqlite:///x.db", "https://", "https://ada:secret@mlflow.team", "http://["],
)
def test_other_address_is_refused_without_showing_it(uri: str) -> None:
    error = team_server.error_of(uri)
    assert error and "secret" not in error


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"MLFLOW_TRACKING_URI": "https://mlflow.team"}, "https://mlflow.team"),
        ({"MLFLOW_TRACKING_URI": "sqlite:////x/mlflow.db"}, ""),
        ({"MLFLOW_TRACKING_URI": "azureml://eastus.api"}, ""),
        ({"MLFLOW_TRACKING_URI": "https://a:b@mlflow.team"}, ""),
        ({"MLFLOW_TRACKING_URI": "http://127.0.0.1:5000", "AMLTRAIN_RUN": "r:1"}, ""),  # the endpoint of a run
        ({}, ""),
    ],
)
def test_server_of_the_environment(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], found: str) -> None:
    for name in ("MLFLOW_TRACKING_URI", "AMLTRAIN_RUN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    uri, notes = team_server.of_environment()
    assert uri == found
    assert bool(notes) == ("@" in variables.get("MLFLOW_TRACKING_URI", ""))
    assert not any("secret" in note for note in notes)
