"""The packages that a script imports, with the versions that are installed here: ``--env kernel``.

Found without running anything: the imports of the script and of its own modules, looked up in the
installed distributions. Only what is imported is named, with its exact version; what those packages
need themselves is left to pip, so that a kernel on another system can be the pattern.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

import msgspec

from jupyter_amltrain.errors import PreflightError
from jupyter_amltrain.jobs import notebook_file, preflight, values
from jupyter_amltrain.jobs.project import by_import, own_modules
from jupyter_amltrain.jobs.snapshot import Snapshot, script_text
from jupyter_amltrain.schema.job import JobSpec

#: Modules that are there in every Python, and what a script may take from itself.
_OWN = frozenset({*sys.stdlib_module_names, "__main__", "__future__"})


#: Modules whose package has another name.
_PACKAGES = {
    "sklearn": "scikit-learn",
    "flaml": "flaml[automl]",
    "PIL": "pillow",
    "cv2": "opencv-python",
    "yaml": "pyyaml",
    "mlflow": "mlflow-skinny",
    "bs4": "beautifulsoup4",
    "skimage": "scikit-image",
    "imblearn": "imbalanced-learn",
    "dotenv": "python-dotenv",
    "dateutil": "python-dateutil",
    "attr": "attrs",
    "Crypto": "pycryptodome",
    "OpenSSL": "pyOpenSSL",
    "fitz": "PyMuPDF",
    "docx": "python-docx",
    "pptx": "python-pptx",
    "umap": "umap-learn",
    "git": "GitPython",
    "zmq": "pyzmq",
    "magic": "python-magic",
    "faiss": "faiss-cpu",
    "ot": "POT",
    "hydra": "hydra-core",
    "Levenshtein": "python-Levenshtein",
    "community": "python-louvain",
    "pkg_resources": "setuptools",
    "mpl_toolkits": "matplotlib",
    "serial": "pyserial",
    "jwt": "PyJWT",
    "psycopg2": "psycopg2-binary",
    "MySQLdb": "mysqlclient",
    "slugify": "python-slugify",
    "pytorch_lightning": "pytorch-lightning",
    "sentence_transformers": "sentence-transformers",
    "torch_geometric": "torch-geometric",
}
#: Parts of a text that look for modules in further folders.
_CHANGES_PATH = re.compile(rb"sys\.path|site\.addsitedir|_amltrain_notebook|\bexec\(")


class Captured(NamedTuple):
    """What a script needs, as this kernel has it.

    Attributes
    ----------
    python
        ``3.11``
    packages
        As pip writes them, sorted: ``scikit-learn==1.7.2``, ``mine @ git+https://...@commit``.
    """

    python: str
    packages: tuple[str, ...]


class Import(NamedTuple):
    """One import of a script.

    Attributes
    ----------
    name
        Dotted, absolute.
    needed
        It stands outside every function and ``try``: without it the script ends there.
    """

    name: str
    needed: bool


def captured(text: bytes, own: Mapping[str, Path], *, has_more: bool = False) -> Captured:
    """What `text` and the modules of its own import. Blocks on the disk.

    Parameters
    ----------
    own
        Modules that come with the code, by their names for an import (:func:`.project.own_modules`).
    has_more
        The environment has other packages as well, which may contain modules that are not installed here.

    Raises
    ------
    PreflightError
        The script cannot go without a module that is not installed here, or that is installed from a
        folder of this machine.
    """
    found = dict.fromkeys(imports(text))
    ends = set(reached(text, own))
    for path in own.values():
        if path.suffix == ".py":
            content = path.read_bytes()
            # What a module needs is needed where the script cannot go without that module.
            found.update(dict.fromkeys(Import(i.name, i.needed and content in ends) for i in imports(content)))
    ours = {name.partition("/")[0].removesuffix(".py") for name in own}
    known = _distributions()
    pins: dict[str, str] = {}
    for one in found:
        top = one.name.partition(".")[0]
        if top in _OWN or top in ours:
            continue
        chosen = _owners(one.name, known.get(top, ()))
        if not chosen and one.needed and not has_more:
            raise _from_folder(top) if PathFinder.find_spec(top) else _absent(top)
        for distribution in chosen:
            name = _normal(distribution.metadata["Name"])
            if name not in pins and (pin := _pin(distribution, top, one.needed)):
                pins[name] = pin
    return Captured(f"{sys.version_info.major}.{sys.version_info.minor}", tuple(sorted(pins.values())))


def completed(spec: JobSpec) -> JobSpec:
    """`spec` with what ``--env kernel`` means here; one that says so already (run again) stays as it is.

    Raises
    ------
    PreflightError
        See :func:`captured`.
    """
    environment = spec.environment
    if not environment.kernel or environment.python:
        return spec
    try:
        text = with_notebook(spec, script_bytes(spec))
    except OSError:
        text = b""  # the snapshot says it, with its words
    found = captured(text, own_modules(spec, text), has_more=bool(environment.pip))
    return msgspec.structs.replace(
        spec, environment=msgspec.structs.replace(environment, python=found.python, packages=found.packages)
    )


def script_bytes(spec: JobSpec) -> bytes:
    """Return the text of a job's script, from its file if it is one. Blocks on the disk; raises :class:`OSError`."""
    path = Path(spec.code_root or ".").expanduser() / spec.script_name
    return spec.script.encode() or notebook_file.python_of(path.read_bytes(), spec.script_name)


def with_notebook(spec: JobSpec, text: bytes) -> bytes:
    """Return the text of a script with the imports that it takes from the notebook, and those that read its values."""
    readers = (f"import {module}" for module in dict.fromkeys(values.modules(spec)))
    return b"\n".join([text, *(part.encode() for part in (*spec.modules.values(), *readers))])


def reached(text: bytes, own: Mapping[str, str | bytes | Path]) -> Iterator[bytes]:
    """`text`, and the modules of its own without which it ends, in the order in which they are found. Blocks.

    Parameters
    ----------
    own
        Path (posix) to path here, or to the bytes.
    """
    seen: set[str] = set()
    waiting = [("", text)]
    while waiting:
        package, content = waiting.pop()
        yield content
        for one in imports(content, package):
            parts = one.name.split(".") if one.needed else []
            for depth in range(1, len(parts) + 1):
                path = "/".join(parts[:depth])
                for file, inside in ((f"{path}.py", parts[: depth - 1]), (f"{path}/__init__.py", parts[:depth])):
                    if file in own and file not in seen:
                        seen.add(file)
                        there = own[file]
                        source = there if isinstance(there, bytes) else Path(there).read_bytes()
                        waiting.append((".".join(inside), source))


def imports(text: bytes, package: str = "") -> tuple[Import, ...]:
    """The imports of a script; none where it is no Python.

    Parameters
    ----------
    package
        What its relative imports begin at; without it they are left out.
    """
    try:
        tree = preflight.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    return tuple(_imports(tree, True, package.split(".") if package else []))


def needed_modules(spec: JobSpec, snapshot: Snapshot) -> list[str]:
    """Return the top-level modules that a job needs from its interpreter's packages. Blocks on the disk."""
    own = {name.split("/")[0].removesuffix(".py") for name in by_import(snapshot.files, spec)}
    texts = [script_text(spec, snapshot), *(module.encode() for module in spec.modules.values())]
    needed = [one.name.partition(".")[0] for text in texts for one in imports(text) if one.needed]
    found = dict.fromkeys([*needed, *values.modules(spec)])
    return [name for name in found if name not in own and name not in _OWN]


def absent_modules(spec: JobSpec, snapshot: Snapshot) -> list[str]:
    """Return the top-level modules that a job needs and this interpreter does not have. Blocks on the disk.

    Nothing for a script that looks for modules in other folders.
    """
    if spec.env.get("PYTHONPATH") or _CHANGES_PATH.search(script_text(spec, snapshot)):
        return []
    return [name for name in needed_modules(spec, snapshot) if name not in sys.modules and not _has_module(name)]


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):  # one that a package has put there itself
        return name in sys.modules


def package_of(module: str) -> str:
    """Return the name for pip of the package with a top-level module."""
    return _PACKAGES.get(module, module)


def is_installed(requirement: str) -> bool:
    """Whether this Python has a package in a version that a requirement of pip allows."""
    from importlib import metadata

    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = Requirement(requirement)
        return not wanted.url and wanted.specifier.contains(metadata.version(wanted.name), prereleases=True)
    except (InvalidRequirement, metadata.PackageNotFoundError):
        return False


def _imports(node: ast.AST, needed: bool, package: Sequence[str]) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, needed) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        if node.level <= len(package):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join(filter(None, [*above, node.module]))
            yield from (Import(f"{base}.{alias.name}" if alias.name != "*" else base, needed) for alias in node.names)
    elif not _only_for_types(node):
        aside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Try | ast.If)
        for child in ast.iter_child_nodes(node):
            yield from _imports(child, needed and not aside, package)


def _only_for_types(node: ast.AST) -> bool:
    if not isinstance(node, ast.If) or node.orelse:
        return False
    test = node.test
    return "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))


def _distributions() -> dict[str, list[str]]:
    """Names of the installed distributions by top-level module.

    :func:`importlib.metadata.packages_distributions` of Python 3.10 knows only those that declare their modules,
    and that file is no more written by most builders.
    """
    found: dict[str, list[str]] = {}
    for distribution in importlib.metadata.distributions():
        modules = set((distribution.read_text("top_level.txt") or "").split())
        if not modules:
            files = [file for file in distribution.files or () if file.suffix != ".pyc"]
            modules = {file.parts[0] if len(file.parts) > 1 else inspect.getmodulename(file) or "" for file in files}
        for module in modules:
            if module.isidentifier():
                found.setdefault(module, []).append(distribution.metadata["Name"])
    return found


def _owners(name: str, known: Iterable[str]) -> list[importlib.metadata.Distribution]:
    """The distributions that `name` comes from: of several in one namespace, those that contain its file.

    One that another of them needs is left out: pip brings it (``mlflow`` brings ``mlflow-skinny``).
    """
    found = {_normal(each): importlib.metadata.distribution(each) for each in dict.fromkeys(known)}
    if len(found) > 1:
        parts = name.split(".")
        for depth in range(len(parts), 0, -1):
            having = {key for key, each in found.items() if _has(each, "/".join(parts[:depth]))}
            if having:
                found = {key: each for key, each in found.items() if key in having}
                break
    if len(found) > 1:
        brought = {_normal(need) for each in found.values() for need in each.requires or () if "extra ==" not in need}
        found = {key: each for key, each in found.items() if key not in brought} or found
    return list(found.values())


def _has(distribution: importlib.metadata.Distribution, path: str) -> bool:
    return any(
        str(file).startswith((f"{path}/", f"{path}.")) for file in distribution.files or () if file.suffix != ".pyc"
    )


def _pin(distribution: importlib.metadata.Distribution, module: str, needed: bool) -> str:
    """As pip writes it; empty for what cannot be had elsewhere and is not needed."""
    name, version = distribution.metadata["Name"], distribution.version
    origin = _origin(distribution)
    url = str(origin.get("url") or "")
    if url.startswith("file:"):
        if not needed:
            return ""
        raise _from_folder(module)
    versioned = origin.get("vcs_info") or {}
    if versioned.get("commit_id") and "@" not in url and "?" not in url:  # else it may hold a password
        return f"{name} @ {versioned['vcs']}+{url}@{versioned['commit_id']}"
    return f"{name}=={version.partition('+')[0]}"  # '+cpu' and the like are other indexes' words


def _from_folder(module: str) -> PreflightError:
    return PreflightError(
        f"--env kernel: {module!r} is installed from a folder of this machine, and no package index has it.",
        hint="Include its folder (--source FOLDER), or name an environment that has it: --env conda.yml",
    )


def _absent(module: str) -> PreflightError:
    return PreflightError(
        f"--env kernel: the script imports {module!r}, which is not installed here, so its version is unknown.",
        hint="Add its package: --pip NAME. Or install it in this kernel (%pip install).",
    )


def _origin(distribution: importlib.metadata.Distribution) -> dict[str, dict[str, str]]:
    """``direct_url.json`` (PEP 610): where it is not from an index."""
    try:
        value = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _normal(name: str) -> str:
    """PEP 503, of a name or of a requirement."""
    match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", name)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else name
