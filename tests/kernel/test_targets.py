"""Works on targets: one at a time, in the background, the same for every front door."""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.demo.fake_backend import FakeBackend
from jupyter_amltrain.errors import AmlTrainError, CommandError, CreateUnsure, QuotaExceeded, UnknownTarget
from jupyter_amltrain.kernel.controller import Controller
from jupyter_amltrain.kernel.operations import ActionResult
from jupyter_amltrain.kernel.target_status import OperationFinished
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.rows import TargetRow
from jupyter_amltrain.schema.run import RunHandle
from jupyter_amltrain.state_dir import StateRoot, locked

from ..helpers import DEADLINE, until

SIZE = {"size": "gpu-v100"}
CLUSTER = {**SIZE, "max_nodes": 4}


class Kernel:
    """A controller of a state root, as a kernel has one."""

    def __init__(self, home: Path) -> None:
        self.controller = Controller(StateRoot(home))
        self.changes: list[OperationFinished | None] = []

        async def listen() -> None:
            self.controller.target_manager.status.listen(self.changes.append)

        self.controller.loop.call(listen())

    def act(self, verb: str, name: str, **rest: Any) -> ActionResult:
        return self.controller.loop.call(self.controller.target_manager.run_action(verb, name, **rest), DEADLINE)

    def create(self, name: str, *, wait: bool = True, **values: Any) -> ActionResult:
        done = self.act("create", name, kind="fake", values=values, confirmed=True)
        if wait and done.begun:
            self.finished(name)
        return done

    def finished(self, name: str) -> str | None:
        return self.controller.loop.call(self.controller.target_manager.operations.finished(name, DEADLINE), DEADLINE)

    def rows(self) -> dict[str, TargetRow]:
        async def read() -> dict[str, TargetRow]:
            await self.controller.target_manager.status.refresh()
            return {row.name: row for row in self.controller.target_manager.status.rows()}

        return self.controller.loop.call(read())

    def messages(self) -> list[tuple[str, str]]:
        return [(changes.level, changes.text) for changes in self.changes if changes is not None]


@pytest.fixture
def kernel(home: Path) -> Iterator[Kernel]:
    made = Kernel(home)
    yield made
    made.controller.close()


@pytest.fixture
def other(home: Path, kernel: Kernel) -> Iterator[Kernel]:
    made = Kernel(home)
    yield made
    made.controller.close()


def stored(home: Path) -> dict[str, Any]:
    return dict(json.loads((home / "targets.json").read_text()))


def test_create_runs_in_background(kernel: Kernel, home: Path) -> None:
    assert kernel.create("big", wait=False, provisioning=1.0, **CLUSTER).begun
    row = kernel.rows()["big"]
    assert row.state == "creating" and row.work is not None and row.work.verb == "create"
    assert {act.verb: bool(act.disabled_reason) for act in row.acts}["delete"]  # not now
    until((home / "targets.json").exists)
    assert "big" in stored(home)["targets"]  # what may cost is never forgotten
    assert kernel.finished("big") == "big is created."
    row = kernel.rows()["big"]
    assert (row.state, row.size, row.nodes, row.max_nodes) == ("ready", "gpu-v100", 0, 4)
    assert (row.price, row.price_node, row.currency, row.work) == (0.0, 3.06, "USD", None)
    assert (row.cpus, row.gpus, row.gpu_name) == (6, 1, "Fake V100 16GB") and row.checked_at
    assert kernel.messages() == [("success", "big is created.")]
    assert any(changes is None for changes in kernel.changes)


def test_second_operation_on_busy_target_is_refused(kernel: Kernel) -> None:
    kernel.create("big", wait=False, provisioning=30.0, **SIZE)
    for verb in ("test", "start", "delete", "create", "dismiss"):
        rest = {"kind": "fake", "values": SIZE} if verb == "create" else {}
        with pytest.raises(CommandError, match="'big' is being created") as caught:
            kernel.act(verb, "big", confirmed=True, **rest)
        assert "\n" not in str(caught.value)
    assert kernel.act("use", "big").accepted and kernel.rows()["big"].current  # it only says what comes
    kernel.create("small", **SIZE)  # another one meanwhile
    assert kernel.rows()["small"].state == "ready" and kernel.rows()["big"].state == "creating"


def test_create_reserves_name_before_reporting(kernel: Kernel, home: Path) -> None:
    with locked(home / "targets.lock"):  # another kernel writes
        creating = kernel.controller.loop.post(
            kernel.controller.target_manager.run_action("create", "big", kind="fake", values=SIZE, confirmed=True)
        )
        with pytest.raises(concurrent.futures.TimeoutError):
            creating.result(0.3)
        assert kernel.rows()["big"].state == "creating" and not (home / "targets.json").exists()
    assert creating.result(DEADLINE).begun and "big" in stored(home)["targets"]


def test_create_asks_confirmation_with_cost(kernel: Kernel, home: Path) -> None:
    done = kernel.act("create", "big", kind="fake", values=CLUSTER)
    assert not done.accepted and "4 x 3.06 = 12.24 USD" in done.confirmation
    dry = kernel.act("create", "big", kind="fake", values=CLUSTER, dry=True, confirmed=True)
    assert not dry.accepted and dry.confirmation == done.confirmation and not dry.errors
    assert "big" not in kernel.rows() and not (home / "targets.json").exists()
    assert kernel.act("create", "free", kind="fake").accepted  # costs nothing: not asked


def test_scale_is_seen_by_other_kernel(kernel: Kernel, other: Kernel, home: Path) -> None:
    kernel.create("big", **CLUSTER)
    assert other.rows()["big"].fields["min_nodes"] == 0
    assert "2 x 3.06 = 6.12 USD" in kernel.act("scale", "big", values={"nodes": "2"}).confirmation
    kernel.act("scale", "big", values={"nodes": "2"}, confirmed=True)
    assert kernel.finished("big") == "big is scaled to 2 machines."
    row = kernel.rows()["big"]
    assert (row.nodes, row.price) == (2, 6.12) and stored(home)["targets"]["big"]["min_nodes"] == 2
    assert other.rows()["big"].fields["min_nodes"] == 2
    other.controller.loop.call(other.controller.target_manager.status.check("big"))
    assert other.rows()["big"].nodes == 2


def test_scale_of_maximum_and_idle_time_is_stored(kernel: Kernel, other: Kernel, home: Path) -> None:
    kernel.create("big", **CLUSTER)
    assert "6 x 3.06 = 18.36 USD" in kernel.act("scale", "big", values={"max_nodes": 6}).confirmation
    kernel.act("scale", "big", values={"max_nodes": "6", "idle_minutes": 30, "nodes": 1}, confirmed=True)
    kernel.finished("big")
    fields = stored(home)["targets"]["big"]
    assert (fields["min_nodes"], fields["max_nodes"], fields["idle_minutes"]) == (1, 6, 30)
    assert kernel.rows()["big"].max_nodes == 6
    (act,) = (act for act in other.rows()["big"].acts if act.verb == "scale")
    assert [field.default for field in act.fields] == [1, 6, 30]
    assert kernel.act("scale", "big", values={"max_nodes": 2}).begun  # it costs nothing
    kernel.finished("big")
    assert kernel.rows()["big"].max_nodes == 2


def test_start_and_stop_change_state(kernel: Kernel) -> None:
    kernel.create("one", **SIZE)
    with pytest.raises(CommandError, match="one: .*already"):
        kernel.act("start", "one", confirmed=True)
    assert kernel.act("stop", "one").begun  # nothing runs there: nothing is lost
    kernel.finished("one")
    assert kernel.rows()["one"].state == "stopped" and kernel.rows()["one"].price == 0.0
    assert "3.06 USD per hour" in kernel.act("start", "one").confirmation
    kernel.act("start", "one", confirmed=True)
    assert kernel.finished("one") == "one is started."
    assert kernel.rows()["one"].state == "ready"


@pytest.mark.parametrize(
    ("verb", "name", "rest", "sentence"),
    [
        ("scale", "local", {"values": {"nodes": 2}}, "'local' does not support scale"),
        ("delete", "local", {}, "'local' does not support delete."),
        ("start", "local", {}, "'local' does not support start."),
        ("scale", "one", {"values": {"nodes": 2}}, "use, test, start, stop"),
        ("fly", "one", {}, "'fly' is not an action"),
        ("attach", "vm", {"kind": "batch"}, "Azure Batch"),
        ("start", "on", {}, "'on'"),
    ],
)
def test_unsupported_operation_is_refused(
    kernel: Kernel, verb: str, name: str, rest: dict[str, Any], sentence: str
) -> None:
    kernel.create("one", **SIZE)
    with pytest.raises(CommandError) as caught:
        kernel.act(verb, name, confirmed=True, **rest)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind", "values", "field", "sentence"),
    [
        ("x", "fake", {}, "name", "'x' is not a valid name"),
        ("a b", "fake", {}, "name", "is not a valid name"),
        ("local", "fake", {}, "name", "'local' is reserved"),
        ("", "fake", {}, "name", "A name is missing"),
        ("one", "fake", {"size": "cpu-4"}, "name", "(size)"),
        ("new", "fak", {}, "kind", "'fak'"),
        ("new", "", {}, "kind", "kind"),
        ("new", "local", {}, "kind", "'local'"),
        ("new", "fake", {"size": "gpu-v10"}, "size", "gpu-v100"),
        ("new", "fake", {"max_nodes": -1}, "max_nodes", "from 1 to 20"),
        ("new", "fake", {"shade": "red"}, "shade", "'shade'"),
    ],
)
def test_create_with_invalid_value_is_refused_by_field(
    kernel: Kernel, name: str, kind: str, values: dict[str, Any], field: str, sentence: str
) -> None:
    kernel.create("one", **SIZE)
    done = kernel.act("create", name, kind=kind, values=values, confirmed=True)
    assert list(done.errors) == [field] and sentence in done.errors[field] and not done.accepted
    assert set(kernel.rows()) == {"local", "one"}


@pytest.mark.parametrize("nodes", [5, -1, "x", None, 1.5])
def test_scale_with_invalid_nodes_is_refused(kernel: Kernel, nodes: Any) -> None:
    kernel.create("big", **CLUSTER)
    done = kernel.act("scale", "big", values={"nodes": nodes}, confirmed=True)
    assert list(done.errors) == ["nodes" if nodes is not None else ""] and not done.accepted
    wrong = kernel.act("scale", "big", values={"nodes": 1, "node": 1}, confirmed=True).errors
    assert wrong == {"node": "Unknown field 'node'. Did you mean min_nodes or max_nodes?"}


def test_create_of_existing_equal_target_is_accepted(kernel: Kernel) -> None:
    kernel.create("big", **CLUSTER)
    done = kernel.create("big", **CLUSTER)
    assert done.accepted and not done.begun and "already exists" in done.message


def test_create_of_externally_deleted_machine_creates_it(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel.create("big", **CLUSTER)
    made = []

    async def gone(self: FakeBackend) -> bool:
        return not made

    async def create(self: FakeBackend, progress: Any) -> None:
        made.append(self.target.name)

    monkeypatch.setattr(FakeBackend, "is_gone", gone)
    monkeypatch.setattr(FakeBackend, "create", create)
    assert kernel.act("create", "big", kind="fake", values=CLUSTER).confirmation  # it costs: as the first time
    assert kernel.create("big", **CLUSTER).begun and made == ["big"]
    assert kernel.rows()["big"].state != "failed"
    assert not kernel.create("big", **CLUSTER).begun and made == ["big"]


def test_create_of_deleted_machine_uses_new_settings(
    kernel: Kernel, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.create("big", **CLUSTER)
    fails = [True]

    async def gone(self: FakeBackend) -> bool:
        return True

    async def create(self: FakeBackend, progress: Any) -> None:
        if fails.pop():
            raise QuotaExceeded("No.")

    monkeypatch.setattr(FakeBackend, "is_gone", gone)
    monkeypatch.setattr(FakeBackend, "create", create)
    assert "6 x 3.06" in kernel.act("create", "big", kind="fake", values={**SIZE, "max_nodes": 6}).confirmation
    with pytest.raises(QuotaExceeded):
        kernel.create("big", **SIZE, max_nodes=6)
    assert stored(home)["targets"]["big"]["max_nodes"] == 4 == kernel.rows()["big"].fields["max_nodes"]
    fails.append(False)
    kernel.create("big", **SIZE, max_nodes=6)
    assert stored(home)["targets"]["big"]["max_nodes"] == 6 and kernel.rows()["big"].max_nodes == 6


def test_failed_create_leaves_no_target(kernel: Kernel, other: Kernel, home: Path) -> None:
    kernel.create("big", wait=False, fails="create", provisioning=0.1, **SIZE)
    with pytest.raises(QuotaExceeded, match="gpu-v100"):
        kernel.finished("big")
    row = kernel.rows()["big"]
    assert row.state == "failed" and row.work is not None and "quota" in row.work.error == row.detail
    assert [act.verb for act in row.acts] == ["delete"]
    assert stored(home)["targets"] == {} and set(other.rows()) == {"local"}
    level, text = kernel.messages()[-1]
    assert level == "error" and "'big'" in text and "gpu-v100" in text
    with pytest.raises(CommandError, match="'big' could not be created"):
        kernel.act("use", "big")
    assert kernel.create("big", **SIZE).accepted  # once more, with other settings
    assert kernel.rows()["big"].state == "ready"
    for end in ("delete", "dismiss"):
        kernel.create("bad", wait=False, fails="create", **SIZE)
        until(lambda: kernel.rows()["bad"].state == "failed")
        assert kernel.act(end, "bad").accepted and "bad" not in kernel.rows()


def test_unconfirmed_create_keeps_target(
    kernel: Kernel, other: Kernel, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = FakeBackend.create

    async def unsure(self: FakeBackend, progress: Any) -> None:
        await make(self, progress)
        raise CreateUnsure("No answer.", hint="%aml_compute list shows how it stands.")

    monkeypatch.setattr(FakeBackend, "create", unsure)
    kernel.create("big", wait=False, **CLUSTER)
    with pytest.raises(CreateUnsure, match="No answer"):
        kernel.finished("big")
    assert "big" in stored(home)["targets"] and "big" in other.rows()
    row = kernel.rows()["big"]
    assert row.work is not None and "No answer" in row.work.error and "delete" in [act.verb for act in row.acts]
    kernel.act("delete", "big", confirmed=True)
    kernel.finished("big")
    assert stored(home)["targets"] == {}


def test_operation_failure_stays_until_dismissed(kernel: Kernel) -> None:
    kernel.create("one", fails="stop", **SIZE)
    kernel.act("stop", "one")
    with pytest.raises(AmlTrainError, match="refused to stop"):
        kernel.finished("one")
    row = kernel.rows()["one"]
    assert row.state == "ready" and row.work is not None and "refused" in row.work.error
    assert kernel.act("dismiss", "one").accepted and kernel.rows()["one"].work is None


def test_delete_of_target_removes_its_runs(kernel: Kernel, home: Path) -> None:
    controller = kernel.controller
    kernel.create("big", running=600.0, queued=0.0, **SIZE)
    kernel.act("use", "big", values={"default": True})
    assert stored(home)["current"] == "big" and kernel.rows()["big"].current
    handle = controller.loop.call(controller.jobs.submit(JobSpec(name="x", script="pass"), "big"))
    controller.loop.call(controller.accepted(handle))
    until(lambda: kernel.rows()["big"].running == 1)
    waiting = controller.loop.post(controller.wait(RunHandle(handle)))
    assert "1 running run" in kernel.act("delete", "big").confirmation
    kernel.act("delete", "big", confirmed=True)
    assert "go to local" in (kernel.finished("big") or "")
    assert set(kernel.rows()) == {"local"} and kernel.rows()["local"].current
    assert stored(home) == {"schema": 1, "current": "local", "targets": {}}
    end = waiting.result(DEADLINE)  # waiters get a result
    # The watcher may see the run canceled before its target is gone.
    assert end.status.reason in ("deleted", "canceled")
    assert controller.loop.call(controller.runs()) == []
    with pytest.raises(UnknownTarget):
        controller.loop.call(controller.jobs.submit(JobSpec(name="x", script="pass"), "big"))


def test_external_target_change_is_noticed(kernel: Kernel, other: Kernel) -> None:
    kernel.create("big", **CLUSTER)
    handle = other.controller.loop.call(other.controller.jobs.submit(JobSpec(name="x", script="pass"), "big"))
    other.controller.loop.call(other.controller.accepted(handle))
    kernel.act("use", "big", values={"default": True})
    other.changes.clear()
    assert other.rows()["big"].current and other.changes  # read, and told
    kernel.act("delete", "big", confirmed=True)
    kernel.finished("big")
    assert set(other.rows()) == {"local"}
    until(lambda: not other.controller.loop.call(other.controller.runs()))


def test_unknown_target_state_is_read_when_viewed(kernel: Kernel, other: Kernel) -> None:
    kernel.create("big", **CLUSTER)
    kernel.create("far", unreachable=False)
    assert {row.state for row in other.rows().values()} == {"unknown"}

    async def look() -> None:
        backend: Any = other.controller.backend("far")
        backend.rescript(unreachable=True)
        other.controller.target_manager.status.check_outdated()

    other.controller.loop.call(look())
    until(lambda: all(row.checked_at for row in other.rows().values()))
    rows = other.rows()
    assert (rows["local"].state, rows["big"].state, rows["far"].state) == ("ready", "ready", "unreachable")
    assert "Cannot reach 'far'" in rows["far"].detail and rows["local"].cpus


def test_target_test_ends_with_notification(kernel: Kernel) -> None:
    kernel.create("one", **SIZE)
    assert kernel.act("test", "one").begun
    assert kernel.finished("one") == kernel.messages()[-1][1]
    assert kernel.messages()[-1][1].startswith("one: ready, 6 CPUs, 112.0 GiB, 1 x Fake V100")


def test_target_listener_is_called_for_other_kernels(kernel: Kernel, other: Kernel) -> None:
    other.rows()
    other.changes.clear()
    kernel.create("big", **CLUSTER)
    until(lambda: other.changes)  # nobody asked
    assert [row.name for row in other.controller.loop.call(_rows(other))] == ["local", "big"]


async def _rows(kernel: Kernel) -> tuple[TargetRow, ...]:
    return kernel.controller.target_manager.status.rows()


# ---- use and price


def test_use_is_not_seen_by_other_kernel_unless_default(kernel: Kernel, other: Kernel) -> None:
    kernel.create("big", **CLUSTER)
    assert "this notebook" in kernel.act("use", "big").message
    assert kernel.rows()["big"].current and not other.rows()["big"].current
    kernel.act("use", "big", values={"default": True})
    assert kernel.rows()["big"].current and other.rows()["big"].current


def test_first_run_on_billed_target_notes_price_once(kernel: Kernel) -> None:
    kernel.create("big", **CLUSTER)
    kernel.create("free")
    handles = [submitted(kernel, name) for name in ("big", "big", "free")]
    until(lambda: notes(kernel, handles[0]) or notes(kernel, handles[1]))
    found = [text for handle in handles for text in notes(kernel, handle)]
    assert len(found) == 1 and "3.06 USD" in found[0] and "big" in found[0]


def test_dry_run_has_price_of_run(kernel: Kernel) -> None:
    kernel.create("big", **CLUSTER)
    kernel.create("free")
    found = {name: str(planned(kernel, name).get("price")) for name in ("big", "free")}
    assert "3.06 USD per hour" in found["big"] and "USD" not in found["free"]


JOB = JobSpec(name="x", script="pass", notebook_dir="/tmp", project="/tmp")


def planned(kernel: Kernel, target: str) -> Mapping[str, Any]:
    async def plan() -> Mapping[str, Any]:
        return (await kernel.controller.jobs.plan(JOB, target)).request

    return kernel.controller.loop.call(plan(), DEADLINE)


def submitted(kernel: Kernel, target: str) -> RunHandle:
    async def submit() -> RunHandle:
        handle = await kernel.controller.jobs.submit(JOB, target)
        await kernel.controller.accepted(handle)
        return handle

    return kernel.controller.loop.call(submit(), DEADLINE)


def notes(kernel: Kernel, handle: RunHandle) -> tuple[str, ...]:
    async def read() -> tuple[str, ...]:
        return kernel.controller.entry(handle).run.notes

    return kernel.controller.loop.call(read(), DEADLINE)
