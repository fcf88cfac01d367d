"""Shares and limits of accounts, as the accounting of a cluster prints them. No cluster is needed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_amltrain.agent.protocol import AgentError
from jupyter_amltrain.commands.registry import Context, run
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.slurm.agent import accounting, commands, runs

#: Answers of Slurm 22.05 with slurmdbd to a user of two accounts, of which one is below the other.
SSHARE = "physics|0.500000|31|0.355558|0.666667\ntheory|1.000000|57|1.000000|0.333333"
USER = "physics|main|normal|||||||200|\ntheory||long,normal||||cpu=4||5|100|1-00:00:00"
ACCOUNTS = "root||||\nphysics|root|cpu=6|cpu=100000|20\ntheory|physics|||"
QOS = "normal|0||||||\nlong|10|gres/gpu=4|gres/gpu=2|4|50||7-00:00:00\nother|5|cpu=1|||||"
SACCT = "CANCELLED by 0|0:0"


def make(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs of Slurm that answer as those of a cluster with slurmdbd."""
    folder = tmp_path / "bin"
    folder.mkdir()
    make(folder, "sshare", f"printf '%s\\n' '{SSHARE}'")
    make(folder, "sacct", f"printf '%s\\n' '{SACCT}'")
    forgotten = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    make(folder, "scontrol", f'case "$*" in *config*) echo "ClusterName             = sandbox";; *) {forgotten};; esac')
    answers = {"*format=Account": "physics\ntheory", "*user=\\ *": ACCOUNTS, "*assoc*": USER, "*qos*": QOS}
    cases = "".join(f"{words}) printf '%s\\n' '{text}';;\n" for words, text in answers.items())
    make(folder, "sacctmgr", f'case "$*" in\n{cases}esac')
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_quota_has_shares_and_limits(programs: Path) -> None:
    found = accounting.quota(SimpleNamespace(), {})  # type: ignore[arg-type]
    assert found["shares"][0] == {
        "account": "physics", "shares": "0.5", "used": "31", "part": "0.355558", "share": "0.666667",
    }  # fmt: skip
    assert [row["account"] for row in found["accounts"]] == ["physics", "theory", "physics"]
    assert "cpu=4 a job" in found["accounts"][1]["limits"] and "1-00:00:00 of time" in found["accounts"][1]["limits"]
    assert [row["name"] for row in found["qos"]] == ["normal", "long"]
    assert found["qos"][0]["limits"] == "" and "gres/gpu=2 a user" in found["qos"][1]["limits"]
    assert accounting.accounts("sandbox") == ["physics", "theory"]


def test_limits_of_an_account_above_the_own_one_are_shown(programs: Path) -> None:
    found = accounting.quota(SimpleNamespace(), {})["accounts"]  # type: ignore[arg-type]
    assert "cpu=6 for all its users" in found[-1]["limits"] and "20 jobs of all its users" in found[-1]["limits"]


def test_end_of_a_job_that_the_controller_has_forgotten_is_that_of_the_accounting(programs: Path) -> None:
    assert runs._last_facts("11") == ("CANCELLED", "0:0")
    with pytest.raises(commands.CommandRefused):  # and not a controller that does not answer
        commands.show("job", "11")


def test_cluster_without_accounting_says_so_in_one_line(programs: Path) -> None:
    for name in ("sshare", "sacctmgr"):
        make(programs, name, "echo 'You are not running a supported accounting_storage plugin' >&2\nexit 1")
    with pytest.raises(AgentError) as caught:
        accounting.quota(SimpleNamespace(), {})  # type: ignore[arg-type]
    assert caught.value.code == "slurm.accounting" and "accounting_storage" in caught.value.message
    assert "\n" not in caught.value.message and accounting.accounts("sandbox") == []


class Quota:
    """Capability of a target."""

    async def read(self, *, everything: bool) -> tuple[str, list[dict[str, Any]]]:
        return f"everything {everything}", [{"table": "shares"}]


@pytest.mark.thorough
def test_command_shows_quota_of_a_target_that_has_one(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_amltrain.kernel.session import controller

    async def backend_of() -> Any:
        return controller().backend("local")

    backend = controller().loop.call(backend_of(), 30)
    with pytest.raises(CommandError) as caught:
        run("compute", ["quota", "local"], Context("%aml_compute"))
    assert caught.value.code == "compute.quota"
    monkeypatch.setattr(backend, "quota", Quota(), raising=False)
    assert run("compute", ["quota", "local", "--all"], Context("%aml_compute")).text == "everything True"
    assert run("compute", ["quota"], Context("%aml_compute")).data == [{"table": "shares"}]
