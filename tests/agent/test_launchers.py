"""Commands of launchers, and what the records of processes tell."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.distributed import launchers
from jupyter_amltrain.agent.protocol import AgentError

RANKS = {"kind": "pytorch", "processes": 2, "servers": 0, "restarts": 0, "python": "python3"}


@pytest.mark.parametrize(
    "changed",
    [{"kind": "slurm"}, {"processes": -1}, {"processes": 9999}, {"processes": True}, {"python": ""}, {"more": 1}],
)
def test_invalid_ranks_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(AgentError):
        launchers.check({**RANKS, **changed})


@pytest.mark.parametrize(
    ("ranks", "devices", "expected"),
    [
        ({"processes": 3, "servers": 0}, ["a"], 3),
        ({"processes": 0, "servers": 0}, ["a", "b"], 2),
        ({"processes": 0, "servers": 0}, [], 1),
        ({"processes": 2, "servers": 1}, [], 3),
    ],
)
def test_count_defaults_to_one_for_each_gpu(ranks: dict[str, int], devices: list[str], expected: int) -> None:
    assert launchers.count(ranks, devices) == expected


def test_parameter_servers_are_dealt_out_to_machines(tmp_path: Path) -> None:
    gang = {"processes": [1, 1], "servers": [2, 1], "hosts": [["a:1", "a:2", "a:3"], ["b:1", "b:2"]]}
    plans = []
    for node in range(2):
        ranks = dict(RANKS, kind="tensorflow", servers=3, gang=dict(gang, node=node))
        found = launchers.command(ranks, ["job"], [], {}, str(tmp_path), str(tmp_path))
        plans.append(json.loads(found[6]))
    assert plans[0]["cluster"] == plans[1]["cluster"] == {"worker": ["a:1", "b:1"], "ps": ["a:2", "b:2", "a:3"]}
    assert [plan["tasks"] for plan in plans] == [[["worker", 0], ["ps", 0], ["ps", 2]], [["worker", 1], ["ps", 1]]]


def mpirun(folder: Path, version: str) -> dict[str, str]:
    """An environment whose mpirun prints a version."""
    program = folder / "mpirun"
    program.write_text(f"#!/bin/sh\necho '{version}'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"PATH": str(folder)}


@pytest.mark.parametrize(
    ("version", "options"),
    [
        ("mpirun (Open MPI) 4.1.4", ["-n", "2", "--oversubscribe", "--bind-to", "none"]),
        ("Intel(R) MPI Library for Linux, Version 2021.8", ["-n", "2"]),
    ],
)
def test_mpirun_gets_options_of_its_kind(tmp_path: Path, version: str, options: list[str]) -> None:
    env = mpirun(tmp_path, version)
    found = launchers.command(dict(RANKS, kind="mpi"), ["job"], [], env, str(tmp_path), str(tmp_path))
    assert found[1 : 1 + len(options)] == options and found[-1] == "job"
    assert found[1 + len(options)] == "python3"


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="needs root")
def test_mpirun_of_root_is_allowed(tmp_path: Path) -> None:
    env = mpirun(tmp_path, "mpirun (Open MPI) 4.1.4")
    launchers.command(dict(RANKS, kind="mpi"), ["job"], [], env, str(tmp_path), str(tmp_path))
    assert env["OMPI_ALLOW_RUN_AS_ROOT"] == env["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"


def record(folder: Path, rank: int, **fields: Any) -> None:
    (folder / "ranks").mkdir(exist_ok=True)
    row = {"rank": rank, "attempt": 0, "started": 1.0, "ended_by": "", **fields}
    (folder / "ranks" / f"{rank}.json").write_text(json.dumps(row))


ENDED = {"ended": 5.0, "exit_code": 0, "signal": None}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param([ENDED, ENDED], None, id="none"),
        pytest.param([{**ENDED, "exit_code": 1}, {**ENDED, "exit_code": 2, "ended": 4.0}], (1, 2, None), id="earliest"),
        pytest.param(
            [
                {**ENDED, "exit_code": None, "signal": 15, "ended": 4.0, "ended_by": "SIGTERM"},
                {**ENDED, "exit_code": 3},
            ],
            (1, 3, None),
            id="others-were-ended",
        ),
        pytest.param(
            [{**ENDED, "exit_code": None, "signal": 15, "ended_by": "SIGTERM"}, {}], (1, None, None), id="no-end"
        ),
        pytest.param([{**ENDED, "exit_code": 9}, {**ENDED, "exit_code": 4, "attempt": 1}], (1, 4, None), id="restart"),
    ],
)
def test_first_failure_is_that_of_no_signal_of_launcher(
    tmp_path: Path, rows: list[dict[str, Any]], expected: tuple[int, int | None, int | None] | None
) -> None:
    for rank, fields in enumerate(rows):
        record(tmp_path, rank, **fields)
    found = launchers.first_failure(str(tmp_path))
    assert (found and (found.rank, found.exit_code, found.signal)) == expected


@pytest.mark.parametrize("text", ["", "{", "[]", '{"rank": "x"}', '{"rank": 0, "attempt": null}'])
def test_damaged_record_is_ignored(tmp_path: Path, text: str) -> None:
    record(tmp_path, 1, **{**ENDED, "exit_code": 7})
    (tmp_path / "ranks" / "0.json").write_text(text)
    failed = launchers.first_failure(str(tmp_path))
    assert failed is not None and failed.rank == 1
