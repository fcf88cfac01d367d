"""What a compute may be called at Azure ML, and a name near to one that it may not.

The service's own rule, since 2020: 3 to 24 letters, digits and hyphens, a letter first (in 2019: 2 to 16).
For a compute instance it also refuses a name that ends with a hyphen and digits: its error quotes
``^[a-zA-Z](?![a-zA-Z0-9-]*-\\d+$)[a-zA-Z0-9\\-]{2,23}$``.
"""

from __future__ import annotations

import re

RULE = "3 to 24 letters, digits and hyphens; a letter first, no hyphen last"
_INSTANCE = "; not a hyphen and then only digits at the end"
_VALID = re.compile(r"[a-zA-Z][-a-zA-Z0-9]{1,22}[a-zA-Z0-9]")
_NUMBERED = re.compile(r"-(\d+)$")


def compute_name_error(name: str, *, instance: bool = False) -> str:
    """Why no compute can have that name, with a name that one can have; empty when it can."""
    if _VALID.fullmatch(name) and not (instance and _NUMBERED.search(name)):
        return ""
    rule = f"{RULE}{_INSTANCE if instance else ''}"
    return f"{name[:80]!r} cannot be the name of a compute at Azure ML: {rule}. For example {suggested(name)}."


def suggested(name: str) -> str:
    """A name near `name` that a compute of any kind can have."""
    text = re.sub(r"[^a-zA-Z0-9]+", "-", name).strip("-")
    if not text[:1].isalpha():
        text = f"c-{text}" if text else "cluster"
    text = text[:24].rstrip("-")
    while _NUMBERED.search(text):
        text = _NUMBERED.sub(r"\1", text)
    return text if len(text) >= 3 else f"{text}{'-cluster' if len(text) == 2 else 'cpu'}"
