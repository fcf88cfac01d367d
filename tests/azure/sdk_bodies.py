"""What ``az ml job create --file`` sends of each file: azure-ai-ml loads and sends them, in a process of its own.

``python -m tests.azure.sdk_bodies SUBSCRIPTION GROUP WORKSPACE NAME=FILE ...``; the service is made to refuse the jobs,
what was sent stands in the sandbox's wire log. Prints a JSON object: name -> why the SDK sent nothing.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys

from azure.ai.ml import MLClient, load_job
from azure.core.exceptions import HttpResponseError
from azure.identity import DefaultAzureCredential


def main(subscription: str, group: str, workspace: str, *jobs: str) -> dict[str, str]:
    """Send each job once."""
    client = MLClient(DefaultAzureCredential(), subscription, group, workspace, enable_telemetry=False)
    failed = {}
    for job in jobs:
        name, _, file = job.partition("=")
        os.chdir(os.path.dirname(file))  # as its users do: AutoML's data are sought there
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                client.jobs.create_or_update(load_job(file, params_override=[{"name": name}]))
        except HttpResponseError as error:
            if error.status_code != 418:
                failed[name] = str(error)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    return failed


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
