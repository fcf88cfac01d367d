"""Conversion of Azure's error responses and network failures to errors of this package. No I/O, no Azure imports.

An error carries the service's response as data (:class:`ErrorDetails`, read by :func:`details_of`). Shapes of the
responses: recorded traffic (three ARM envelopes, empty bodies of the gateway, PascalCase of the data plane) and, where
nothing was recorded, Azure's documentation (429, sign-in).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from jupyter_amltrain.errors import (
    AmlTrainError,
    AuthenticationError,
    CapacityError,
    MissingDependency,
    QuotaExceeded,
    TargetError,
    TargetUnreachable,
    WorkspaceGone,
)

_SECRETS = re.compile(
    r"(?i)((?<![a-z])sig(?:=|%3D|%253D))[^&\s\"'<>]+"  # also in an address that is a part of another one
    r"|(\bSharedKey\s+\w+:)[\w+/=]+"
    r"|(\bBearer\s+)[\w.~+/=-]{8,}"
    r"|((?:access_token|refresh_token|id_token|client_secret|client_assertion|password|sasToken|accountKey"
    r"|device_code)[\"']?\s*[=:]\s*[\"']?)[^\s\"'&,}]+"
    r"|\b()eyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*"
)


def redact(text: str) -> str:
    """Return `text` without tokens, URL signatures and passwords."""
    return _SECRETS.sub(lambda m: f"{next((g for g in m.groups() if g), '')}[redacted]", text)


def one_line(text: str) -> str:
    """Return `text` redacted, on one line, cut to 600 characters."""
    lines = [line.strip() for line in redact(text).splitlines() if line.strip()]
    return " ".join(lines)[:600]


def unreachable(text: str, where: str = "") -> TargetUnreachable:
    """Return the error for a missing answer: the network, a proxy, a name or a certificate."""
    error = _unreachable(text)
    error.code = "azure.unreachable"
    return error


def _unreachable(text: str) -> TargetUnreachable:
    low = text.lower()
    match = re.search(r"host='([^']+)'|https?://([^/\s:'\"]+)|resolve '([^']+)'", text)
    host = next((part for part in match.groups() if part), "") if match else ""
    at_host = f" ({host})" if host else ""
    if "certificate" in low and ("verify" in low or "self-signed" in low or "self signed" in low):
        return TargetUnreachable(
            f"The certificate of Azure{at_host} is not trusted: a proxy of your network may use its own certificate.",
            hint="Set REQUESTS_CA_BUNDLE to a file with the proxy's certificate, then try again.",
        )
    if "proxy" in low and ("407" in low or "authentication required" in low):
        return TargetUnreachable(
            "The proxy of your network requires a user and a password.",
            hint="Set HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT",
        )
    cut = ("aborted", "remote end closed", "reset by peer", "incompleteread", "prematurely", "broken", "eof occurred")
    if any(word in low for word in cut) and "tunnel connection failed" not in low:  # a proxy may stand between
        return TargetUnreachable(f"The connection to Azure{at_host} was cut.", hint="Try again.")
    if "proxy" in low:
        return TargetUnreachable(
            "Cannot reach Azure through the proxy of your network.", hint="Check HTTPS_PROXY and NO_PROXY."
        )
    if "getaddrinfo" in low or "name or service not known" in low or "name resolution" in low or "nodename" in low:
        return TargetUnreachable(
            f"The name of Azure's server{at_host} cannot be resolved: the network may be down.",
            hint="Check the network (a private workspace needs its VPN), and try again.",
        )
    if "ssl" in low or "tls" in low:
        return TargetUnreachable(f"No secure connection to Azure{at_host}: {one_line(text)[:200]}", hint="Try again.")
    if "timed out" in low or "timeout" in low:
        return TargetUnreachable(f"Azure{at_host} did not respond in time.", hint="Check the network, and try again.")
    if "refused" in low or "unreachable" in low or "no route" in low:
        return TargetUnreachable(f"No connection to Azure{at_host}.", hint="Check the network, and try again.")
    return TargetUnreachable(
        f"No answer from Azure{at_host}: {one_line(text)[:200]}", hint="Check the network, and try again."
    )


_SECRET = "Set AZURE_CLIENT_SECRET to its value (not its id), then connect again."
_TENANT = "Give the directory's id: %aml_compute connect --tenant TENANT"
_SIGN_IN_AGAIN = "Sign in again: %aml_compute connect --sign-in device"
#: Entra's codes (learn.microsoft.com/entra/identity-platform/reference-error-codes): reason and hint.
_AADSTS = {
    "7000215": ("the client secret is wrong", _SECRET),
    "7000222": ("the client secret has expired", "Create a new one, set AZURE_CLIENT_SECRET, then connect again."),
    "700016": (
        "this directory has no application with that id",
        "Check AZURE_CLIENT_ID and AZURE_TENANT_ID, then connect again.",
    ),
    "700027": ("the certificate does not belong to the application", "Check AZURE_CLIENT_CERTIFICATE_PATH."),
    "700082": ("the sign-in has been unused for too long", _SIGN_IN_AGAIN),
    "70043": ("the sign-in has expired by a policy of your organization", _SIGN_IN_AGAIN),
    "70008": ("the sign-in has expired", _SIGN_IN_AGAIN),
    "70016": ("the code has not been entered yet", "Connect again for a new code."),
    "70018": ("the code is wrong", "Connect again for a new code."),
    "70019": ("the code has expired", "Connect again for a new code."),
    "70020": ("the code has expired", "Connect again for a new code."),
    "50173": ("the password was changed after the sign-in", _SIGN_IN_AGAIN),
    "50076": ("your organization requires a second factor", _SIGN_IN_AGAIN),
    "50078": ("your organization requires the second factor again", _SIGN_IN_AGAIN),
    "50079": ("your organization requires you to register a second factor", _SIGN_IN_AGAIN),
    "50158": ("your organization requires an additional verification", _SIGN_IN_AGAIN),
    "53000": ("your organization allows only managed devices", "Use a machine that your organization manages."),
    "53003": ("a rule of your organization (conditional access) blocks it", "Ask its administrator."),
    "530032": ("a rule of your organization (conditional access) blocks it", "Ask its administrator."),
    "50126": ("user name or password is wrong", _SIGN_IN_AGAIN),
    "50034": ("the user does not exist in this directory", _TENANT),
    "50020": ("this user is not in this directory", _TENANT),
    "50057": ("the account is disabled", "Ask its administrator."),
    "50059": ("no directory is specified", _TENANT),
    "90002": ("the directory does not exist", "Check the tenant: %aml_compute connect --tenant TENANT"),
    "900023": ("the tenant is not a valid directory id", "Check the tenant: %aml_compute connect --tenant TENANT"),
    "65001": ("no consent has been given to this application yet", "Ask an administrator to consent to it."),
    "50105": ("you are not assigned to this application", "Ask an administrator to assign it to you."),
    "90072": ("this account is not in the workspace's directory", _TENANT),
    "500011": ("Azure Machine Learning is not available in this directory", _TENANT),
}


def connect_line(where: str = "") -> str:
    """Return the command to sign in again."""
    return f"%aml_compute connect --name {where}" if where else "%aml_compute connect"


#: Messages of requests and urllib3 about a missing response, also inside a failed sign-in.
_NO_ANSWER = (
    "unable to connect to proxy",
    "tunnel connection failed",
    "max retries exceeded",
    "connection aborted",
    "connection refused",
    "failed to establish a new connection",
    "failed to resolve",
    "name resolution",
    "certificate verify failed",
    "read timed out",
)


def signin_failed(text: str, where: str = "", *, how: str = "") -> AmlTrainError:
    """Return the error for a sign-in that Entra refused.

    Parameters
    ----------
    text
        Entra's message with its code, ``AADSTS7000215: Invalid client secret provided. ...``.
    how
        Method of the sign-in, ``az login``.
    """
    by = f" by {how}" if how else ""
    low = text.lower()
    if "aadsts" not in low and any(word in low for word in _NO_ANSWER):
        return unreachable(text, where)
    for code in re.findall(r"AADSTS(\d+)", text):
        if code in _AADSTS:
            what, hint = _AADSTS[code]
            return AuthenticationError(
                f"Azure refused the sign-in{by}: {what} (AADSTS{code}).", hint=hint, code="azure.sign_in"
            )
    if "unable to get authority configuration" in low:  # MSAL hides the code of the answer
        what, hint = _AADSTS["90002"]
        return AuthenticationError(f"Azure refused the sign-in{by}: {what}.", hint=hint, code="azure.sign_in")
    if "timed out" in low or "expired_token" in low or "code has expired" in low:
        return AuthenticationError(
            "Nobody signed in to Azure before the code or the window expired.",
            hint="Connect again for a new one.",
            code="azure.sign_in",
        )
    if "authorization_declined" in low or "access_denied" in low:
        return AuthenticationError(
            "The sign-in to Azure was declined.", hint="To try again, connect again.", code="azure.sign_in"
        )
    first = one_line(re.sub(r"(?s)\b(Trace ID|Correlation ID|Timestamp|To mitigate).*", "", text))
    return AuthenticationError(
        f"Azure refused the sign-in{by}: {first.rstrip('.')}.",
        hint=f"Sign in again: {connect_line(where)}",
        code="azure.sign_in",
    )


_DOES = re.compile(r"perform action '([^']+)'(?:\s+over scope '([^']+)')?")
#: The built-in role that has a permission (learn.microsoft.com/azure/role-based-access-control/built-in-roles).
_ROLES = (
    ("/computes/", "AzureML Compute Operator"),
    ("/workspaces/write", "Contributor"),
    ("/workspaces/delete", "Contributor"),
    ("microsoft.insights/", "Monitoring Reader"),
    ("microsoft.storage/", "Storage Blob Data Contributor"),
    ("/workspaces/read", "Reader"),
    ("microsoft.machinelearningservices/", "AzureML Data Scientist"),
)


def forbidden(response: ErrorDetails, location: str, request: str, user: str) -> AmlTrainError:
    """Return the error for a missing permission, with its scope.

    Parameters
    ----------
    location, request
        Parts of the sentence, ``" in lab"`` and ``" to take the job"``, or empty.
    user
        Name of the signed-in user, if known.
    """
    subject, verb = user or "You", "lacks" if user else "lack"
    low = f"{response.message} {' '.join(response.codes)}".lower()
    if "publicnetwork" in low or "private link" in low or "private endpoint" in low or "public access" in low:
        return TargetUnreachable(
            f"The workspace{location} accepts requests from its private network only.",
            hint="Connect to that network (VPN).",
        )
    if "disallowedbypolicy" in low:
        return AuthenticationError(
            f"A policy of your organization forbids the request{location}: {response.message.rstrip('.')}.",
            hint="Ask its administrator.",
        )
    if response.code == "AuthorizationPermissionMismatch":  # of the storage service, which names no permission
        return AuthenticationError(
            f"{subject} {verb} permission to read or write the workspace's storage{location}.",
            hint="Ask the owner of the workspace for the role 'Storage Blob Data Contributor'.",
        )
    match = _DOES.search(response.message)
    if match is None:
        reason = response.message.rstrip(".") or "no reason given"
        return AuthenticationError(
            f"{subject} {verb} permission{location}{request and f' ({request.strip()})'}: {reason}.",
            hint="Ask the owner of the workspace for a role.",
        )
    permission, scope = match[1], (match[2] or "").rstrip("/").rpartition("/")[2]
    scope_text = f" on {scope!r}" if scope else location
    role = next((role for part, role in _ROLES if part in permission.lower()), "")
    return AuthenticationError(
        f"{subject} {verb} the permission {permission}{scope_text}.",
        hint=f"Ask the owner for the role {role!r}." if role else "Ask the owner for a role with this permission.",
    )


#: Key of :class:`ErrorDetails` in the details of an error.
_ANSWER = "answer"


class ErrorDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Error response of the service.

    Attributes
    ----------
    status
        HTTP status; 0 without a response.
    code
        The most specific error code, ``UnknownTargetType``.
    codes
        Every error code, outermost first.
    message
        Message of the service, one line.
    wait
        Value of ``Retry-After`` in seconds; ``None`` if the header is absent.
    correlation
        Correlation id for Azure's support.
    """

    status: int = 0
    code: str = ""
    codes: tuple[str, ...] = ()
    message: str = ""
    wait: float | None = None
    correlation: str = ""


def details_of(error: BaseException) -> ErrorDetails:
    """Return the service's response in an error of this module, raised here or in the service process; else empty."""
    value = getattr(error, "details", None)
    answer = value.get(_ANSWER) if isinstance(value, dict) else None
    return msgspec.convert(answer, ErrorDetails) if isinstance(answer, dict) else ErrorDetails()


def with_details(error: AmlTrainError, answer: ErrorDetails) -> AmlTrainError:
    """Attach the service's response to an error; return the error."""
    error.details[_ANSWER] = msgspec.to_builtins(answer)
    return error


def read_details(status: int, headers: Mapping[str, str], body: bytes) -> ErrorDetails:
    """Parse an error response in any of the service's envelopes."""
    low = {key.lower(): value for key, value in headers.items()}
    try:
        value = json.loads(body) if body.strip() else {}
    except ValueError:
        value = _marked_up(body.decode("utf-8", "replace"))
    pairs = [(code, message) for code, message in _pairs(value) if code or message]
    codes = tuple(dict.fromkeys(code for code, _ in pairs if code))
    messages = [message for _, message in pairs if message]
    return ErrorDetails(
        status=status,
        code=codes[-1] if codes else low.get("x-ms-error-code", ""),
        codes=codes,
        message=one_line(messages[0] if messages else ""),
        wait=_seconds(low.get("retry-after", "")),
        correlation=low.get("x-ms-correlation-request-id", low.get("x-ms-request-id", "")),
    )


def _marked_up(text: str) -> dict[str, str]:
    """Return code and message of the storage service's XML, or the first words of a proxy's page."""
    found = re.search(r"<Error>\s*<Code>([^<]*)</Code>\s*<Message>([^<]*)", text)
    if found is not None:
        return {"code": found[1], "message": found[2].partition("\n")[0].partition("RequestId:")[0].strip()}
    return {"message": re.sub(r"<[^>]+>|\s+", " ", text).strip()[:300]}


def _pairs(value: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Codes and messages, outermost first."""
    if not isinstance(value, dict) or depth > 8:
        return
    low = {str(key).lower(): part for key, part in value.items()}
    code, message = low.get("code"), low.get("message")
    code = low.get("error_code") if code is None else code
    if isinstance(code, (str, int)) or isinstance(message, str):
        yield str(code or ""), message if isinstance(message, str) else ""
    for part in low.get("details") or [] if isinstance(low.get("details"), list) else []:
        yield from _pairs(part, depth + 1)
    for part in low.get("additionalinfo") or [] if isinstance(low.get("additionalinfo"), list) else []:
        info = part.get("info") if isinstance(part, dict) else None
        if isinstance(info, dict) and str(part.get("type")) == "InnerError":
            yield from _pairs({"innererror": info.get("value")}, depth + 1)
    for key in ("error", "innererror"):
        if isinstance(low.get(key), str) and low[key] and key == "error" and depth == 0:
            yield str(low[key]), str(low.get("error_description") or "")
        yield from _pairs(low.get(key), depth + 1)


def _seconds(text: str) -> float | None:
    try:
        return max(0.0, float(text))
    except ValueError:
        return None


def error_of_answer(
    status: int, headers: Mapping[str, str], body: bytes, *, act: str = "", where: str = "", user: str = ""
) -> AmlTrainError:
    """Return the error for an error response.

    Parameters
    ----------
    act
        The request, ``GET computes/gpu`` or a phrase such as ``read the workspace``.
    where
        Name of the workspace.
    user
        Name of the signed-in user, if known.
    """
    response = read_details(status, headers, body)
    error = _error(response, act, where, user)
    error.code = error.code or _code_of(response, error)
    return with_details(error, response)


#: Code of an error by its class, if the status is not more specific.
_CODES: dict[type[AmlTrainError], str] = {
    QuotaExceeded: "azure.quota",
    CapacityError: "azure.capacity",
    WorkspaceGone: "azure.workspace_gone",
    AuthenticationError: "azure.forbidden",
}
#: By status of HTTP.
_STATUS_CODES = {
    401: "azure.sign_in",
    404: "azure.not_found",
    408: "azure.server",
    409: "azure.conflict",
    412: "azure.conflict",
    429: "azure.throttled",
}


def _code_of(response: ErrorDetails, error: AmlTrainError) -> str:
    if response.status == 401 or type(error) not in _CODES:
        return _STATUS_CODES.get(response.status, "azure.server" if response.status >= 500 else "azure.refused")
    return _CODES[type(error)]


def _error(response: ErrorDetails, act: str, where: str, user: str) -> AmlTrainError:
    location = f" in {where}" if where else ""
    request = _request_phrase(act)
    codes, text = " ".join(response.codes).lower(), response.message.lower()
    reason = f": {response.message.rstrip('.')}" if response.message else ""
    if response.status == 401:
        return AuthenticationError(
            f"Azure rejected the sign-in{location}{reason}.", hint=f"Sign in again: {connect_line(where)}"
        )
    if response.status == 403:
        return forbidden(response, location, request, user)
    if response.status == 429:
        wait = f" Azure asks to wait {response.wait:g} s." if response.wait else ""
        return TargetUnreachable(f"Azure is throttling requests{location}.{wait}", hint="Try again later.")
    if "quota" in codes or "quota" in text:
        return QuotaExceeded(_sentence(response, location, request), hint="To see the quota: %aml_compute quota")
    if any(word in codes for word in ("capacity", "allocationfailed", "skunotavailable")):
        return CapacityError(_sentence(response, location, request), hint="To see other sizes: %aml_compute sizes")
    if response.status == 404 and (
        missing_workspace := _gone_workspace(f"{' '.join(response.codes)} {response.message}")
    ):
        forget = f" %aml_compute disconnect {where} removes it here." if where else ""
        what = (
            f"workspace {missing_workspace['workspace']!r}"
            if missing_workspace["workspace"]
            else f"resource group {missing_workspace['group']!r}"
        )
        return WorkspaceGone(
            f"Azure has no {what}; it may have been deleted.", hint=f"Connect another workspace.{forget}"
        )
    if response.status == 404:
        missing = f"Azure refuses{request}{location}: {response.message.rstrip('.') or 'not found'}."
        return TargetError(missing, hint="See the existing targets: %aml_compute list")
    if response.status in (409, 412):
        return TargetError(
            f"Azure refuses{request}{location}, because another change is in progress{reason}.",
            hint="Try again in a minute.",
        )
    if response.status >= 500 or response.status == 408:
        code = f" {response.code}" if response.code and response.code.lower() not in text else ""
        retry = f"in {response.wait:g} s" if response.wait else "in a minute"
        workspace = f" for workspace {where}" if where else ""
        return TargetUnreachable(
            f"Azure returned a server error ({response.status}{code}){workspace}{reason}.", hint=f"Try again {retry}."
        )
    return TargetError(_sentence(response, location, request))


#: Recorded: "The Resource 'Microsoft.MachineLearningServices/workspaces/x' under resource group 'y' was not found."
#: Who deletes a group deletes what is in it: "Resource group 'y' could not be found." (ARM's ResourceGroupNotFound).
_NO_WORKSPACE = re.compile(
    r"Resource 'Microsoft\.MachineLearningServices/workspaces/(?P<workspace>[^'/]+)'.* was not found"
    r"|Resource group '(?P<group>[^'/]+)' could not be found",
    re.I,
)


#: ARM's answer for a resource of a deleted workspace; a parent below the workspace has a longer path.
_NO_PARENT = re.compile(r"parent resource '(?:[^']*/workspaces/)?(?P<workspace>[^'/]+)'(?P<group>)", re.I)


def _gone_workspace(text: str) -> re.Match[str] | None:
    """Return the match of an answer about a missing workspace or resource group."""
    if "ParentResourceNotFound" in text and (match := _NO_PARENT.search(text)) is not None:
        return match
    return _NO_WORKSPACE.search(text)


def no_workspace(status: int, body: bytes) -> bool:
    """Return whether the response means that the whole workspace is missing."""
    return status == 404 and _gone_workspace(body[:4096].decode("utf-8", "replace")) is not None


def _request_phrase(act: str) -> str:
    """Return a request as the words after "refuses": ``GET x`` or ``read the workspace``."""
    if not act:
        return ""
    return f" {act}" if act.split(" ")[0].isupper() else f" to {act}"


def _sentence(response: ErrorDetails, location: str, request: str) -> str:
    text = response.message.rstrip(".") or f"status {response.status} without a reason"
    code = f" [{response.code}]" if response.code and response.code not in text else ""
    return f"Azure refuses{request}{location}: {text}{code}."


def error_of_exception(error: BaseException, where: str = "", act: str = "") -> AmlTrainError | None:
    """Return the error for an exception of azure-core, azure-identity or requests; ``None`` for a bug.

    Parameters
    ----------
    act
        The request, as in :func:`error_of_answer`.
    """
    if isinstance(error, AmlTrainError):
        return error
    names = [cls.__name__ for cls in type(error).__mro__]
    if "AzureError" in names or "CredentialUnavailableError" in names or "ClientAuthenticationError" in names:
        response = getattr(error, "response", None)
        # azure-core has one class for Entra's refusals and for a 401 of the service itself.
        answered = getattr(response, "status_code", None) == 401 and "AADSTS" not in str(error)
        if ("ClientAuthenticationError" in names or "CredentialUnavailableError" in names) and not answered:
            return signin_failed(str(getattr(error, "message", error)), where)
        if response is not None and hasattr(response, "status_code"):
            try:
                body = response.body()
            except Exception:  # a stream that was never read
                body = b""
            if (
                int(response.status_code) == 403
                and ".blob." in str(getattr(response.request, "url", "")).partition("?")[0]
            ):
                return _unsigned(where)
            return error_of_answer(int(response.status_code), dict(response.headers), body, act=act, where=where)
        return unreachable(str(error), where)
    if isinstance(error, ModuleNotFoundError) and str(error.name).startswith("azure"):
        return MissingDependency(
            f"Azure ML needs a package that is not installed here: {error.name}.",
            hint="Type: %pip install azure-ai-ml azure-identity",
        )
    return None


def _unsigned(where: str) -> AmlTrainError:
    """Return the error for the storage service's 403 to an address that the workspace issued."""
    name = f" {where}" if where else ""
    return AuthenticationError(
        f"The storage of the workspace{name} rejected the signature that Azure issued for it.",
        hint="Try again. If the error persists, check this machine's clock and the storage's network rules.",
    )


def is_unconfirmed(error: AmlTrainError) -> bool:
    """Return whether the request may still have been carried out: no response, or a server error."""
    status = details_of(error).status
    return isinstance(error, TargetUnreachable) and status not in (403, 429)


def throttled_too_long(seconds: float) -> AmlTrainError:
    """Return the error for a ``Retry-After`` that is longer than a user waits for a cell."""
    error = TargetUnreachable(
        f"Azure is throttling requests. It asks to wait {seconds:.0f} s.",
        hint="Try again later.",
        code="azure.throttled",
    )
    return with_details(error, ErrorDetails(status=429, wait=seconds))
