"""The page's requests about Azure ML workspaces: the line that connects one, and forgetting one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.azure.ops.connect import ComposeConnect, ConnectReply
from jupyter_amltrain.azure.targets import AmlComputeTarget, InstanceTarget
from jupyter_amltrain.azure.workspace_file import WorkspaceFacts, WorkspaceFile
from jupyter_amltrain.azure.workspaces import disconnect_loss
from jupyter_amltrain.frontend.events import target_state
from jupyter_amltrain.frontend.handlers import RequestHandlers
from jupyter_amltrain.frontend.target_handlers import ActOnTarget, GetForms
from jupyter_amltrain.kernel.controller import Controller
from jupyter_amltrain.state_dir import StateRoot

from ..helpers import DEADLINE


class Page:
    def __init__(self, home: Path) -> None:
        self.controller = Controller(StateRoot(home))
        self.handlers = RequestHandlers(self.controller)

    def ask(self, request: Any) -> Any:
        return self.controller.loop.call(self.handlers.answer(request), DEADLINE)

    def connect(self, **values: str) -> ConnectReply:
        reply = self.ask(ComposeConnect(values={name.replace("_", "-"): value for name, value in values.items()}))
        assert isinstance(reply, ConnectReply) and reply.ok
        return reply

    def known(self) -> Any:
        return self.controller.loop.call(target_state(self.controller), DEADLINE)


@pytest.fixture
def page(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Page]:
    monkeypatch.chdir(tmp_path)
    made = Page(home)
    yield made
    made.controller.close()


@pytest.fixture
def connected(page: Page) -> Page:
    """As after a connect: a workspace with two targets."""
    facts = WorkspaceFacts(
        name="lab", subscription="s", resource_group="g", workspace="ml", user="ada", location="here"
    )
    WorkspaceFile(page.controller.root).put(facts)
    page.controller.targets.add(AmlComputeTarget(name="big", workspace="lab", size="x"))
    page.controller.targets.add(InstanceTarget(name="desk", workspace="lab", size="x"))
    return page


def test_connect_request_composes_line(page: Page) -> None:
    assert [field.name for field in page.ask(GetForms()).connect][:2] == ["config", "subscription"]
    assert "No config.json" in page.connect().errors["config"]
    reply = page.connect(subscription="s", resource_group="g", workspace="ml")
    assert reply.line == "%aml_compute connect --subscription s --resource-group g --workspace ml"
    assert not reply.errors and not reply.note


def test_connect_request_of_connected_workspace_has_note(connected: Page) -> None:
    for values in ({}, {"subscription": "S", "resource_group": "g", "workspace": "ML"}):
        reply = connected.connect(**values)
        assert not reply.errors and "already connected" in reply.note
    reply = connected.connect(subscription="s", resource_group="g", workspace="ml", name="other")
    assert "already connected as 'lab'" in reply.errors["name"]
    reply = connected.connect(subscription="s", resource_group="g", workspace="second", name="lab")
    assert "'lab'" in reply.errors["name"]


def test_workspaces_are_listed_with_targets(connected: Page) -> None:
    (row,) = connected.known().workspaces
    assert (row.name, row.current, row.user, row.location) == ("lab", True, "ada", "here")
    assert row.targets == ("big", "desk")


def test_disconnect_request_asks_confirmation(connected: Page) -> None:
    reply = connected.ask(ActOnTarget(verb="disconnect", target="lab"))
    assert not reply.accepted and reply.line == "%aml_compute disconnect lab --yes"
    assert "its 2 targets" in reply.confirmation and "(desk)" in reply.confirmation
    assert [row.name for row in connected.known().workspaces] == ["lab"]
    done = connected.ask(ActOnTarget(verb="disconnect", target="lab", confirmed=True))
    assert done.accepted and "lab" in done.message
    assert connected.known().workspaces == () and [row.name for row in connected.known().targets] == ["local"]
    wrong = connected.ask(ActOnTarget(verb="disconnect", target="lab", confirmed=True))
    assert not wrong.accepted and "workspace" in wrong.errors[""]


def test_disconnect_loss_names_targets_and_live_runs() -> None:
    assert "target" not in disconnect_loss("lab", [], [], [])
    text = disconnect_loss("lab", ["big"], [], ["big/a-1", "big/b-2"])
    assert "its target big" in text and "2 of its runs" in text and "(big/a-1, big/b-2)" in text
