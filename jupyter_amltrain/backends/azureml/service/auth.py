"""Authentication: accounts of azure-identity in a tenant, sign-in by a person, and credentials found here.

An :class:`Account` stands between a credential and its users: one request for a token at a time (16 threads
must not open 16 sign-ins), always in the workspace's tenant, and fresh past the caches when the service says so.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from jupyter_amltrain.backends.azureml import errors
from jupyter_amltrain.backends.azureml.service.account import ARM_SCOPE, Account, setting
from jupyter_amltrain.errors import AmlTrainError, AuthenticationError

log = logging.getLogger("amltrain.azure")


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
        plain = errors.of_exception(error)
        if plain is None:
            raise
        raise plain from error
    event("sign-in", text="", url="", code="", expires=0)
    return account


def credential_of(method: str, tenant: str, event: Callable[..., None] | None, record: str = "") -> Any:
    """A credential by which a person signs in, or (with the `record` of one who did) need not again."""
    from azure.identity import AuthenticationRecord, DeviceCodeCredential, InteractiveBrowserCredential

    from jupyter_amltrain.backends.azureml.service import http

    rest: dict[str, Any] = {
        "disable_automatic_authentication": True,
        "transport": http.transport(),
        **http.retry_policy().keywords(),
    }
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


#: Code of the error that says that a person must sign in.
NOT_SIGNED_IN = "azure.not_signed_in"

#: What a person calls the credentials of azure-identity's default chain.
_NAMES = {
    "EnvironmentCredential": "the environment variables AZURE_*",
    "WorkloadIdentityCredential": "workload identity",
    "ManagedIdentityCredential": "managed identity",
    "SharedTokenCacheCredential": "Visual Studio's sign-in",
    "VisualStudioCodeCredential": "VS Code's sign-in",
    "AzureCliCredential": "az login",
    "AzurePowerShellCredential": "Connect-AzAccount",
    "AzureDeveloperCliCredential": "azd auth login",
}


def candidates(tenant: str = "", say: Callable[[str], None] | None = None) -> Iterator[Account]:
    """The accounts that this machine can use without a person, in azure-identity's order.

    Raises
    ------
    AuthenticationError
        The environment names an identity that Entra refuses, or there is none at all; tells what was tried.
    """
    from azure.core.exceptions import ClientAuthenticationError
    from azure.identity import CredentialUnavailableError

    refusals: list[str] = []
    found = False
    for credential in _chain():
        name = type(credential).__name__
        words = _NAMES.get(name, name)
        account = Account(credential, tenant, how=words)
        if say is not None and name.endswith(("CliCredential", "PowerShellCredential")):
            say(f"Asking {words}")
        try:
            account.get_token(ARM_SCOPE)
        except CredentialUnavailableError:
            continue
        except ClientAuthenticationError as error:
            log.info("%s: %s", name, errors.redacted(str(error.message)))
            plain = errors.signin_failed(str(error.message), how=words)
            if name == "EnvironmentCredential":  # somebody wrote it there and means it
                raise plain from error
            refusals.append(plain.message)
            continue
        except Exception as error:
            if (lost := errors.of_exception(error)) is not None:
                raise lost from error
            raise
        found = True
        yield account
    if not found:
        why = f" {refusals[0]}" if refusals else ""
        raise AuthenticationError(
            f"Nobody is signed in to Azure here (no AZURE_* variables, no managed identity, no az login).{why}",
            hint="Sign in: %aml_compute connect --sign-in device",
            code=NOT_SIGNED_IN,
        )


def _chain() -> tuple[Any, ...]:
    from azure.identity import DefaultAzureCredential

    from jupyter_amltrain.backends.azureml.service import http

    leave_out: dict[str, Any] = {
        "exclude_interactive_browser_credential": True,
        "exclude_broker_credential": True,  # a window of the system, and needs a package of its own
    }
    if not _managed_identity():
        leave_out["exclude_managed_identity_credential"] = True
    made = DefaultAzureCredential(
        additionally_allowed_tenants=["*"], process_timeout=10, **leave_out, **http.retry_policy().keywords()
    )
    return tuple(made.credentials)


def _managed_identity() -> bool:
    """Whether asking for a managed identity can succeed; azure-identity's own probe costs seconds elsewhere."""
    named = ("IDENTITY_ENDPOINT", "MSI_ENDPOINT", "AZURE_FEDERATED_TOKEN_FILE")
    if any(os.environ.get(name) for name in named):
        return True
    if "managed" in os.environ.get("AZURE_TOKEN_CREDENTIALS", "").lower():
        return True
    place = urlsplit(os.environ.get("AZURE_POD_IDENTITY_AUTHORITY_HOST") or "http://169.254.169.254")
    host = place.hostname or ""
    patience = float(os.environ.get("AMLTRAIN_AZURE_IMDS") or 0.5)
    try:
        # Without "Metadata: true" the service answers 400 at once; what only accepts connections says nothing.
        with socket.create_connection((host, place.port or 80), patience) as connection:
            connection.settimeout(patience)
            connection.sendall(f"GET /metadata/identity HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            # gateways that catch every address answer 403 or 50x, and cost azure-identity half a minute
            return connection.recv(12)[9:] in (b"200", b"400", b"401", b"404", b"405")
    except OSError:
        return False


class Reopened(Account):
    """The account of a workspace that was connected by an earlier process; found when first needed."""

    def __init__(self, tenant: str, method: str, record: str, name: str) -> None:
        super().__init__(None, tenant, method=method)
        self._name = name
        self.record = record

    def get_token(self, *scopes: str, claims: str | None = None, **rest: Any) -> Any:
        """See :class:`Account`."""
        with self._one:
            if self.credential is None:
                try:
                    self._open()
                except AmlTrainError as error:
                    error.hint = errors.connect_line(self._name)
                    raise
            return super().get_token(*scopes, claims=claims, **rest)

    def _open(self) -> None:
        if self.method == "auto":
            self.credential = next(candidates(self.tenant)).credential
            return
        from azure.identity import AuthenticationRequiredError

        credential = credential_of(self.method, self.tenant, None, self.record)
        try:
            credential.get_token(ARM_SCOPE)
        except AuthenticationRequiredError as error:
            raise AuthenticationError(f"The sign-in to Azure for {self._name} is over.") from error
        self.credential, self.tenant = credential, ""
