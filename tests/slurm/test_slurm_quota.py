"""Shares and limits of accounts, as the accounting of a cluster prints them. No cluster is needed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_amltrain.agent.protocol import AgentError
from jupyter_amltrain.commands.registry import Context, run
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.slurm.agent import accounting

SSHARE = "physics|0.25|81000|0.1|0.75"
ASSOCIATIONS = "physics|gpu|normal,long|cpu=400|||||5|100|2-00:00:00"
QOS = "normal|0||||||\nlong|10|gres/gpu=64|gres/gpu=8|4|50|gres/gpu=4|7-00:00:00\nother|5|cpu=1|||||"


def make(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs of the accounting that answer as those of a cluster with slurmdbd."""
    folder = tmp_path / "bin"
    folder.mkdir()
    make(folder, "sshare", f"#!/bin/sh\nprintf '%s\\n' '{SSHARE}'\n")
    both = f'#!/bin/sh\ncase "$*" in *assoc*) printf "%s\\n" "{ASSOCIATIONS}";; *) printf "%s\\n" "{QOS}";; esac\n'
    make(folder, "sacctmgr", both)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_quota_has_shares_and_limits(programs: Path) -> None:
    found = accounting.quota(SimpleNamespace(), {})  # type: ignore[arg-type]
    assert found["shares"] == [
        {"account": "physics", "shares": "0.25", "used": "81000", "part": "0.1", "share": "0.75"}
    ]
    (account,) = found["accounts"]
    assert account["account"] == "physics" and "cpu=400 for the account" in account["limits"]
    assert "100 jobs in the queue" in account["limits"] and "2-00:00:00 of time" in account["limits"]
    assert [row["name"] for row in found["qos"]] == ["normal", "long"]
    assert found["qos"][0]["limits"] == "" and "gres/gpu=8 a user" in found["qos"][1]["limits"]


def test_cluster_without_accounting_says_so_in_one_line(programs: Path) -> None:
    for name in ("sshare", "sacctmgr"):
        make(
            programs, name, "#!/bin/sh\necho 'You are not running a supported accounting_storage plugin' >&2\nexit 1\n"
        )
    with pytest.raises(AgentError) as caught:
        accounting.quota(SimpleNamespace(), {})  # type: ignore[arg-type]
    assert caught.value.code == "slurm.accounting" and "accounting_storage" in caught.value.message
    assert "\n" not in caught.value.message and accounting.accounts() == []


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
