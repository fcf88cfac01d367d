"""An account: a credential of azure-identity in one tenant, its scopes, and time constants of the service process."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass

#: For whom the tokens are that ARM and the data plane of Azure ML take.
ARM_SCOPE = "https://management.azure.com/.default"

DATA_SCOPE = "https://ml.azure.com/.default"

#: Credentials that start a program for each token, for a second or more. All others keep theirs by themselves.
_PROGRAMS = ("CliCredential", "PowerShellCredential")

#: A token is not used in the last seconds of its life.
_TOKEN_MARGIN_S = 300.0


class Account:
    """A credential in one tenant.

    Attributes
    ----------
    method
        ``auto``, ``browser`` or ``device``.
    how
        What signed us in, in words.
    """

    def __init__(self, credential: Any, tenant: str = "", *, method: str = "auto", how: str = "") -> None:
        self.credential, self.tenant, self.method, self.how = credential, tenant, method, how
        self.record = ""
        self._one = threading.RLock()
        self._tokens: dict[tuple[str, ...], Any] = {}

    def get_token(self, *scopes: str, claims: str | None = None, **_: Any) -> Any:
        """See ``azure.core.credentials.TokenCredential``."""
        with self._one:
            key = (self.tenant, *scopes)
            known = None if claims else self._tokens.get(key)
            if known is not None and known.expires_on - time.time() > _TOKEN_MARGIN_S:
                return known
            token = self._asked(scopes, {"claims": claims} if claims else {})
            if type(self.credential).__name__.endswith(_PROGRAMS):
                self._tokens[key] = token
            return token

    def _asked(self, scopes: tuple[str, ...], given: dict[str, Any]) -> Any:
        if not self.tenant:
            return self.credential.get_token(*scopes, **given)
        try:
            return self.credential.get_token(*scopes, tenant_id=self.tenant, **given)
        except TypeError:  # of somebody who knows no tenants
            return self.credential.get_token(*scopes, **given)

    def get_token_info(self, *scopes: str, options: Any = None) -> Any:
        """See ``azure.core.credentials.SupportsTokenInfo``."""
        from azure.core.credentials import AccessTokenInfo

        token = self.get_token(*scopes, claims=(options or {}).get("claims"))
        return AccessTokenInfo(token.token, token.expires_on)

    def fresh(self, *scopes: str) -> Any:
        """A token past every cache: claims make MSAL ask Entra, and every new token has these."""
        not_before = str(int(time.time()) - 600)
        claims = json.dumps({"access_token": {"nbf": {"essential": True, "value": not_before}}})
        try:
            return self.get_token(*scopes, claims=claims)
        except Exception:  # `az login` and its like take no claims, and renew what is over by themselves
            with self._one:
                self._tokens.clear()
            return self.get_token(*scopes)

    def who(self) -> dict[str, str]:
        """``user`` and ``tenant``, as the token says."""
        return identity(str(self.get_token(ARM_SCOPE).token))


def identity(token: str) -> dict[str, str]:
    """Who a token is for. Not verified: it is the service that does so."""
    try:
        part = token.split(".")[1]
        said = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (IndexError, ValueError):
        return {"user": "", "tenant": ""}
    user = next((str(said[key]) for key in ("upn", "preferred_username", "unique_name", "email") if said.get(key)), "")
    if not user and (app := said.get("appid") or said.get("azp")):
        user = f"{said.get('app_displayname') or 'application'} ({app})"
    return {"user": user or str(said.get("name") or said.get("oid") or ""), "tenant": str(said.get("tid") or "")}


def setting(name: str, default: float) -> float:
    """Return a time constant, seconds: environment ``AMLTRAIN_AZURE_<NAME>``."""
    return float(os.environ.get(f"AMLTRAIN_AZURE_{name}") or default)
