"""Azure's own SDK, where it does more than we do: made late, imported in the background.

Its import takes 4-7 s and its first request another 5 s where ``azureml-mlflow`` is installed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.cloud import Cloud, Workspace

log = logging.getLogger("amltrain.azure")

_guard = threading.Lock()
_clients: dict[str, tuple[Any, Any]] = {}  # by workspace: its account, the client
_warm: threading.Thread | None = None


def warm() -> None:
    """Import it soon, in the background; twice is harmless. ``AMLTRAIN_AZURE_WARM``: seconds until then, < 0 never."""
    global _warm
    after = float(os.environ.get("AMLTRAIN_AZURE_WARM") or 2)
    with _guard:
        if _warm is None and after >= 0:
            _warm = threading.Thread(target=_import, args=(after,), name="amltrain-azure-sdk", daemon=True)
            _warm.start()


def _import(after: float) -> None:
    time.sleep(after)  # what the user waits for now comes first
    began = time.monotonic()
    try:
        import azure.ai.ml  # noqa: F401
    except Exception as error:  # whoever needs it is told then
        log.info("azure-ai-ml cannot be imported: %s", error)
        return
    log.info("azure-ai-ml imported in %.1f s", time.monotonic() - began)


def client(cloud: Cloud, workspace: Workspace | str) -> Any:
    """The MLClient of a workspace; waits until the SDK is imported.

    Raises
    ------
    ModuleNotFoundError
        ``azure-ai-ml`` is not installed; told in plain words by :mod:`..faults`.
    """
    place = cloud.workspace(workspace) if isinstance(workspace, str) else workspace
    with _guard:
        known = _clients.get(place.name)
    if known is not None and known[0] is place.credential:
        return known[1]
    os.environ.setdefault("AZURE_ML_CLI_PRIVATE_FEATURES_ENABLED", "false")
    with quiet():
        from azure.ai.ml import MLClient

        made = MLClient(
            place.credential,
            place.subscription,
            place.resource_group,
            place.workspace,
            enable_telemetry=False,  # in a notebook it would phone home
            **_patience(),
        )
    with _guard:
        _clients[place.name] = (place.credential, made)
    return made


def _patience() -> dict[str, Any]:
    """Its retries as ours are: none waits for longer than a person, and each ends with the operation.

    Policies have one successor each and cannot be shared by the SDK's many clients; their settings can.
    """
    from jupyter_amltrain.backends.azureml.service.operations import setting
    from jupyter_amltrain.backends.azureml.service.pipeline import transport

    return {
        "transport": transport(),
        "retry_total": 5,
        "retry_status": 4,
        "retry_connect": 2,
        "retry_read": 2,
        "retry_backoff_factor": setting("BACKOFF", 0.8),
        "retry_backoff_max": 20,
    }


def forget(name: str) -> None:
    """Let go of the client of a workspace."""
    with _guard:
        _clients.pop(name, None)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Its notes on experimental classes are for developers."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def field(thing: Any, name: str, default: Any = None) -> Any:
    """A field of an object of the SDK, whichever way its version spells it.

    From 1.35.0 on objects that were made of REST answers have ``currentValue`` where older ones have
    ``current_value``; and names with letters like ``vCPUs`` were ``v_cp_us``.
    """
    wanted = name.replace("_", "").lower()
    found = getattr(thing, name, None)
    if found is not None:
        return found
    fields = thing if isinstance(thing, dict) else getattr(thing, "__dict__", {})
    for key, value in fields.items():
        if key.replace("_", "").lower() == wanted and value is not None:
            return value
    return default
