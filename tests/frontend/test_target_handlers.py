"""The page's requests about targets: forms, and what is done with a click."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.frontend.events import target_state
from jupyter_amltrain.frontend.handlers import RequestHandlers
from jupyter_amltrain.frontend.target_handlers import ActOnTarget, GetForms, KindsReply, TargetActionReply
from jupyter_amltrain.kernel.controller import Controller
from jupyter_amltrain.kernel.target_status import OperationFinished
from jupyter_amltrain.state_dir import StateRoot

from ..helpers import DEADLINE, until

VALUES = {"size": "gpu-v100", "max_nodes": 4, "low_priority": False}
LINE = "%aml_compute create big --kind fake --size gpu-v100 --max-nodes 4"


class Page:
    def __init__(self, home: Path) -> None:
        self.controller = Controller(StateRoot(home))
        self.handlers = RequestHandlers(self.controller)

    def ask(self, request: Any) -> Any:
        return self.controller.loop.call(self.handlers.answer(request), DEADLINE)

    def act(self, verb: str, target: str = "big", **rest: Any) -> TargetActionReply:
        reply = self.ask(ActOnTarget(verb=verb, target=target, **rest))
        assert isinstance(reply, TargetActionReply) and reply.ok
        return reply

    def state(self, name: str) -> str:
        known = self.controller.loop.call(target_state(self.controller))
        return next((row.state for row in known.targets if row.name == name), "gone")


@pytest.fixture
def page(home: Path) -> Iterator[Page]:
    made = Page(home)
    yield made
    made.controller.close()


def test_kinds_request_returns_compute_forms(page: Page) -> None:
    reply = page.ask(GetForms())
    assert isinstance(reply, KindsReply)
    ssh, fake = reply.kinds[0], next(row for row in reply.kinds if row.kind == "fake")
    assert (ssh.kind, ssh.verb, ssh.title) == ("ssh", "attach", "Machine over SSH")
    assert (fake.kind, fake.verb, fake.title) == ("fake", "create", "Demonstration (runs nothing)")
    assert [field.name for field in fake.fields][:4] == ["name", "size", "max_nodes", "min_nodes"]
    assert reply.submit


def test_compute_request_returns_question_and_line(page: Page) -> None:
    form: dict[str, Any] = {"kind": "fake", "values": VALUES}
    for dry in (True, False):
        reply = page.act("create", **form, dry=dry)
        assert not reply.accepted and "12.24 USD per hour" in reply.confirmation and reply.line == f"{LINE} --yes"
    reply = page.act("create", **form, confirmed=True)
    assert reply.accepted and not reply.confirmation and reply.line == f"{LINE} --yes"
    until(lambda: page.state("big") == "ready")
    reply = page.act("use")
    assert reply.accepted and "go to big" in reply.message
    assert reply.line == "%aml_compute use big"
    reply = page.act("scale", values={"nodes": 5})
    assert reply.errors == {"nodes": "5 is not a whole number from 0 to 4."} and not reply.accepted
    assert "logs of its runs are lost" in page.act("delete").confirmation
    assert page.act("delete", confirmed=True).accepted
    until(lambda: page.state("big") == "gone")


def test_compute_request_errors_are_by_field(page: Page) -> None:
    wrong = page.act("create", "x", kind="fake", values={"size": "gpu", "max_nodes": 0}, dry=True).errors
    assert set(wrong) == {"name", "size", "max_nodes"}
    for verb, target in (
        ("delete", "local"),
        ("scale", "local"),
        ("use", "nothing"),
        ("fly", "local"),
    ):
        errors = page.act(verb, target).errors
        assert list(errors) == [""] and "\n" not in errors[""]
    assert page.act("create", kind="", values={}).errors.keys() == {"kind"}
    assert page.act("attach", "vm", kind="", values={}).errors.keys() == {"kind"}


def test_compute_listener_gets_results(page: Page) -> None:
    events: list[OperationFinished | None] = []

    async def listen() -> Any:
        return page.controller.target_manager.status.listen(events.append)

    end = page.controller.loop.call(listen())
    page.act("create", kind="fake", values={"fails": "create"}, confirmed=True)
    until(lambda: page.state("big") == "failed")
    assert None in events
    until(lambda: [(changes.level, changes.target) for changes in events if changes] == [("error", "big")])
    assert page.act("dismiss").accepted and page.state("big") == "gone"
    end()
    count = len(events)
    page.act("create", kind="fake")
    until(lambda: page.state("big") == "ready")
    assert len(events) == count
