"""Authentication: interactive sign-in, and credentials that this machine already has.

An :class:`Account` wraps a credential: it requests one token at a time (16 threads must not open 16 sign-ins),
always in the workspace's tenant, and bypasses caches when the service rejects a token.
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

from jupyter_amltrain.azure import errors
from jupyter_amltrain.azure.service.account import ARM_SCOPE, Account, env_seconds
from jupyter_amltrain.errors import AmlTrainError, AuthenticationError

log = logging.getLogger("amltrain.azure")


def has_local_browser() -> bool:
    """Return whether a browser opened by this process appears on the user's screen."""
    remote = ("SSH_CONNECTION", "SSH_TTY", "JUPYTERHUB_USER", "KUBERNETES_SERVICE_HOST", "CODESPACES", "COLAB_GPU")
    if any(os.environ.get(name) for name in remote):
        return False
    if sys.platform in ("win32", "darwin"):
        return True
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    import webbrowser

    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    # a browser that runs in a terminal does not count
    return type(browser) is not webbrowser.GenericBrowser


def sign_in(method: str, tenant: str, event: Callable[..., None]) -> Account:
    """Let the user sign in.

    Parameters
    ----------
    method
        ``browser``, ``device``, or ``auto`` to choose the one that works on this machine.
    event
        Receives ``("sign-in", text=, url=, code=, expires=)``.

    Raises
    ------
    AuthenticationError
        Nobody signed in before the timeout, or Entra rejected the sign-in.
    """
    if method == "auto":
        method = "browser" if has_local_browser() else "device"
    credential = interactive_credential(method, tenant, event)
    account = Account(credential, method=method, how="a browser" if method == "browser" else "a device code")
    if method == "browser":
        event("sign-in", text="A browser window is open: sign in to Azure there.", url="", code="", expires=300)
    try:
        account.record = credential.authenticate(scopes=[ARM_SCOPE]).serialize()
    except Exception as error:  # the SDK raises the errors of several libraries
        event("sign-in", text="", url="", code="", expires=0)
        # the browser cannot be opened, for example on a machine with a display but without a desktop
        if method == "browser" and type(error).__name__ == "CredentialUnavailableError":
            return sign_in("device", tenant, event)
        plain = errors.error_of_exception(error)
        if plain is None:
            raise
        raise plain from error
    event("sign-in", text="", url="", code="", expires=0)
    return account


def interactive_credential(method: str, tenant: str, event: Callable[..., None] | None, record: str = "") -> Any:
    """Return a credential for interactive sign-in; with the `record` of an earlier sign-in it does not prompt again."""
    from azure.identity import AuthenticationRecord, DeviceCodeCredential, InteractiveBrowserCredential

    from jupyter_amltrain.azure.service import http

    options: dict[str, Any] = {
        "disable_automatic_authentication": True,
        "transport": http.transport(),
        **http.retry_policy().keywords(),
    }
    if tenant:
        options |= {"tenant_id": tenant, "additionally_allowed_tenants": ["*"]}
    if record:
        options["authentication_record"] = AuthenticationRecord.deserialize(record)
    if (cache := _token_cache_options()) is not None:
        options["cache_persistence_options"] = cache
    if method == "browser":
        return InteractiveBrowserCredential(timeout=int(env_seconds("SIGN_IN", 300)), **options)

    def prompt(url: str, code: str, expires: Any) -> None:
        left = max(0, round(expires.timestamp() - time.time()))
        text = f"To sign in to Azure, open {url} and enter the code {code}"
        if event is not None:
            event("sign-in", text=text, url=url, code=code, expires=left)

    return DeviceCodeCredential(prompt_callback=prompt, **options)


def _token_cache_options() -> Any:
    """Return the options of a persistent token cache; ``None`` where the system cannot encrypt one."""
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
    except Exception as error:  # keyrings raise arbitrary exceptions
        log.info("no encrypted token cache; the sign-in is kept in memory only: %s", type(error).__name__)
        return None


#: Code of the error that requires an interactive sign-in.
NOT_SIGNED_IN = "azure.not_signed_in"

#: Display names of the credentials in azure-identity's default chain.
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


def available_accounts(tenant: str = "", notify: Callable[[str], None] | None = None) -> Iterator[Account]:
    """Yield the accounts that this machine can use without interaction, in azure-identity's order.

    Raises
    ------
    AuthenticationError
        Entra rejects the identity in the environment variables, or there is no account; the message lists attempts.
    """
    from azure.core.exceptions import ClientAuthenticationError
    from azure.identity import CredentialUnavailableError

    refusals: list[str] = []
    any_account = False
    for credential in _chain():
        name = type(credential).__name__
        label = _NAMES.get(name, name)
        account = Account(credential, tenant, how=label)
        if notify is not None and name.endswith(("CliCredential", "PowerShellCredential")):
            notify(f"Trying {label}")
        try:
            account.get_token(ARM_SCOPE)
        except CredentialUnavailableError:
            continue
        except ClientAuthenticationError as error:
            log.info("%s: %s", name, errors.redact(str(error.message)))
            plain = errors.signin_failed(str(error.message), how=label)
            if name == "EnvironmentCredential":  # set explicitly, so do not fall back to another credential
                raise plain from error
            refusals.append(plain.message)
            continue
        except Exception as error:  # the SDK raises the errors of several libraries
            if (translated := errors.error_of_exception(error)) is not None:
                raise translated from error
            raise
        any_account = True
        yield account
    if not any_account:
        reason = f" {refusals[0]}" if refusals else ""
        raise AuthenticationError(
            f"Not signed in to Azure: no AZURE_* variables, no managed identity, no az login.{reason}",
            hint="Sign in: %aml_compute connect --sign-in device",
            code=NOT_SIGNED_IN,
        )


def _chain() -> tuple[Any, ...]:
    from azure.identity import DefaultAzureCredential

    from jupyter_amltrain.azure.service import http

    options: dict[str, Any] = {
        "exclude_interactive_browser_credential": True,
        "exclude_broker_credential": True,  # opens a system dialog, and needs an extra package
    }
    if not _managed_identity():
        options["exclude_managed_identity_credential"] = True
    default = DefaultAzureCredential(
        additionally_allowed_tenants=["*"], process_timeout=10, **options, **http.retry_policy().keywords()
    )
    return tuple(default.credentials)


def _managed_identity() -> bool:
    """Return whether a managed identity can be available; azure-identity's own probe takes seconds where it is not."""
    named = ("IDENTITY_ENDPOINT", "MSI_ENDPOINT", "AZURE_FEDERATED_TOKEN_FILE")
    if any(os.environ.get(name) for name in named):
        return True
    if "managed" in os.environ.get("AZURE_TOKEN_CREDENTIALS", "").lower():
        return True
    endpoint = urlsplit(os.environ.get("AZURE_POD_IDENTITY_AUTHORITY_HOST") or "http://169.254.169.254")
    host = endpoint.hostname or ""
    timeout_s = float(os.environ.get("AMLTRAIN_AZURE_IMDS") or 0.5)
    try:
        # Without "Metadata: true" the service returns 400 immediately; hosts that only accept connections send nothing.
        with socket.create_connection((host, endpoint.port or 80), timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(f"GET /metadata/identity HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            # gateways that accept every address return 403 or 50x, and would delay azure-identity by half a minute
            return connection.recv(12)[9:] in (b"200", b"400", b"401", b"404", b"405")
    except OSError:
        return False


class Reopened(Account):
    """Account of a workspace that an earlier process connected; its credential is created at first use."""

    def __init__(self, tenant: str, method: str, record: str, name: str) -> None:
        super().__init__(None, tenant, method=method)
        self._name = name
        self.record = record

    def get_token(self, *scopes: str, claims: str | None = None, **rest: Any) -> Any:
        """See :class:`Account`."""
        with self._lock:
            if self.credential is None:
                try:
                    self._open()
                except AmlTrainError as error:
                    error.hint = errors.connect_line(self._name)
                    raise
            return super().get_token(*scopes, claims=claims, **rest)

    def _open(self) -> None:
        if self.method == "auto":
            self.credential = next(available_accounts(self.tenant)).credential
            return
        from azure.identity import AuthenticationRequiredError

        credential = interactive_credential(self.method, self.tenant, None, self.record)
        try:
            credential.get_token(ARM_SCOPE)
        except AuthenticationRequiredError as error:
            raise AuthenticationError(f"The Azure sign-in for {self._name} has expired.") from error
        self.credential, self.tenant = credential, ""
