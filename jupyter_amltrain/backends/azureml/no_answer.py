"""Why there was no answer, in plain words: the network, a proxy, a name or a certificate. Pure."""

from __future__ import annotations

import re

from jupyter_amltrain.backends.azureml.redacting import line
from jupyter_amltrain.errors import TargetUnreachable


def unreachable(text: str, where: str = "") -> TargetUnreachable:
    """No answer: the network, a proxy, a name or a certificate."""
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
        return TargetUnreachable(f"No secure connection to Azure{of}: {line(text)[:200]}", hint="Try again.")
    if "timed out" in low or "timeout" in low:
        return TargetUnreachable(f"Azure{of} did not answer in time.", hint="Check the network, and try again.")
    if "refused" in low or "unreachable" in low or "no route" in low:
        return TargetUnreachable(f"No connection to Azure{of}.", hint="Check the network, and try again.")
    return TargetUnreachable(f"No answer from Azure{of}: {line(text)[:200]}", hint="Check the network, and try again.")
