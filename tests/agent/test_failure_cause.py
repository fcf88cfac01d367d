"""The cause of a failure from what a sampler left: nothing is blamed that was not there."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_amltrain.agent.supervise.outcome import Outcome, RunTimes, find_cause
from jupyter_amltrain.agent.telemetry.gpu_incidents import APPLICATION, CLEANUP, RECORD, XIDS, xid

LIFE = RunTimes(began=1000.0, ended=2000.0)
FAILED = Outcome("failed", "exit", "exited with code 1", 1, None)


def cause(
    errors: Any, outcome: Outcome = FAILED, life: RunTimes = LIFE, log: str = "", processes: Any = ()
) -> dict[str, str] | None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "telemetry").mkdir()
        (folder / "log").mkdir()
        (folder / "log" / "rank-0.txt").write_text(log, errors="replace")
        gpus = [{"index": i, "uuid": f"GPU-{i}"} for i in range(4)]
        (folder / "telemetry" / "node-0.jsonl").write_text(json.dumps({"gpus": gpus, "columns": []}) + "\n")
        value = {"errors": errors, "processes": processes}
        (folder / "telemetry" / "gpu-incidents-0.json").write_text(json.dumps(value))
        return find_cause(name, outcome, life, ["GPU-2", "GPU-1"])


def error(number: int, at: float, kind: str = "xid", gpu: int = 0, **more: Any) -> dict[str, Any]:
    return {"gpu": gpu, "kind": kind, "number": number, "count": 1, "first": at, "last": at, "shared": False, **more}


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (1998.0, "2 s before"),
        (1999.6, "just before"),
        (2001.0, "just before"),
        (1400.0, "10 min before"),
        (999.0, None),
        (2050.0, None),
    ],
)
def test_cause_text_has_time_before_end(at: float, words: str | None) -> None:
    found = cause([error(79, at)])
    assert (found is None) if words is None else (found is not None and found["text"].endswith(words))


def test_error_continuing_from_before_run_is_cause() -> None:
    found = cause([error(119, 900.0, last=1995.0)])
    assert found is not None and found["text"].endswith("5 s before")


def test_old_application_error_is_no_cause() -> None:
    assert cause([error(31, 1500.0)]) is None
    found = cause([error(31, 1990.0, shared=True)])
    assert found is not None and "another process" in found["text"]


@pytest.mark.parametrize("stopped", ["timeout", None])
def test_stopped_run_has_only_hardware_causes(stopped: str | None) -> None:
    outcome = Outcome("failed", "timeout" if stopped else "signal", "x", None, 15)
    life = LIFE._replace(stopped=stopped)
    assert (cause([error(43, 1999.0)], outcome, life) is None) == bool(stopped)
    assert cause([error(79, 1200.0)], outcome, life) is not None


def test_hardware_cause_precedes_oom() -> None:
    log = (
        "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.\n"
    )
    only = cause([error(31, 1999.0)], log=log)
    assert only is not None and only["kind"] == "cuda-oom"
    both = cause([error(48, 1999.0)], log=log)
    assert both is not None and both["kind"] == "xid"


@pytest.mark.parametrize("state", ["completed", "canceled"])
def test_successful_run_has_no_cause(state: str) -> None:
    assert cause([error(79, 1999.0)], Outcome(state, "exit", "", 0, None)) is None


_TIMES = st.floats(0, 3000) | st.sampled_from([1000.0, 1999.0, 2000.0])
_ERRORS = st.lists(
    st.builds(
        lambda number, kind, gpu, a, b: error(number, min(a, b), kind, gpu, last=max(a, b)),
        st.sampled_from([*XIDS, 1, 999]),
        st.sampled_from(["xid", "xid", "lost", "ecc_uncorrectable", "ecc_correctable", "remap_failures", "new"]),
        st.integers(0, 3),
        _TIMES,
        _TIMES,
    ),
    max_size=6,
)


@pytest.mark.thorough
@settings(max_examples=300, deadline=None)
@given(_ERRORS)
def test_cause_is_limited_to_run_time(errors: list[dict[str, Any]]) -> None:
    found = cause(errors)
    lived = [one for one in errors if one["last"] >= LIFE.began and one["first"] <= LIFE.ended + 10]
    if found is None:
        assert not any(one["kind"] == "lost" and 1000 <= one["first"] <= 2000 for one in errors)
        return
    assert found["action"] and found["kind"] in ("xid", "lost", "gpu-memory")
    named = [one for one in lived if found["text"].startswith(f"GPU {one['gpu']} ")]
    assert named
    if found["kind"] == "xid":
        numbers = [one["number"] for one in named if f"reported Xid {one['number']}" in found["text"]]
        assert numbers and all(xid(number).fault not in (CLEANUP, RECORD) for number in numbers)
        hard = [one for one in errors if one["kind"] == "xid" and 1000 <= one["first"] <= 2000]
        if any(xid(one["number"]).fault not in (APPLICATION, CLEANUP, RECORD) for one in hard):
            assert any(xid(number).fault != APPLICATION for number in numbers)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=8,
)
_SPOILED = st.dictionaries(st.sampled_from(["gpu", "kind", "number", "first", "last", "pid", "memory", "owner"]), _JSON)


@pytest.mark.thorough
@settings(max_examples=200, deadline=None)
@given(_JSON | st.lists(_SPOILED, max_size=3), _JSON | st.lists(_SPOILED, max_size=3), st.text(max_size=200))
def test_cause_of_damaged_files_is_none_or_text(errors: Any, processes: Any, log: str) -> None:
    oom = "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory. GPU 0 "
    found = cause(errors, log=oom + log, processes=processes)
    assert found is None or all(isinstance(value, str) for value in found.values())


def test_xid_table_has_actions() -> None:
    for number, meaning in XIDS.items():
        assert meaning.name and meaning.action and not meaning.action.endswith("."), number
    assert xid(1234).action and not xid(1234).name
