"""What this folder adds to the package, for its registry of plug-ins."""

from __future__ import annotations

from jupyter_amltrain.plugins import BackendKind

_HERE = "jupyter_amltrain.azure"

KIND = BackendKind(
    targets=f"{_HERE}.targets:AZURE_KINDS",
    backend=f"{_HERE}.backend:AzureBackend",
    hint="pip install azure-ai-ml azure-identity",
    variants=(("azure_vm", f"{_HERE}.vm_backend:AzureVmBackend"),),
    parts=(
        ("commands.compute", f"{_HERE}.commands.connect:COMMANDS"),
        ("commands.compute", f"{_HERE}.commands.sizes:COMMANDS"),
        ("commands.data", f"{_HERE}.commands.data:COMMANDS"),
        ("connect_form", f"{_HERE}.commands.connect:connect_fields"),
        ("functions", f"{_HERE}.functions:FUNCTIONS"),
        ("job_file", f"{_HERE}.saved_job:yaml_text"),
        ("job_types", f"{_HERE}.job_support:unsupported_type_reason"),
        ("operations", f"{_HERE}.ops.sizes:SizeHandlers"),
        ("operations", f"{_HERE}.ops.connect:ConnectHandlers"),
        ("quota", f"{_HERE}.commands.sizes:QUOTA"),
        ("retired_kinds", f"{_HERE}.targets:RETIRED_KINDS"),
        ("workspaces", f"{_HERE}.workspaces:WorkspaceManager"),
    ),
    offer="an Azure target (%aml_compute connect)",
)
