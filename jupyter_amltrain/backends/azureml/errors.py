"""Errors made of what Azure answers, or of its silence. No I/O, no import of Azure's packages.

An error carries what the service said as data (:class:`ErrorDetails`, read by :func:`details_of`). Shapes of the
answers: recorded traffic (three ARM envelopes, empty bodies of the gateway, PascalCase of the data plane) and, where
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


def redacted(text: str) -> str:
    """`text` without tokens, signatures of addresses, and passwords."""
    return _SECRETS.sub(lambda m: f"{next((g for g in m.groups() if g), '')}[redacted]", text)


def one_line(text: str) -> str:
    """The same on one line, not too long."""
    lines = [line.strip() for line in redacted(text).splitlines() if line.strip()]
    return " ".join(lines)[:600]


def unreachable(text: str, where: str = "") -> TargetUnreachable:
    """Return the error for a missing answer: the network, a proxy, a name or a certificate."""
    error = _unreachable(text)
    error.code = "azure.unreachable"
    return error


def _unreachable(text: str) -> TargetUnreachable:
    low = text.lower()
    found = re.search(r"host='([^']+)'|https?://([^/\s:'\"]+)|resolve '([^']+)'", text)
    host = next((part for part in found.groups() if part), "") if found else ""
    of = f" ({host})" if host else ""
    if "certificate" in low and ("verify" in low or "self-signed" in low or "self signed" in low):
        return TargetUnreachable(
            f"The certificate of Azure{of} is not trusted here: a proxy of your network may sign its own.",
            hint="Set REQUESTS_CA_BUNDLE to a file with its certificate, then try again.",
        )
    if "proxy" in low and ("407" in low or "authentication required" in low):
        return TargetUnreachable(
            "The proxy of your network wants a user and a password.",
            hint="Set HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT",
        )
    cut = ("aborted", "remote end closed", "reset by peer", "incompleteread", "prematurely", "broken", "eof occurred")
    if any(word in low for word in cut) and "tunnel connection failed" not in low:  # a proxy may stand between
        return TargetUnreachable(f"The connection to Azure{of} was cut.", hint="Try again.")
    if "proxy" in low:
        return TargetUnreachable(
            "No way to Azure through the proxy of your network.", hint="Check HTTPS_PROXY and NO_PROXY."
        )
    if "getaddrinfo" in low or "name or service not known" in low or "name resolution" in low or "nodename" in low:
        return TargetUnreachable(
            f"The name of Azure's server{of} cannot be resolved: is there a network?",
            hint="Check the network (a private workspace needs its VPN), and try again.",
        )
    if "ssl" in low or "tls" in low:
        return TargetUnreachable(f"No secure connection to Azure{of}: {one_line(text)[:200]}", hint="Try again.")
    if "timed out" in low or "timeout" in low:
        return TargetUnreachable(f"Azure{of} did not answer in time.", hint="Check the network, and try again.")
    if "refused" in low or "unreachable" in low or "no route" in low:
        return TargetUnreachable(f"No connection to Azure{of}.", hint="Check the network, and try again.")
    return TargetUnreachable(
        f"No answer from Azure{of}: {one_line(text)[:200]}", hint="Check the network, and try again."
    )


_SECRET = "Set AZURE_CLIENT_SECRET to its value (not its id), then connect again."
_TENANT = "Give the directory's id: %aml_compute connect --tenant TENANT"
_SIGN_IN_AGAIN = "Sign in again: %aml_compute connect --sign-in device"
#: Entra's codes (learn.microsoft.com/entra/identity-platform/reference-error-codes): what, and what to do next.
_AADSTS = {
    "7000215": ("the client secret is wrong", _SECRET),
    "7000222": ("the client secret has expired", "Make a new one, set AZURE_CLIENT_SECRET, then connect again."),
    "700016": (
        "this directory knows no application with that id",
        "Check AZURE_CLIENT_ID and AZURE_TENANT_ID, then connect again.",
    ),
    "700027": ("the certificate is not that of the application", "Check AZURE_CLIENT_CERTIFICATE_PATH."),
    "700082": ("the sign-in has been unused for too long", _SIGN_IN_AGAIN),
    "70043": ("the sign-in is over by a rule of your organization", _SIGN_IN_AGAIN),
    "70008": ("the sign-in is over", _SIGN_IN_AGAIN),
    "70016": ("nobody has entered the code yet", "Connect again for a new code."),
    "70018": ("the code is wrong", "Connect again for a new code."),
    "70019": ("the code has expired", "Connect again for a new code."),
    "70020": ("the code has expired", "Connect again for a new code."),
    "50173": ("the password was changed since", _SIGN_IN_AGAIN),
    "50076": ("your organization wants a second factor", _SIGN_IN_AGAIN),
    "50078": ("your organization wants the second factor again", _SIGN_IN_AGAIN),
    "50079": ("your organization wants you to register a second factor", _SIGN_IN_AGAIN),
    "50158": ("your organization wants one more check", _SIGN_IN_AGAIN),
    "53000": ("your organization allows only managed devices", "Use a machine that your organization manages."),
    "53003": ("a rule of your organization (conditional access) blocks it", "Ask its administrator."),
    "530032": ("a rule of your organization (conditional access) blocks it", "Ask its administrator."),
    "50126": ("user name or password is wrong", _SIGN_IN_AGAIN),
    "50034": ("this directory does not know that user", _TENANT),
    "50020": ("this user is not of this directory", _TENANT),
    "50057": ("the account is disabled", "Ask its administrator."),
    "50059": ("it is not known which directory is meant", _TENANT),
    "90002": ("there is no such directory", "Check the tenant: %aml_compute connect --tenant TENANT"),
    "900023": ("that is no id of a directory", "Check the tenant: %aml_compute connect --tenant TENANT"),
    "65001": ("nobody has consented to this application yet", "Ask an administrator to consent to it."),
    "50105": ("you are not assigned to this application", "Ask an administrator to assign it to you."),
    "90072": ("this account is not of the workspace's directory", _TENANT),
    "500011": ("this directory does not know Azure Machine Learning", _TENANT),
}


def connect_line(where: str = "") -> str:
    """What to type to sign in again."""
    return f"%aml_compute connect --name {where}" if where else "%aml_compute connect"


#: How requests and urllib3 say that there was no answer, also inside a failed sign-in.
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
    """Entra's refusal in plain words.

    Parameters
    ----------
    text
        With its code, ``AADSTS7000215: Invalid client secret provided. ...``.
    how
        What was to sign us in, ``az login``.
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
            "The sign-in to Azure was declined.", hint="Connect again to try once more.", code="azure.sign_in"
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


def forbidden(said: ErrorDetails, place: str, asked: str, user: str) -> AmlTrainError:
    """Which permission is missing, on what.

    Parameters
    ----------
    place, asked
        ``" in lab"``, ``" to take the job"``: as they stand in a sentence, or empty.
    user
        Who asked, when known.
    """
    who, lacks = user or "You", "lacks" if user else "lack"
    low = f"{said.message} {' '.join(said.codes)}".lower()
    if "publicnetwork" in low or "private link" in low or "private endpoint" in low or "public access" in low:
        return TargetUnreachable(
            f"The workspace{place} takes requests from its private network only.", hint="Connect to that network (VPN)."
        )
    if "disallowedbypolicy" in low:
        return AuthenticationError(
            f"A policy of your organization forbids it{place}: {said.message.rstrip('.')}.",
            hint="Ask its administrator.",
        )
    if said.code == "AuthorizationPermissionMismatch":  # of the storage service, which names no permission
        return AuthenticationError(
            f"{who} may not read or write the storage of the workspace{place}.",
            hint="Ask its owner for the role 'Storage Blob Data Contributor' there.",
        )
    found = _DOES.search(said.message)
    if found is None:
        reason = said.message.rstrip(".") or "no reason given"
        return AuthenticationError(
            f"{who} may not do that{place}{asked and f' ({asked.strip()})'}: {reason}.",
            hint="Ask its owner for a role.",
        )
    action, scope = found[1], (found[2] or "").rstrip("/").rpartition("/")[2]
    on = f" on {scope!r}" if scope else place
    role = next((role for part, role in _ROLES if part in action.lower()), "")
    return AuthenticationError(
        f"{who} {lacks} the permission {action}{on}.",
        hint=f"Ask its owner for the role {role!r}." if role else "Ask its owner for a role that has it.",
    )


#: Key of :class:`ErrorDetails` in the details of an error.
_ANSWER = "answer"


class ErrorDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer says.

    Attributes
    ----------
    status
        Of HTTP; 0 when there was no answer.
    code
        The most precise code in it, ``UnknownTargetType``.
    codes
        Every code, outermost first.
    message
        Of the service, one line.
    wait
        Seconds that the service wants us to wait; ``None`` when it does not say.
    correlation
        What Azure's support asks for.
    """

    status: int = 0
    code: str = ""
    codes: tuple[str, ...] = ()
    message: str = ""
    wait: float | None = None
    correlation: str = ""


def details_of(error: BaseException) -> ErrorDetails:
    """Return what the service said in an error of this module, here or in the process; empty for any other."""
    value = getattr(error, "details", None)
    answer = value.get(_ANSWER) if isinstance(value, dict) else None
    return msgspec.convert(answer, ErrorDetails) if isinstance(answer, dict) else ErrorDetails()


def with_details(error: AmlTrainError, answer: ErrorDetails) -> AmlTrainError:
    """Let an error carry what the service said; returns the error."""
    error.details[_ANSWER] = msgspec.to_builtins(answer)
    return error


def read_details(status: int, headers: Mapping[str, str], body: bytes) -> ErrorDetails:
    """Read the answer, whatever its envelope."""
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
    """Code and message of the storage service's XML; of a proxy's page its first words."""
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
    """The error for an answer that is not what was wanted.

    Parameters
    ----------
    act
        What was asked, ``GET computes/gpu`` or a phrase of ours.
    where
        The workspace.
    user
        Who asked, when known.
    """
    said = read_details(status, headers, body)
    error = _error(said, act, where, user)
    error.code = error.code or _code_of(said, error)
    return with_details(error, said)


#: Code of an error by its class, where the status says no more.
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


def _code_of(said: ErrorDetails, error: AmlTrainError) -> str:
    if said.status == 401 or type(error) not in _CODES:
        return _STATUS_CODES.get(said.status, "azure.server" if said.status >= 500 else "azure.refused")
    return _CODES[type(error)]


def _error(said: ErrorDetails, act: str, where: str, user: str) -> AmlTrainError:
    place = f" in {where}" if where else ""
    asked = _asked(act)
    codes, text = " ".join(said.codes).lower(), said.message.lower()
    why = f": {said.message.rstrip('.')}" if said.message else ""
    if said.status == 401:
        return AuthenticationError(
            f"Azure does not accept the sign-in{place}{why}.", hint=f"Sign in again: {connect_line(where)}"
        )
    if said.status == 403:
        return forbidden(said, place, asked, user)
    if said.status == 429:
        wait = f" It asks to wait {said.wait:g} s." if said.wait else ""
        return TargetUnreachable(f"Azure takes no more requests from us for now{place}.{wait}", hint="Try again then.")
    if "quota" in codes or "quota" in text:
        return QuotaExceeded(_sentence(said, place, asked), hint="%aml_compute quota shows what is left.")
    if any(word in codes for word in ("capacity", "allocationfailed", "skunotavailable")):
        return CapacityError(_sentence(said, place, asked), hint="%aml_compute sizes lists others.")
    if said.status == 404 and (gone := _gone_workspace(f"{' '.join(said.codes)} {said.message}")):
        forget = f" %aml_compute disconnect {where} forgets it here." if where else ""
        what = f"workspace {gone['workspace']!r}" if gone["workspace"] else f"resource group {gone['group']!r}"
        return WorkspaceGone(f"There is no {what} at Azure (any more).", hint=f"Connect another.{forget}")
    if said.status == 404:
        missing = f"Azure{place} refuses{asked}: {said.message.rstrip('.') or 'there is no such thing'}."
        return TargetError(missing, hint="%aml_compute list shows what there is.")
    if said.status in (409, 412):
        return TargetError(f"Azure{place} refuses{asked}, another change goes on{why}.", hint="Try again in a minute.")
    if said.status >= 500 or said.status == 408:
        code = f" {said.code}" if said.code and said.code.lower() not in text else ""
        again = f"in {said.wait:g} s" if said.wait else "in a minute"
        return TargetUnreachable(
            f"Azure{place} returned a server error ({said.status}{code}){why}.", hint=f"Try again {again}."
        )
    return TargetError(_sentence(said, place, asked))


#: Recorded: "The Resource 'Microsoft.MachineLearningServices/workspaces/x' under resource group 'y' was not found."
#: Who deletes a group deletes what is in it: "Resource group 'y' could not be found." (ARM's ResourceGroupNotFound).
_NO_WORKSPACE = re.compile(
    r"Resource 'Microsoft\.MachineLearningServices/workspaces/(?P<workspace>[^'/]+)'.* was not found"
    r"|Resource group '(?P<group>[^'/]+)' could not be found",
    re.I,
)


#: ARM's answer to a request for what lies in a workspace that is gone; a parent below the workspace has a longer path.
_NO_PARENT = re.compile(r"parent resource '(?:[^']*/workspaces/)?(?P<workspace>[^'/]+)'(?P<group>)", re.I)


def _gone_workspace(text: str) -> re.Match[str] | None:
    """Return the match of an answer that says that the workspace, or its group, is not there."""
    if "ParentResourceNotFound" in text and (found := _NO_PARENT.search(text)) is not None:
        return found
    return _NO_WORKSPACE.search(text)


def no_workspace(status: int, body: bytes) -> bool:
    """Whether it is the whole workspace that is not there."""
    return status == 404 and _gone_workspace(body[:4096].decode("utf-8", "replace")) is not None


def _asked(act: str) -> str:
    """An act as words after "refuses": ``GET x`` or ``read the workspace``."""
    if not act:
        return ""
    return f" {act}" if act.split(" ")[0].isupper() else f" to {act}"


def _sentence(said: ErrorDetails, place: str, asked: str) -> str:
    text = said.message.rstrip(".") or f"status {said.status} without a reason"
    code = f" [{said.code}]" if said.code and said.code not in text else ""
    return f"Azure{place} refuses{asked}: {text}{code}."


def of_exception(error: BaseException, where: str = "", act: str = "") -> AmlTrainError | None:
    """Return the error for an exception of azure-core, azure-identity or requests; ``None`` for a bug.

    Parameters
    ----------
    act
        What was asked, as :func:`refused` takes it.
    """
    if isinstance(error, AmlTrainError):
        return error
    names = [cls.__name__ for cls in type(error).__mro__]
    if "AzureError" in names or "CredentialUnavailableError" in names or "ClientAuthenticationError" in names:
        response = getattr(error, "response", None)
        # azure-core has one class for what Entra refuses and for a 401 of the service itself.
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
    """The storage service's 403 to an address that the workspace gave us."""
    of = f" {where}" if where else ""
    return AuthenticationError(
        f"The storage of the workspace{of} does not take the signature that Azure gave for it.",
        hint="Try again. If it stays so: this machine's clock, and the storage's network rules.",
    )


def is_unconfirmed(error: AmlTrainError) -> bool:
    """Whether what was asked may have been done all the same: no answer came, or one of a service in trouble."""
    status = details_of(error).status
    return isinstance(error, TargetUnreachable) and status not in (403, 429)


def too_long(seconds: float) -> AmlTrainError:
    """The service wants us to wait for longer than anybody sits before a cell."""
    error = TargetUnreachable(
        f"Azure takes no more requests from us for now. It asks to wait {seconds:.0f} s.",
        hint="Try again then.",
        code="azure.throttled",
    )
    return with_details(error, ErrorDetails(status=429, wait=seconds))
