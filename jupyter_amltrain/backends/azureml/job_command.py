"""What a job of the service starts, and the file that our agent finds beside the code. Pure."""

from __future__ import annotations

import shlex
from typing import Any

from jupyter_amltrain.launch import script_argv
from jupyter_amltrain.spec.inputs import input_variable, output_variable
from jupyter_amltrain.spec.job import JobSpec

_INTERPRETER = "@python"


def command_of(spec: JobSpec) -> str:
    """What the service starts, once for each process (POSIX sh).

    The agent runs in the foreground and starts the script. An image without Python 3.8 runs the
    script alone. Inputs and outputs are told by variables, so that both find them.
    """
    places = "".join(
        f'export {variable}="${{{{{kind}.{name}}}}}"; '
        for kind, variable, name in (
            *(("inputs", input_variable(n), n) for n, given in spec.inputs.items() if given.type != "literal"),
            *(("outputs", output_variable(n), n) for n in spec.outputs),
        )
    )
    plain = shlex.join(["python" if word == _INTERPRETER else word for word in argv_of(spec)])
    return (
        f"{places}P=$(command -v python3 || command -v python); "
        'if [ -n "$P" ] && "$P" -c \'import sys; sys.exit(sys.version_info < (3, 8))\'; then '
        'exec "$P" .amltrain/agent.pyz rank .amltrain/job.json; fi; '
        'echo "amltrain: no Python 3.8+ in this image: no telemetry"; '
        'for F in .amltrain/*.tar.gz; do if [ -e "$F" ]; then tar -xzf "$F"; fi; done; '
        f"exec {plain}"
    )


def argv_of(spec: JobSpec) -> list[str]:
    """Program and arguments in the code folder; ``@python`` is the interpreter that is there.

    References to inputs and outputs stay: the agent, or in the plain command the service, puts the paths in.
    """
    words = script_argv(spec, ".", spec.python or _INTERPRETER, {})
    return [*words[:2], words[2].removeprefix("./"), *words[3:]]


def job_file(spec: JobSpec) -> dict[str, Any]:
    """``.amltrain/job.json``: what the agent has to know.

    Nothing in it is of one run alone (id, name, experiment come from the service's variables), so that
    the same code sent again is the same code asset.
    """
    return {
        "schema": 1,
        "run": "",
        "name": "",
        "argv": argv_of(spec),
        "cwd": "",
        "env": {},
        "gpus": spec.resources.gpus,
        "timeout": spec.timeout,
        "require_gpu": spec.require_gpu,
        "gpu_grace": spec.gpu_grace,
        "out": list(spec.out),
        "experiment": "",
        "notebook_dir": "",
        "project": "",
        "tracking": {"run_id": "", "mode": spec.tracking},
        "snapshot": {},
        "spec": {"resources": {"nodes": spec.resources.nodes}},
        "inputs": sorted(spec.inputs),
        "outputs": sorted(spec.outputs),
    }
