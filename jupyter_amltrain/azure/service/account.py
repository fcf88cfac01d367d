"""Account: a credential of azure-identity in one tenant; token scopes and time constants of the service process."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from typing import Any

#: Token scopes of ARM and of the data plane of Azure ML.
ARM_SCOPE = "https://management.azure.com/.default"

DATA_SCOPE = "https://ml.azure.com/.default"

#: Credentials that start a program for each token, which takes a second or more. All others cache tokens themselves.
_CLI_CREDENTIALS = ("CliCredential", "PowerShellCredential")

#: A cached token is not used in the last seconds before it expires.
_TOKEN_MARGIN_S = 300.0


class Account:
    """A credential in one tenant.

    Attributes
    ----------
    method
        ``auto``, ``browser`` or ``device``.
    how
        Description of the credential, for messages.
    """

    def __init__(self, credential: Any, tenant: str = "", *, method: str = "auto", how: str = "") -> None:
        self.credential, self.tenant, self.method, self.description = credential, tenant, method, how
        self.record = ""
        self._lock = threading.RLock()
        self._tokens: dict[tuple[str, ...], Any] = {}

    def get_token(self, *scopes: str, claims: str | None = None, **_: Any) -> Any:
        """See ``azure.core.credentials.TokenCredential``."""
        with self._lock:
            key = (self.tenant, *scopes)
            cached = None if claims else self._tokens.get(key)
            if cached is not None and cached.expires_on - time.time() > _TOKEN_MARGIN_S:
                return cached
            token = self._request_token(scopes, {"claims": claims} if claims else {})
            if type(self.credential).__name__.endswith(_CLI_CREDENTIALS):
                self._tokens[key] = token
            return token

    def _request_token(self, scopes: tuple[str, ...], keywords: dict[str, Any]) -> Any:
        if not self.tenant:
            return self.credential.get_token(*scopes, **keywords)
        try:
            return self.credential.get_token(*scopes, tenant_id=self.tenant, **keywords)
        except TypeError:  # a credential without tenants
            return self.credential.get_token(*scopes, **keywords)

    def get_token_info(self, *scopes: str, options: Any = None) -> Any:
        """See ``azure.core.credentials.SupportsTokenInfo``."""
        from azure.core.credentials import AccessTokenInfo

        token = self.get_token(*scopes, claims=(options or {}).get("claims"))
        return AccessTokenInfo(token.token, token.expires_on)

    def get_new_token(self, *scopes: str) -> Any:
        """Return a new token, bypassing all caches.

        The claims make MSAL request a token from Entra, and every new token satisfies them.
        """
        not_before = str(int(time.time()) - 600)
        claims = json.dumps({"access_token": {"nbf": {"essential": True, "value": not_before}}})
        try:
            return self.get_token(*scopes, claims=claims)
        except Exception:  # az login and others accept no claims, and renew expired tokens
            with self._lock:
                self._tokens.clear()
            return self.get_token(*scopes)

    def user_and_tenant(self) -> dict[str, str]:
        """Return ``user`` and ``tenant`` from the token."""
        return identity(str(self.get_token(ARM_SCOPE).token))


def identity(token: str) -> dict[str, str]:
    """Return the user and tenant of a token. The token is not verified; the service does that."""
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (IndexError, ValueError):
        return {"user": "", "tenant": ""}
    user = next(
        (str(claims[key]) for key in ("upn", "preferred_username", "unique_name", "email") if claims.get(key)), ""
    )
    if not user and (app := claims.get("appid") or claims.get("azp")):
        user = f"{claims.get('app_displayname') or 'application'} ({app})"
    return {"user": user or str(claims.get("name") or claims.get("oid") or ""), "tenant": str(claims.get("tid") or "")}


def env_seconds(name: str, default: float) -> float:
    """Return a time constant, seconds: environment ``AMLTRAIN_AZURE_<NAME>``."""
    return float(os.environ.get(f"AMLTRAIN_AZURE_{name}") or default)
