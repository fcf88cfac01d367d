"""Commands of launchers, and what the records of processes tell."""

from __future__ import annotations

import json
import os
import shlex
import stat
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.distributed import launchers, mpi_daemons
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
        found = launchers.command(ranks, ["job"], [], {}, str(tmp_path), str(tmp_path), str(tmp_path))
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
    found = launchers.command(dict(RANKS, kind="mpi"), ["job"], [], env, str(tmp_path), str(tmp_path), str(tmp_path))
    assert found[1 : 1 + len(options)] == options and found[-1] == "job"
    assert found[1 + len(options)] == "python3"


def of_nodes(node: int, addresses: list[str], kind: str = "mpi") -> dict[str, Any]:
    """Description of the processes of one node; each node has two."""
    return dict(RANKS, kind=kind, gang={"node": node, "addresses": addresses, "processes": [2] * len(addresses)})


@pytest.mark.parametrize("kind", ["mpi", "horovod"])
def test_first_node_runs_mpirun_for_all_of_them(tmp_path: Path, kind: str) -> None:
    env, home = mpirun(tmp_path, "mpirun (Open MPI) 4.1.4"), str(tmp_path)
    addresses = ["10.0.0.4", "10.0.0.5", "10.0.0.6"]
    found = launchers.command(of_nodes(0, addresses, kind), ["job", "a b"], [], env, home, home, "/the code")
    hosts = found[found.index("--host") + 1].split(",")
    assert found[found.index("-n") + 1] == "6" and hosts[0] == "localhost:2" and len(hosts) == 3
    assert [host.rpartition("-")[2] for host in hosts[1:]] == ["1:2", "2:2"] and found.count("--map-by") == 1
    assert ("^openib" in found) == (kind == "horovod")
    # A process of any node finds its own folders and interpreter in its environment.
    assert found[-3:-1] == ["/bin/sh", "-c"] and mpi_daemons.EACH in found[-1]
    assert shlex.split(env[mpi_daemons.EACH])[:2] == ["cd", "/the code"]
    assert shlex.split(env[mpi_daemons.EACH])[-2:] == ["job", "a b"]
    assert env["OMPI_MCA_btl_tcp_if_include"] == "10.0.0.4/30"
    for name in ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent"):
        assert env[name].split()[-2:] == ["start", home]


def test_other_nodes_run_daemon_of_mpi(tmp_path: Path) -> None:
    env, home = mpirun(tmp_path, "mpirun (Open MPI) 4.1.4"), str(tmp_path)
    with pytest.raises(launchers.NoLauncher, match="orted"):
        launchers.command(of_nodes(1, ["10.0.0.4", "10.0.0.5"]), ["job"], [], env, home, home, home)
    (tmp_path / "mpirun").rename(tmp_path / "orted")
    env = mpirun(tmp_path, "mpirun (Open MPI) 4.1.4")
    found = launchers.command(of_nodes(1, ["10.0.0.4", "10.0.0.5"]), ["job"], [], env, home, home, home)
    assert found[-2:] == ["serve", home] and "OMPI_MCA_plm_rsh_agent" not in env and mpi_daemons.EACH in env


@pytest.mark.parametrize(
    ("addresses", "network"),
    [
        (["10.1.0.4", "10.1.255.9"], "10.1.0.0/16"),
        (["10.1.0.4", "10.1.0.4"], None),
        (["10.1.0.4", "192.168.0.4"], None),
        (["fd00::1", "fd00::2"], None),
    ],
)
def test_network_of_all_nodes_is_that_of_open_mpi(tmp_path: Path, addresses: list[str], network: str | None) -> None:
    env, home = mpirun(tmp_path, "mpirun (Open MPI) 4.1.4"), str(tmp_path)
    launchers.command(of_nodes(0, addresses), ["job"], [], env, home, home, home)
    assert env.get("OMPI_MCA_btl_tcp_if_include") == network


def test_mpi_of_several_nodes_needs_open_mpi_and_paths_without_spaces(tmp_path: Path) -> None:
    ranks, home = of_nodes(0, ["10.0.0.4", "10.0.0.5"]), str(tmp_path)
    with pytest.raises(launchers.NoLauncher, match="Open MPI"):
        launchers.command(ranks, ["job"], [], mpirun(tmp_path, "Intel(R) MPI Library"), home, home, home)
    with pytest.raises(launchers.NoLauncher, match="space"):
        env = mpirun(tmp_path, "mpirun (Open MPI) 5.0.8")
        launchers.command(ranks, ["job"], [], env, f"{home}/a folder", home, home)


#: Commands that mpirun of Open MPI 4.1.4 and 5.0.8 (with a prefix of its own) gave to a remote shell, shortened.
OPEN_MPI_4 = ' orted --daemonize -mca ess "env" -mca orte_hnp_uri "11.0;tcp://10.0.0.4:35659;tcp6://[fd00::2]:44853"'
OPEN_MPI_5 = (
    "PRTE_PREFIX=/opt/v5;export PRTE_PREFIX;LD_LIBRARY_PATH=/opt/v5/lib:$LD_LIBRARY_PATH;export LD_LIBRARY_PATH;"
    '/opt/v5/bin/prted --daemonize --allow-run-as-root --prtemca prte_hnp_uri "prterun-a-1@0.0;tcp://10.0.0.4:480:64,24"'
)


@pytest.mark.parametrize(
    ("command", "program", "uri"),
    [
        (OPEN_MPI_4, "orted", "11.0;tcp://10.0.0.4:35659;tcp6://[fd00::2]:44853"),
        (OPEN_MPI_5, "prted", "prterun-a-1@0.0;tcp://10.0.0.4:480:64,24"),
    ],
)
def test_daemon_of_node_is_its_own_and_stays_in_foreground(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, program: str, uri: str
) -> None:
    (tmp_path / program).touch(mode=0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    words = mpi_daemons.daemon_command(command)
    assert words[0] == str(tmp_path / program) and words[-1] == uri and "--daemonize" not in words


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="needs root")
def test_mpirun_of_root_is_allowed(tmp_path: Path) -> None:
    env = mpirun(tmp_path, "mpirun (Open MPI) 4.1.4")
    launchers.command(dict(RANKS, kind="mpi"), ["job"], [], env, str(tmp_path), str(tmp_path), str(tmp_path))
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
