"""What the result of a step depends on, as a digest: its code, parameters, inputs and environment."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from jupyter_amltrain.agent import values as nodes
from jupyter_amltrain.errors import SubmitError
from jupyter_amltrain.jobs.data_paths import named_here
from jupyter_amltrain.jobs.file_hash import hash_file
from jupyter_amltrain.pipelines.step_output import content_digest
from jupyter_amltrain.schema.environment import Environment
from jupyter_amltrain.schema.job import JobSpec

#: Changes when the digest is made in another way: then nothing is reused.
_VERSION = 1
#: Data that the text of a step names is read up to this size and number of files.
MAX_NAMED_BYTES, MAX_NAMED_FILES = 256 << 20, 10_000
#: Fields of a job by which its result may change; those of the text of a cell are below.
_FIELDS = (
    "module", "search", "params", "style", "forms", "launcher", "args", "out", "values", "modules", "env", "secrets",
    "outputs", "distribution", "job_type", "command", "autolog",
)  # fmt: skip
#: Files that this package adds to a step's code: a new version of it must not repeat all steps.
_OURS = frozenset({f"{nodes.MODULE}.py", nodes.INDEX})


#: Files of a step's code by name: the path or the bytes.
Code = Mapping[str, str | bytes]


def code_digest(spec: JobSpec, code: Code) -> str:
    """Return the digest of a step's code. Blocks on the disk."""
    own = {spec.script_name} if spec.cell or spec.job_type else set()
    whole = hashlib.sha256((spec.cell if spec.script else "").encode(errors="surrogatepass"))
    for name, content in sorted(code.items()):
        if name in _OURS or name in own or name.startswith(f"{nodes.FOLDER}/"):
            continue
        whole.update(f"\0{name}\0".encode())
        whole.update(hash_file(content).sha256 if isinstance(content, str) else hashlib.sha256(content).digest())
    return whole.hexdigest()


def step_key(
    spec: JobSpec, code: Code, target: str, taken: Mapping[str, Any], data: Mapping[str, str], is_local: bool
) -> str:
    """Return the digest. Blocks on the disk with inputs of this machine.

    Parameters
    ----------
    spec
        The job of the step, without what it takes of others.
    taken
        Identities of what it takes of other steps, by name.
    data
        Further data, by name.
    is_local
        Whether the target is this machine in this interpreter.
    """
    sweep, whole, spec = spec.sweep, spec, spec.trial or spec
    inputs = {
        name: content_digest(one.path) if one.local and (is_local or one.upload) and os.path.exists(one.path) else one
        for name, one in spec.inputs.items()
    }
    facts = {
        "version": _VERSION,
        "code": code_digest(spec, code),
        "sweep": sweep,
        "targets": whole.trial_target,
        "fields": {name: getattr(spec, name) for name in _FIELDS},
        "nodes": spec.resources.nodes,
        "inputs": inputs,
        "named": named_data(spec, code) if is_local else {},
        "taken": dict(taken),
        "data": dict(data),
        "environment": environment_identity(spec, target, is_local),
    }
    return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()


def named_data(spec: JobSpec, code: Code) -> dict[str, str]:
    """Return the digests of files and folders here that the text of a step names, by the text. Blocks on the disk."""
    if spec.job_type or not spec.notebook_dir:
        return {}
    try:
        text = spec.cell.encode(errors="surrogatepass") if spec.script else code.get(spec.script_name, b"")
        text = Path(text).read_bytes() if isinstance(text, str) else text
    except OSError:
        return {}
    named = named_here(text, Path(spec.notebook_dir))
    return {one.text: _cheap_digest(one.path) for one in named if not one.path.endswith(".py")}


def _cheap_digest(path: str) -> str:
    """Return the digest of data; of much data sizes and times stand for the content."""
    files = [path] if os.path.isfile(path) else sorted(map(str, Path(path).rglob("*")))[:MAX_NAMED_FILES]
    facts = []
    for file in files:
        with contextlib.suppress(OSError):
            stat = os.stat(file)
            facts.append((file, stat.st_size, stat.st_mtime_ns))
    if len(files) == MAX_NAMED_FILES or sum(size for _, size, _ in facts) > MAX_NAMED_BYTES:
        return hashlib.sha256(repr(facts).encode()).hexdigest()
    try:
        return content_digest(path)
    except SubmitError:  # it cannot be read: the step will say so
        return hashlib.sha256(repr(facts).encode()).hexdigest()


def environment_identity(spec: JobSpec, target: str, is_local: bool) -> Any:
    """Return what stands for the packages of a step.

    Of a built environment that is its description; without one it is the interpreter, here with its packages.
    """
    chosen = msgspec.structs.replace(spec.environment, chosen="")
    if chosen != Environment():
        is_file = chosen.conda and os.path.isfile(chosen.conda)
        return [chosen, content_digest(chosen.conda) if is_file else ""]
    if is_local and not spec.python:
        return ["packages", packages_digest()]
    return ["interpreter", target, spec.python]


@functools.cache
def packages_digest() -> str:
    """Return a digest of the packages of this interpreter and their versions."""
    import sys
    from importlib.metadata import distributions

    own = {"jupyter-amltrain", "jupyter_amltrain"}
    found = sorted({f"{one.name}=={one.version}" for one in distributions() if one.name not in own})
    return hashlib.sha256("\n".join([sys.version, *found]).encode()).hexdigest()
