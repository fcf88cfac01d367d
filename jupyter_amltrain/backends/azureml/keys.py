"""Secrets and keys that a target only names: read at the moment of the act, sent once, kept nowhere."""

from __future__ import annotations

import os
from pathlib import Path

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.spec.azure_target import AzureTarget

#: What the service wants -> the field with the name of the variable that holds it.
_SECRETS = {"password": "password_from", "token": "token_from"}


def wrong_secrets(target: AzureTarget) -> dict[str, str]:
    """A sentence for each field that names a secret or key that is not there."""
    wrong: dict[str, str] = {}
    for name in _SECRETS.values():
        variable = str(getattr(target, name, "") or "")
        if variable and not os.environ.get(variable):
            wrong[name] = f"The environment variable {variable} is empty or not set. {_how_to_set(variable)}"
    if file := str(getattr(target, "ssh_key_file", "") or ""):
        try:
            if target.attached:
                key_file(file, target.name)
            else:
                public_key(file, target.name)
        except CommandError as error:
            wrong["ssh_key_file"] = str(error).removeprefix(f"{target.name!r}: ")
    return wrong


def _how_to_set(variable: str) -> str:
    return f"Set it first: import os, getpass; os.environ[{variable!r}] = getpass.getpass()"


def secrets_of(target: AzureTarget) -> dict[str, str]:
    """What the environment variables hold that a target names, read now.

    Raises
    ------
    CommandError
        One of them is empty; names the variable, never its value.
    """
    found = {}
    for key, name in _SECRETS.items():
        variable = str(getattr(target, name, "") or "")
        if not variable:
            continue
        value = os.environ.get(variable, "")
        if not value:
            raise CommandError(
                f"{target.name!r}: the environment variable {variable} is empty or not set.",
                hint=_how_to_set(variable),
            )
        found[key] = value
    return found


def public_key(file: str, who: str) -> str:
    """The text of a public key file.

    Raises
    ------
    CommandError
        It cannot be read, or holds something else; a private key is never repeated.
    """
    path = key_file(file, who)
    text = path.read_text(encoding="utf-8", errors="replace").strip()
    if "PRIVATE KEY" in text:
        raise CommandError(f"{who!r}: {file} is a private key.", hint=f"Give the public one: {file}.pub")
    if not text.startswith(("ssh-", "ecdsa-")) or "\n" in text:
        raise CommandError(f"{who!r}: {file} is no public key.", hint="ssh-keygen -t rsa makes one: id_rsa.pub")
    return text


def key_file(file: str, who: str) -> Path:
    """The whole path of a key file.

    Raises
    ------
    CommandError
        There is none.
    """
    path = Path(file).expanduser().absolute()
    if not path.is_file():
        raise CommandError(f"{who!r}: there is no file {file}.", hint="Check --ssh-key-file.")
    return path
