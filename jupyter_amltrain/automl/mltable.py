"""MLTable files of ``az ml``: which files are a table, and how they are read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.plugins import offers
from jupyter_amltrain.schema import az_yaml
from jupyter_amltrain.schema.inputs import JobInput, is_address

NAME = "MLTable"
_READERS = {"read_delimited": "csv", "read_parquet": "parquet", "read_json_lines": "json"}
_HEADERS = {"no_header": "none"}


def folder_of(folder: str) -> tuple[JobInput, dict[str, Any]]:
    """Return a folder with an ``MLTable`` as an input, and how its files are read. Blocks on the disk.

    Raises
    ------
    SpecError
        It has files elsewhere, or a transformation that is not supported here.
    """
    doc = az_yaml.load_doc(os.path.join(folder, NAME))
    names, address = _files(doc, folder)
    read = _reader(doc)
    if address:
        return JobInput(type="uri_file", path=address), read
    return JobInput(type="uri_folder", path=folder, upload=True), {**read, "files": names}


def _files(doc: Mapping[str, Any], folder: str) -> tuple[list[str], str]:
    """Return the files below the folder, or the one web address."""
    names: list[str] = []
    paths = [next(iter(one.values()), "") if isinstance(one, Mapping) else "" for one in doc.get("paths") or ()]
    if len(paths) == 1 and str(paths[0]).startswith(("http://", "https://")):
        return [], str(paths[0])
    for path in map(str, paths):
        whole = os.path.normpath(os.path.join(folder, path))
        if not path or is_address(path) or not whole.startswith(os.path.join(folder, "")):
            raise SpecError(
                f"{NAME}: the table has files outside its folder: {path}.", hint=f"Use a file, or {offers()}."
            )
        if not os.path.exists(whole):
            raise SpecError(f"{NAME}: there is no such file: {path}.", hint="Correct the path.")
        if os.path.isdir(whole):
            names += sorted(os.path.join(path, name) for name in os.listdir(whole) if not name.startswith("."))
        else:
            names.append(path)
    if not names:
        raise SpecError(f"{NAME}: it names no file below paths:", hint="Example: paths: [{file: ./table.csv}]")
    return names, ""


def _reader(doc: Mapping[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for one in doc.get("transformations") or ():
        name = next(iter(one), "") if isinstance(one, Mapping) else str(one)
        if name not in _READERS:
            raise SpecError(
                f"{NAME}: the transformation {name} is not supported on this target.",
                hint=f"Use a file, or {offers()}.",
            )
        options = one[name] if isinstance(one, Mapping) and isinstance(one[name], Mapping) else {}
        read["format"] = _READERS[name]
        if name == "read_json_lines":
            read["lines"] = True
        if options.get("delimiter"):
            read["delimiter"] = str(options["delimiter"])
        if options.get("encoding"):
            read["encoding"] = {"utf8": "utf-8", "iso88591": "latin-1"}.get(*[str(options["encoding"])] * 2)
        if str(options.get("header")) in _HEADERS:
            read["header"] = _HEADERS[str(options["header"])]
    return read
