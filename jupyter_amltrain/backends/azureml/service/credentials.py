"""Credentials that need nobody: what this machine has, and the sign-ins of earlier processes."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from jupyter_amltrain.backends.azureml import faults
from jupyter_amltrain.backends.azureml.service import sign_in
from jupyter_amltrain.backends.azureml.service.account import ARM_SCOPE, Account
from jupyter_amltrain.errors import AmlTrainError, AuthenticationError

log = logging.getLogger("amltrain.azure")

#: How the error begins that says that a person is needed.
NOBODY = "Nobody is signed in to Azure here"

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
            log.info("%s: %s", name, faults.redacted(str(error.message)))
            plain = faults.signin_failed(str(error.message), how=words)
            if name == "EnvironmentCredential":  # somebody wrote it there and means it
                raise plain from error
            refusals.append(plain.message)
            continue
        except Exception as error:
            if (lost := faults.of_exception(error)) is not None:
                raise lost from error
            raise
        found = True
        yield account
    if not found:
        why = f" {refusals[0]}" if refusals else ""
        raise AuthenticationError(
            f"{NOBODY} (no AZURE_* variables, no managed identity, no az login).{why}",
            hint="Sign in: %aml_compute connect --sign-in device",
        )


def _chain() -> tuple[Any, ...]:
    from azure.identity import DefaultAzureCredential

    leave_out: dict[str, Any] = {
        "exclude_interactive_browser_credential": True,
        "exclude_broker_credential": True,  # a window of the system, and needs a package of its own
    }
    if not _managed_identity():
        leave_out["exclude_managed_identity_credential"] = True
    made = DefaultAzureCredential(
        additionally_allowed_tenants=["*"], process_timeout=10, **leave_out, **sign_in.patience()
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
                    error.hint = faults.connect_line(self._name)
                    raise
            return super().get_token(*scopes, claims=claims, **rest)

    def _open(self) -> None:
        if self.method == "auto":
            self.credential = next(candidates(self.tenant)).credential
            return
        from azure.identity import AuthenticationRequiredError

        credential = sign_in.credential_of(self.method, self.tenant, None, self.record)
        try:
            credential.get_token(ARM_SCOPE)
        except AuthenticationRequiredError as error:
            raise AuthenticationError(f"The sign-in to Azure for {self._name} is over.") from error
        self.credential, self.tenant = credential, ""
