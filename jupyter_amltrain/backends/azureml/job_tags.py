"""What a job keeps of its spec, so that another kernel can take it over: pure.

Short facts are tags, which people see in the studio; the spec is in the job's *properties*, which nobody
can change afterwards, compressed and cut into pieces that the service takes.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec

from jupyter_amltrain.spec.job import JobSpec

#: Characters of one value, and the number of values (the service takes 1,000 and 50; others want some too).
PIECE, PIECES = 1000, 30
SPEC = "amltrain.spec"
#: Fields that are left out, one after the other, of a spec that is longer.
_LONGEST = ("cell", "script", "params", "args", "env")
_LIMIT = 16 << 20


def tags_of(spec: JobSpec, target: str, version: str) -> dict[str, str]:
    """Tags of a job: the user's, and ours."""
    ours = {"amltrain.name": spec.name, "amltrain.target": target, "amltrain.version": version}
    if spec.source_sha256:
        ours["amltrain.source_sha256"] = spec.source_sha256
    return {**spec.tags, **ours}


def properties_of(spec: JobSpec) -> dict[str, str]:
    """Properties of a job that hold its spec."""
    fields = msgspec.to_builtins(spec)
    cut: list[str] = []
    for longest in ("", *_LONGEST):
        if longest:
            cut.append(longest)
            fields.pop(longest, None)
        packed = base64.b85encode(zlib.compress(msgspec.json.encode(fields), 9)).decode()
        if len(packed) <= PIECE * PIECES:
            break
    else:
        return {f"{SPEC}.cut": "all"}
    found = {f"{SPEC}.{i // PIECE}": packed[i : i + PIECE] for i in range(0, len(packed), PIECE)}
    return found | ({f"{SPEC}.cut": ",".join(cut)} if cut else {})


def spec_from(properties: Mapping[str, Any]) -> JobSpec | None:
    """The spec that :func:`properties_of` put there; ``None`` for a job that is not ours, or not readable."""
    pieces: list[str] = []
    while (piece := properties.get(f"{SPEC}.{len(pieces)}")) is not None:
        pieces.append(str(piece))
    if not pieces:
        return None
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b85decode("".join(pieces)), _LIMIT)
        return msgspec.json.decode(data, type=JobSpec)
    except (ValueError, binascii.Error, zlib.error, msgspec.MsgspecError):
        return None


def foreign(name: str, properties: Mapping[str, Any]) -> JobSpec:
    """A spec for a job that somebody else submitted: what its JSON says.

    Parameters
    ----------
    name
        Of the job.
    properties
        ``properties`` of the job.
    """
    from jupyter_amltrain.spec.resources import Resources

    resources = properties.get("resources") or {}
    shown = "".join(c for c in str(properties.get("displayName") or name) if c.isprintable()).replace("/", "-")
    env = {str(k): str(v) for k, v in (properties.get("environmentVariables") or {}).items()}
    kind = {"Pipeline": "pipeline", "Sweep": "sweep", "AutoML": "automl", "Spark": "spark"}
    return JobSpec(
        job_type=kind.get(str(properties.get("jobType") or ""), ""),
        name=shown[:64] or name[:64],
        script=str(properties.get("command") or f"# a {properties.get('jobType', '')} job of Azure ML\n"),
        script_name="command.sh",
        experiment=str(properties.get("experimentName") or "Default")[:250],
        env=env,
        tags={str(k): str(v) for k, v in (properties.get("tags") or {}).items() if not str(k).startswith("_aml")},
        resources=Resources(nodes=int(resources.get("instanceCount") or 1)),
        tracking="direct",
    )
