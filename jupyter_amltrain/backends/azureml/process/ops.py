"""What the process can be asked for: operation -> "module:function", imported at first use.

Each is ``def op(call: Call, **payload) -> plain data``; `payload` holds the keys that the caller sent.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.process.serve import Call

_HERE = "jupyter_amltrain.backends.azureml.process"

OPS = {
    "workspace.connect": f"{_HERE}.workspaces:connect",
    "workspace.add": f"{_HERE}.workspaces:add",
    "workspace.whoami": f"{_HERE}.workspaces:whoami",
    "workspace.forget": f"{_HERE}.workspaces:forget",
    "computes.list": f"{_HERE}.computes:list_all",
    "computes.get": f"{_HERE}.computes:get",
    "computes.create": f"{_HERE}.provisioning:create",
    "computes.attach": f"{_HERE}.attached:attach",
    "computes.update": f"{_HERE}.computes:update",
    "computes.start": f"{_HERE}.computes:start",
    "computes.stop": f"{_HERE}.computes:stop",
    "computes.restart": f"{_HERE}.computes:restart",
    "computes.delete": f"{_HERE}.computes:delete",
    "computes.detach": f"{_HERE}.computes:detach",
    "sizes.list": f"{_HERE}.sizes:list_all",
    "quota.list": f"{_HERE}.sizes:quota",
    "billing.list": f"{_HERE}.billing:list_all",
    "environments.conda": f"{_HERE}.environments:conda",
    "jobs.submit": f"{_HERE}.submits:submit",
    "jobs.yaml": f"{_HERE}.yaml_jobs:submit",
    "jobs.yaml_check": f"{_HERE}.yaml_jobs:check",
    "jobs.poll": f"{_HERE}.jobs:poll",
    "jobs.get": f"{_HERE}.jobs:get",
    "jobs.list": f"{_HERE}.jobs:list_all",
    "jobs.cancel": f"{_HERE}.jobs:cancel",
    "jobs.archive": f"{_HERE}.jobs:archive",
    "jobs.outputs": f"{_HERE}.jobs:outputs",
    "mirror.sync": f"{_HERE}.mirror:sync",
    "monitor.metrics": f"{_HERE}.metrics:monitor",
    "models.register": f"{_HERE}.models:register",
    "models.list": f"{_HERE}.models:list_all",
    "models.download": f"{_HERE}.models:download",
    "process.ping": f"{_HERE}.ops:ping",
}


def function(op: str) -> Callable[..., Any]:
    """The function of an operation.

    Raises
    ------
    ValueError
        There is none of that name.
    """
    if op not in OPS:
        raise ValueError(f"unknown operation {op!r}")
    module, _, name = OPS[op].partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def ping(call: Call, *, wait: float = 0.0, fail: str = "", say: str = "") -> dict[str, Any]:
    """Is the process well? May say something, wait `wait` seconds, and fail with the sentence `fail`."""
    if say:
        call.progress(say)
    if wait:
        call.wait(wait)
    if fail:
        raise LookupError(fail)
    return {"pid": os.getpid(), "python": sys.version.split()[0], "home": str(call.root)}
