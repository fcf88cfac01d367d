"""The line by which ``cron`` runs a pipeline file at fixed times; nothing is changed here."""

from __future__ import annotations

import os
import re
import shlex
import sys

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.schema import az_yaml

#: Each day at six.
DAILY = "0 6 * * *"
_FIELD = re.compile(r"[\d*,/-]+|[a-zA-Z]{3}(?:[,-][a-zA-Z]{3})*")


def cron(text: str) -> str:
    """Return a time of ``cron`` with single spaces.

    Raises
    ------
    CommandError
        It has other than five fields.
    """
    fields = text.split()
    if len(fields) != 5 or not all(map(_FIELD.fullmatch, fields)):
        raise CommandError(
            f"{text[:60]!r} is not a time of cron: minute, hour, day, month, day of the week.",
            hint="Each Monday at six: --cron '0 6 * * 1'",
        )
    return " ".join(fields)


def text(file: str, when: str, target: str = "") -> str:
    """Return the line, and how it is installed.

    Raises
    ------
    CommandError
        There is no such file.
    """
    path = os.path.abspath(os.path.expanduser(file))
    if not az_yaml.is_file(path) or not os.path.isfile(path):
        raise CommandError(
            f"There is no pipeline file {file}.", hint="Write one: %aml_pipeline submit --save pipeline.yml",
            code="pipeline.file",
        )  # fmt: skip
    words = [sys.executable, "-m", "jupyter_amltrain.cli", "pipeline", "submit", os.path.basename(path)]
    words += ["--target", target] if target else []
    command = f"cd {shlex.quote(os.path.dirname(path))} && {shlex.join(words)}".replace("%", "\\%")
    return (
        f"{when} {command}\n\nTo install it on this machine: crontab -e, and add the line."
        " It runs while the machine is on; unchanged steps are reused."
    )
