"""A person signs in to Azure: in a browser, or with a device code."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from jupyter_amltrain.backends.azureml import faults
from jupyter_amltrain.backends.azureml.service.account import ARM_SCOPE, Account
from jupyter_amltrain.backends.azureml.service.operations import setting

log = logging.getLogger("amltrain.azure")


def patience() -> dict[str, Any]:
    """Retries of a sign-in: as those of our own requests, and none that waits for minutes."""
    return {"retry_total": 3, "retry_backoff_factor": setting("BACKOFF", 0.8), "retry_backoff_max": 10}


def browser_here() -> bool:
    """Whether a browser that is opened by this process is in front of the person."""
    remote = ("SSH_CONNECTION", "SSH_TTY", "JUPYTERHUB_USER", "KUBERNETES_SERVICE_HOST", "CODESPACES", "COLAB_GPU")
    if any(os.environ.get(name) for name in remote):
        return False
    if sys.platform in ("win32", "darwin"):
        return True
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    import webbrowser

    try:
        found = webbrowser.get()
    except webbrowser.Error:
        return False
    # one that runs in a terminal has none here
    return type(found) is not webbrowser.GenericBrowser


def interactive(method: str, tenant: str, event: Callable[..., None]) -> Account:
    """Let a person sign in.

    Parameters
    ----------
    method
        ``browser``, ``device``, or ``auto`` for the one that works here.
    event
        Takes ``("sign-in", text=, url=, code=, expires=)``.

    Raises
    ------
    AuthenticationError
        Nobody did so in time, or Entra refused.
    """
    if method == "auto":
        method = "browser" if browser_here() else "device"
    credential = credential_of(method, tenant, event)
    account = Account(credential, method=method, how="a browser" if method == "browser" else "a device code")
    if method == "browser":
        event("sign-in", text="A browser window is open: sign in to Azure there.", url="", code="", expires=300)
    try:
        account.record = credential.authenticate(scopes=[ARM_SCOPE]).serialize()
    except Exception as error:
        event("sign-in", text="", url="", code="", expires=0)
        # a browser that cannot be opened, say on a machine with a display but without a desktop
        if method == "browser" and type(error).__name__ == "CredentialUnavailableError":
            return interactive("device", tenant, event)
        plain = faults.of_exception(error)
        if plain is None:
            raise
        raise plain from error
    event("sign-in", text="", url="", code="", expires=0)
    return account


def credential_of(method: str, tenant: str, event: Callable[..., None] | None, record: str = "") -> Any:
    """A credential by which a person signs in, or (with the `record` of one who did) need not again."""
    from azure.identity import AuthenticationRecord, DeviceCodeCredential, InteractiveBrowserCredential

    from jupyter_amltrain.backends.azureml.service.pipeline import transport

    rest: dict[str, Any] = {"disable_automatic_authentication": True, "transport": transport(), **patience()}
    if tenant:
        rest |= {"tenant_id": tenant, "additionally_allowed_tenants": ["*"]}
    if record:
        rest["authentication_record"] = AuthenticationRecord.deserialize(record)
    if (cache := _kept()) is not None:
        rest["cache_persistence_options"] = cache
    if method == "browser":
        return InteractiveBrowserCredential(timeout=int(setting("SIGN_IN", 300)), **rest)

    def prompt(url: str, code: str, expires: Any) -> None:
        left = max(0, round(expires.timestamp() - time.time()))
        text = f"To sign in to Azure, open {url} and enter the code {code}"
        if event is not None:
            event("sign-in", text=text, url=url, code=code, expires=left)

    return DeviceCodeCredential(prompt_callback=prompt, **rest)


def _kept() -> Any:
    """Where a person's sign-in outlives this process: only where the system can encrypt it."""
    if sys.platform not in ("win32", "darwin") and not os.environ.get("DBUS_SESSION_BUS_ADDRESS"):
        return None
    try:
        import tempfile
        from pathlib import Path

        from azure.identity import TokenCachePersistenceOptions

        build_encrypted_persistence = importlib.import_module("msal_extensions").build_encrypted_persistence
        with tempfile.TemporaryDirectory() as folder:
            build_encrypted_persistence(str(Path(folder) / "probe"))
        return TokenCachePersistenceOptions(name="amltrain")
    except Exception as error:  # keyrings raise what they like
        log.info("a sign-in is kept in memory only: %s", type(error).__name__)
        return None
