"""HTTP clients over azure-core: addresses, tokens, retries, paging, errors; waits end with their operation."""

from __future__ import annotations

import json as json_module
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from azure.core import PipelineClient
from azure.core.exceptions import AzureError
from azure.core.pipeline import policies
from azure.core.pipeline.transport import RequestsTransport
from azure.core.rest import HttpRequest

from jupyter_amltrain._version import __version__
from jupyter_amltrain.backends.azureml import errors
from jupyter_amltrain.backends.azureml.service.account import ARM_SCOPE, setting
from jupyter_amltrain.rpc import server

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.account import Account


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Retry policy of everything that talks to Azure: our requests, the SDK's, and sign-in.

    Attributes
    ----------
    total, status, connect, read
        Retries of a request: of every kind, after a bad status, without a connection, without an answer.
    backoff_s, max_backoff_s
        The first pause, which doubles, and the longest.
    max_wait_s
        A longer pause that the service wants (``Retry-After``) is an error instead: a person sits before the cell.
    """

    total: int = 5
    status: int = 4
    connect: int = 2
    read: int = 2
    backoff_s: float = 0.8
    max_backoff_s: float = 20.0
    max_wait_s: float = 60.0

    def keywords(self) -> dict[str, Any]:
        """Return it as azure-core, azure-identity and the SDK take it."""
        return {
            "retry_total": self.total,
            "retry_status": self.status,
            "retry_connect": self.connect,
            "retry_read": self.read,
            "retry_backoff_factor": self.backoff_s,
            "retry_backoff_max": self.max_backoff_s,
        }


def retry_policy() -> RetryPolicy:
    """Return the retry policy; ``AMLTRAIN_AZURE_BACKOFF`` and ``AMLTRAIN_AZURE_PATIENCE`` change it (seconds)."""
    return RetryPolicy(backoff_s=setting("BACKOFF", 0.8), max_wait_s=setting("PATIENCE", 60.0))


class _Transport(RequestsTransport):  # type: ignore[misc]
    """Waits between retries end with the operation that waits."""

    def send(self, request: Any, **rest: Any) -> Any:
        """Send a request, unless its operation is canceled; this also ends a sign-in."""
        if (call := server.current_call()) is not None:
            call.check()
        return super().send(request, **rest)

    def sleep(self, duration: float) -> None:
        """Between two tries.

        Raises
        ------
        TargetUnreachable
            It is longer than our retry policy allows; the SDK's own policy has no such limit.
        """
        if duration > retry_policy().max_wait_s:
            raise errors.too_long(duration)
        call = server.current_call()
        if call is None:
            time.sleep(duration)
            return
        if duration >= 2:
            call.progress(f"Azure asks us to wait {duration:.0f} s")
        call.wait(duration)


class _CoreRetries(policies.RetryPolicy):  # type: ignore[type-arg]
    """Also retries POST after 429; never waits longer than :class:`RetryPolicy` allows."""

    def is_retry(self, settings: dict[str, Any], response: Any) -> bool:
        status = response.http_response.status_code
        if (self.get_retry_after(response) or 0) > retry_policy().max_wait_s:
            return False
        if status == 429:
            return bool(settings["total"] > 0)
        return bool(super().is_retry(settings, response))


class _Tokens(policies.BearerTokenCredentialPolicy):  # type: ignore[type-arg]
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
    chain: list[Any] = [
        policies.HeadersPolicy(),
        policies.UserAgentPolicy(base_user_agent=f"jupyter-amltrain/{__version__}"),
        _CoreRetries(**retry_policy().keywords()),
    ]
    if credential is not None:
        chain.append(_Tokens(credential, scope))
    return PipelineClient(base, policies=chain, transport=transport())


#: Versions of ARM's contract. The GA ones know all that we send; previews only where a field needs one.
ARM = "2024-10-01"
ARM_PREVIEW = "2024-10-01-preview"
#: Of run history and the other services of the data plane.
HISTORY = "v1.0"
#: Of subscriptions and resource groups.
RESOURCES = "2022-12-01"

#: Version of the storage service's contract, ``x-ms-version``.
BLOB = "2021-08-06"

OK = (200, 201, 202, 204)


class Answer(msgspec.Struct, frozen=True):
    """One answer.

    Attributes
    ----------
    json
        The body when it is JSON, else ``None``.
    headers
        Names in lower case.
    """

    status: int
    headers: dict[str, str]
    json: Any
    bytes: bytes


class Rest:
    """One service below one address.

    Parameters
    ----------
    host
        ``https://management.azure.com``.
    below
        What stands before every path that does not begin with ``/``.
    where
        Name of the workspace, for errors.
    """

    def __init__(
        self,
        host: str | Callable[[], str],
        below: str,
        credential: Account | None,
        scope: str = "",
        *,
        where: str = "",
        user: str = "",
    ) -> None:
        self._host, self._below, self._where = host, below, where
        self.user = user
        #: Until when the service wants to hear nothing of us (monotonic), by whether it was to read.
        self._quiet: dict[bool, float] = {}
        self._client = pipeline("", credential, scope)

    def get(self, path: str, **rest: Any) -> Answer:
        """GET."""
        return self.send("GET", path, **rest)

    def put(self, path: str, **rest: Any) -> Answer:
        """PUT."""
        return self.send("PUT", path, **rest)

    def post(self, path: str, **rest: Any) -> Answer:
        """POST."""
        return self.send("POST", path, **rest)

    def patch(self, path: str, **rest: Any) -> Answer:
        """PATCH."""
        return self.send("PATCH", path, **rest)

    def delete(self, path: str, **rest: Any) -> Answer:
        """DELETE."""
        return self.send("DELETE", path, **rest)

    def url(self, path: str) -> str:
        """The whole address: a whole one is left as it is."""
        if path.startswith(("https://", "http://")):
            return path
        host = self._host if isinstance(self._host, str) else self._host()
        if path.startswith("/"):
            return host.rstrip("/") + path
        return "/".join(part.strip("/") for part in (host, self._below, path) if part)

    def send(
        self,
        method: str,
        path: str,
        *,
        api: str = "",
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        ok: Collection[int] = OK,
        act: str = "",
    ) -> Answer:
        """One request.

        Parameters
        ----------
        path
            From ``/`` on whole; else below the workspace. A whole address (a ``nextLink``, one to poll) is
            sent back as it came.
        api
            The ``api-version``.
        ok
            Statuses that are no error.
        act
            What is asked, in words, for errors.

        Raises
        ------
        AmlTrainError
            Of :mod:`..errors`.
        """
        query: dict[str, Any] = {**({"api-version": api} if api else {}), **(params or {})}
        request = HttpRequest(
            method, self.url(path), params=query or None, json=json, content=content, headers=dict(headers or {})
        )
        reading, name = method == "GET", act or f"{method} {path.partition('?')[0][-80:]}"
        left = self._quiet.get(reading, 0.0) - time.monotonic()
        if left > 0:
            # Azure counts readings and writings apart, and what it refuses counts too: asking makes it longer.
            wait = {"retry-after": f"{max(1.0, left):.0f}"}
            raise errors.error_of_answer(429, wait, b"", act=name, where=self._where, user=self.user)
        try:
            response = self._client.send_request(request)
            response.read()
        except AzureError as error:
            plain = errors.of_exception(error, self._where)
            assert plain is not None
            raise plain from error
        found = {key.lower(): value for key, value in response.headers.items()}
        body: bytes = response.content
        if response.status_code not in ok or errors.no_workspace(response.status_code, body):
            refusal = errors.error_of_answer(
                response.status_code, found, body, act=name, where=self._where, user=self.user
            )
            if response.status_code == 429 and self._where and (wanted := errors.details_of(refusal).wait):
                self._quiet[reading] = time.monotonic() + min(wanted, 600.0)
            raise refusal
        return Answer(response.status_code, found, _json(body), body)

    def pages(self, path: str, *, key: str = "value", **rest: Any) -> Iterator[Any]:
        """The items of a list, page after page; an absent ``nextLink`` is the end."""
        answer = self.get(path, **rest)
        while True:
            yield from (answer.json or {}).get(key) or []
            following = (answer.json or {}).get("nextLink")
            if not following:
                return
            answer = self.get(following, headers=rest.get("headers"), act=rest.get("act", ""))


class Blob:
    """One signed address of a file at the storage service; sends no Authorization."""

    def __init__(self, rest: Rest, url: str) -> None:
        self._rest, self._url = rest, url

    def get(self, start: int = 0, end: int | None = None, *, ok: Collection[int] = (200, 206, 416)) -> Answer:
        """The bytes from `start` up to, not including, `end`; empty when the file ends before `start`.

        The storage service answers 416 there; a file of no bytes answers 416 to any range.
        """
        headers = {"x-ms-version": BLOB}
        if start or end is not None:
            headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        answer = self._rest.get(self._url, headers=headers, ok=ok, act="read a file")
        if answer.status == 416:
            return Answer(416, answer.headers, None, b"")
        return answer

    def put(self, content: bytes, headers: Mapping[str, str] | None = None, *, suffix: str = "") -> Answer:
        """Write the whole file (or, with a `suffix` like ``&comp=block&blockid=..``, a part of it)."""
        kind = {} if suffix else {"x-ms-blob-type": "BlockBlob"}
        return self._rest.put(
            self._url + suffix,
            content=content,
            headers={"x-ms-version": BLOB, "Content-Type": "application/octet-stream", **kind, **(headers or {})},
            act="write a file",
        )

    def send(self, method: str, *, suffix: str = "", **rest: Any) -> Answer:
        """Any request to it."""
        return self._rest.send(method, self._url + suffix, **rest)


def _json(body: bytes) -> Any:
    try:
        return json_module.loads(body) if body.strip() else None
    except ValueError:
        return None
