"""Access tokens: real JWTs of three parts, minted by the Entra endpoint and checked by ARM and the data plane."""

from __future__ import annotations

import base64
import json
import time
import uuid
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import jwt

from azureml_emulator import arm
from azureml_emulator.routing import Call, Refused

if TYPE_CHECKING:
    from azureml_emulator.world import World

_AUDIENCES = {
    "arm": ("https://management.azure.com", "https://management.core.windows.net"),
    # The front end's own token, or ARM's (azure-ai-ml sends ARM's to run history).
    "blob": ("https://storage.azure.com",),
    "data": ("https://ml.azure.com", "https://management.azure.com", "https://management.core.windows.net"),
}


class Tokens:
    """Mints and checks tokens of one world.

    A token dies by its ``exp``, or when `expire` was called after it was made: as if the wall clock had gone on.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._generation = 0
        self._revoked = False
        #: Every token that was made.
        self.made: list[str] = []

    async def close(self) -> None:
        """Nothing runs."""

    def mint(self, audience: str, subject: str, *, seconds: float | None = None, **claims: Any) -> str:
        """A token for `audience`; also for jobs (``AZUREML_RUN_TOKEN``, audience https://ml.azure.com).

        Parameters
        ----------
        seconds
            Lifetime in seconds of the wall; the switch ``token_seconds`` by default.
        """
        now = int(time.time())
        lifetime = float(self.world.switches["token_seconds"]) if seconds is None else seconds
        body = {
            "aud": audience,
            "iss": f"https://sts.windows.net/{self.world.tenant}/",
            "iat": now,
            "nbf": now,
            "exp": int(now + lifetime),
            "tid": self.world.tenant,
            "oid": str(uuid.uuid5(uuid.NAMESPACE_URL, subject)),
            "sub": subject,
            "gen": self._generation,
            **claims,
        }
        self.made.append(jwt.encode(body, self.world.signing_key, algorithm="HS256"))
        return self.made[-1]

    def expire(self, *, revoked: bool = False) -> None:
        """Every token made so far is refused from now on.

        Parameters
        ----------
        revoked
            Answer with a claims challenge (continuous access evaluation), which azure-core heeds by itself;
            otherwise as for a token whose time is over.
        """
        self._generation += 1
        self._revoked = revoked

    def check(self, call: Call) -> dict[str, Any]:
        """Claims of the call's bearer token.

        Raises
        ------
        Refused
            401 in the gateway's envelope with WWW-Authenticate: none, no JWT, expired, for another audience;
            403 by the switch ``authorization``.
        """
        scheme, _, token = call.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise self._refused("AuthenticationFailed", "Authentication failed. The 'Authorization' header is missing.")
        try:
            claims: dict[str, Any] = jwt.decode(
                token, self.world.signing_key, algorithms=["HS256"], options={"verify_aud": False, "verify_exp": False}
            )
        except jwt.PyJWTError:
            raise self._refused("InvalidAuthenticationToken", "The access token is invalid.") from None
        if claims["exp"] <= time.time() or claims["gen"] != self._generation:
            then = min(claims["exp"], time.time())
            raise self._refused(
                "ExpiredAuthenticationToken",
                f"The access token expiry UTC time '{_american(then)}' is earlier than current UTC time "
                f"'{_american(time.time())}'.",
                claims_challenge=self._revoked and claims["gen"] != self._generation,
            )
        wanted = _AUDIENCES.get(call.kind)
        if call.kind == "data" and (taken := self.world.switches["data_audience"]) != "any":
            wanted = _AUDIENCES["data"][:1] if taken == "ml" else _AUDIENCES["arm"]
        if wanted and str(claims["aud"]).rstrip("/") not in wanted:
            raise self._refused(
                "InvalidAuthenticationTokenAudience",
                f"The access token has been obtained for wrong audience or resource '{claims['aud']}'. It should "
                f"exactly match with one of the allowed audiences '{wanted[0]}'.",
            )
        self._authorize(call, claims)
        return claims

    def _authorize(self, call: Call, claims: dict[str, Any]) -> None:
        role = self.world.switches["authorization"]
        reading = call.method in ("GET", "HEAD") or call.path.lower().endswith("/listnodes")
        if not role or (role == "reader" and reading) or call.kind != "arm":
            return
        verb = {"GET": "read", "HEAD": "read", "DELETE": "delete", "POST": "action"}.get(call.method, "write")
        scope = call.path
        kinds = call.path.partition("/providers/")[2].split("/")
        action = "/".join([kinds[0], *kinds[1::2], verb]) if kinds[0] else f"Microsoft.Resources/subscriptions/{verb}"
        raise Refused(
            arm.gateway_error(
                403,
                "AuthorizationFailed",
                f"The client '{claims['sub']}' with object id '{claims['oid']}' does not have authorization to perform "
                f"action '{action}' over scope '{scope}' or the scope is invalid. If access was recently granted, "
                "please refresh your credentials.",
            )
        )

    def _refused(self, code: str, message: str, *, claims_challenge: bool = False) -> Refused:
        authority = f'authorization_uri="https://login.microsoftonline.com/{self.world.tenant}"'
        if not self.world.switches["challenge_tenant"]:
            authority = 'realm="management.azure.com"'
        challenge = f'Bearer {authority}, error="invalid_token", error_description="{message}"'
        if claims_challenge:
            wanted = base64.b64encode(
                json.dumps({"access_token": {"nbf": {"essential": True, "value": str(int(time.time()))}}}).encode()
            )
            challenge = f'Bearer realm="", {authority}, error="insufficient_claims", claims="{wanted.decode()}"'
        return Refused(arm.gateway_error(401, code, message, {"WWW-Authenticate": challenge}))


def _american(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%-m/%-d/%Y %-I:%M:%S %p")
