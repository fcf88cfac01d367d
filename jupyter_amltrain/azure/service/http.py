"""HTTP clients based on azure-core: tokens, retries, paging and errors; canceling an operation interrupts its waits."""

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
from jupyter_amltrain.azure import errors
from jupyter_amltrain.azure.service.account import ARM_SCOPE, env_seconds
from jupyter_amltrain.rpc import server

if TYPE_CHECKING:
    from jupyter_amltrain.azure.service.account import Account


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Retry policy for Azure REST calls, the SDK and sign-in.

    Attributes
    ----------
    total, status, connect, read
        Retries of a request: in total, after an error status, after a failed connection, after a failed read.
    backoff_s, max_backoff_s
        First pause, which doubles with each retry, and maximum pause.
    max_wait_s
        A longer ``Retry-After`` is an error, because the user is waiting for the cell.
    """

    total: int = 5
    status: int = 4
    connect: int = 2
    read: int = 2
    backoff_s: float = 0.8
    max_backoff_s: float = 20.0
    max_wait_s: float = 60.0

    def keywords(self) -> dict[str, Any]:
        """Return the policy as keywords of azure-core, azure-identity and the SDK."""
        return {
            "retry_total": self.total,
            "retry_status": self.status,
            "retry_connect": self.connect,
            "retry_read": self.read,
            "retry_backoff_factor": self.backoff_s,
            "retry_backoff_max": self.max_backoff_s,
        }


def retry_policy() -> RetryPolicy:
    """Return the retry policy; ``AMLTRAIN_AZURE_BACKOFF`` and ``AMLTRAIN_AZURE_MAX_WAIT`` change it (seconds)."""
    return RetryPolicy(backoff_s=env_seconds("BACKOFF", 0.8), max_wait_s=env_seconds("MAX_WAIT", 60.0))


class _Transport(RequestsTransport):  # type: ignore[misc]
    """Transport whose waits between retries are interrupted when the operation is canceled."""

    def send(self, request: Any, **rest: Any) -> Any:
        """Send a request, unless its operation is canceled; also ends a sign-in."""
        if (call := server.current_call()) is not None:
            call.check()
        return super().send(request, **rest)

    def sleep(self, duration: float) -> None:
        """Wait between two attempts.

        Raises
        ------
        TargetUnreachable
            The wait is longer than the retry policy allows; the SDK's own policy has no such limit.
        """
        if duration > retry_policy().max_wait_s:
            raise errors.throttled_too_long(duration)
        call = server.current_call()
        if call is None:
            time.sleep(duration)
            return
        if duration >= 2:
            call.progress(f"Azure is busy; retrying in {duration:.0f} s")
        call.wait(duration)


class _CoreRetryPolicy(policies.RetryPolicy):  # type: ignore[type-arg]
    """Also retries POST after 429; never waits longer than :class:`RetryPolicy` allows."""

    def is_retry(self, settings: dict[str, Any], response: Any) -> bool:
        status = response.http_response.status_code
        if (self.get_retry_after(response) or 0) > retry_policy().max_wait_s:
            return False
        if status == 429:
            return bool(settings["total"] > 0)
        return bool(super().is_retry(settings, response))


class _TokenPolicy(policies.BearerTokenCredentialPolicy):  # type: ignore[type-arg]
    """Retries a 401 once with a new token that bypasses MSAL's caches.

    No recording shows the data plane's audience: if it rejects its own scope, ARM's scope is used from then on.
    """

    def send(self, request: Any) -> Any:
        response = super().send(request)
        if response.http_response.status_code != 401 or request.context.get("fresh"):
            return response
        request.context["fresh"] = True
        if "audience" in _rejection_text(response).lower() and ARM_SCOPE not in self._scopes:
            self._scopes = (ARM_SCOPE,)
        account: Any = self._credential
        self._token = token = account.get_new_token(*self._scopes)
        self._update_headers(request.http_request.headers, token.token)
        return self.next.send(request)


def _rejection_text(response: Any) -> str:
    """Return header and body of a rejected request; empty if they cannot be read."""
    try:
        response.http_response.read()
        header = str(response.http_response.headers.get("WWW-Authenticate", ""))
        return header + bytes(response.http_response.content).decode("utf-8", "replace")
    except AzureError:  # the status alone is enough
        return ""


def transport() -> RequestsTransport:
    """Return a transport that uses the proxies and certificates of the environment."""
    return _Transport(
        connection_timeout=env_seconds("CONNECT_TIMEOUT", 10), read_timeout=env_seconds("READ_TIMEOUT", 60)
    )


def pipeline(base: str, credential: Account | None, scope: str) -> PipelineClient:  # type: ignore[type-arg]
    """Return a pipeline; without a credential it sends no Authorization header."""
    chain: list[Any] = [
        policies.HeadersPolicy(),
        policies.UserAgentPolicy(base_user_agent=f"jupyter-amltrain/{__version__}"),
        _CoreRetryPolicy(**retry_policy().keywords()),
    ]
    if credential is not None:
        chain.append(_TokenPolicy(credential, scope))
    return PipelineClient(base, policies=chain, transport=transport())


#: Versions of ARM's API. The GA version supports nearly all fields; the preview is used only where a field needs it.
ARM = "2024-10-01"
ARM_PREVIEW = "2024-10-01-preview"
#: API version of run history and the other services of the data plane.
HISTORY = "v1.0"
#: API version of subscriptions and resource groups.
RESOURCES = "2022-12-01"

#: Version of the storage service's API, ``x-ms-version``.
BLOB = "2021-08-06"

OK = (200, 201, 202, 204)


class Answer(msgspec.Struct, frozen=True):
    """An HTTP response.

    Attributes
    ----------
    json
        The body if it is JSON, otherwise ``None``.
    headers
        Names in lower case.
    """

    status: int
    headers: dict[str, str]
    json: Any
    bytes: bytes


class Rest:
    """Client of one service.

    Parameters
    ----------
    host
        ``https://management.azure.com``.
    below
        Prefix of every path that does not start with ``/``.
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
        #: End of the pause that a 429 requested (monotonic), for reads (True) and writes (False): Azure limits both
        #: separately.
        self._paused_until: dict[bool, float] = {}
        self._client = pipeline("", credential, scope)

    def get(self, path: str, **rest: Any) -> Answer:
        """Send a GET request."""
        return self.send("GET", path, **rest)

    def put(self, path: str, **rest: Any) -> Answer:
        """Send a PUT request."""
        return self.send("PUT", path, **rest)

    def post(self, path: str, **rest: Any) -> Answer:
        """Send a POST request."""
        return self.send("POST", path, **rest)

    def patch(self, path: str, **rest: Any) -> Answer:
        """Send a PATCH request."""
        return self.send("PATCH", path, **rest)

    def delete(self, path: str, **rest: Any) -> Answer:
        """Send a DELETE request."""
        return self.send("DELETE", path, **rest)

    def url(self, path: str) -> str:
        """Return the absolute URL of a path; absolute URLs are returned unchanged."""
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
        """Send a request.

        Parameters
        ----------
        path
            With a leading ``/`` from the host, otherwise below the workspace. An absolute URL (a ``nextLink``, a
            poll URL) is used unchanged.
        api
            The ``api-version``.
        ok
            Statuses that are not errors.
        act
            Description of the request, for error messages.

        Raises
        ------
        AmlTrainError
            The request failed; see :mod:`..errors`.
        """
        query: dict[str, Any] = {**({"api-version": api} if api else {}), **(params or {})}
        request = HttpRequest(
            method, self.url(path), params=query or None, json=json, content=content, headers=dict(headers or {})
        )
        is_read, name = method == "GET", act or f"{method} {path.partition('?')[0][-80:]}"
        self._check_pause(is_read, name)
        try:
            response = self._client.send_request(request)
            response.read()
        except AzureError as error:
            plain = errors.error_of_exception(error, self._where)
            assert plain is not None
            raise plain from error
        answered = {key.lower(): value for key, value in response.headers.items()}
        status, body = response.status_code, bytes(response.content)
        if status not in ok or errors.no_workspace(status, body):
            rejection = errors.error_of_answer(status, answered, body, act=name, where=self._where, user=self.user)
            if status == 429 and self._where and (pause_s := errors.details_of(rejection).wait):
                self._paused_until[is_read] = time.monotonic() + min(pause_s, 600.0)
            raise rejection
        return Answer(status, answered, _json(body), body)

    def _check_pause(self, is_read: bool, act: str) -> None:
        """Raise while a 429 pauses requests of this kind: rejected ones count too, sending more extends the pause."""
        remaining = self._paused_until.get(is_read, 0.0) - time.monotonic()
        if remaining > 0:
            wait = {"retry-after": f"{max(1.0, remaining):.0f}"}
            raise errors.error_of_answer(429, wait, b"", act=act, where=self._where, user=self.user)

    def pages(self, path: str, *, key: str = "value", **rest: Any) -> Iterator[Any]:
        """Yield the items of a list, page by page, until there is no ``nextLink``."""
        answer = self.get(path, **rest)
        while True:
            yield from (answer.json or {}).get(key) or []
            following = (answer.json or {}).get("nextLink")
            if not following:
                return
            answer = self.get(following, headers=rest.get("headers"), act=rest.get("act", ""))


class Blob:
    """Client of one signed file URL of the storage service; sends no Authorization header."""

    def __init__(self, rest: Rest, url: str) -> None:
        self._rest, self._url = rest, url

    def get(self, start: int = 0, end: int | None = None, *, ok: Collection[int] = (200, 206, 416)) -> Answer:
        """Return the bytes from `start` up to, not including, `end`; empty if the file ends before `start`.

        The storage service then returns 416; for an empty file it returns 416 for any range.
        """
        headers = {"x-ms-version": BLOB}
        if start or end is not None:
            headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        answer = self._rest.get(self._url, headers=headers, ok=ok, act="read a file")
        if answer.status == 416:
            return Answer(416, answer.headers, None, b"")
        return answer

    def put(self, content: bytes, headers: Mapping[str, str] | None = None, *, suffix: str = "") -> Answer:
        """Write the whole file (with a `suffix` such as ``&comp=block&blockid=..``, a part of it)."""
        kind = {} if suffix else {"x-ms-blob-type": "BlockBlob"}
        return self._rest.put(
            self._url + suffix,
            content=content,
            headers={"x-ms-version": BLOB, "Content-Type": "application/octet-stream", **kind, **(headers or {})},
            act="write a file",
        )

    def send(self, method: str, *, suffix: str = "", **rest: Any) -> Answer:
        """Send any request to the URL."""
        return self._rest.send(method, self._url + suffix, **rest)


def _json(body: bytes) -> Any:
    try:
        return json_module.loads(body) if body.strip() else None
    except ValueError:
        return None
