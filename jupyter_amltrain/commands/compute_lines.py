"""The line that does with a target what a form or a click does."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from jupyter_amltrain.backends.lifecycle import SCALE_FIELDS
from jupyter_amltrain.backends.registry import forms
from jupyter_amltrain.spec.fields import Field
from jupyter_amltrain.spec.target_fields import NAME

#: A shorter name of ``--min-nodes``.
_NODES = Field(name="nodes", flag="--nodes", kind="int")


def fields_for(verb: str, kind: str) -> tuple[Field, ...]:
    """The fields that a verb takes."""
    if verb == "scale":
        return (*SCALE_FIELDS, _NODES)
    return next((made.fields for made in forms() if made.kind == kind and made.verb == verb), ())


def line_of(verb: str, target: str, kind: str = "", values: Mapping[str, Any] | None = None) -> str:
    """The magic's line; values that hold anyway are left out. Empty for what no line does."""
    if verb == "dismiss":
        return ""
    given = dict(values or {})
    words = ["%aml_compute", verb, target or str(given.get(NAME.name) or "")]
    if kind:
        words += ["--kind", kind]
    for field in fields_for(verb, kind):
        value = given.get(field.name)
        if not field.flag or value is None or value == "" or _same(value, field.default):
            continue
        if field.kind == "bool":
            words.append(field.flag if value else f"--no-{field.flag[2:]}")
            continue
        for part in value if isinstance(value, (list, tuple)) else [value]:
            words += [field.flag, str(part).removesuffix(".0") if isinstance(part, float) else str(part)]
    return " ".join(shlex.quote(word) if i else word for i, word in enumerate(words) if word)


def _same(value: object, default: object) -> bool:
    return value == default and isinstance(value, bool) == isinstance(default, bool)
