"""Checks on a real workspace what is only assumed of Azure: ``AMLTRAIN_AZURE_LIVE=1 make azure-live ARGS="..."``.

It needs the workspace: ``--subscription --resource-group --workspace``, or ``--config config.json`` (the file that the
portal and the SDK use). It makes one cluster of at most one low-priority machine (or, with ``--serverless``, none),
runs one job of about three minutes, one that fails at once, one that is canceled and one that runs into its time
limit, starts one compute instance twice (not with ``--no-instance``), registers one model, and takes all of it away
again, also after Ctrl-C. It prints a table and writes it as JSON, without secrets. docs/
azure-assumptions.md tells what each row means.
"""

from __future__ import annotations

from tools.azure_live import job_checks, workspace_checks
from tools.azure_live.observed import SWITCHED

#: Switch of ``azureml_emulator/switches.py`` -> how it is checked.
CHECKED = {**workspace_checks.CHECKED, **job_checks.CHECKED, **SWITCHED}
