"""Small REST clients over azure-core: addresses, paging, errors in plain words."""

from __future__ import annotations

import json as json_module
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from azure.core.exceptions import AzureError
from azure.core.rest import HttpRequest

from jupyter_amltrain.backends.azureml import faults
from jupyter_amltrain.backends.azureml.service.pipeline import pipeline

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.account import Account

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
            Of :mod:`..faults`.
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
            raise faults.refused(429, wait, b"", act=name, where=self._where, user=self.user)
        try:
            response = self._client.send_request(request)
            response.read()
        except AzureError as error:
            plain = faults.of_exception(error, self._where)
            assert plain is not None
            raise plain from error
        found = {key.lower(): value for key, value in response.headers.items()}
        body: bytes = response.content
        if response.status_code not in ok or faults.no_workspace(response.status_code, body):
            refusal = faults.refused(response.status_code, found, body, act=name, where=self._where, user=self.user)
            if response.status_code == 429 and self._where and (wanted := faults.told(refusal).wait):
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
