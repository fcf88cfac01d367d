"""Interactive services of a job's nodes (JupyterLab, VS Code, TensorBoard, SSH), as run history lists them."""

from __future__ import annotations

import re
from typing import Any

from azureml_emulator.history import each, find
from azureml_emulator.job_runs import Run
from azureml_emulator.routing import Call, Routes

routes = Routes()

_PORTS = {"jupyter_lab": 8888, "vs_code": 9966, "tensor_board": 6006, "ssh": 22}


def instances(run: Run, nodes: int) -> dict[int, dict[str, Any]]:
    """For each node the services asked for, with their endpoints, while the job runs."""
    found: dict[int, dict[str, Any]] = {node: {} for node in range(nodes)}
    for name, service_body in (run.properties["services"] or {}).items():
        kind = str(service_body.get("jobServiceType") or "")
        if kind in ("Tracking", "Studio"):
            continue
        snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower().replace("vscode", "vs_code")
        every = (service_body.get("nodes") or {}).get("nodesValueType") == "All"
        for node in range(nodes if every else 1):
            port = service_body.get("port") or _PORTS.get(snake, 8080)
            host = f"{snake.replace('_', '')}-{run.name}-{node}.{run.world.location}.nodes.azureml.ms".lower()
            made: dict[str, Any] = {
                "type": kind,
                "port": port,
                "status": "Running",
                "error": None,
                "endpoint": f"wss://{host}" if kind.lower() == "ssh" else f"https://{host}",
                "properties": dict(service_body.get("properties") or {}),
            }
            if kind.lower() == "ssh":
                made["properties"]["ProxyEndpoint"] = f"wss://ssh-{run.name}.{run.world.location}.nodes.azureml.ms"
            found[node][name] = made
    return found


@each("GET", "/serviceinstances/{node}", routes)
async def get(call: Call) -> Any:
    """Services of a node; none before the job runs and after its end."""
    run = find(call)
    node = int(call.params["node"])
    return {"instances": instances(run, run.nodes).get(node, {}) if run.status == "Running" else {}}
