"""The project around a script: where its files are, seen from one folder. Blocks on the disk; any thread."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.jobs import preflight, values
from jupyter_amltrain.jobs.data_paths import named_here
from jupyter_amltrain.jobs.imports import imported_names, local_modules
from jupyter_amltrain.jobs.path_expressions import ScriptPaths, paths_of

if TYPE_CHECKING:
    from jupyter_amltrain.schema.job import JobSpec

_Content = TypeVar("_Content")

#: Files of the top folder of a project.
_MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg", "MLproject", ".hg")
#: Folders that are nobody's project, although they may have such a file.
NO_PROJECT = frozenset({os.path.expanduser("~"), "/", "/tmp", "/home", "/root"})


class Place(NamedTuple):
    """Where a script is.

    Attributes
    ----------
    root
        Absolute folder that has the script, the working folder if it belongs to the same project, the folders that
        modules come from, and the data of the project that the script names.
    name
        Path of the script below it, posix.
    search
        Folders below it, posix, that modules come from besides the script's own folder and those that it adds to
        ``sys.path`` itself; ``.`` for the root.
    """

    root: str
    name: str
    search: tuple[str, ...] = ()


def top_of(folder: Path) -> Path | None:
    """Return the top folder of the project of `folder`; ``None`` if it has none, as that of an installed package."""
    if "site-packages" in folder.parts or _is_inside(folder, Path(sysconfig.get_path("stdlib"))):
        return None
    for one in (folder, *folder.parents):
        if str(one) in NO_PROJECT:
            return None
        if any((one / mark).exists() for mark in _MARKS):
            return one
    return None


def place_of(script: Path, text: bytes, working: Path, more: Collection[str] = ()) -> Place:
    """Return the place of a script.

    Parameters
    ----------
    script
        Its absolute path.
    working
        Absolute folder in which it runs.
    more
        Further folders of the project that its modules come from.
    """
    top = top_of(script.parent)
    parts = [script.parent]
    if _is_inside(script, working) or (top is not None and _is_inside(working, top)):
        parts.append(working)
    near = top or working
    edited = [Path(one) for one in script_paths(text, script, working).search if _is_inside(Path(one), near)]
    found = dict.fromkeys([*more, *(_installed_folders(top) if top else ())])
    search = [Path(one) for one in found if _is_inside(Path(one), near) and Path(one) not in edited]
    search = [one for one in search if one.is_dir()]
    edited = [one for one in edited if one.is_dir() and one != script.parent]
    if search or edited:
        names = imported_names(text, script.parent)
        edited = [one for one in edited if _provides(names, one)]
        for one in edited:
            names |= imported_names(text, one)
        search = [one for one in search if str(one) in more or (one != script.parent and _provides(names, one))]
    named = [
        Path(one.path) for one in named_here(text, working, str(script)) if top and _is_inside(Path(one.path), top)
    ]
    places = [one if _is_inside(script, one) else one.parent for one in named]
    root = os.path.commonpath([*parts, *search, *edited, *places])
    return Place(
        root,
        script.relative_to(root).as_posix(),
        tuple(one.relative_to(root).as_posix() for one in search),
    )


def place_of_cell(spec: JobSpec) -> dict[str, Any]:
    """Return `root` and `search` of a cell whose modules come from other folders than its notebook's; else nothing.

    Folders of the notebook's project count, or those beside it if it has none, from which this kernel imports.
    """
    working = Path(spec.notebook_dir).absolute()
    readers = (f"import {module}" for module in values.modules(spec))
    text = "\n".join([spec.script, *spec.modules.values(), *readers]).encode(errors="replace")
    near = top_of(working) or (working.parent if str(working.parent) not in NO_PROJECT else working)
    search = [Path(one) for one in dict.fromkeys([*_installed_folders(near), *_loaded_folders(text, near)])]
    if search:
        names = imported_names(text, working)
        search = [one for one in search if one != working and _provides(names, one)]
    if not search:
        return {}
    root = os.path.commonpath([str(working), *map(str, search)])
    folders = dict.fromkeys([working, *search])
    return {"root": root, "search": tuple(one.relative_to(root).as_posix() for one in folders)}


def module_file(name: str, working: Path) -> tuple[Path, Path]:
    """Return the file of a module that ``python -m`` would run, and the folder of the search path that has it.

    Raises
    ------
    CommandError
        There is no such module.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        raise CommandError(
            f"-m {name}: not the name of a module.",
            hint="A module has dots and no suffix: -m package.train",
            field="module",
        )
    tail = Path(*name.split("."))
    folders = dict.fromkeys([str(working), *(os.path.abspath(one or working) for one in sys.path)])
    for folder in map(Path, folders):
        for path in (folder / tail / "__main__.py", (folder / tail).with_suffix(".py")):
            if path.is_file():
                return path, folder
    raise CommandError(
        f"-m {name}: no such module.",
        hint=f"Modules are searched in {working} and among the packages of this kernel. A file is named by its path:"
        " %aml_submit train.py",
        code="submit.no_module",
        field="module",
    )


def project_modules(text: bytes, root: Path, name: str, search: Iterable[str], module: str = "") -> Mapping[str, Path]:
    """Return the files below `root` that a script imports, directly or indirectly, by name.

    Parameters
    ----------
    name
        Name of the script.
    search
        Folders below `root` that modules come from besides the script's own.
    module
        Name of the module that the script is, if it runs as one.
    """
    own = [] if module else [str(Path(name).parent)]
    folders = [*dict.fromkeys([*own, *search])] or ["."]
    found: dict[str, Path] = {}
    texts = [f"import {module}".encode() if module else text]
    seen = 0
    while seen < len(texts):
        for folder in folders:
            for inside, path in local_modules(texts[seen], root / folder).items():
                key = os.path.normpath(os.path.join(folder, inside)).replace(os.sep, "/")
                if key not in found:
                    found[key] = path
                    if len(folders) > 1 and path.suffix == ".py":  # it may import from another folder
                        texts.append(path.read_bytes())
        seen += 1
    return found


def import_folders(spec: JobSpec) -> list[str]:
    """Return the folders below the root of a job's code from which it imports, posix. Blocks on the disk."""
    own = [] if spec.module else [PurePosixPath(spec.script_name).parent.as_posix()]
    return [*dict.fromkeys([*own, *edited_folders(spec), *spec.search, *(["."] if spec.source else [])])] or ["."]


def edited_folders(spec: JobSpec) -> list[str]:
    """Return the folders below the root of a file's job that its script adds to ``sys.path``, posix."""
    if spec.script or spec.job_type or not spec.root:
        return []
    script = Path(spec.root, spec.script_name)
    try:
        text = script.read_bytes()
    except OSError:  # the snapshot reports it
        return []
    if b"sys.path" not in text:
        return []
    found = script_paths(text, script, Path(spec.notebook_dir or spec.root)).search
    inside = [os.path.relpath(one, spec.root).replace(os.sep, "/") for one in found if os.path.isdir(one)]
    return [one for one in inside if not one.startswith("..")]


def by_import(files: Mapping[str, _Content], spec: JobSpec) -> dict[str, _Content]:
    """Return a job's files by their names below the folder from which they are imported."""
    found: dict[str, _Content] = {}
    for folder in import_folders(spec):
        above = "" if folder == "." else f"{folder}/"
        for name, content in files.items():
            if name.startswith(above):
                found.setdefault(name[len(above) :], content)
    return found


def own_modules(spec: JobSpec, text: bytes) -> dict[str, Path]:
    """Return the modules of a job's own that its script `text` imports, by their names for an import."""
    root = Path(spec.code_root or ".").expanduser().absolute()
    return by_import(project_modules(text, root, spec.script_name, import_folders(spec), spec.module), spec)


def script_paths(text: bytes, script: Path | None, working: Path) -> ScriptPaths:
    """Return the places that a script names; none for a text that is not Python."""
    if b"__file__" not in text and b"sys.path" not in text:
        return ScriptPaths((), ())
    try:
        tree = preflight.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return ScriptPaths((), ())
    return paths_of(tree, str(script or ""), str(working))


def _installed_folders(top: Path) -> Iterator[str]:
    """Yield the folders of a project from which this kernel imports, as those of editable installs."""
    for one in sys.path:
        if one and _is_inside(Path(os.path.abspath(one)), top) and "site-packages" not in one:
            yield os.path.abspath(one)


def _loaded_folders(text: bytes, top: Path) -> Iterator[str]:
    """Yield the folders of a project from which this kernel has loaded modules that a script names."""
    words = set(re.findall(r"\w+", text.decode(errors="replace")))
    for name in sorted(words & sys.modules.keys()):
        file = getattr(sys.modules.get(name), "__file__", None)
        if not isinstance(file, str) or name.startswith("_"):
            continue
        path = Path(os.path.abspath(file))
        folder = path.parent.parent if path.name == "__init__.py" else path.parent
        if _is_inside(folder, top) and "site-packages" not in folder.parts:
            yield str(folder)


def _provides(imported: Collection[str], folder: Path) -> bool:
    """Whether a folder has a module that is imported."""
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    return any(name.partition(".")[0] in imported for name in names if name.endswith(".py") or "." not in name)


def _is_inside(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents
