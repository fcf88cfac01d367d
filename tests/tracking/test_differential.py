"""The same programs with MLflow's own file store and as a job: equal values, histories, parameters, tags."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.agent.mlflow_jobs import ROOT
from tests.tracking.mlflow_programs import AUTOLOG, MODELS, PACKAGE, PLAIN

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks a process that has imported MLflow")


def differences(folder: Path, programs: dict[str, str]) -> dict[str, object]:
    """What differs, by program."""
    argv = [sys.executable, "-m", "tests.tracking.differential", str(folder)]
    done = subprocess.run(argv, input=json.dumps(programs), capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert list(found) == list(programs)
    return {name: differing for name, differing in found.items() if differing}


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.thorough) for part in (1, 2))])
def test_program_logs_same_as_with_file_store(tmp_path: Path, part: int) -> None:
    assert not differences(tmp_path, dict(list(PLAIN.items())[part::3]))


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_program_with_model_logs_same_as_with_file_store(tmp_path: Path) -> None:
    assert not differences(tmp_path, MODELS)


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_autologging_logs_same_as_with_file_store(tmp_path: Path) -> None:
    installed = {name: code for name, code in AUTOLOG.items() if importlib.util.find_spec(PACKAGE.get(name, name))}
    assert len(installed) >= 2
    assert not differences(tmp_path, installed)


_POINT = st.tuples(st.integers(-1, 4), st.integers(1000, 1003), st.integers(0, 5))


#: Generated programs of one run.
_SHARED = 20


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_generated_programs_log_same_as_with_file_store(tmp_path: Path) -> None:
    """Points in any order, singly and in batches, some twice; MLflow takes the largest value of one moment.

    Twenty generated programs, each with a metric of its own, share a run: a run costs seconds.
    """
    cases: dict[str, None] = {}

    @settings(max_examples=2000, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.lists(_POINT, min_size=1, max_size=6), min_size=1, max_size=5), st.booleans())
    def generate(batches: list[list[tuple[int, int, int]]], resend: bool) -> None:
        moments: dict[tuple[int, int], int] = {}
        lines = []
        for batch in batches:
            points = [(step, at, moments.setdefault((step, at), value)) for step, at, value in batch]
            if len(points) == 1:
                step, at, value = points[0]
                lines.append(f"c.log_metric(ID, KEY, {float(value)}, timestamp={at}, step={step})")
            else:
                made = ", ".join(f"Metric(KEY, {float(value)}, {at}, {step})" for step, at, value in points)
                lines.append(f"c.log_batch(ID, metrics=[{made}])")
        if resend:
            lines.append("c.log_batch(ID, metrics=c.get_metric_history(ID, KEY))")
        cases["\n".join(lines)] = None

    generate()
    assert len(cases) > 1500
    texts, programs = list(cases), dict[str, str]()
    for first in range(0, len(texts), _SHARED):
        keyed = (f"KEY = 'm{number}'\n{text}" for number, text in enumerate(texts[first : first + _SHARED]))
        programs[str(first)] = "c, ID = MlflowClient(), mlflow.start_run().info.run_id\n" + "\n".join(keyed)
    assert not differences(tmp_path, programs)
