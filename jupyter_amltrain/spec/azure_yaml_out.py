"""A job of ours as a file of the ``az ml`` v2 schema, to be sent by ``az ml job create --file``. Pure.

It is the plain job: the script, its environment, data and machines. What our agent adds (telemetry, the watch over
GPUs, ``--out``) is not in it.
"""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Sequence
from typing import Any

from jupyter_amltrain.spec.azure_yaml import dumped
from jupyter_amltrain.spec.azure_yaml_fields import FIELDS
from jupyter_amltrain.spec.inputs import input_variable, output_variable
from jupyter_amltrain.spec.job import JobSpec

SCHEMA = "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json"
#: Where values of ``--out`` are written: below it the service keeps what a job leaves.
OUT_FOLDER = "outputs/amltrain"
_END = "AMLTRAIN_SCRIPT"
#: What the service would take for a binding, or a YAML block cannot hold.
_NOT_PLAIN = re.compile(r"\$\{\{|[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd]")


def doc_of(
    spec: JobSpec, *, argv: Sequence[str], script: str = "", code: str = "", compute: str = ""
) -> dict[str, Any]:
    """What the file says.

    Parameters
    ----------
    spec
        The job; its environment, distribution and size of machine are those that its target gives it.
    argv
        Program and arguments, in the code folder.
    script
        Text that the command writes to the script's place first; empty where the code folder has it.
    code
        The folder.
    compute
        Name at the service; empty for its own machines (serverless).
    """
    doc: dict[str, Any] = {
        "$schema": SCHEMA,
        "type": "command",
        "display_name": spec.name,
        "experiment_name": spec.experiment,
        "command": command_of(spec, argv, script),
    }
    if code:
        doc["code"] = code
    for keys, (field, _, write) in FIELDS.items():
        if keys == ("code",):
            continue
        value: Any = spec
        for part in field.split("."):
            value = getattr(value, part)
        if not value or (field == "resources.nodes" and value == 1):
            continue
        said = write(value)
        if said is None:
            continue
        here = doc
        for key in keys[:-1]:
            here = here.setdefault(key, {})
        here[keys[-1]] = said
    if spec.out:
        doc.setdefault("environment_variables", {}).setdefault("AML_OUTPUT_DIR", OUT_FOLDER)
    if compute:
        doc["compute"] = f"azureml:{compute}"
    if spec.tags:
        doc["tags"] = dict(spec.tags)
    return doc


def command_of(spec: JobSpec, argv: Sequence[str], script: str) -> str:
    """The command line (POSIX sh)."""
    lines = [
        f'export {variable}="${{{{{kind}.{name}}}}}"'
        for kind, names, variable_of in (
            ("inputs", spec.inputs, input_variable),
            ("outputs", spec.outputs, output_variable),
        )
        for name, variable in ((name, variable_of(name)) for name in names)
    ]
    if script:
        place = shlex.quote(spec.script_name)
        if "/" in spec.script_name:
            lines.append(f"mkdir -p {shlex.quote(spec.script_name.rpartition('/')[0])}")
        lines += _written(place, script)
    return "\n".join([*lines, shlex.join(argv)])


def _written(place: str, script: str) -> list[str]:
    """Lines that write it at once: the other processes of the node do the same."""
    new = f"{place}.$$"
    if _NOT_PLAIN.search(script) or f"\n{_END}" in f"\n{script}" or not script.endswith("\n"):
        return [f"echo {base64.b64encode(script.encode()).decode()} | base64 -d > {new} && mv {new} {place}"]
    return [f"cat > {new} <<'{_END}' && mv {new} {place}", script[:-1], _END]


def text_of(doc: dict[str, Any], remarks: Sequence[str] = ()) -> str:
    """The file's text, remarks before it."""
    return "".join(f"# {line}\n" for line in remarks) + dumped(doc)
