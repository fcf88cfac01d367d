"""The sandbox of the Azure tests, for the emulator's own."""

from __future__ import annotations

from tests.azure.conftest import azure, azure_env

__all__ = ["azure", "azure_env"]
