"""Operations on the files of a run: list, read, and register one as a model."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from jupyter_amltrain.commands.model import registered_text
from jupyter_amltrain.commands.run_compare import MAX_RUNS, code_diffs, code_of
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.frontend.protocol import Reply, Request, op
from jupyter_amltrain.kernel.result_files import read_result, result_models
from jupyter_amltrain.schema.run import Run
from jupyter_amltrain.schema.run_file import RunFile
from jupyter_amltrain.text import printable

if TYPE_CHECKING:
    from jupyter_amltrain.kernel.controller import Controller

#: Maximum number of files in a reply, and bytes of a file in one.
MAX_FILES, MAX_PART_BYTES = 500, 1 << 20
#: Maximum wait of a reply for a registration (seconds).
REGISTER_TIMEOUT_S = 2.0


class GetFiles(Request, frozen=True, kw_only=True):
    """Get the files that a run has written."""

    handle: str


class FilesReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`GetFiles`.

    Attributes
    ----------
    hidden
        Number of files that are not listed.
    folder
        Path or name of the run's folder on its target.
    models
        Models among the files, as :class:`RegisterModel` takes them.
    """

    files: tuple[RunFile, ...] = ()
    hidden: int = 0
    folder: str = ""
    models: tuple[str, ...] = ()


class GetFile(Request, frozen=True, kw_only=True):
    """Get a part of a file of a run, from byte `offset`."""

    handle: str
    path: str
    offset: int = 0


class FileReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`GetFile`: base64; empty at the end of the file."""

    data: str = ""


class RegisterModel(Request, frozen=True, kw_only=True):
    """Register a model of an ended run; `path` is one of :attr:`FilesReply.models`."""

    handle: str
    name: str
    path: str = ""


class RegisterReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`RegisterModel`: one sentence about the new version; empty if it comes later as a notice."""

    text: str = ""


class GetCode(Request, frozen=True, kw_only=True):
    """Get the differences between the scripts of runs."""

    handles: tuple[str, ...]


class CodeReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`GetCode`: lines of the unified diff from the first run's script to each other's, by handle."""

    diffs: dict[str, list[str]] = {}


class FileHandlers:
    """Handlers of the operations ``files``, ``file``, ``code`` and ``register``.

    Parameters
    ----------
    notify
        Shows a message to all clients later: level, text, target.
    """

    def __init__(self, controller: Controller, notify: Callable[[str, str, str], None]) -> None:
        self._controller, self._notify = controller, notify

    @op("files")
    async def list(self, request: GetFiles) -> FilesReply:
        """Return the files of a run."""
        run = await self._controller.load(await self._controller.find(request.handle))
        backend = self._controller.backend(run.target)
        files = await self._controller.contents.result_files(run.handle)
        return FilesReply(
            files=tuple(msgspec.structs.replace(file, path=printable(file.path)) for file in files[:MAX_FILES]),
            hidden=max(0, len(files) - MAX_FILES),
            folder=run.folder,
            models=tuple(await result_models(backend, run, files)),
        )

    @op("file")
    async def read(self, request: GetFile) -> FileReply:
        """Return a part of a file."""
        run = await self._controller.load(await self._controller.find(request.handle))
        backend = self._controller.backend(run.target)
        data = await read_result(backend, run, request.path, max(0, request.offset), MAX_PART_BYTES)
        return FileReply(data=base64.b64encode(data).decode())

    @op("code")
    async def code(self, request: GetCode) -> CodeReply:
        """Return the differences between the scripts of runs."""
        controller = self._controller
        scripts: dict[str, str | None] = {}
        for name in request.handles[:MAX_RUNS]:
            run = await controller.load(await controller.find(name))
            scripts[run.handle] = await controller.loop.offload(code_of, run, controller.contents.files(run.handle))
        return CodeReply(diffs=code_diffs(scripts) if scripts else {})

    @op("register")
    async def register(self, request: RegisterModel) -> RegisterReply:
        """Register a model, as ``%aml_model register`` does."""
        controller = self._controller
        entry = await controller.known_run(await controller.find(request.handle))
        task = controller.loop.start(self._register(entry.run, request), f"register {request.name}")
        if not (await asyncio.wait({task}, timeout=REGISTER_TIMEOUT_S))[0]:
            task.add_done_callback(lambda task: self._tell(task, entry.run.target))
            return RegisterReply()
        result = task.result()
        if isinstance(result, AmlTrainError):
            raise result
        return RegisterReply(text=result)

    async def _register(self, run: Run, request: RegisterModel) -> str | AmlTrainError:
        try:
            return registered_text(await self._controller.models.register(run, request.name, path=request.path))
        except AmlTrainError as error:
            return error

    def _tell(self, task: asyncio.Task[str | AmlTrainError], target: str) -> None:
        """Show the result of a registration that has outlasted its request."""
        if not task.cancelled() and task.exception() is None:
            result = task.result()
            self._notify("error" if isinstance(result, AmlTrainError) else "success", str(result), target)
