"""The immutable copy of the code that a run takes with it, and which files are left out."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import re
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from jupyter_amltrain.agent.protocol import JOB, KEPT_LINKS, read_regular
from jupyter_amltrain.agent.values import FOLDER as VALUES_FOLDER
from jupyter_amltrain.errors import SnapshotTooLarge, SubmitError
from jupyter_amltrain.jobs import notebook_file
from jupyter_amltrain.jobs.file_hash import hash_file
from jupyter_amltrain.schema.job import DEEPSPEED_FILE
from jupyter_amltrain.state_dir import working_folder

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

    from jupyter_amltrain.schema.job import JobSpec

#: Maximum size of an ignore file.
MAX_IGNORE_BYTES = 4 << 20


class IgnoreRules:
    """Ignore rules of one folder: its own take precedence over those of the parent folders.

    ``.amlignore`` of the top folder replaces every ``.gitignore``, as in
    ``az ml``.
    """

    def __init__(self, specs: tuple[tuple[str, _Rules], ...], nested: bool) -> None:
        self._specs = specs  # (folder's prefix, rules), innermost first
        self._nested = nested

    @classmethod
    def of(cls, root: str) -> IgnoreRules:
        """Rules of the top folder `root`."""
        own = _spec(os.path.join(root, ".amlignore"))
        if own is not None:
            return cls((("", own),), nested=False)
        return cls((), nested=True).below(root, "")

    def below(self, folder: str, name: str) -> IgnoreRules:
        """Rules of a folder below, whose path inside the top folder is `name`."""
        if not self._nested:
            return self
        own = _spec(os.path.join(folder, ".gitignore"))
        if own is None:
            return self
        prefix = name + "/" if name else ""
        return IgnoreRules(((prefix, own), *self._specs), nested=True)

    def ignores(self, name: str, is_dir: bool) -> bool:
        """Whether the file or folder `name` (posix, inside the top folder) is ignored."""
        for prefix, spec in self._specs:
            path = name[len(prefix) :] + ("/" if is_dir else "")
            include = spec.include(path)
            if include is not None:
                return include
        return False


class _Rules:
    """Rules of one ignore file.

    Most paths match none of them, which one search of all patterns together finds in a tenth of the time.
    """

    def __init__(self, spec: GitIgnoreSpec) -> None:
        self._check = spec.check_file
        texts = [one.regex.pattern for one in spec.patterns if one.include is not None and one.regex is not None]
        # A group's name may stand only once in a pattern.
        together = "|".join(re.sub(r"\(\?P<\w+>", "(?:", str(text)) for text in texts)
        self._matches_any = re.compile(together or "(?!)").search

    def include(self, path: str) -> bool | None:
        """Whether the rules name the path; ``None`` if no rule is about it."""
        return self._check(path).include if self._matches_any(path) else None


def _spec(path: str) -> _Rules | None:
    try:
        lines = read_regular(path, MAX_IGNORE_BYTES).decode("utf-8").splitlines()
    except (FileNotFoundError, IsADirectoryError):
        return None
    except UnicodeDecodeError as error:
        raise SubmitError(f"Cannot read {path}: {error}.", hint="Save it as UTF-8 text.") from error
    except OSError as error:
        reason = error.strerror or error
        raise SubmitError(
            f"Cannot read {path}: {reason}.", hint="Replace it with a text file, or delete it."
        ) from error
    from pathspec import GitIgnoreSpec

    try:
        return _Rules(GitIgnoreSpec.from_lines(lines))
    except ValueError as error:
        raise SubmitError(f"{path}: {error}.", hint="Correct the pattern.") from error


#: Limits of a snapshot, which is for code and not for data sets.
LIMIT_BYTES = 300 * 10**6

LIMIT_FILES = 20_000

#: Never part of a snapshot, whatever the ignore files say.
ALWAYS_SKIPPED = frozenset({".git", ".amltrain", "__pycache__", ".ipynb_checkpoints", ".venv", "node_modules"})

_NOTHING: Mapping[str, Any] = types.MappingProxyType({})

#: Folder in the code of a sweep's driver that has the code of its trials, as it was when the sweep was submitted.
TRIAL_FOLDER = "trial"
#: The same of a plug-in's driver: a folder for each of its jobs.
JOBS_FOLDER = "jobs"

#: Maximum number of ignored entries that are remembered.
MAX_LEFT_OUT = 200
#: Factor over the limit at which counting a folder stops.
_GIVE_UP = 10


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the run's ``source/``.

    Attributes
    ----------
    files
        Path inside ``source/`` (posix) to a local absolute path, or to the bytes.
    digest
        sha256 over names, modes and contents: equal trees have equal digests.
    bytes
        Size of all files.
    left_out
        Names of files and folders (with a final ``/``) that ignore files exclude, at most :data:`MAX_LEFT_OUT`.
    """

    files: dict[str, str | bytes]
    digest: str
    bytes: int
    left_out: tuple[str, ...] = ()


def take_snapshot(
    script_name: str,
    script_text: str,
    *,
    root: str | os.PathLike[str],
    search: Iterable[str] = (),
    module: str = "",
    named: Iterable[str] = (),
    readers: Iterable[str] = (),
    source: str | os.PathLike[str] | None = None,
    more: Mapping[str, str | bytes] | None = None,
    code_dir: str | os.PathLike[str] = "",
    limit_bytes: int = LIMIT_BYTES,
    limit_files: int = LIMIT_FILES,
) -> Snapshot:
    """Collect the files of a run. Blocks on the disk; call it off the loop.

    Parameters
    ----------
    script_name
        Path of the script in the snapshot.
    script_text
        Its text; empty when `script_name` is a file of `source`, else of
        `root`, which is then taken byte for byte.
    root
        Folder in which the script's imports are searched, in its own folder there and in the folders `search`.
    module
        Name of the module that the script is, if it runs as one.
    named
        Further files below `root`.
    readers
        Modules that the values of a cell need, of which those of the project are included.
    source
        Folder to include whole, except for files that its ``.amlignore`` (else its
        ``.gitignore`` files) names.
    more
        Further files, such as values of the notebook, which take precedence; the limits do not count them.
    code_dir
        Folder with all files of another run, which are taken as they are in place of `source` and the imports.
    limit_bytes, limit_files
        Maximum bytes and number of files.

    Raises
    ------
    SnapshotTooLarge
        Names the three largest entries and the command that excludes them.
    SubmitError
        A file cannot be read, or a link leads out of the folder.
    """
    files: dict[str, str | bytes]
    facts: Mapping[str, os.stat_result] = {}
    left_out: tuple[str, ...] = ()
    if code_dir:
        root = Path(code_dir)
        files = {name: path for name, path in code_files(root).items() if name != script_name or not script_text}
        given = {name: files.pop(name) for name in [*files] if name.startswith(f"{VALUES_FOLDER}/")}
        more = {**given, **(more or {})}
    elif source is not None:
        root = Path(source).expanduser().absolute()
        folder = _Folder(root, limit_bytes, limit_files)
        files, facts, left_out = dict(folder.walk()), folder.facts, tuple(folder.left_out)
    else:
        from jupyter_amltrain.jobs.project import project_modules

        root = Path(root).absolute()
        text = script_text.encode() or notebook_file.python_of(_read(root / script_name), script_name)
        texts = [
            text,
            *(f"import {name}".encode() for name in readers),
            *(code for name, code in (more or {}).items() if "/" not in name and name.endswith(".py")),
        ]
        files = {
            name: str(path)
            for one in texts
            if isinstance(one, bytes)
            for name, path in project_modules(one, root, script_name, search, module).items()
        }
        files |= {name: str(root / name) for name in named if (root / name).exists()}  # not deleted since
        if not script_text:
            files[script_name] = str(root / script_name)
    if script_text:
        if script_name in files:
            raise SubmitError(
                f"{files[script_name]!r} has the same name as the cell's script in the run.",
                hint=f"Rename that file: it cannot be included as {script_name}.",
            )
        files[script_name] = script_text.encode()
    elif script_name not in files:
        raise SubmitError(
            f"The script {script_name} is not among the files of {root}.",
            hint="Check the ignore files.",
        )
    made = _sealed(files, root, limit_bytes, limit_files, more or {}, facts)
    return msgspec.structs.replace(made, left_out=left_out) if left_out else made


def of_script(spec: JobSpec) -> Snapshot:
    """The files of a script's job, with the values and modules of the notebook. Blocks on the disk.

    Raises
    ------
    SnapshotTooLarge, SubmitError
        See :func:`take_snapshot`.
    """
    from jupyter_amltrain.jobs import notebook_syntax, project, values

    more: dict[str, str | bytes] = {}
    if not spec.code_dir:  # which has them
        more = {**values.files(spec), **{f"{name}.py": text.encode() for name, text in spec.modules.items()}}
        more |= notebook_syntax.files(spec.script, spec.modules.values())
        if spec.distribution.config:
            more[DEEPSPEED_FILE] = msgspec.json.encode(spec.distribution.config)
        if spec.trial is not None:
            more |= _below(TRIAL_FOLDER, files_of_job(spec.trial))
        if spec.driver is not None:
            for name, job in spec.driver.jobs.items():
                more |= _below(f"{JOBS_FOLDER}/{name}", files_of_job(job))
    return take_snapshot(
        spec.script_name,
        spec.script,
        root=spec.root or spec.notebook_dir or working_folder(),
        search=() if spec.source or spec.code_dir else (*project.edited_folders(spec), *spec.search),
        module=spec.module,
        named=spec.files,
        readers=() if spec.code_dir else dict.fromkeys(values.modules(spec)),
        source=spec.source,
        code_dir=spec.code_dir,
        more=more,
    )


def files_of_job(job: JobSpec) -> dict[str, str | bytes]:
    """Return the files of a job that a driver submits. Blocks on the disk."""
    return (of_yaml(job, code=True) if job.job_type else of_script(job)).files


def _below(folder: str, files: Mapping[str, str | bytes]) -> dict[str, str | bytes]:
    return {f"{folder}/{name}": content for name, content in files.items()}


def script_text(spec: JobSpec, snapshot: Snapshot) -> bytes:
    """Return the text of a job's script; empty if it has none, or one of more than 16 MiB. Blocks on the disk."""
    content = snapshot.files.get(spec.script_name)
    if content is None or spec.job_type:
        return b""
    try:
        data = content if isinstance(content, bytes) else read_regular(content, 1 << 24)
        return notebook_file.python_of(data, spec.script_name)
    except OSError:
        return b""


def code_files(root: Path) -> dict[str, str]:
    """Return the files of a run's copy of its code, by name: those that its job names, or all of them."""
    try:
        job = json.loads(read_regular(str(root.parent / JOB), LIMIT_BYTES))
        names = job["snapshot"]["names"]
        return {str(name): str(root / str(name)) for name in names if is_inside(str(name))}
    except (OSError, ValueError, KeyError, TypeError):
        return _Folder(root, LIMIT_BYTES, LIMIT_FILES).walk(IgnoreRules((), nested=False))


def data_files(path: Path, limit_files: int, skipped: Collection[str] = ()) -> dict[str, str]:
    """Return the files of a folder of data by name, without those that its ignore files name. Blocks on the disk.

    Parameters
    ----------
    skipped
        Patterns of names, of files and folders, in small letters, that are left out in any case. With them a link
        that leads out, or a folder that cannot be read, is left out and no error, and no folder is read for long.

    Raises
    ------
    SnapshotTooLarge, SubmitError
        See :func:`take_snapshot`; there is no limit for the size.
    """
    return _Folder(path, 1 << 62, limit_files, skipped).walk()


def is_inside(name: str) -> bool:
    """Whether a relative path leads to a file below its folder."""
    return not os.path.isabs(name) and ".." not in name.split("/")


def of_yaml(spec: JobSpec, *, code: bool) -> Snapshot:
    """The files of a YAML job: its text, and with `code` its code folder. Blocks on the disk.

    Raises
    ------
    SnapshotTooLarge, SubmitError
        See :func:`take`.
    """
    root = Path(spec.code_dir or spec.source or spec.notebook_dir or working_folder())
    files: dict[str, str | bytes] = {}
    if code and spec.code_dir:
        files.update(code_files(root))
    elif code and spec.source:
        files.update(_Folder(root.absolute(), LIMIT_BYTES, LIMIT_FILES).walk())
    files.setdefault(spec.script_name, spec.cell.encode())
    return _sealed(files, root, LIMIT_BYTES, LIMIT_FILES)


def _sealed(
    files: dict[str, str | bytes],
    root: Path,
    limit_bytes: int,
    limit_files: int,
    more: Mapping[str, str | bytes] = _NOTHING,
    facts: Mapping[str, os.stat_result] = _NOTHING,
) -> Snapshot:
    """Hash the files; `facts` is what the walk knows of them, by name."""
    whole = hashlib.sha256()
    total = 0
    sizes: dict[str, int] = {}
    extra = 0
    whole_tree = {**files, **more}
    for name in sorted(whole_tree):
        content = whole_tree[name]
        try:
            if isinstance(content, bytes):
                size, executable = len(content), False
                inner = hashlib.sha256(content).digest()
            else:
                size, executable, inner = hash_file(content, None if name in more else facts.get(name))
            record = _record(name, executable, inner)
        except UnicodeEncodeError:
            raise SubmitError(f"{root}: the file name {name!r} is not UTF-8.", hint="Rename the file.") from None
        except OSError as error:
            raise SubmitError(
                f"Cannot read {content!r}: {error.strerror or error}.",
                hint=f"Make the file readable, or exclude it: echo '/{name}' >> {root}/.amlignore",
            ) from error
        whole.update(record)
        if name in more:
            extra += size
            continue
        sizes[name] = size
        total += size
        if total > limit_bytes or len(sizes) > limit_files:
            break
    if total > limit_bytes or len(files) > limit_files:
        raise _too_large(root, sizes, limit_bytes, limit_files, whole=len(sizes) == len(files))
    return Snapshot(files=whole_tree, digest=whole.hexdigest(), bytes=total + extra)


def digest_of(folder: str | os.PathLike[str], names: Iterable[str]) -> str:
    """Digest of the files `names` in `folder`, which holds a copy of them.

    Blocks on the disk.

    Raises
    ------
    OSError
        A file does not exist or cannot be read.
    """
    hashes = ((name, hash_file(os.path.join(folder, name))) for name in names)
    return tree_digest((name, executable, inner) for name, (_, executable, inner) in hashes)


def tree_digest(files: Iterable[tuple[str, bool, bytes]]) -> str:
    """Digest of a tree from the names of its files, whether they are executable, and their sha256."""
    whole = hashlib.sha256()
    for name, executable, inner in sorted(files):
        whole.update(_record(name, executable, inner))
    return whole.hexdigest()


def _record(name: str, executable: bool, inner: bytes) -> bytes:
    """Return the contribution of a file to the digest of a tree."""
    label = name.encode()
    return b"%d %s %d " % (len(label), label, executable) + inner


def _is_kept_link(entry: os.DirEntry[str]) -> bool:
    """Whether the entry is the ``outputs`` or ``logs`` link of a run whose copy of the code is resubmitted."""
    return entry.is_symlink() and os.readlink(entry.path) == KEPT_LINKS.get(entry.name)


def _is_utf8(name: str) -> bool:
    """Whether a name of the file system is text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is(check: Callable[[], bool]) -> bool:
    """Return the result of `check`; False for a circular link."""
    try:
        return check()
    except OSError:
        return False


def _read(path: Path) -> bytes:
    try:
        return read_regular(str(path), LIMIT_BYTES)
    except OSError as error:
        raise SubmitError(
            f"Cannot read the script {path}: {error.strerror or error}.", hint="Check the path."
        ) from error


class _Folder:
    """One walk of a source folder."""

    def __init__(self, root: Path, limit_bytes: int, limit_files: int, skipped: Collection[str] = ()) -> None:
        self.root = root
        self.skipped = skipped
        self._skips = re.compile("|".join(map(fnmatch.translate, skipped)) or "(?!)").match
        self.real = os.path.realpath(root)
        self.limit_bytes, self.limit_files = limit_bytes, limit_files
        self.files: dict[str, str] = {}
        self.facts: dict[str, os.stat_result] = {}
        self.left_out: list[str] = []
        self.total = 0

    def walk(self, rules: IgnoreRules | None = None) -> dict[str, str]:
        """Return all files by name; `rules` take the place of the folder's own."""
        if not os.path.isdir(self.root):
            raise SubmitError(
                f"--source {self.root} is not a folder.",
                hint=f"The working folder is {working_folder()}.",
            )
        whole = self._folder(str(self.root), "", rules or IgnoreRules.of(str(self.root)), (self.real,))
        if self.total > self.limit_bytes or len(self.files) > self.limit_files:
            sizes = {name: facts.st_size for name, facts in self.facts.items()}
            raise _too_large(self.root, sizes, self.limit_bytes, self.limit_files, whole)
        return self.files

    def _folder(self, path: str, prefix: str, rules: IgnoreRules, parents: tuple[str, ...]) -> bool:
        """Add one folder; return False if the limit stopped the walk."""
        try:
            with os.scandir(path) as scan:
                most = _GIVE_UP * self.limit_files if self.skipped else None
                entries = sorted(islice(scan, most), key=lambda entry: entry.name)
        except OSError as error:
            if self.skipped:
                return True
            raise SubmitError(
                f"Cannot read the folder {path}: {error.strerror or error}.",
                hint=f"Exclude it: echo '/{prefix}' >> {self.root}/.amlignore",
            ) from error
        if len(entries) == most:  # not read to its end
            raise _too_large(self.root, {prefix or ".": 0}, self.limit_bytes, 0, False)
        for entry in entries:
            name = prefix + entry.name
            if entry.name in ALWAYS_SKIPPED or (name in KEPT_LINKS and _is_kept_link(entry)):
                continue
            if self._skips(entry.name.lower()):
                continue
            is_dir = _is(entry.is_dir)
            if rules.ignores(name, is_dir):
                if len(self.left_out) < MAX_LEFT_OUT:
                    self.left_out.append(f"{name}/" if is_dir else name)
                continue
            if not name.isascii() and not _is_utf8(name):
                if self.skipped:
                    continue
                raise self._not_utf8(name)
            real = path
            if entry.is_symlink():
                real = self._followed(entry.path, name)
                if not os.path.exists(real):
                    continue  # a dangling link, here and on the target
            if is_dir:
                real = os.path.realpath(entry.path) if entry.is_symlink() else parents[-1] + "/" + entry.name
                if real in parents:
                    continue  # a link to a parent folder, whose files are already included
                if not self._folder(entry.path, name + "/", rules.below(entry.path, name), (*parents, real)):
                    return False
            elif _is(entry.is_file):  # no sockets, pipes, devices
                self._add(entry, name)
                if self.total > _GIVE_UP * self.limit_bytes or len(self.files) > _GIVE_UP * self.limit_files:
                    return False
        return True

    def _add(self, entry: os.DirEntry[str], name: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # deleted during the walk
            self.facts[name] = entry.stat()
            self.files[name] = entry.path
            self.total += self.facts[name].st_size

    def _not_utf8(self, name: str) -> SubmitError:
        shown = name.encode("utf-8", "replace").decode()
        return SubmitError(
            f"The name of {self.root}/{shown} is not UTF-8.",
            hint=f"Rename it, or exclude it: echo '/{shown}' >> {self.root}/.amlignore",
        )

    def _followed(self, path: str, name: str) -> str:
        real = os.path.realpath(path)
        if real != self.real and not real.startswith(self.real + os.sep):
            if self.skipped:
                return ""
            # No default is safe: the target may be a data set of terabytes, and without the
            # link the run would fail late.
            raise SubmitError(
                f"{path} is a link to {real}, outside the source folder {self.root}.",
                hint=f"Exclude it: echo '/{name}' >> {self.root}/.amlignore"
                " (and pass the path: --param), or copy it into the folder.",
            )
        return real


def _too_large(root: Path, sizes: dict[str, int], limit_bytes: int, limit_files: int, whole: bool) -> SnapshotTooLarge:
    total, count = sum(sizes.values()), len(sizes)
    by_count = total <= limit_bytes
    worst = largest_entries(sizes.items() if not by_count else ((name, 1) for name in sizes))
    named = ", ".join(f"{name} ({number} files)" if by_count else f"{name} ({_mb(number)})" for name, number in worst)
    at_least = "" if whole else "more than "
    keep = ""
    if (root / ".gitignore").exists() and not (root / ".amlignore").exists():
        keep = "cp .gitignore .amlignore; "  # .amlignore replaces .gitignore
    lines = " ".join(f"'/{name}'" for name, _ in worst[:1])
    return SnapshotTooLarge(
        f"The source folder {root} holds {at_least}{_mb(total)} in {count} files, over the limit of"
        f" {f'{limit_files} files' if by_count else _mb(limit_bytes)}; largest: {named}.",
        hint=f"Exclude files that the run does not need: cd {root}; {keep}echo {lines} >> .amlignore",
    )


def largest_entries(sizes: Iterable[tuple[str, int]], most: int = 3) -> list[tuple[str, int]]:
    """The biggest files and folders (names with a final ``/``), each as deep as possible.

    A folder is named unless a single entry has at least 80 % of its size.
    """
    totals: dict[str, int] = {}
    children: dict[str, set[str]] = {}
    for name, size in sizes:
        parent = ""
        parts = name.split("/")
        for i in range(1, len(parts) + 1):
            part = "/".join(parts[:i]) + ("/" if i < len(parts) else "")
            totals[part] = totals.get(part, 0) + size
            children.setdefault(parent, set()).add(part)
            parent = part

    def blamed(name: str) -> str:
        while below := children.get(name):
            biggest = max(below, key=lambda part: (totals[part], part))
            if totals[biggest] < 0.8 * totals[name]:
                return name
            name = biggest
        return name

    top = sorted(children.get("", ()), key=lambda part: (-totals[part], part))[:most]
    return [(blamed(name), totals[blamed(name)]) for name in top if totals[name]]


def _mb(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
