"""Files that a job's file of ``az ml`` refers to: components, environments, code folders of components.

The SDK reports a missing one in words that name neither the file nor the key.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.spec.azure_yaml import JobFile, Keys, load_doc
from jupyter_amltrain.spec.inputs import is_address

#: Keys whose text is the name of a component's file, or an asset.
_COMPONENT = ("component", "trial")
#: Components may refer to components.
_DEEPEST = 8


def check(job: JobFile) -> None:
    """Raise :class:`SpecError` for the first file that is missing; names line and key of the job's file."""
    for path, reason in _missing(job.doc, job.folder, (), frozenset()):
        raise job.fault(path, reason, "Paths begin at the folder of the file that has them.")


def _missing(doc: Any, folder: str, path: Keys, seen: frozenset[str]) -> Iterator[tuple[Keys, str]]:
    if not isinstance(doc, Mapping) or len(path) > _DEEPEST:
        return
    for key, value in doc.items():
        here = (*path, str(key))
        if key in _COMPONENT and isinstance(value, str) and (file := _file(value, folder)):
            if not os.path.isfile(file):
                yield here, f"there is no component file {file}."
            elif file not in seen:
                yield from ((here, f"{os.path.basename(file)}: {why}") for why in _of_component(file, seen))
        elif key == "environment":
            yield from ((here, why) for why in _of_environment(value, folder))
        elif key in (*_COMPONENT, "jobs") and isinstance(value, Mapping):
            steps = value.items() if key == "jobs" else [("", value)]
            for name, step in steps:
                yield from _missing(step, folder, (*here, str(name)) if name else here, seen)


def _of_component(file: str, seen: frozenset[str]) -> Iterator[str]:
    try:
        doc, folder = load_doc(file), os.path.dirname(file)
    except SpecError as error:
        yield error.message
        return
    code = doc.get("code")
    if isinstance(code, str) and not _foreign(code) and not os.path.exists(place := _absolute(code, folder)):
        yield f"code: there is no folder {place}."
    for path, why in _missing(doc, folder, (), seen | {file}):
        yield f"{'.'.join(map(str, path))}: {why}"


def _of_environment(value: Any, folder: str) -> Iterator[str]:
    if isinstance(value, str):
        file = _file(value, folder)
        if file and not os.path.isfile(file):
            yield f"there is no environment file {file}."


def _file(text: str, folder: str) -> str:
    """The file that a text names; empty for an asset (``azureml:NAME:1``) or an address."""
    named = text.removeprefix("file:")
    if _foreign(named) or not (text.startswith("file:") or named.lower().endswith((".yml", ".yaml"))):
        return ""
    return _absolute(named, folder)


def _foreign(text: str) -> bool:
    return is_address(text) or text.startswith(("git+", "/subscriptions/")) or "${{" in text


def _absolute(text: str, folder: str) -> str:
    return os.path.normpath(os.path.join(folder or str(Path.cwd()), os.path.expanduser(text)))
