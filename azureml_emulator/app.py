"""Request dispatcher: logs each request, applies faults, checks token and workspace, and calls the handler."""

from __future__ import annotations

import asyncio
import hmac
import importlib
import time
import traceback
from typing import Any

from aiohttp import web

from azureml_emulator import arm, peers
from azureml_emulator.faults import Fault
from azureml_emulator.routing import Call, Refused, Route, kind_of
from azureml_emulator.world import World

#: Modules with a ``routes`` table, in order; the first matching route is used. Missing modules are skipped.
MODULES = (
    "entra",
    "arm",
    "workspaces",
    "computes",
    "virtual_machines",
    "sizes",
    "quota",
    "permissions",
    "public",
    "blob",
    "control",
    "datastores",
    "uploads",
    "assets",
    "jobs",
    "schedules",
    "history",
    "artifacts",
    "mlflow_tracking",
    "services",
    "monitor",
)


def rows() -> list[Route]:
    """Return the routes of all modules."""
    all_routes: list[Route] = []
    for name in MODULES:
        full = f"azureml_emulator.{name}"
        try:
            module = importlib.import_module(full)
        except ModuleNotFoundError as error:
            if error.name != full:
                raise
            continue
        all_routes += module.routes.rows if hasattr(module, "routes") else []
    return all_routes


class App:
    """The emulator's application for all emulated host names."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._rows = rows()
        self._request_count = 0

    def application(self) -> web.Application:
        """Return the aiohttp application; request bodies may be up to 4 GiB."""
        application = web.Application(client_max_size=4 << 30)
        application.router.add_route("*", "/{tail:.*}", self.take)
        return application

    def control(self) -> web.Application:
        """Return the control API for tests: handlers of kind ``control``, without log, faults and tokens.

        Its paths start with the secret of this process; other requests are rejected unread.
        """

        async def take(request: web.Request) -> web.StreamResponse:
            secret, slash, path = request.rel_url.path.removeprefix("/").partition("/")
            is_authorized = hmac.compare_digest(secret.encode("utf-8", "replace"), self.world.control_secret.encode())
            if not is_authorized or peers.is_foreign(request.transport):
                return web.Response(status=403)
            body = await request.read()
            return await self._answer(request, "control", slash + path, body, {})

        application = web.Application()
        application.router.add_route("*", "/{tail:.*}", take)
        return application

    async def take(self, request: web.Request) -> web.StreamResponse:
        """Handle one request."""
        started_at = time.monotonic()
        host = request.host.partition(":")[0].lower()
        path = request.rel_url.path
        body = await request.read()
        entry = self.world.wire.begin(
            request.method, host, path, request.rel_url.raw_query_string, request.headers, body
        )
        fault = self.world.faults.take(f"{request.method} {host}{request.rel_url.raw_path_qs}")
        if fault is not None:
            entry["fault"] = fault.match.pattern
            if fault.delay:
                await asyncio.sleep(fault.delay)
            if fault.cut == 0:
                return self._cut(request, entry)
        if fault is None and (throttled := self._throttled(host)) is not None:
            entry["status"] = 429
            return throttled
        if fault is not None and fault.status is not None:
            response: web.StreamResponse = _faulty(fault)
        else:
            response = await self._answer(request, host, path, body, entry)
        entry["status"] = response.status
        entry["ms"] = round((time.monotonic() - started_at) * 1000, 1)
        if fault is not None and (fault.cut or fault.rate):
            return await self._send_part(request, response, fault, entry)
        return response

    def _throttled(self, host: str) -> web.Response | None:
        """Reject every ninth request to ARM or the data plane if the switch ``throttle`` is set.

        Assumed: the gateway's error envelope.
        """
        mode = self.world.switches["throttle"]
        if not mode or kind_of(host) not in ("arm", "data"):
            return None
        self._request_count += 1
        if self._request_count % 9:
            return None
        wait = {"Retry-After": "1"} if mode == "header" else {}
        return arm.gateway_error(429, "TooManyRequests", "The request is being throttled.", wait)

    async def _answer(
        self, request: web.Request, host: str, path: str, body: bytes, entry: dict[str, Any]
    ) -> web.StreamResponse:
        kind = "control" if host == "control" else kind_of(host)
        row, params = self._find(kind, request.method, path)
        if row is None or kind is None:
            self.world.problems.append(f"no route for {request.method} {host}{path}")
            return arm.gateway_error(404, "InvalidResourceType", f"The emulator has no {request.method} {host}{path}.")
        entry["route"] = row.pattern
        call = Call(self.world, request, request.method, host, path, kind, params, request.query, request.headers, body)
        try:
            if not row.anonymous:
                call.claims = self.world.tokens.check(call)
            if "workspace" in params and "resource_group" in params:
                from azureml_emulator import workspaces

                workspaces.check(call)
            result = await row.handler(call)
        except Refused as refused:
            return refused.answer
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.world.problems.append(f"{request.method} {host}{path}: {traceback.format_exc()}")
            return arm.gateway_error(500, "InternalServerError", f"emulator: {type(error).__name__}: {error}")
        return result if isinstance(result, web.StreamResponse) else arm.answer(result)

    def _find(self, kind: str | None, method: str, path: str) -> tuple[Route | None, dict[str, str]]:
        for row in self._rows:
            if row.kind != kind or row.method not in ("*", method):
                continue
            if (found := row.regex.fullmatch(path)) is not None:
                return row, found.groupdict()
        return None, {}

    def _cut(self, request: web.Request, entry: dict[str, Any]) -> web.Response:
        entry["status"] = 0
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=500)

    async def _send_part(
        self, request: web.Request, response: web.StreamResponse, fault: Fault, entry: dict[str, Any]
    ) -> web.StreamResponse:
        """Announce the full length, then send slowly, or send only the first bytes and break the connection."""
        body = bytes(getattr(response, "body", b"") or b"")
        headers = {name: value for name, value in response.headers.items() if name.lower() != "content-length"}
        stream = web.StreamResponse(status=response.status, headers={**headers, "Content-Length": str(len(body))})
        await stream.prepare(request)
        end = len(body) if fault.cut is None else fault.cut
        step = max(1, int(fault.rate / 10)) if fault.rate else max(1, end)
        for start in range(0, end, step):
            await stream.write(body[start : min(start + step, end)])
            if fault.rate:
                await asyncio.sleep(0.1)
        if fault.cut is not None:
            return self._cut(request, entry)
        await stream.write_eof()
        return stream


def _faulty(fault: Fault) -> web.Response:
    assert fault.status is not None
    if fault.body is None:
        return arm.empty(fault.status, fault.headers)
    if isinstance(fault.body, str):
        return web.Response(text=fault.body, status=fault.status, headers=fault.headers)
    return arm.answer(fault.body, fault.status, fault.headers)
