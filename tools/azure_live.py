"""Checks on a real workspace what is only assumed of Azure: ``AMLTRAIN_AZURE_LIVE=1 make azure-live ARGS="..."``.

It needs the workspace: ``--subscription --resource-group --workspace``, or ``--config config.json`` (the file that the
portal and the SDK use). It makes one cluster of at most one low-priority machine (or, with ``--serverless``, none),
runs one job of about three minutes, one that fails at once and one that is canceled, registers one model, and takes
all of it away again, also after Ctrl-C. It prints a table and writes it as JSON, without secrets. docs/
azure-assumptions.md tells what each row means.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from tools import azure_checks as checks

T = TypeVar("T")
#: Version of ARM's contract, as the product asks for it.
ARM = "2024-10-01"
SWITCH = "AMLTRAIN_AZURE_LIVE"
SIZE = "Standard_DS11_v2"
WORDS = {True: "holds", False: "DOES NOT HOLD", None: "not checked"}
#: Seconds until a job has a machine, at most; and until something is taken away.
QUEUE, AWAY = 1500.0, 600.0


def main(argv: list[str]) -> int:
    """Everything; 0 when all that was checked holds, 3 when something does not."""
    chosen = _parser().parse_args(argv)
    if os.environ.get(SWITCH) != "1":
        print(f"make azure-live: it costs money, so it wants {SWITCH}=1 in the environment.", file=sys.stderr)
        return 2
    try:
        where = _where(chosen)
    except (OSError, ValueError, KeyError) as error:
        print(f"make azure-live: {error}. Give --subscription, --resource-group and --workspace.", file=sys.stderr)
        return 2
    print(_plan(chosen, where))
    if not chosen.yes and not _agreed():
        return 1
    with tempfile.TemporaryDirectory(prefix="amltrain-live-") as folder:
        live = Live(chosen, where, Path(folder))
        try:
            live.go()
        except KeyboardInterrupt:
            print("\nInterrupted: what was made is taken away first (wait, please).", flush=True)
            live.broken = "interrupted"
        except Exception as error:
            live.broken = f"{type(error).__name__}: {error}"
            print(f"\nIt ends early: {live.broken}", flush=True)
        finally:
            live.clean()
        return live.tell()


def _agreed() -> bool:
    try:
        return input("Go on? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # nobody is there: --yes says so
        return False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make azure-live", description=__doc__.split("\n")[0])
    parser.add_argument("--config", help="config.json of the workspace (default: the one in this folder, if any)")
    for name in ("subscription", "resource-group", "workspace", "tenant"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--method", default="auto", choices=("auto", "browser", "device"), help="how to sign in")
    parser.add_argument("--size", default=SIZE, help=f"of the machine (default {SIZE})")
    parser.add_argument("--serverless", action="store_true", help="make no cluster; the service finds a machine")
    parser.add_argument("--dedicated", action="store_true", help="no low-priority machine")
    parser.add_argument("--environment", default="", help="of the jobs (default: as every job of ours)")
    parser.add_argument("--seconds", type=float, default=150.0, help="that the long job runs")
    parser.add_argument("--json", default="azure-live.json", help="where the table goes")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    return parser


def _where(chosen: argparse.Namespace) -> dict[str, str]:
    """Subscription, group and workspace, of the flags or of a config.json."""
    found = {"subscription": chosen.subscription, "resource_group": chosen.resource_group}
    found["workspace"] = chosen.workspace
    if not all(found.values()):
        facts = json.loads(Path(chosen.config or "config.json").read_text(encoding="utf-8"))
        names = {"subscription": "subscription_id", "resource_group": "resource_group", "workspace": "workspace_name"}
        found = {name: found[name] or str(facts[theirs]) for name, theirs in names.items()}
    return found | ({"tenant": chosen.tenant} if chosen.tenant else {})


def _plan(chosen: argparse.Namespace, where: dict[str, str]) -> str:
    machine = "a machine that the service finds" if chosen.serverless else "a cluster of 0 to 1 machines"
    tier = "dedicated" if chosen.dedicated else "low-priority"
    return (
        f"In the workspace {where['workspace']} (resource group {where['resource_group']}) this will:\n"
        "  look at sizes, quota, permissions, storage (nothing is changed by it)\n"
        f"  make {machine} of {chosen.size}, {tier}\n"
        f"  run a job of {chosen.seconds:.0f} s, one that fails at once, one that is canceled\n"
        "  log to the first job's run until the service refuses, and register a model of it\n"
        "  delete the cluster and the model, archive the jobs\n"
        "It takes about ten minutes and costs less than 1 USD (one machine of 2 cores for some minutes; its storage,\n"
        "kilobytes of logs and code, stays in the workspace)."
    )


class Live:
    """One round on one workspace."""

    def __init__(self, chosen: argparse.Namespace, where: dict[str, str], folder: Path) -> None:
        from jupyter_amltrain.loop import LoopThread
        from jupyter_amltrain.state import StateRoot

        self.chosen, self.where = chosen, where
        self.root = StateRoot(folder)
        self.loop = LoopThread("azure-live")
        self.mark = f"amlt-{uuid.uuid4().hex[:8]}"
        self.name = ""
        self.found: dict[str, checks.Seen] = {}
        self.notes: dict[str, str] = {}
        self.broken = ""
        self.place: Any = None
        self.cluster = ""
        self.jobs: list[str] = []
        self.models: list[tuple[str, str]] = []
        self.bills: list[Any] | None = None
        self.left: list[str] = []

    def call(self, work: Coroutine[Any, Any, T], seconds: float = 1800.0) -> T:
        """On the loop, for as long as it takes; Ctrl-C is heard meanwhile."""
        return self.loop.call(work, seconds)

    async def ask(self, op: str, **payload: Any) -> Any:
        """One operation of the product's Azure process, with what it says."""
        from jupyter_amltrain.backends.azureml.link import link_of

        link = link_of(self.loop, self.root)
        return await link.request(op, payload, progress=_say, signin=_sign_in, timeout=1800.0)

    async def of(self, op: str, **payload: Any) -> Any:
        return await self.ask(op, workspace=self.name, **payload)

    # ---- what is done

    def go(self) -> None:
        """All checks, in the order of their cost."""
        self._connect()
        print("Looking at the workspace.", flush=True)
        self.found |= checks.look_before(self.place)
        self.found |= checks.attempt_all(self._cluster)
        backend = self._backend()
        for step in (self._long, self._failing, self._canceled):
            try:
                step(backend)
            except AssertionError as error:
                print(f"  {error}", flush=True)

    def _connect(self) -> None:
        from jupyter_amltrain.backends.azureml.process.cloud import Cloud
        from jupyter_amltrain.workspaces import WorkspaceFacts, Workspaces

        facts = self.call(self.ask("workspace.connect", method=self.chosen.method, **self.where))
        self.name = str(facts["name"])
        self.notes["region"] = str(facts["location"])
        self.notes["missing"] = " ".join(facts["missing"])
        known = {field: facts[field] for field in WorkspaceFacts.__struct_fields__ if field in facts}
        Workspaces(self.root).put(WorkspaceFacts(**known))
        self.place = Cloud(self.root.path).workspace(self.name)

    def _cluster(self) -> dict[str, checks.Seen]:
        if self.chosen.serverless:
            return {}
        self.cluster = self.mark
        settings = {"size": self.chosen.size, "max_nodes": 1, "low_priority": not self.chosen.dedicated}
        settings["idle_minutes"] = 2.0
        self.call(self.of("computes.create", kind="amlcompute", name=self.cluster, settings=settings))
        return checks.look_at_cluster(self.place, self.cluster)

    def _backend(self) -> Any:
        from jupyter_amltrain.backends.azureml.backend import AzureBackend
        from jupyter_amltrain.spec.azure_target import AmlComputeTarget, ServerlessTarget

        target: Any = (
            ServerlessTarget(name="live", size=self.chosen.size)
            if self.chosen.serverless
            else AmlComputeTarget(
                name=self.cluster, size=self.chosen.size, max_nodes=1, low_priority=not self.chosen.dedicated
            )
        )
        return AzureBackend(target, self.loop, self.root)

    def _submit(self, backend: Any, name: str, text: str, **more: Any) -> tuple[Any, checks.Watch]:
        from jupyter_amltrain.snapshot import take
        from jupyter_amltrain.spec.environment import Environment
        from jupyter_amltrain.spec.job import JobSpec

        spec = JobSpec(name=name, script=text, environment=Environment(name=self.chosen.environment), **more)
        run_id = f"{self.mark}-{name}"

        async def send() -> Any:
            plan = await backend.plan(spec, take(spec.script_name, text, notebook_dir=self.root.path), run_id)
            return await backend.launch(plan, {}, {})

        self.jobs.append(run_id)
        run = self.call(send())
        print(f"Submitted {run.run_id}.", flush=True)
        return run, checks.Watch(self.place, run.run_id)

    def _until(self, watch: checks.Watch, *wanted: str, seconds: float = QUEUE) -> str:
        end, said = time.monotonic() + seconds, ""
        pause = float(os.environ.get("AMLTRAIN_AZURE_POLL") or 2.0)
        while (status := watch.look()) not in (*wanted, "Completed", "Failed", "Canceled"):
            if status != said:
                print(f"  {status or 'not in run history yet'}", flush=True)
                said = status
            assert time.monotonic() < end, f"{watch.name} was {status} for too long"
            time.sleep(pause)
        print(f"  {status}", flush=True)
        return status

    def _long(self, backend: Any) -> None:
        from jupyter_amltrain.backends.azureml import mirror_reading
        from jupyter_amltrain.spec.inputs import JobOutput
        from jupyter_amltrain.spec.job import Distribution

        run, watch = self._submit(
            backend, "long", checks.WORK, env={"AMLT_LIVE_SECONDS": f"{self.chosen.seconds:g}"},
            outputs={"model": JobOutput()}, distribution=Distribution(kind="pytorch", processes=2),
        )  # fmt: skip
        end = self._until(watch, seconds=QUEUE + self.chosen.seconds)
        self.found |= checks.attempt_all(watch.found)
        assert end == "Completed", f"the long job ended as {end}: {watch.error()[:200]}"
        log = watch.log()
        self.found["run_token_seconds"] = checks.attempt(lambda: checks.token_seconds(log))
        self.found |= checks.attempt_all(lambda: checks.look_at_arm(self.place, run.run_id))
        self.found |= checks.attempt_all(lambda: self._model(run.run_id))

        async def read() -> int:
            while not (await backend.poll((run.run_id,)))[run.run_id].state.terminal:
                await asyncio.sleep(0.1)
            return len((await backend.read(run.run_id, "log", 0)).data)

        size = self.call(read(), 300.0)
        source = mirror_reading.source(Path(run.folder)) or "none"
        self.notes["our own reading"] = f"{size} bytes of log; telemetry and metrics: {source}"
        self.found |= checks.attempt_all(lambda: checks.look_at_mlflow(self.place, run.run_id))

    def _model(self, job: str) -> dict[str, checks.Seen]:
        made = self.call(self.of("models.register", job=job, name=self.mark, path="outputs/live.txt"))
        self.models.append((self.mark, str(made["version"])))
        path = f"models/{self.mark}/versions/{made['version']}"
        uri = str((self.place.arm.get(path, api=ARM).json or {})["properties"]["modelUri"])
        return {"model_uri": ("/datastores/" in uri, uri.partition("?")[0][-90:])}

    def _failing(self, backend: Any) -> None:
        _, watch = self._submit(backend, "fails", checks.FAIL)
        self._until(watch)
        text = watch.error()
        self.found["exit_told"] = "code 3" in text or "status 3" in text, " ".join(text.split())[:120]

    def _canceled(self, backend: Any) -> None:
        run, watch = self._submit(backend, "stays", checks.STAY)
        self._until(watch, "Running")
        end = time.monotonic() + 60
        while "waits" not in self.attempted(watch.log) and time.monotonic() < end:
            watch.look()
            time.sleep(float(os.environ.get("AMLTRAIN_AZURE_POLL") or 2.0))
        self.call(self.of("jobs.cancel", name=run.run_id))
        self._until(watch)
        watch.look()
        self.found |= checks.attempt_all(lambda: checks.cancel_found(watch.log()))

    @staticmethod
    def attempted(work: Callable[[], str]) -> str:
        """What it says, or nothing."""
        try:
            return work()
        except Exception:
            return ""

    # ---- what is left

    def clean(self) -> None:
        """Take everything away; each thing is tried, whatever becomes of the others."""
        if self.name:
            print("Taking everything away.", flush=True)
            for job in self.jobs:
                self._away(f"job {job}", self.of("jobs.cancel", name=job))
            for job in self.jobs:
                self._away(f"job {job}", self._archived(job))
            for name, version in self.models:
                self._gone(f"model {name}", f"models/{name}/versions/{version}")
            if self.cluster:
                self._away(f"cluster {self.cluster}", self.of("computes.delete", name=self.cluster))
            with contextlib.suppress(Exception):
                self.bills = self.call(self.of("billing.list"), 120.0)
        from jupyter_amltrain.backends.azureml.link import close_of

        with contextlib.suppress(Exception):
            self.loop.call(close_of(self.loop), 30)
        self.loop.close()

    async def _archived(self, job: str) -> None:
        end = time.monotonic() + 120
        while True:
            row = (await self.of("jobs.poll", names=[job])).get(job)
            if row is None:
                return
            if row["status"] in ("Completed", "Failed", "Canceled") or time.monotonic() > end:
                break
            await asyncio.sleep(1)
        await self.of("jobs.archive", name=job)

    def _away(self, what: str, work: Coroutine[Any, Any, Any]) -> None:
        try:
            self.call(work, AWAY)
        except BaseException as error:  # a second Ctrl-C too: the others still go
            self.left.append(f"{what}: {error or type(error).__name__}")

    def _gone(self, what: str, path: str) -> None:
        try:
            self.place.arm.delete(path, api=ARM, ok=(200, 202, 204))
        except BaseException as error:
            self.left.append(f"{what}: {error}")

    def tell(self) -> int:
        """The table, the file, what bills; the exit code."""
        from tests.azure.emulator.switches import PACES, TABLE

        rows = {switch: self.found.get(switch, (None, "")) for switch in TABLE if switch not in PACES}
        width = max(map(len, rows))
        print(f"\n{'assumption (switch)':<{width}}  {'':<14} seen")
        for switch, (holds, seen) in sorted(rows.items(), key=lambda row: (row[1][0] is None, row[1][0] or False)):
            print(f"{switch:<{width}}  {WORDS[holds]:<14} {seen}")
        for name, text in self.notes.items():
            print(f"{name}: {text}" if text else f"{name}: nothing")
        value = {
            "schema": 1,
            "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "rows": [
                {"switch": switch, "assumed": _plain(TABLE[switch][0]), "result": WORDS[holds].lower(), "seen": seen}
                for switch, (holds, seen) in rows.items()
            ],
            "notes": self.notes,
            "ended early": self.broken,
            "left": self.left,
            "bills": self.bills,
        }
        Path(self.chosen.json).write_text(checks.dumped(value) + "\n", encoding="utf-8")
        print(f"Written: {self.chosen.json}")
        for line in self.left:
            print(f"NOT TAKEN AWAY: {line}")
        if self.bills is None:
            print("What still bills is not known: look at the studio's Compute page.")
        elif not self.bills:
            print("Nothing in the workspace bills for machines now.")
        for bill in self.bills or ():
            print(f"Still bills: {bill['kind']} {bill['name']}, {bill['nodes']} of {bill['size']}")
        if self.broken or self.left:
            return 1
        return 3 if any(holds is False for holds, _ in rows.values()) else 0


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str, list)) else str(value)


def _say(text: str) -> None:
    print(f"  {text}", flush=True)


def _sign_in(event: dict[str, Any]) -> None:
    print(f"  {event.get('text') or event}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
