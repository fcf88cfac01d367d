"""Log of all requests, for tests; contains no credentials."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from typing import Any

_SECRET_QUERY = re.compile(r"(?<=[?&])(sig)=[^&]*")
_SECRET_FORM = re.compile(r"(?<![^&])(client_secret|client_assertion|device_code|refresh_token)=[^&]*")
_LONGEST = 65_536


class WireLog:
    """The latest 20,000 requests as dicts: n, method, host, path, query, headers, body, status, ms, route, fault."""

    def __init__(self) -> None:
        self._entries: deque[dict[str, Any]] = deque(maxlen=20_000)
        self._count = 0

    def begin(
        self, method: str, host: str, path: str, query: str, headers: Mapping[str, str], body: bytes
    ) -> dict[str, Any]:
        """Note a request; the caller fills in status, ms, route and fault when it is answered."""
        self._count += 1
        kept = {
            name: value for name, value in headers.items() if name.lower() not in ("authorization", "x-azureml-token")
        }
        for name, value in headers.items():
            if name.lower() == "authorization":
                kept[name] = value.split(" ")[0] + " ..."
        entry: dict[str, Any] = {
            "n": self._count,
            "method": method,
            "host": host,
            "path": path,
            "query": _SECRET_QUERY.sub(r"\1=...", "?" + query)[1:],
            "headers": kept,
            "body": _SECRET_FORM.sub(r"\1=...", body[:_LONGEST].decode("utf-8", "replace")),
            "size": len(body),
            "status": None,
            "ms": None,
            "route": None,
            "fault": None,
        }
        self._entries.append(entry)
        return entry

    def entries(self, since: int = 0) -> list[dict[str, Any]]:
        """Requests with a number above `since`, oldest first."""
        return [entry for entry in self._entries if entry["n"] > since]

    def clear(self) -> None:
        """Forget all; numbers go on."""
        self._entries.clear()
