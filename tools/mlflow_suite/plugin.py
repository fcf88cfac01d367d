"""pytest plugin: MLflow's own tests use one endpoint in place of the servers and stores that they start."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
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
        from tests.tracking import integration_test_utils as utils

        @contextmanager
        def server(*args: Any, **kwargs: Any) -> Iterator[str]:
            yield self.uri

        utils.ServerThread = utils._init_server = server
        requests.Session.request = self._with_token(requests.Session.request)

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
        import mlflow
        from mlflow.utils.credentials import get_default_host_creds

        module = getattr(request.node, "nodeid", "").partition("::")[0]
        if fixture.argname in ("tracking_uri_mock", "tracking_uri"):
            if "notrackingurimock" not in request.keywords or fixture.argname == "tracking_uri":
                mlflow.set_tracking_uri(self.uri)
                fixture.addfinalizer(lambda: mlflow.set_tracking_uri(None))
                return self.uri
        if fixture.argname == "store" and "sqlalchemy_store" in module:
            if "model_registry" in module:
                from mlflow.store.model_registry.rest_store import RestStore
            else:
                from mlflow.store.tracking.rest_store import RestStore
            return RestStore(lambda: get_default_host_creds(self.uri))
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


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start the endpoint before a file of the tests imports MLflow."""
    started = endpoint.started(os.environ[KIND], Path(os.environ[FOLDER]), Path(__file__).resolve().parents[2])
    env, empty = started.__enter__()
    early_config.add_cleanup(lambda: started.__exit__(None, None, None))
    os.environ.update(env)
    early_config.pluginmanager.register(Suite(env, empty), "amltrain-suite")
