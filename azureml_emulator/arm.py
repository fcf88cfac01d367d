"""Shapes of ARM: responses, lists, the three error envelopes, long-running operations.

Source: the recordings (azureml_emulator/data/recordings, INDEX.md "Across files"). Where no recording shows a shape the
docstring says "assumed".
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from aiohttp import web

from azureml_emulator.routing import Call, Refused, Routes

if TYPE_CHECKING:
    from azureml_emulator.world import World

routes = Routes()
HOST = "https://management.azure.com"


def answer(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return `data` as compact JSON; a ``Content-Type`` in `headers` takes precedence."""
    other_headers = {name: value for name, value in (headers or {}).items() if name.lower() != "content-type"}
    response = web.Response(
        body=json.dumps(data).encode(),
        status=status,
        content_type="application/json",
        charset="utf-8",
        headers=other_headers,
    )
    for name, value in (headers or {}).items():
        if name.lower() == "content-type":
            response.headers["Content-Type"] = value
    return response


def empty(status: int, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a response without body and Content-Type, such as 202 and the 404 of a missing compute (recording 11b)."""
    response = web.Response(status=status, headers=dict(headers or {}))
    response.headers.popall("Content-Type", None)
    return response


def created(call: Call, data: dict[str, Any]) -> web.Response:
    """Return the 201 of an asset or job; ``Location`` is its own URL with api-version."""
    return answer(data, 201, {"Location": f"{HOST}{data['id']}?api-version={call.api_version}"})


def page(call: Call, items: Iterable[Any], size: int | None = None) -> dict[str, Any]:
    """Return one page of `items`; the last page has no ``nextLink`` (absolute, ``$skipToken``)."""
    all_items = list(items)
    size = size or int(call.world.switches["page_size"])
    start = int(call.query.get("$skipToken") or call.query.get("$skip") or 0)
    body: dict[str, Any] = {"value": all_items[start : start + size]}
    if start + size < len(all_items):
        rest = [(name, value) for name, value in call.request.query.items() if name not in ("$skipToken", "$skip")]
        body["nextLink"] = f"{HOST}{call.path}?{urlencode([*rest, ('$skipToken', str(start + size))])}"
    return body


# ------------------------------------------------------------------------------------------- the three error envelopes
def ml_error(
    world: World,
    status: int,
    message: str,
    *,
    code: str = "UserError",
    inner: Iterable[str] = (),
    component: str = "managementfrontend",
) -> web.Response:
    """Envelope 1, the ML front end's (recording 11a): the precise code is only in additionalInfo's InnerError.

    `inner` has the codes from outermost to innermost: ``("BadArgument", "UnknownTargetType")``.
    """
    info: list[dict[str, Any]] = [
        {"type": "ComponentName", "info": {"value": component}},
        {"type": "Correlation", "info": {"value": {"operation": uuid.uuid4().hex, "request": uuid.uuid4().hex[:16]}}},
        {"type": "Environment", "info": {"value": world.location}},
        {"type": "Location", "info": {"value": world.location}},
        {"type": "Time", "info": {"value": world.clock.stamp()}},
    ]
    nested = nest(inner)
    if nested:
        info.append({"type": "InnerError", "info": {"value": nested}})
    body = {"error": {"code": code, "message": message, "details": [], "additionalInfo": info}}
    return answer(body, status, {"x-ms-response-type": "error"})


def nest(codes: Iterable[str]) -> dict[str, Any] | None:
    """``("A", "B")`` -> ``{"code": "A", "innerError": {"code": "B", "innerError": None}}``."""
    nested: dict[str, Any] | None = None
    for code in reversed(list(codes)):
        nested = {"code": code, "innerError": nested}
    return nested


def compute_error(
    world: World, status: int, message: str, *, code: str = "UserError", details: Iterable[tuple[str, str]] = ()
) -> web.Response:
    """Envelope 2, the compute service's: a null-filled ``error`` with siblings beside it (INDEX.md)."""
    if world.switches["compute_envelope"] == "ml":
        return ml_error(world, status, message, code=code, inner=[name for name, _ in details])
    body = {
        "error": {
            "code": code,
            "severity": None,
            "message": message,
            "messageFormat": None,
            "messageParameters": None,
            "referenceCode": None,
            "detailsUri": None,
            "target": None,
            "details": [{"code": name, "message": text, "details": []} for name, text in details],
            "innerError": None,
            "debugInfo": None,
            "additionalInfo": None,
        },
        "correlation": {"operation": uuid.uuid4().hex, "request": uuid.uuid4().hex[:16]},
        "environment": world.location,
        "location": world.location,
        "time": world.clock.stamp(),
        "componentName": "machinelearningcompute",
    }
    return answer(body, status, {"x-ms-response-type": "error"})


def gateway_error(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """Envelope 3, the ARM gateway's own: code and message, ``x-ms-failure-cause: gateway`` (INDEX.md)."""
    return answer(
        {"error": {"code": code, "message": message}}, status, {"x-ms-failure-cause": "gateway", **(headers or {})}
    )


def not_found(kind: str, name: str, group: str) -> web.Response:
    """Return the gateway's 404 for a missing resource."""
    return gateway_error(
        404,
        "ResourceNotFound",
        f"The Resource 'Microsoft.MachineLearningServices/{kind}/{name}' under resource group '{group}' was not found. "
        "For more details please go to https://aka.ms/ARMResourceNotFoundFix",
    )


def no_such_region(call: Call, what: str) -> web.Response:
    """Return the gateway's 404 for a region that the provider does not support."""
    return gateway_error(
        404,
        "NoRegisteredProviderFound",
        f"No registered resource provider found for location '{call.params['location']}' and API version "
        f"'{call.api_version}' for type 'locations/{what}'.",
    )


# ---------------------------------------------------------------------------------------------------- long operations
def retry_after(world: World) -> dict[str, str]:
    """Return the Retry-After header according to its switch; by default none, as recorded.

    azure-core treats 0 as missing and waits 30 s; azure-ai-ml reads the header as an integer, so less than a second is
    sent as ``x-ms-retry-after-ms``, which azure-core also supports.
    """
    seconds = float(world.switches["retry_after_header"])
    if not seconds:
        return {}
    return {"Retry-After": f"{seconds:.0f}"} if seconds >= 1 else {"x-ms-retry-after-ms": f"{seconds * 1000:.0f}"}


class OperationFailed(Exception):
    """Raised by an operation; polling it then returns Failed with this code and message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class Operations:
    """Long-running operations of the compute service: only ``Azure-AsyncOperation``, polled to ``{"status": ...}``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._all: dict[str, dict[str, Any]] = {}

    def begin(self, call: Call, work: Callable[[], Awaitable[None]]) -> dict[str, str]:
        """Start `work`, and return the headers of the 201 or 202 response."""
        name = str(uuid.uuid4())
        query = f"api-version={call.api_version}"
        if self._world.switches["long_poll_urls"]:
            # Since 2024: a time, a certificate, a signature, a hash; over 3,000 characters that clients send back.
            certificate = (uuid.uuid4().hex * 90)[:2700]
            signature = (uuid.uuid4().hex * 12)[:342]
            ticks = int(self._world.clock.seconds() * 1e7)
            query += f"&service=new&t={ticks}&c={certificate}&s={signature}&h={uuid.uuid4().hex}"
        self._all[name] = {"query": query, "body": {"status": "InProgress"}}
        self._world.spawn(self._run(name, work), f"operation {name}")
        path = (
            f"/subscriptions/{self._world.subscription}/providers/Microsoft.MachineLearningServices"
            f"/locations/{self._world.location}/computeOperationsStatus/{name}"
        )
        headers = {"Azure-AsyncOperation": f"{HOST}{path}?{query}", "x-ms-response-type": "standard"}
        return {**headers, **retry_after(self._world)}

    async def _run(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except OperationFailed as failed:
            # Assumed: no failed operation was recorded. ARM's guide: status, and error with code and message.
            error = {"code": failed.code, "message": failed.message}
            error_field = {"error": error} if self._world.switches["failed_operation"] else {}
            self._all[name]["body"] = {"status": "Failed", **error_field, "percentComplete": 100.0}
        else:
            self._all[name]["body"] = {"status": "Succeeded", "percentComplete": 100.0}

    def get(self, name: str) -> dict[str, Any] | None:
        """Return query and body of an operation."""
        return self._all.get(name)


@routes.arm(
    "GET",
    "/subscriptions/{subscription}/providers/Microsoft.MachineLearningServices"
    "/locations/{location}/computeOperationsStatus/{operation}",
)
async def poll(call: Call) -> web.Response:
    """Return the state of a long-running operation."""
    operation = call.world.operations.get(call.params["operation"])
    if operation is None:
        return empty(404)
    if call.world.switches["long_poll_urls"] and call.request.rel_url.raw_query_string != operation["query"]:
        # Assumed: the signature covers the whole URL, so a shortened one is rejected.
        raise Refused(gateway_error(403, "AuthorizationFailed", "The signature of the operation's url does not match."))
    return answer(operation["body"], headers=retry_after(call.world))
