"""Entra ID: openid configuration, instance discovery, and the grants that azure-identity uses.

Shapes: azure-identity's and MSAL's own source (what they read), AADSTS texts of Microsoft's error-code reference.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode

import jwt
from aiohttp import web

from azureml_emulator import arm
from azureml_emulator.routing import Call, Refused, Routes

if TYPE_CHECKING:
    from azureml_emulator.world import World

routes = Routes()
_ANY_TENANT = ("common", "organizations", "consumers")
_DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
_CLI = "04b07795-8ddb-461a-bbee-02f9e1bf7b46"  # the public client that azure-identity's developer credentials use


class SignIns:
    """Pending device codes, issued refresh tokens, and codes of the browser flow."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.waiting: dict[str, dict[str, Any]] = {}
        self.refresh: dict[str, str] = {}
        self.codes: dict[str, str] = {}
        #: Everything else that opens something: device codes, codes of the browser flow, identity tokens.
        self.given: list[str] = []

    async def close(self) -> None:
        """Nothing runs."""

    def approve(self, user_code: str | None = None, *, deny: bool = False) -> int:
        """A person typed the code (any that waits by default) and said yes; how many codes that settled."""
        found = [one for one in self.waiting.values() if user_code in (None, one["user_code"]) and not one["state"]]
        for one in found:
            one["state"] = "denied" if deny else "approved"
        return len(found)


@routes.on("entra", "GET", "/common/discovery/instance", anonymous=True)
async def instance(call: Call) -> Any:
    names = ["login.microsoftonline.com", "login.windows.net", "login.microsoft.com", "sts.windows.net"]
    return {
        "tenant_discovery_endpoint": f"https://{call.host}/common/v2.0/.well-known/openid-configuration",
        "api-version": "1.1",
        "metadata": [{"preferred_network": names[0], "preferred_cache": names[1], "aliases": names}],
    }


@routes.on("entra", "GET", "/{tenant}/v2.0/.well-known/openid-configuration", anonymous=True)
@routes.on("entra", "GET", "/{tenant}/.well-known/openid-configuration", anonymous=True)
async def configuration(call: Call) -> Any:
    _check_tenant(call)
    base = f"https://{call.host}/{call.params['tenant']}"
    return {
        "token_endpoint": f"{base}/oauth2/v2.0/token",
        "token_endpoint_auth_methods_supported": ["client_secret_post", "private_key_jwt", "client_secret_basic"],
        "jwks_uri": f"{base}/discovery/v2.0/keys",
        "issuer": f"{base}/v2.0",
        "authorization_endpoint": f"{base}/oauth2/v2.0/authorize",
        "device_authorization_endpoint": f"{base}/oauth2/v2.0/devicecode",
        "end_session_endpoint": f"{base}/oauth2/v2.0/logout",
        "tenant_region_scope": "EU",
        "cloud_instance_name": "microsoftonline.com",
    }


@routes.on("entra", "GET", "/{tenant}/discovery/v2.0/keys", anonymous=True)
async def keys(call: Call) -> Any:
    return {"keys": []}


@routes.on("entra", "POST", "/{tenant}/oauth2/v2.0/devicecode", anonymous=True)
async def device_code(call: Call) -> Any:
    _check_tenant(call)
    code = secrets.token_urlsafe(24)
    call.world.part(SignIns).given.append(code)
    user_code = secrets.token_hex(5).upper()[:9]
    lifetime = float(call.world.switches["device_code_seconds"])
    call.world.part(SignIns).waiting[code] = {"user_code": user_code, "state": "", "until": time.time() + lifetime}
    return {
        "user_code": user_code,
        "device_code": code,
        "verification_uri": "https://microsoft.com/devicelogin",
        "expires_in": int(lifetime),
        "interval": call.world.switches["device_code_interval"],
        "message": "To sign in, use a web browser to open the page https://microsoft.com/devicelogin and enter the "
        f"code {user_code} to authenticate.",
    }


@routes.on("entra", "GET", "/{tenant}/oauth2/v2.0/authorize", anonymous=True)
async def authorize(call: Call) -> web.Response:
    """Browser flow: the user is already signed in and is redirected back."""
    _check_tenant(call)
    code = secrets.token_urlsafe(24)
    call.world.part(SignIns).given.append(code)
    call.world.part(SignIns).codes[code] = call.query.get("nonce", "")
    back = {"code": code, "state": call.query.get("state", "")}
    return web.Response(status=302, headers={"Location": f"{call.query['redirect_uri']}?{urlencode(back)}"})


@routes.on("entra", "POST", "/{tenant}/oauth2/v2.0/token", anonymous=True)
async def token(call: Call) -> Any:
    _check_tenant(call)
    form = {name: values[-1] for name, values in parse_qs(call.body.decode()).items()}
    grant = form.get("grant_type", "")
    signins = call.world.part(SignIns)
    if grant == "client_credentials":
        return _application(call, form)
    if grant == _DEVICE:
        waiting = signins.waiting.get(form.get("device_code", ""))
        if waiting is None or time.time() > waiting["until"]:
            raise _error(
                400,
                "expired_token",
                70020,
                "The provided value for the input parameter 'device_code' is not valid: the code has expired.",
            )
        if not waiting["state"]:
            raise _error(
                400,
                "authorization_pending",
                70016,
                "OAuth 2.0 device flow error. Authorization is pending. Continue polling.",
            )
        if waiting["state"] == "denied":
            raise _error(400, "authorization_declined", 70000, "The user declined the sign-in.")
        del signins.waiting[form["device_code"]]
        return _person(call, form)
    if grant == "refresh_token":
        if form.get("refresh_token", "") not in signins.refresh:
            raise _error(400, "invalid_grant", 700082, "The refresh token has expired due to inactivity.")
        return _person(call, form)
    if grant == "authorization_code":
        if form.get("code", "") not in signins.codes:
            raise _error(400, "invalid_grant", 70008, "The provided authorization code has expired.")
        return _person(call, form, nonce=signins.codes.pop(form["code"]))
    raise _error(400, "unsupported_grant_type", 70003, f"The app requested an unsupported grant type '{grant}'.")


def _application(call: Call, form: dict[str, str]) -> dict[str, Any]:
    world = call.world
    if form.get("client_id") != world.client:
        name = form.get("client_id", "")
        raise _error(
            400,
            "unauthorized_client",
            700016,
            f"Application with identifier '{name}' was not found in the directory 'emulated'. This can happen if the "
            "application has not been installed by the administrator of the tenant.",
        )
    if form.get("client_secret") != world.client_secret:
        raise _error(
            401,
            "invalid_client",
            7000215,
            "Invalid client secret provided. Ensure the secret being sent in the request is the client secret value, "
            f"not the client secret ID, for a secret added to app '{world.client}'.",
        )
    made = world.tokens.mint(_audience(form), world.client, appid=world.client, idtyp="app", app_displayname="emulated")
    seconds = int(world.switches["token_seconds"])
    return {"token_type": "Bearer", "expires_in": seconds, "ext_expires_in": seconds, "access_token": made}


def _person(call: Call, form: dict[str, str], nonce: str = "") -> dict[str, Any]:
    world = call.world
    seconds = int(world.switches["token_seconds"])
    oid = str(uuid.uuid5(uuid.NAMESPACE_URL, world.user))
    named: dict[str, Any] = {"upn": world.user, "preferred_username": world.user, "name": "Ada Example"}
    access = world.tokens.mint(_audience(form), world.user, appid=form.get("client_id", _CLI), idtyp="user", **named)
    refresh = form.get("refresh_token") or secrets.token_urlsafe(32)
    world.part(SignIns).refresh[refresh] = world.user
    now = int(time.time())
    identity = {
        "aud": form.get("client_id", _CLI),
        "iss": f"https://login.microsoftonline.com/{world.tenant}/v2.0",
        "iat": now,
        "nbf": now,
        "exp": now + seconds,
        "oid": oid,
        "sub": oid,
        "tid": world.tenant,
        "ver": "2.0",
        **named,
        **({"nonce": nonce} if nonce else {}),
    }
    id_token = jwt.encode(identity, "of-no-matter-to-the-client-which-trusts-tls", algorithm="HS256")
    world.part(SignIns).given.append(id_token)
    info = base64.urlsafe_b64encode(json.dumps({"uid": oid, "utid": world.tenant}).encode()).rstrip(b"=").decode()
    return {
        "token_type": "Bearer",
        "scope": form.get("scope", ""),
        "expires_in": seconds,
        "ext_expires_in": seconds,
        "access_token": access,
        "refresh_token": refresh,
        "id_token": id_token,
        "client_info": info,
    }


def _audience(form: dict[str, str]) -> str:
    """``https://management.azure.com/.default openid`` -> ``https://management.azure.com``."""
    scopes = [one for one in form.get("scope", "").split() if "/" in one]
    # "https://ml.azure.com/.default" must give aud "https://ml.azure.com" exactly (azure-ai-ml compares it).
    return scopes[0].removesuffix(".default").rstrip("/") if scopes else "00000003-0000-0000-c000-000000000000"


def _check_tenant(call: Call) -> None:
    tenant = call.params["tenant"]
    if tenant.lower() not in (*_ANY_TENANT, call.world.tenant):
        raise _error(
            400,
            "invalid_tenant",
            90002,
            f"Tenant '{tenant}' not found. Check to make sure you have the correct tenant ID and are signing into the "
            "correct cloud.",
        )


def _error(status: int, error: str, number: int, text: str) -> Refused:
    trace, correlation = str(uuid.uuid4()), str(uuid.uuid4())
    stamp = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime())
    return Refused(
        arm.answer(
            {
                "error": error,
                "error_description": f"AADSTS{number}: {text} Trace ID: {trace} Correlation ID: {correlation} "
                f"Timestamp: {stamp}",
                "error_codes": [number],
                "timestamp": stamp,
                "trace_id": trace,
                "correlation_id": correlation,
                "error_uri": f"https://login.microsoftonline.com/error?code={number}",
            },
            status,
        )
    )
