"""Routing table: paths to handlers. As in ARM, matching ignores case and api-version."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from azureml_emulator.world import World

#: Kind of host -> its names. The proxy rejects all other hosts.
HOSTS: dict[str, re.Pattern[str]] = {
    "arm": re.compile(r"management\.azure\.com"),
    "entra": re.compile(r"login\.microsoftonline\.com|login\.microsoft\.com|login\.windows\.net"),
    "data": re.compile(r"[a-z0-9]+\.api\.azureml\.ms"),
    "blob": re.compile(r"[a-z0-9]+\.blob\.core\.windows\.net"),
}

_WORKSPACE = (
    "/subscriptions/{subscription}/resourceGroups/{resource_group}"
    "/providers/Microsoft.MachineLearningServices/workspaces/{workspace}"
)


def kind_of(host: str) -> str | None:
    """Return the kind of a host; None for a host that is not emulated."""
    return next((kind for kind, pattern in HOSTS.items() if pattern.fullmatch(host.lower())), None)


@dataclass
class Call:
    """One request, as handlers see it.

    Attributes
    ----------
    world : World
    request : aiohttp.web.Request
        For handlers that stream; the body is read already.
    method, host, path, kind : str
        ``kind`` is arm, entra, data or blob; ``path`` is decoded and keeps the client's case.
    params : dict
        Named parts of the path, in the client's case.
    query : Mapping
        One value a name; ``request.query`` has all.
    body : bytes
    claims : dict
        Claims of the bearer token that was checked; empty on anonymous routes.
    """

    world: World
    request: web.Request
    method: str
    host: str
    path: str
    kind: str
    params: dict[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    claims: dict[str, Any] = field(default_factory=dict)

    def json(self) -> Any:
        """The body as JSON; None when empty.

        Raises
        ------
        Refused
            400 of the ARM gateway: the body is no JSON.
        """
        from azureml_emulator import arm

        if not self.body.strip():
            return None
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise Refused(
                arm.gateway_error(
                    400,
                    "InvalidRequestContent",
                    f"The request content was invalid and could not be deserialized: '{error}'.",
                )
            ) from None

    @property
    def workspace_id(self) -> str:
        """ARM id of the workspace in the path, in the case that the workspace was made with."""
        return str(self.workspace["id"])

    @property
    def workspace(self) -> dict[str, Any]:
        """The workspace's ARM resource (it exists: the dispatcher has looked)."""
        found = self.world.resources.get(_WORKSPACE.format(**self.params))
        assert found is not None, "the dispatcher lets no call through to a workspace that is not there"
        return found

    @property
    def api_version(self) -> str:
        """What the client asked for; nothing here depends on it, answers repeat it in urls."""
        return self.query.get("api-version", "")


class Refused(Exception):
    """Raised by a handler, anywhere below it, to end the call with this answer."""

    def __init__(self, answer: web.Response) -> None:
        super().__init__(f"answered {answer.status}")
        self.answer = answer


#: A handler gives a Response, or plain data that goes out as 200 JSON.
Handler = Callable[[Call], Awaitable[Any]]


@dataclass
class Route:
    """One row: host kind, method, path pattern, handler."""

    kind: str
    method: str
    pattern: str
    regex: re.Pattern[str]
    handler: Handler
    anonymous: bool


class Routes:
    """A table of handlers that a module fills by decorators and `app.App` reads.

    Patterns: ``{name}`` is one segment, ``{name*}`` the rest (slashes too), ``{ws}`` a workspace's whole ARM id:

    >>> routes = Routes()
    >>> @routes.arm("GET", "{ws}/computes/{name}")
    ... async def get_compute(call): ...
    >>> @routes.data("GET", "/history/v1.0{ws}/runs/{run}/details")
    ... async def details(call): ...

    The first row that matches wins, in the order of registration. Every route but the anonymous ones demands an
    unexpired bearer token; every route with ``{ws}`` demands that the workspace exists.
    """

    def __init__(self) -> None:
        self.rows: list[Route] = []

    def on(self, kind: str, method: str, pattern: str, *, anonymous: bool = False) -> Callable[[Handler], Handler]:
        """Register for a kind of host (a key of `HOSTS`) and a method (``*``: any)."""

        def keep(handler: Handler) -> Handler:
            regex = re.compile(_regex(pattern), re.IGNORECASE)
            self.rows.append(Route(kind, method, pattern, regex, handler, anonymous))
            return handler

        return keep

    def arm(self, method: str, pattern: str) -> Callable[[Handler], Handler]:
        """On management.azure.com."""
        return self.on("arm", method, pattern)

    def data(self, method: str, pattern: str, *, anonymous: bool = False) -> Callable[[Handler], Handler]:
        """On the workspace's data plane, <location>.api.azureml.ms."""
        return self.on("data", method, pattern, anonymous=anonymous)


def _regex(pattern: str) -> str:
    parts = []
    for piece in re.split(r"(\{[a-z_]+\*?\})", pattern.replace("{ws}", _WORKSPACE)):
        if piece.startswith("{") and piece.endswith("*}"):
            parts.append(f"(?P<{piece[1:-2]}>.*)")
        elif piece.startswith("{"):
            parts.append(f"(?P<{piece[1:-1]}>[^/]+)")
        else:
            parts.append(re.escape(piece))
    return "".join(parts)
