"""What Entra answers when it refuses a sign-in, in plain words. Pure."""

from __future__ import annotations

import re

from jupyter_amltrain.backends.azureml.no_answer import unreachable
from jupyter_amltrain.backends.azureml.redacting import line
from jupyter_amltrain.errors import AmlTrainError, AuthenticationError

_SECRET = "Set AZURE_CLIENT_SECRET to its value (not its id), then connect again."
_TENANT = "Give the directory's id: %aml_compute connect --tenant TENANT"
_AGAIN = "Sign in again: %aml_compute connect --sign-in device"
#: Entra's codes (learn.microsoft.com/entra/identity-platform/reference-error-codes): what, and what to do next.
_AADSTS = {
    "7000215": ("the client secret is wrong", _SECRET),
    "7000222": ("the client secret has expired", "Make a new one, set AZURE_CLIENT_SECRET, then connect again."),
    "700016": (
        "this directory knows no application with that id",
        "Check AZURE_CLIENT_ID and AZURE_TENANT_ID, then connect again.",
    ),
    "700027": ("the certificate is not that of the application", "Check AZURE_CLIENT_CERTIFICATE_PATH."),
    "700082": ("the sign-in has been unused for too long", _AGAIN),
    "70043": ("the sign-in is over by a rule of your organisation", _AGAIN),
    "70008": ("the sign-in is over", _AGAIN),
    "70016": ("nobody has entered the code yet", "Connect again for a new code."),
    "70018": ("the code is wrong", "Connect again for a new code."),
    "70019": ("the code has expired", "Connect again for a new code."),
    "70020": ("the code has expired", "Connect again for a new code."),
    "50173": ("the password was changed since", _AGAIN),
    "50076": ("your organisation wants a second factor", _AGAIN),
    "50078": ("your organisation wants the second factor again", _AGAIN),
    "50079": ("your organisation wants you to register a second factor", _AGAIN),
    "50158": ("your organisation wants one more check", _AGAIN),
    "53000": ("your organisation allows only managed devices", "Use a machine that your organisation manages."),
    "53003": ("a rule of your organisation (conditional access) blocks it", "Ask its administrator."),
    "530032": ("a rule of your organisation (conditional access) blocks it", "Ask its administrator."),
    "50126": ("user name or password is wrong", _AGAIN),
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
            return AuthenticationError(f"Azure refused the sign-in{by}: {what} (AADSTS{code}).", hint=hint)
    if "unable to get authority configuration" in low:  # MSAL hides the code of the answer
        what, hint = _AADSTS["90002"]
        return AuthenticationError(f"Azure refused the sign-in{by}: {what}.", hint=hint)
    if "timed out" in low or "expired_token" in low or "code has expired" in low:
        return AuthenticationError(
            "Nobody signed in to Azure before the code or the window expired.", hint="Connect again for a new one."
        )
    if "authorization_declined" in low or "access_denied" in low:
        return AuthenticationError("The sign-in to Azure was declined.", hint="Connect again to try once more.")
    first = line(re.sub(r"(?s)\b(Trace ID|Correlation ID|Timestamp|To mitigate).*", "", text))
    return AuthenticationError(
        f"Azure refused the sign-in{by}: {first.rstrip('.')}.", hint=f"Sign in again: {connect_line(where)}"
    )
