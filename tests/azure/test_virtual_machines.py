"""An Azure virtual machine as SSH target: emulated Azure, real OpenSSH."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.azure.client import close_client
from jupyter_amltrain.azure.commands.sizes import billing_text
from jupyter_amltrain.azure.vm_backend import AzureVmBackend
from jupyter_amltrain.azure.workspace_file import WorkspaceFile
from jupyter_amltrain.errors import AmlTrainError, CapacityError, TargetError
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.ssh_target import SshTarget
from jupyter_amltrain.state_dir import StateRoot
from tests.helpers import api_of
from tools.openssh import Sshd

from ..contracts.lifecycle import LifecycleContract
from .conftest import Azure
from .connected_api import carry_out, connect, store_workspace, submit

SIZE = "Standard_NC6s_v3"
DEADLINE = 120.0

Make = Callable[..., AzureVmBackend]


@pytest.fixture
def loop(home: Path) -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.call(close_client(thread))
    thread.close()


@pytest.fixture
def make(azure_env: Azure, sshd: Sshd, loop: LoopThread, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Backends of emulated machines whose address is that of a real server."""
    monkeypatch.setenv("AMLTRAIN_AZURE_BACKOFF", "0.02")
    monkeypatch.setenv("AMLTRAIN_AZURE_POLL", "0.1")
    root, made = StateRoot(home), []
    loop.call(store_workspace(loop, root, azure_env, name="ws"), 60)

    def new(name: str = "box", *, exists: bool = True, **machine: Any) -> AzureVmBackend:
        resource_id = f"/subscriptions/{azure_env.subscription}/resourceGroups/vms/providers/Microsoft.Compute"
        resource_id += f"/virtualMachines/{name}"
        if exists:
            facts = {"name": name, "size": SIZE, "addresses": ["127.0.0.1"], **machine}
            assert azure_env.control("/virtual-machine", **facts)["id"] == resource_id
        target = SshTarget(
            name=name,
            resource_id=resource_id,
            port=sshd.port,
            user=sshd.user,
            identity_file=str(sshd.key),
            python=sys.executable,
            accept_host_key=sshd.fingerprint,
        )
        backend = AzureVmBackend(target, loop, root)
        made.append(backend)
        return backend

    yield new
    for backend in made:
        loop.call(backend.close())
    for one in WorkspaceFile(root).all():
        WorkspaceFile(root).remove(one.name)


@pytest.mark.thorough
class TestContract(LifecycleContract):
    """Of a single machine; the tests of clusters do not apply."""

    test_cluster_lifecycle = None
    test_confirmation_names_cost_and_loss = None
    test_price_follows_node_count = None
    test_actions_without_state_are_offered = None

    @pytest.fixture
    def single(self, make: Make) -> AzureVmBackend:
        return make()

    @pytest.fixture
    def refused(self, make: Make) -> AzureVmBackend:
        return make(exists=False)


@pytest.fixture
def run(loop: LoopThread) -> Callable[[Any], Any]:
    return lambda coro: loop.call(coro, DEADLINE)


def quiet(text: str) -> None:
    """Progress of which nobody hears."""


@pytest.mark.thorough
def test_machine_with_new_address_after_start_is_reached(make: Make, run: Callable[[Any], Any]) -> None:
    box = make(addresses=["127.0.0.1", "localhost"])
    run(box.create(quiet))
    assert box.target.destination == "127.0.0.1" and box.target.azure_workspace == "ws"
    run(box.stop(quiet))
    with pytest.raises(TargetError) as caught:
        run(box.check())
    assert caught.value.code == "azure.machine_stopped" and "%aml_compute start box" in caught.value.hint
    run(box.start(quiet))
    assert box.target.destination == "localhost" and run(box.check()).reachable


@pytest.mark.thorough
def test_price_is_charged_until_deallocated(azure_env: Azure, make: Make, run: Callable[[Any], Any]) -> None:
    box = make()
    on = run(box.state())
    assert on.state == "ready" and on.size == SIZE and on.gpus == 1 and on.price == on.price_node > 0 and on.currency
    azure_env.control("/virtual-machine", name="box", power="stopped")
    shut_down = run(box.state())
    assert shut_down.state == "stopped" and shut_down.price == on.price and "%aml_compute stop" in shut_down.detail
    acts = {act.verb: act.disabled_reason for act in box.actions(shut_down)}
    assert acts["start"] == acts["stop"] == "" and acts["restart"]
    run(box.stop(quiet))
    off = run(box.state())
    assert off.state == "stopped" and off.price == 0 and off.price_node == on.price_node and off.detail == ""


@pytest.mark.thorough
def test_confirmation_of_start_names_the_price(make: Make, run: Callable[[Any], Any]) -> None:
    box = make(power="deallocated")
    assert "If the machine is stopped" in box.confirmation("create", {}, running=0)
    run(box.prepare())
    price = run(box.state()).price_node
    for verb in ("create", "start"):
        assert f"{price:.2f}" in box.confirmation(verb, {}, running=0)
    assert "2 running runs" in box.confirmation("stop", {}, running=2)
    assert box.confirmation("stop", {}, running=0) == ""
    assert "not affected" in box.confirmation("delete", {}, running=1)


@pytest.mark.thorough
def test_private_address_is_used_without_a_public_one(make: Make, run: Callable[[Any], Any]) -> None:
    box = make(private=True)
    run(box.create(quiet))
    assert box.target.destination == "127.0.0.1"


@pytest.mark.thorough
def test_start_without_capacity_is_one_sentence(azure_env: Azure, make: Make, run: Callable[[Any], Any]) -> None:
    azure_env.control("/switch", fail_power="box")
    box = make(power="deallocated")
    with pytest.raises(CapacityError) as caught:
        run(box.start(quiet))
    assert caught.value.code == "azure.capacity" and "\n" not in str(caught.value) and caught.value.hint
    assert run(box.state()).state == "stopped"


@pytest.mark.thorough
def test_deleted_machine_is_shown_as_failed(azure_env: Azure, make: Make, run: Callable[[Any], Any]) -> None:
    box = make()
    run(box.create(quiet))
    azure_env.control("/virtual-machine", name="box", gone=True)
    state = run(box.state())
    assert state.state == "failed" and "%aml_compute delete box" in state.detail


@pytest.mark.thorough
def test_magics_attach_stop_refuse_start_and_run(
    azure: Azure, sshd: Sshd, tmp_path_factory: pytest.TempPathFactory
) -> None:
    azure.control("/reset")
    machine = azure.control("/virtual-machine", name="gpu1", size=SIZE, addresses=["127.0.0.1", "localhost"])["id"]
    quick = {"AMLTRAIN_AZURE_BACKOFF": "0.02", "HOME": os.environ["HOME"]}
    login = f"--port {sshd.port} --user {sshd.user} --identity-file {sshd.key} --python {sys.executable}"
    attach = f"attach gpu1 --kind ssh --resource-id {machine} {login} --accept-host-key {sshd.fingerprint}"
    with api_of(tmp_path_factory.mktemp("api"), **azure.environ, **quick) as api:
        with pytest.raises(AmlTrainError) as caught:
            carry_out(attach)
        assert "%aml_compute connect" in str(caught.value)
        connect(azure)
        assert "attached" in carry_out(attach)
        assert submit("--target gpu1", "print(6 * 7)").wait(DEADLINE).state == "completed"
        (row,) = [row for row in api.billing()["lab"] if row["name"] == "gpu1"]
        assert row["price"] > 0 and "%aml_compute stop gpu1" in billing_text(api.billing())
        assert "stopped" in carry_out("stop gpu1")
        assert not [row for row in api.billing()["lab"] if row["name"] == "gpu1"]
        with pytest.raises(AmlTrainError) as stopped:
            submit("--target gpu1", "print(1)").wait(DEADLINE)
        assert "%aml_compute start gpu1" in str(stopped.value)
        assert "started" in carry_out("start gpu1")
        assert submit("--target gpu1", "print(6 * 7)").wait(DEADLINE).state == "completed"
        assert "deleted" in carry_out("delete gpu1")
