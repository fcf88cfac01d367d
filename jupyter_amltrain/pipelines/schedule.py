"""A pipeline file at fixed times: by a service that does so itself, else by a line for ``cron``."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.schema import az_yaml
from jupyter_amltrain.text import table

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


def path_of(file: str) -> str:
    """Return the whole path of a pipeline file.

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
    return path


def name_of(file: str) -> str:
    """Return a name for the schedule of a file, as services take it."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", os.path.splitext(os.path.basename(file))[0]).strip("-_") or "pipeline"


def text(file: str, when: str, target: str = "") -> str:
    """Return the line for ``cron``, and how it is installed; nothing is changed."""
    path = path_of(file)
    words = [sys.executable, "-m", "jupyter_amltrain.cli", "pipeline", "submit", os.path.basename(path)]
    words += ["--target", target] if target else []
    command = f"cd {shlex.quote(os.path.dirname(path))} && {shlex.join(words)}".replace("%", "\\%")
    return (
        f"{when} {command}\n\nTo install it on this machine: crontab -e, and add the line."
        " It runs while the machine is on; unchanged steps are reused."
    )


def created_text(row: Mapping[str, Any], target: str) -> str:
    """Return what is printed of a schedule that a service has taken."""
    return (
        f"{target} runs {row['job'] or row['name']} at {row['when']} ({row['time_zone']}) from now on, also while this"
        f" machine is off. Remove it: %aml_pipeline schedule --remove {row['name']} --target {target}"
    )


def table_text(rows: Sequence[Mapping[str, Any]], target: str) -> str:
    """Return the schedules of a service as a table."""
    if not rows:
        return f"{target} has no schedules."
    cells = [
        [row["name"], row["when"], row["time_zone"], row["job"], "" if row["enabled"] else "disabled"] for row in rows
    ]
    return table(["name", "time", "zone", "runs", ""], cells)
