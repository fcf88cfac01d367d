"""A job of the workspace is attached by its name or by the address of its page in the studio."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_amltrain.azure.client import client_of
from jupyter_amltrain.azure.workspaces import WorkspaceRef
from jupyter_amltrain.errors import UnknownRun
from jupyter_amltrain.kernel.run_index import job_name_in_url
from tests.azure.conftest import Azure

DEADLINE = 60.0


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("https://ml.azure.com/runs/digits-k3f9?wsid=/subscriptions/S/resourcegroups/R/workspaces/W", "digits-k3f9"),
        ("https://ml.azure.com/experiments/id/1-2/runs/digits-k3f9?tid=x", "digits-k3f9"),
        ("https://example.com/", "https://example.com/"),
        ("gpu/digits-k3f9", "gpu/digits-k3f9"),
    ],
)
def test_job_name_in_address_is_found(text: str, name: str) -> None:
    assert job_name_in_url(text) == name


@pytest.mark.thorough
def test_attach_by_name_and_by_page(api: Any, azure_env: Azure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMLTRAIN_AZURE_WARM", "0")
    azure_env.control("/switch", scale_seconds=0.1)
    controller = api.controller()

    def ask(op: str, **payload: Any) -> Any:
        async def go() -> Any:
            return await client_of(controller.loop, controller.root).request(op, payload, timeout=DEADLINE)

        return controller.loop.call(go(), DEADLINE)

    where = WorkspaceRef(**azure_env.where)
    facts = api.connect(where).facts
    for name in ("one", "two"):
        settings = {"size": "Standard_DS2_v2", "max_nodes": 1}
        ask("computes.create", workspace=facts.name, kind="amlcompute", name=name, settings=settings)
    api.connect(where)  # both are targets now
    body = {
        "jobType": "Command",
        "displayName": "by hand",
        "experimentName": "exp",
        "command": "echo by hand",
        "computeId": f"{facts.arm_id}/computes/two",
    }
    job = {
        "name": "theirs",
        "body": body,
        "environment": {"name": "AzureML-sklearn-1.5@latest"},
        "code": {"script": "a.py", "digest": "0" * 64, "job_file": {}},
    }
    made = ask("jobs.submit", workspace=facts.name, job=job, files={"a.py": b""})
    run = api.attach(made["studio_url"])
    assert run.handle == "two/theirs" and api.attach("theirs").handle == run.handle
    run.wait(DEADLINE)
    assert controller.loop.call(controller.contents.logs(run.handle), DEADLINE) == b"by hand\n"
    with pytest.raises(UnknownRun, match="nobody"):
        api.attach("https://ml.azure.com/runs/nobody-22222?wsid=x")
