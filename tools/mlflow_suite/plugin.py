"""pytest plugin: MLflow's own tests use one endpoint in place of the servers and stores that they start."""

from __future__ import annotations

import functools
import importlib
import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tools.mlflow_suite import endpoint

#: Kind of the endpoint, its folder, and the file of the results.
KIND, FOLDER, RESULTS = "AMLTRAIN_SUITE_KIND", "AMLTRAIN_SUITE_FOLDER", "AMLTRAIN_SUITE_RESULTS"


class Suite:
    """Hooks for one endpoint."""

    def __init__(self, env: dict[str, str], empty: Any) -> None:
        self._env, self._empty = env, empty
        self.uri = env["MLFLOW_TRACKING_URI"]
        self._results = open(os.environ[RESULTS], "a")  # noqa: SIM115
        self._outcomes: dict[str, tuple[str, str]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Replace the servers that tests start."""
        import requests

        utils: Any = importlib.import_module("tests.tracking.integration_test_utils")  # of MLflow
        session: Any = requests.Session

        @contextmanager
        def server(*args: Any, **kwargs: Any) -> Iterator[str]:
            yield self.uri

        utils.ServerThread = utils._init_server = server
        session.request = self._with_token(session.request)

    def _with_token(self, plain: Any) -> Any:
        """Return a method for requests: tests also send some that are not of MLflow's client."""
        token = os.environ.get("MLFLOW_TRACKING_TOKEN")

        def request(session: Any, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
            if token and str(url).startswith(self.uri) and "Authorization" not in (kwargs.get("headers") or {}):
                kwargs["headers"] = {**(kwargs.get("headers") or {}), "Authorization": f"Bearer {token}"}
            return plain(session, method, url, *args, **kwargs)

        return request

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Give every test an empty endpoint."""
        os.environ.update({key: value for key, value in self._env.items() if key != "MLFLOW_TRACKING_URI"})
        self._empty()

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Any:
        """Replace the fixtures of stores in a database of their own."""
        value = self._replaced(fixturedef, request)
        if value is not None:
            fixturedef.cached_result = (value, fixturedef.cache_key(request), None)
        return value

    def _replaced(self, fixture: Any, request: Any) -> Any:
        mlflow: Any = importlib.import_module("mlflow")
        module = getattr(request.node, "nodeid", "").partition("::")[0]
        is_mocked = fixture.argname == "tracking_uri_mock" and "notrackingurimock" not in request.keywords
        if is_mocked or fixture.argname == "tracking_uri":
            mlflow.set_tracking_uri(self.uri)
            fixture.addfinalizer(lambda: mlflow.set_tracking_uri(None))
            return self.uri
        if fixture.argname == "store" and "sqlalchemy_store" in module:
            kind = "model_registry" if "model_registry" in module else "tracking"
            store: Any = importlib.import_module(f"mlflow.store.{kind}.rest_store")
            credentials: Any = importlib.import_module("mlflow.utils.credentials")
            return store.RestStore(lambda: credentials.get_default_host_creds(self.uri))
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the outcome of a test."""
        outcome, text = self._outcomes.get(report.nodeid, ("passed", ""))
        if report.outcome != "passed" and outcome == "passed":
            outcome, text = report.outcome, str(report.longrepr)[-6000:]
        self._outcomes[report.nodeid] = (outcome, text)
        if report.when == "teardown":
            self._results.write(json.dumps([report.nodeid, outcome, text]) + "\n")
            self._results.flush()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be collected."""
        if report.failed:
            self._results.write(json.dumps([report.nodeid, "error", str(report.longrepr)[-6000:]]) + "\n")
            self._results.flush()


def _end(started: AbstractContextManager[Any]) -> None:
    started.__exit__(None, None, None)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start the endpoint before a file of the tests imports MLflow."""
    started = endpoint.started(os.environ[KIND], Path(os.environ[FOLDER]), Path(__file__).resolve().parents[2])
    env, empty = started.__enter__()
    early_config.add_cleanup(functools.partial(_end, started))
    os.environ.update(env)
    early_config.pluginmanager.register(Suite(env, empty), "amltrain-suite")
