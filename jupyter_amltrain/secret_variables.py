"""Values of variables that are secrets: from the environment of this process, or from the keyring of the machine."""

from __future__ import annotations

import os
from collections.abc import Mapping


def value_of(name: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the value of a variable, or the password that ``keyring set amltrain NAME`` has stored; empty without."""
    return (os.environ if environ is None else environ).get(name) or _from_keyring(name)


def _from_keyring(name: str) -> str:
    try:
        import keyring
    except ImportError:
        return ""
    try:
        return str(keyring.get_password("amltrain", name) or "")
    except Exception:  # a keyring of this machine can raise anything
        return ""
