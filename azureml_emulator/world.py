"""All state of the emulated Azure, in one object that every handler gets as ``call.world``."""

from __future__ import annotations

import asyncio
import copy
import secrets
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from azureml_emulator.arm import Operations
from azureml_emulator.clock import Clock
from azureml_emulator.faults import Faults
from azureml_emulator.switches import Switches
from azureml_emulator.wire import WireLog

if TYPE_CHECKING:
    from azureml_emulator.blob import Blob
    from azureml_emulator.nodes import Nodes
    from azureml_emulator.proxy import Proxy
    from azureml_emulator.quota import Quota
    from azureml_emulator.tokens import Tokens


class Part(Protocol):
    """State of one emulated service (jobs, assets, ...): created on first use, closed and discarded at reset."""

    def __init__(self, world: World) -> None: ...

    async def close(self) -> None:
        """End what it started (processes, files)."""


T = TypeVar("T", bound=Part)


class Resources:
    """ARM resources by id; ids are compared without regard to case. Values are plain dicts in ARM's own shape."""

    def __init__(self) -> None:
        self._all: dict[str, dict[str, Any]] = {}

    def get(self, arm_id: str) -> dict[str, Any] | None:
        """The resource itself (change it in place), or None."""
        return self._all.get(arm_id.lower())

    def put(self, resource: dict[str, Any]) -> dict[str, Any]:
        """Keep a resource under its ``id``."""
        self._all[str(resource["id"]).lower()] = resource
        return resource

    def drop(self, arm_id: str) -> bool:
        """Forget one; whether it was there."""
        return self._all.pop(arm_id.lower(), None) is not None

    def below(self, arm_id: str) -> list[dict[str, Any]]:
        """Direct children of a collection, e.g. ``<workspace>/computes``, in the order they came."""
        start = arm_id.lower().rstrip("/") + "/"
        return [found for key, found in self._all.items() if key.startswith(start) and "/" not in key[len(start) :]]

    def clear(self) -> None:
        """Forget all."""
        self._all.clear()


class World:
    """The emulated subscription: identities, resources, nodes, blobs, and how it may be disturbed.

    Attributes
    ----------
    tenant, client, client_secret, user : str
        The one application that may sign in by secret, and the person that a device code signs in.
    signing_key, proxy_secret, control_secret : str
        Key of access tokens; passwords of the control endpoint and of the proxy, the only way to the emulator.
    subscription, resource_group, workspace, location : str
        What is there after a reset.
    workspace_id : str
        ARM id of that workspace.
    api : str
        Base of its data plane, ``https://eastus.api.azureml.ms``.
    resources : Resources
    nodes, quota, blob, tokens
        See nodes.py, quota.py, blob.py, tokens.py.
    clock, switches, faults, wire, operations
    environ : dict of str
        What a client process needs to be led here (proxy, CA); the executor gives it to jobs.

    A room of the emulator keeps its state in a class of its own, reached by ``world.part(Jobs)``.
    """

    def __init__(self) -> None:
        self.tenant = "72f988bf-0000-4000-8000-2d7cd011db47"
        self.client = "11111111-0000-4000-8000-000000000001"
        # New at each start: whoever has them runs jobs as the owner of this process.
        self.client_secret = f"emulated~{secrets.token_urlsafe(24)}"
        self.signing_key = secrets.token_urlsafe(32)
        self.proxy_secret = secrets.token_hex(24)
        self.control_secret = secrets.token_hex(24)
        self.user = "ada@example.com"
        self.subscription = "50b00000-0000-4000-8000-000000000001"
        self.resource_group = "ml"
        self.workspace = "ml-dev"
        self.location = "eastus"
        self.api = "https://eastus.api.azureml.ms"
        self.environ: dict[str, str] = {}
        self.blob: Blob | None = None
        self.proxy: Proxy | None = None
        self.clock = Clock()
        self.switches = Switches()
        self.faults = Faults()
        self.wire = WireLog()
        self.resources = Resources()
        self.operations = Operations(self)
        self._parts: dict[type, Any] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.problems: list[str] = []

    @property
    def workspace_id(self) -> str:
        """ARM id of the workspace that is there after a reset."""
        return (
            f"/subscriptions/{self.subscription}/resourceGroups/{self.resource_group}"
            f"/providers/Microsoft.MachineLearningServices/workspaces/{self.workspace}"
        )

    @property
    def nodes(self) -> Nodes:
        """Nodes of clusters: `await world.nodes.acquire(compute, count)`."""
        from azureml_emulator.nodes import Nodes

        return self.part(Nodes)

    @property
    def quota(self) -> Quota:
        """vCPU quota by VM family."""
        from azureml_emulator.quota import Quota

        return self.part(Quota)

    @property
    def tokens(self) -> Tokens:
        """Access tokens: mint, check, expire."""
        from azureml_emulator.tokens import Tokens

        return self.part(Tokens)

    def part(self, kind: type[T]) -> T:
        """The one `kind` of this world, made now if need be."""
        if kind not in self._parts:
            self._parts[kind] = kind(self)
        return cast(T, self._parts[kind])

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run `work` in the background, held and ended at reset; its exception becomes a line in `problems`."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.problems.append(f"{task.get_name()}: {type(error).__name__}: {error}")

    def refused_hosts(self) -> list[str]:
        """Hosts that clients asked the proxy for and did not get."""
        return list(self.proxy.refused) if self.proxy is not None else []

    def break_connections(self) -> int:
        """Cut every connection through the proxy; how many there were."""
        return self.proxy.break_all() if self.proxy is not None else 0

    async def reset(self) -> None:
        """Back to the first moment: nothing runs, one workspace, every switch at its default, no faults."""
        await self.close()
        self.clock.set_speed(1.0)
        self.switches.reset()
        self.faults.clear()
        self.resources.clear()
        self.operations = Operations(self)
        self.problems.clear()
        if self.proxy is not None:
            self.proxy.refused.clear()
            self.proxy.down = False
        if self.blob is not None:
            await self.blob.reset()
        from azureml_emulator import workspaces

        workspaces.seed(self)
        self.wire.clear()

    async def close(self) -> None:
        """End every task and part."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        parts, self._parts = list(self._parts.values()), {}
        for part in reversed(parts):
            await part.close()


def copied(resource: dict[str, Any]) -> dict[str, Any]:
    """A deep copy, for answers that differ from what is kept."""
    return copy.deepcopy(resource)
