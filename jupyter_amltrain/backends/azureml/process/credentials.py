"""Who we are: azure-identity's credentials, asked for without a person first."""

from __future__ import annotations

from typing import Any


def silent(tenant: str = "") -> Any:
    """What works without a person: environment, workload identity, managed identity, az login and its like."""
    from azure.identity import DefaultAzureCredential

    rest = {"additionally_allowed_tenants": ["*"], "process_timeout": 10}
    return DefaultAzureCredential(exclude_interactive_browser_credential=True, **rest)
