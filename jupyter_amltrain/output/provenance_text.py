"""Provenance of a run as a few lines of text."""

from __future__ import annotations

from jupyter_amltrain.schema.provenance import DataDigest, GitState, Machine, Provenance
from jupyter_amltrain.text import bytes_text

#: Digits of a hash that are shown, and inputs that are named.
_HASH_DIGITS, _MAX_INPUTS = 12, 4


def provenance_lines(found: Provenance) -> list[tuple[str, str]]:
    """Return labels and texts; the text of an unknown fact is empty."""
    packages = f", {len(found.packages)} packages" if found.packages else ""
    inputs = [_data_text(name, data) for name, data in list(found.inputs.items())[:_MAX_INPUTS]]
    if len(found.inputs) > _MAX_INPUTS:
        inputs.append(f"{len(found.inputs) - _MAX_INPUTS} more")
    return [
        ("submitted by", " on ".join(filter(None, (found.user, found.host)))),
        ("code", found.snapshot_sha256[:_HASH_DIGITS]),
        ("git", _git_text(found.git) if found.git else ""),
        ("data", ", ".join(inputs)),
        ("Python", f"{found.python}{packages}" if found.python else ""),
        ("image", found.image),
        ("machine", _machine_text(found.machine)),
    ]


def _git_text(git: GitState) -> str:
    text = git.commit[:_HASH_DIGITS] or "no commit yet"
    if git.branch:
        text += f" ({git.branch})"
    if git.dirty:
        stored = f" ({bytes_text(git.diff_bytes)} in git.diff)" if git.diff_bytes else ""
        text += f" with uncommitted changes{stored}"
    return f"{text}, {git.remote}" if git.remote else text


def _data_text(name: str, data: DataDigest) -> str:
    return f"{name} {data.sha256[:_HASH_DIGITS] or 'not hashed'} ({bytes_text(data.bytes)})"


def _machine_text(machine: Machine) -> str:
    parts = [
        machine.host,
        machine.processor,
        f"{machine.cpus} cores" if machine.cpus else "",
        bytes_text(machine.memory) if machine.memory else "",
        *machine.gpus,
        f"driver {machine.driver}" if machine.driver else "",
    ]
    return ", ".join(filter(None, parts))
