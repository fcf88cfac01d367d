"""Words of others without their secrets. Pure."""

from __future__ import annotations

import re

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


def line(text: str) -> str:
    """The same on one line, not too long."""
    lines = [line.strip() for line in redacted(text).splitlines() if line.strip()]
    return " ".join(lines)[:600]
