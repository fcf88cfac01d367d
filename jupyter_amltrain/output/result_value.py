"""``ResultValue``: a value of ``--out`` that is a file of the run, such as a frame, an array or an estimator."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from jupyter_amltrain.agent import kept_values, values
from jupyter_amltrain.errors import AmlTrainError, MissingDependency, ResultMissing
from jupyter_amltrain.kernel.result_files import kept_value_files
from jupyter_amltrain.kernel.session import controller
from jupyter_amltrain.schema.job import EVERY
from jupyter_amltrain.schema.run_file import OutValue, RunFile, SavedValue
from jupyter_amltrain.text import bytes_text

if TYPE_CHECKING:
    from jupyter_amltrain.output.file_list import FileList
    from jupyter_amltrain.schema.job import JobSpec
    from jupyter_amltrain.schema.run import Run


class RunWithValues(Protocol):
    """A run whose values are read."""

    @property
    def run(self) -> Run:
        """State of the run."""

    @property
    def spec(self) -> JobSpec:
        """Its job."""

    @property
    def handle(self) -> str:
        """Its handle."""

    def files(self) -> FileList:
        """Return its files."""


#: Values of more bytes are not read until :meth:`ResultValue.load`.
LAZY_BYTES = 64 << 20


def values_that_share(run: RunWithValues) -> tuple[dict[str, Any], list[str]]:
    """Return the values of a run that share objects, such as a module and its optimizer, and notes on those kept apart.

    Each of them alone would have copies of what they share.
    """
    found: dict[str, Any] = {}
    notes = []
    of_file: dict[tuple[str, str], list[str]] = {}
    for name, file in run.run.graphs.items():
        of_file.setdefault(("", file), []).append(name)
    if EVERY in run.run.spec.out:
        for name, saved in kept_values_of(run).values.items():
            if saved.node["as"] == "graph":
                of_file.setdefault((saved.folder, saved.node["file"]), []).append(name)
    for (folder, file), names in of_file.items():
        node = {"as": "pickle", "type": "builtins.dict", "file": file}
        whole = ResultValue(run, SavedValue(name=names[0], file="" if folder else file, node=node, folder=folder))
        why = f"over {bytes_text(LAZY_BYTES)}"
        try:
            if whole.size <= LAZY_BYTES:
                value = whole.load(allow_pickle=run.spec.allow_pickle)
                found.update({name: value[name] for name in names})
                continue
        except AmlTrainError as error:
            why = error.message
        notes.append(f"{' and '.join(names)} share objects in the run, but are read apart: {why}")
    return found, notes


class KeptValues(NamedTuple):
    """What a run keeps without a flag.

    Attributes
    ----------
    values
        Its values by name, the newest first.
    reasons
        Why others are not kept, by name.
    """

    values: dict[str, SavedValue]
    reasons: dict[str, str]


def kept_values_of(run: RunWithValues) -> KeptValues:
    """Return what a run keeps; queries the target."""
    own, name, of = controller(), kept_values.NAME, run.run

    async def get() -> Any:
        return (await own.backend(of.target).files.outputs(of.run_id, [name])).get(name)

    found = own.loop.call(get(), None) if of.folder and of.status.state.terminal else None
    if not isinstance(found, OutValue) or not isinstance(found.value, dict):
        return KeptValues({}, {})
    nodes, folder = found.value.get("nodes", {}), f"{name}.values"
    kept = {one: SavedValue(name=one, file="", node=node, folder=folder) for one, node in nodes.items()}
    return KeptValues(kept, found.value.get("left", {}))


class ResultValue:
    """A value that a run has returned, still in its file.

    Parameters
    ----------
    reason
        Why it is not read by itself; empty if it is only large.

    Attributes
    ----------
    name
        Of ``--out``.
    size
        Bytes of its files.
    """

    def __init__(self, run: RunWithValues, saved: SavedValue, reason: str = "") -> None:
        self._run, self._saved, self._reason, self.name = run, saved, reason, saved.name
        self._listed: FileList | None = None

    @property
    def size(self) -> int:
        """Bytes of its files; queries the target."""
        return sum(file.size for file in self._files.values())

    @property
    def _files(self) -> dict[str, Any]:
        if self._saved.folder:
            return self._kept_files
        if self._listed is None:
            self._listed = self._run.files()
        parts = f"outputs/{self.name}.values/"
        return {
            file.path: file
            for file in self._listed
            if file.path == f"outputs/{self._saved.file}" or file.path.startswith(parts)
        }

    @property
    def _kept_files(self) -> dict[str, Any]:
        from jupyter_amltrain.output.file_list import ResultFile

        own, run = controller(), self._run.run
        wanted = {f"outputs/{self._saved.folder}/{one['file']}" for one in values.files_of(self._saved.node)}

        async def get() -> list[RunFile]:
            return await kept_value_files(own.backend(run.target), run)

        found = own.loop.call(get(), None) if wanted else []
        return {file.path: ResultFile(run.handle, file) for file in found if file.path in wanted}

    def load(self, *, allow_pickle: bool = False) -> Any:
        """Return the value; a file on another machine is copied first.

        Parameters
        ----------
        allow_pickle
            Read a pickle of another machine, which can run any code: only if you trust the run. A run on this machine
            is one's own code, and needs no consent.

        Raises
        ------
        ResultMissing
            The file is damaged, or a pickle that you have not allowed.
        MissingDependency
            A package that reads it is not installed.
        """
        try:
            folder, is_own = self._folder()
            return self._read(folder, allow_pickle or is_own)
        except values.NeedsConsent as error:
            raise ResultMissing(
                f"{self._run.handle} has {self.name}{self._place(' as ')}, but {error}.",
                hint=f"If you trust the run: run.result({self.name!r}, allow_pickle=True)",
                name=self.name,
                why=f"{self._saved.text}: {error}; to read it, run.result({self.name!r}, allow_pickle=True)",
                code="result.pickle",
            ) from None
        except ImportError as error:
            raise MissingDependency(
                f"Reading {self.name} ({self._saved.text}) of {self._run.handle} needs {error.name}.",
                hint=f"%pip install {error.name}",
                code="result.package",
            ) from error
        except Exception as error:  # what the libraries raise for damaged files
            raise ResultMissing(
                f"{self.name} of {self._run.handle} cannot be read{self._place(' from ')}:"
                f" {type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}",
                hint="Copy the file: run.files()",
                name=self.name,
                why=f"{self._saved.text} cannot be read",
                code="result.damaged",
            ) from error

    def _place(self, word: str) -> str:
        return f"{word}{self._saved.file}" if self._saved.file else ""

    def _read(self, folder: Path, allow_pickle: bool) -> Any:
        path, node = folder / self._saved.file, dict(self._saved.node)
        if self._saved.folder and node["as"] == "graph":
            path = folder / self._saved.folder / node["file"]
            return values.read_file(str(path), {**node, "as": "pickle"}, allow_pickle)[self.name]
        if self._saved.folder:
            return values.read(node, str(folder / self._saved.folder), allow_pickle)
        if node["as"] != "values":
            return values.read_file(str(path), node, allow_pickle)
        nodes: Mapping[str, Any] = json.loads(path.read_bytes())
        return values.read(dict(nodes), str(folder / f"{self.name}.values"), allow_pickle)

    def _folder(self) -> tuple[Path, bool]:
        """Return a local folder with the files, and whether the run was on this machine."""
        own, run = controller(), self._run.run

        async def is_local() -> bool:
            return own.backend(run.target).files.are_local

        if own.loop.call(is_local()):
            return Path(run.folder) / "outputs", True
        folder = own.root.path / "results" / self._run.handle / "outputs"
        for path, file in self._files.items():
            to = folder.parent / path
            if not to.exists():
                to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                file.save(to)
        return folder, False

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(f"{self.name} is not loaded yet: use .load()")

    def __repr__(self) -> str:
        if self._reason:
            return f"<not loaded, of {self._run.handle}: {self._reason}>"
        size = bytes_text(self.size)
        return f"<{self._saved.text}, {size}, of {self._run.handle}; not loaded: .load() reads it>"
