"""Requirements as pip writes them: on the line, in a requirements file, and in the files that it includes.

A line of a file becomes a line without comment and with absolute paths, so that it means the same in another folder.
``-c LINE`` is a constraint; ``LINE  # DIGEST`` names a file or folder of this machine with a digest of its content.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from jupyter_amltrain.agent.protocol import read_regular
from jupyter_amltrain.errors import SpecError

#: Maximum size of a file with requirements.
MAX_FILE_BYTES = 4 << 20
#: Files of a package's folder that are considered for its digest.
_MAX_FOLDER_FILES = 20_000
_SKIPPED_FOLDERS = frozenset({".git", "__pycache__", ".venv", "node_modules", "build", ".ipynb_checkpoints"})

#: Options that take a requirements file.
_INCLUDES = {"-r": "", "--requirement": "", "-c": "-c ", "--constraint": "-c "}
#: Options that take a value, which may be a path of this machine.
_PATH_OPTIONS = {"-f": "--find-links", "--find-links": "--find-links", "-e": "-e", "--editable": "-e"}
#: Options that are passed on as they are; those of `_IGNORED` mean nothing to uv.
_VALUE_OPTIONS = {
    "-i": "--index-url",
    "--index-url": "--index-url",
    "--extra-index-url": "--extra-index-url",
    "--no-binary": "--no-binary",
    "--only-binary": "--only-binary",
}
_SWITCHES = frozenset({"--no-index", "--require-hashes"})
_IGNORED = frozenset({"--pre", "--prefer-binary", "--trusted-host", "--use-feature"})
_ARCHIVES = (".whl", ".tar.gz", ".zip", ".tar.bz2")
_COMMENT = re.compile(r"(?:^|\s)#.*$")
_VARIABLE = re.compile(r"\$\{[A-Z_][A-Z0-9_]*\}")
_PASSWORD = re.compile(r"://[^/\s@]+@")
_CREDENTIALS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/\s@]+)@")
_ADDRESS = re.compile(r"(?:[a-z][a-z0-9+.-]*:)//|file:")
#: An address of a repository without the name of its package, which pip and uv take.
_REPOSITORY = re.compile(r"(?:git|hg|svn|bzr)\+[a-z]+://\S+")
#: Line that ``pip freeze`` writes for a package that conda has built, on the machine where it was built.
_BUILT_ELSEWHERE = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)\s*@\s*file://(?:localhost)?(?P<path>/[^\s;#]+)")


def split_specs(text: str) -> list[str]:
    """Return the requirements in a value of ``--pip``: one, or several that are separated by spaces.

    Raises
    ------
    SpecError
        One of them is invalid.
    """
    parts = [text.strip()] if not _problem(text.strip()) else text.split()
    for part in parts or [""]:
        if problem := _problem(part):
            raise SpecError(
                f"--pip {_shown(text)!r}: {problem}.",
                hint="Example: --pip 'pandas>=2' --pip scikit-learn",
                code="flag.value",
                field="environment.pip",
            )
    return parts


def _problem(text: str) -> str:
    """Return why a text is not one requirement; empty if it is."""
    from packaging.requirements import InvalidRequirement, Requirement

    if has_password(text):
        return "its address contains a password, which would be stored with the run"
    if _REPOSITORY.fullmatch(text):
        return ""
    try:
        Requirement(text)
    except InvalidRequirement:
        return "not a requirement as pip writes it"
    return ""


def has_password(text: str) -> bool:
    """Whether an address in a text contains credentials.

    ``${NAME}`` in their place is fine, and so is the user of SSH. A name alone can be a token.
    """
    for scheme, credentials in _CREDENTIALS.findall(text):
        user, _, password = credentials.partition(":")
        if _VARIABLE.sub("", password) or (
            not password and _VARIABLE.sub("", user) and not scheme.lower().endswith("ssh")
        ):
            return True
    return False


def _shown(text: str) -> str:
    return _PASSWORD.sub("://***@", text)[:120]


def name_of(line: str) -> str:
    """Return the normalized name of the package in a line; empty for an option, and for a path or an address."""
    match = re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[|[<>=!~;@\s]|$)", line)
    return re.sub(r"[-_.]+", "-", match[1]).lower() if match else ""


class RequirementReader:
    """Reads a requirements file and the files that it includes. Blocks on the disk.

    Parameters
    ----------
    name
        The file as the user wrote it, for messages.
    has_our_disk
        Whether the machine that installs the packages has the same paths as this one.
    """

    def __init__(self, name: str, has_our_disk: bool = True) -> None:
        self._name, self._has_our_disk = name, has_our_disk

    def read(self, path: str) -> tuple[str, ...]:
        """Return the lines of a file.

        Raises
        ------
        SpecError
            The file cannot be read, or a line is invalid; the message names file and line.
        """
        return tuple(dict.fromkeys(self._lines(os.path.abspath(path), "", ())))

    def line(self, text: str, folder: str, where: str) -> Iterator[str]:
        """Yield the lines that stand for one line of a file in `folder`; `where` names it in messages."""
        yield from self._parsed(text, folder, where, "", ())

    def _lines(self, path: str, prefix: str, parents: tuple[str, ...]) -> Iterator[str]:
        label = self._name if not parents else os.path.basename(path)
        if path in parents:
            raise self._error(f"{label} includes itself", "Remove the line that includes it.")
        text = read_text(path, f"--env {label}")
        number, joined = 0, ""
        for number, raw in enumerate(text.splitlines(), 1):
            begin = joined + raw
            if begin.endswith("\\"):
                joined = begin[:-1]
                continue
            joined = ""
            yield from self._parsed(begin, os.path.dirname(path), f"{label}, line {number}", prefix, (*parents, path))
        if joined:
            yield from self._parsed(joined, os.path.dirname(path), f"{label}, line {number}", prefix, (*parents, path))

    def _parsed(self, raw: str, folder: str, where: str, prefix: str, parents: tuple[str, ...]) -> Iterator[str]:
        text = _COMMENT.sub("", raw).strip()
        if not text:
            return
        if has_password(text):
            hint = "Write ${NAME} in its place and pass --secret NAME, or set UV_INDEX_URL."
            raise self._error(f"{where}: the address contains a password, which would be stored with the run", hint)
        if text.startswith("-"):
            yield from self._option(text, folder, where, prefix, parents)
            return
        requirement = re.split(r"\s+--", text, maxsplit=1)[0].strip()
        if path := self._local_path(requirement, folder, where):
            yield f"{prefix}{path[0]}{path[1]}{text[len(requirement) :]}{_digest_comment(path[0], self._has_our_disk)}"
        elif requirement.endswith(_ARCHIVES) and _ADDRESS.match(requirement):
            yield prefix + text
        elif (built := _BUILT_ELSEWHERE.match(requirement)) and not os.path.exists(built["path"]):
            hint = f"Write {built['name']} in its place; or freeze again: pip list --format=freeze > requirements.txt"
            raise self._error(f"{where}: {built['name']} is a folder of the machine where conda has built it", hint)
        elif _problem(_VARIABLE.sub("x", requirement)):
            raise self._error(
                f"{where}: {_shown(requirement)!r} is not a requirement as pip writes it", "Example: pandas>=2.1"
            )
        else:
            yield prefix + text

    def _option(self, text: str, folder: str, where: str, prefix: str, parents: tuple[str, ...]) -> Iterator[str]:
        option, value = _split_option(text)
        if option in _INCLUDES and value and not _ADDRESS.match(value):
            yield from self._lines(os.path.normpath(os.path.join(folder, value)), _INCLUDES[option] or prefix, parents)
        elif option in _PATH_OPTIONS and value:
            if _ADDRESS.match(value):
                yield f"{_PATH_OPTIONS[option]} {value}"
            else:
                path, extras = self._absolute(value, folder, where)
                editable = _PATH_OPTIONS[option] == "-e"
                yield f"{_PATH_OPTIONS[option]} {path}{extras if editable else ''}"
        elif option in _VALUE_OPTIONS and value:
            yield f"{_VALUE_OPTIONS[option]} {value}"
        elif option in _SWITCHES:
            yield option
        elif option not in _IGNORED:
            raise self._error(f"{where}: unknown option {option}", "Remove the line.")

    def _local_path(self, text: str, folder: str, where: str) -> tuple[str, str] | None:
        """Return path and extras of a requirement that is a path; ``None`` for one of an index or an address."""
        is_path = text.startswith(("./", "../", "/", "~", ".[")) or text == "."
        is_path = is_path or (text.endswith(_ARCHIVES) and "@" not in text and not _ADDRESS.match(text))
        return self._absolute(text, folder, where) if is_path else None

    def _absolute(self, text: str, folder: str, where: str) -> tuple[str, str]:
        if _VARIABLE.search(text):  # uv replaces it where it installs
            return text, ""
        path, bracket, extras = text.partition("[")
        path = os.path.expanduser(path)
        if not self._has_our_disk:
            if os.path.isabs(path):
                return path, bracket + extras
            hint = "Write an address, or the absolute path that it has there."
            raise self._error(f"{where}: {text[:120]!r} is a path of this machine alone", hint)
        path = os.path.normpath(os.path.join(folder, path))
        if not os.path.exists(path):
            raise self._error(f"{where}: there is no {path}", "Correct the path; it begins at the folder of the file.")
        return path, bracket + extras

    def _error(self, reason: str, hint: str) -> SpecError:
        return SpecError(f"--env {reason}.", hint=hint, code="environment.requirements", field="environment")


def read_text(path: str, about: str) -> str:
    """Return the text of a file with packages.

    Raises
    ------
    SpecError
        It does not exist, or is not text.
    """
    try:
        return read_regular(path, MAX_FILE_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        reason, hint = f"there is no file {path}", "Correct the path."
    except UnicodeDecodeError:
        reason, hint = f"{path} is not UTF-8 text", "Save it as UTF-8."
    except OSError as error:
        reason, hint = f"{path} cannot be read ({error.strerror or error})", "Name a text file."
    raise SpecError(f"{about}: {reason}.", hint=hint, code="environment.file", field="environment")


def _split_option(text: str) -> tuple[str, str]:
    if text.startswith("--"):
        match = re.match(r"(--[a-z-]+)(?:[=\s]\s*(.*))?$", text)
        return (match[1], (match[2] or "").strip().strip("'\"")) if match else (text.split()[0], "")
    return text[:2], text[2:].lstrip("=").strip().strip("'\"")


def _digest_comment(path: str, has_our_disk: bool) -> str:
    """Return a comment with a digest of a file or folder: a changed package is another environment."""
    if not has_our_disk:
        return ""
    whole = hashlib.sha256()
    if os.path.isfile(path):
        with open(path, "rb") as file:
            while part := file.read(1 << 20):
                whole.update(part)
    else:
        for fact in _folder_facts(Path(path)):
            whole.update(fact.encode("utf-8", "surrogateescape"))
    return f"  # {whole.hexdigest()[:16]}"


def _folder_facts(root: Path) -> Iterator[str]:
    """Yield name, size and time of the files of a folder."""
    count = 0
    for parent, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS and not name.endswith(".egg-info"))
        for name in sorted(names):
            count += 1
            if count > _MAX_FOLDER_FILES:
                return
            status = os.lstat(os.path.join(parent, name))
            yield f"{os.path.relpath(os.path.join(parent, name), root)} {status.st_size} {status.st_mtime_ns}\0"
