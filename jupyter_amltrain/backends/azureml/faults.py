"""What Azure answers when it refuses, in plain words.

Pure: no import of Azure's packages. Shapes of the answers: recorded traffic (three ARM envelopes, empty bodies
of the gateway, PascalCase of the data plane) and, where nothing was recorded, Azure's documentation (429, sign-in).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from jupyter_amltrain.backends.azureml.forbidden import forbidden
from jupyter_amltrain.backends.azureml.no_answer import unreachable as unreachable
from jupyter_amltrain.backends.azureml.redacting import line
from jupyter_amltrain.backends.azureml.redacting import redacted as redacted
from jupyter_amltrain.backends.azureml.sign_in_faults import connect_line as connect_line
from jupyter_amltrain.backends.azureml.sign_in_faults import signin_failed as signin_failed
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


class Told(msgspec.Struct, frozen=True, kw_only=True):
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


def told(error: BaseException) -> Told:
    """What the service said in an error of this module; empty for any other."""
    found = getattr(error, "told", None)
    return found if isinstance(found, Told) else Told()


def read(status: int, headers: Mapping[str, str], body: bytes) -> Told:
    """Read the answer, whatever its envelope."""
    low = {key.lower(): value for key, value in headers.items()}
    try:
        value = json.loads(body) if body.strip() else {}
    except ValueError:
        value = _marked_up(body.decode("utf-8", "replace"))
    pairs = [(code, message) for code, message in _pairs(value) if code or message]
    codes = tuple(dict.fromkeys(code for code, _ in pairs if code))
    messages = [message for _, message in pairs if message]
    return Told(
        status=status,
        code=codes[-1] if codes else low.get("x-ms-error-code", ""),
        codes=codes,
        message=line(messages[0] if messages else ""),
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


def refused(
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
    said = read(status, headers, body)
    error = _error(said, act, where, user)
    error.told = said  # type: ignore[attr-defined]
    return error


def _error(said: Told, act: str, where: str, user: str) -> AmlTrainError:
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


def _sentence(said: Told, place: str, asked: str) -> str:
    text = said.message.rstrip(".") or f"status {said.status} without a reason"
    code = f" [{said.code}]" if said.code and said.code not in text else ""
    return f"Azure{place} refuses{asked}: {text}{code}."


def of_exception(error: BaseException, where: str = "", act: str = "") -> AmlTrainError | None:
    """The error for an exception of azure-core, azure-identity or requests; ``None`` for a bug of ours.

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
            return refused(int(response.status_code), dict(response.headers), body, act=act, where=where)
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


def unsure(error: AmlTrainError) -> bool:
    """Whether what was asked may have been done all the same: no answer came, or one of a service in trouble."""
    status = told(error).status
    return isinstance(error, TargetUnreachable) and status not in (403, 429)


def too_long(seconds: float) -> TargetUnreachable:
    """The service wants us to wait for longer than anybody sits before a cell."""
    return TargetUnreachable(
        f"Azure takes no more requests from us for now. It asks to wait {seconds:.0f} s.", hint="Try again then."
    )
