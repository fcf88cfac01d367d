"""Pipelines of azure-core: tokens, retries, waits that end with the operation that waits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from azure.core import PipelineClient
from azure.core.exceptions import AzureError
from azure.core.pipeline.policies import (
    BearerTokenCredentialPolicy,
    HeadersPolicy,
    RetryPolicy,
    UserAgentPolicy,
)
from azure.core.pipeline.transport import RequestsTransport

from jupyter_amltrain._version import __version__
from jupyter_amltrain.backends.azureml import faults
from jupyter_amltrain.backends.azureml.service.account import ARM_SCOPE
from jupyter_amltrain.backends.azureml.service.operations import setting
from jupyter_amltrain.rpc import server

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.account import Account


class _Transport(RequestsTransport):  # type: ignore[misc]
    """Waits between retries end with the operation that waits."""

    def send(self, request: Any, **rest: Any) -> Any:
        """Nothing is sent for an operation that nobody wants any more: so a sign-in ends, too."""
        if (call := server.current_call()) is not None:
            call.check()
        return super().send(request, **rest)

    def sleep(self, duration: float) -> None:
        """Between two tries.

        Raises
        ------
        TargetUnreachable
            It is longer than our patience: so say the retries of the SDK, which know none.
        """
        if duration > setting("PATIENCE", 60):
            said = faults.too_long(duration)
            said.told = faults.Told(status=429, wait=duration)  # type: ignore[attr-defined]
            raise said
        call = server.current_call()
        if call is None:
            time.sleep(duration)
            return
        if duration >= 2:
            call.progress(f"Azure asks us to wait {duration:.0f} s")
        call.wait(duration)


class _Retries(RetryPolicy):  # type: ignore[type-arg]
    """Also POST after 429; never longer than our patience."""

    def is_retry(self, settings: dict[str, Any], response: Any) -> bool:
        status = response.http_response.status_code
        if (self.get_retry_after(response) or 0) > setting("PATIENCE", 60):
            return False
        if status == 429:
            return bool(settings["total"] > 0)
        return bool(super().is_retry(settings, response))


class _Tokens(BearerTokenCredentialPolicy):  # type: ignore[type-arg]
    """A 401 gets a fresh token once, past every cache of MSAL.

    Which audience the data plane wants no recording shows: one that does not take its own gets ARM's, and keeps it.
    """

    def send(self, request: Any) -> Any:
        response = super().send(request)
        if response.http_response.status_code != 401 or request.context.get("fresh"):
            return response
        request.context["fresh"] = True
        if "audience" in _refusal(response).lower() and ARM_SCOPE not in self._scopes:
            self._scopes = (ARM_SCOPE,)
        account: Any = self._credential
        self._token = token = account.fresh(*self._scopes)
        self._update_headers(request.http_request.headers, token.token)
        return self.next.send(request)


def _refusal(response: Any) -> str:
    """What a refusal says, header and body; nothing where it cannot be read."""
    try:
        response.http_response.read()
        told = str(response.http_response.headers.get("WWW-Authenticate", ""))
        return told + bytes(response.http_response.content).decode("utf-8", "replace")
    except AzureError:  # it is a refusal all the same
        return ""


def transport() -> RequestsTransport:
    """Proxies and certificates are those of the environment."""
    return _Transport(connection_timeout=setting("CONNECT_TIMEOUT", 10), read_timeout=setting("READ_TIMEOUT", 60))


def pipeline(base: str, credential: Account | None, scope: str) -> PipelineClient:  # type: ignore[type-arg]
    """A pipeline; without a credential it sends no Authorization."""
    policies: list[Any] = [
        HeadersPolicy(),
        UserAgentPolicy(base_user_agent=f"jupyter-amltrain/{__version__}"),
        _Retries(
            retry_total=5,
            retry_status=4,
            retry_connect=2,
            retry_read=2,
            retry_backoff_factor=setting("BACKOFF", 0.8),
            retry_backoff_max=20,
        ),
    ]
    if credential is not None:
        policies.append(_Tokens(credential, scope))
    return PipelineClient(base, policies=policies, transport=transport())
