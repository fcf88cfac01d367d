"""Environment that Azure's packages read; a change of it in the kernel reaches the process that runs."""

from __future__ import annotations

import os

from jupyter_amltrain import child_process

_READ = (
    "AZURE",
    "AMLTRAIN_AZURE",
    "ARM_",
    "IDENTITY_",
    "MSI_",
    "IMDS_",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "SSL_CERT_",
)


def read() -> dict[str, str]:
    """What they would read now; the process has another working folder, so paths are absolute."""
    env = os.environ | child_process.absolute_paths(os.environ)
    return {name: value for name, value in env.items() if name.startswith(_READ)}


def changes(before: dict[str, str], now: dict[str, str]) -> dict[str, str | None]:
    """What is to be told to a process that knows `before`; ``None`` takes a name away."""
    changed: dict[str, str | None] = {name: value for name, value in now.items() if before.get(name) != value}
    return changed | dict.fromkeys(before.keys() - now.keys())


def at_start() -> dict[str, str]:
    """All that the process is started with: nobody phones home."""
    quiet = {"AZURE_CORE_COLLECT_TELEMETRY": "false", "AZURE_TRACING_ENABLED": "false", "PYTHONUNBUFFERED": "1"}
    return child_process.environment() | quiet
