"""Hook in a waiting Python: it imports what the last run imported first, and becomes the process of the next run.

``supervise/warm_interpreter.py`` starts ``python -u PLACEHOLDER`` as it would start the job, and
``supervise/import_hook.py`` runs :func:`wait` while that Python starts, before it opens its script. So the script that
it then opens is the job's, with a new ``__main__`` and no further frame below it. What cannot be equal to a cold start
is refused, and the supervisor starts the job as always.

This file must load no module that a script might then find loaded (so not ``__future__``), and no error of it may
start a script.
"""

import marshal
import os
import sys

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Set, Tuple

#: Variable with the descriptor of the socket to the supervisor.
WAITING = "AMLTRAIN_WAITING"
#: Variable with the mark of the run, and its value while there is none: as long as any, because it is overwritten.
MARK, NO_MARK = "AMLTRAIN_RUN", "-" * 200
#: Last message of the supervisor: the job is this process's.
GO = b"go"
#: Descriptor by whose name Python opens the script.
SCRIPT_HANDLE = 250
#: Modules that look through all variables for those of their own, which begin with ``TQDM_``.
_SELECTIVE = ("tqdm.utils",)
#: Modules that note the working folder when they are imported, and the name of what they note: it is set again.
_FOLDER_NAMES = {"multiprocessing.process": "ORIGINAL_DIR", "rich": "_IMPORT_CWD"}
#: Modules by which others ask for it.
_PATH_MODULES = ("posixpath", "pathlib")
_MAX_MESSAGE_BYTES = 16 << 20
#: Versions of CPython for which a warm and a cold start were compared.
_FIRST, _LAST = (3, 8), (3, 13)
#: Libraries that look at devices or note the run when they are imported: their jobs start as always.
_COLD = ("tensorflow", "jax", "cupy", "tensorboard", "tensorboardX", "lightning", "pytorch_lightning", "transformers",
         "wandb", "pyspark", "paddle", "ray", "mpi4py")  # fmt: skip


class NotUsable(Exception):
    """The job cannot have this process."""


def wait(handle: int) -> None:
    """Import, wait for a job, and return when this process is the job's; else end the process."""
    code = 0
    try:
        order = marshal.loads(receive(handle))
        score = _set_score("1000")  # where memory is short, this process goes first
        warm = _WarmModules(order, handle)
        warm.load()
        send(handle, ["ready", str(warm.count), *sorted(warm.reads.names)])
        job = marshal.loads(receive(handle))
        script = warm.checked(job)
        _set_score(score)
        _become(job, script, order["placeholder"], handle)
        return
    except NotUsable as error:
        try:
            send(handle, ["refused", str(error)])
        except OSError:  # the supervisor has ended
            pass
    except (OSError, EOFError):  # nobody needs this process
        pass
    except BaseException as error:  # the supervisor must hear of it, and starts another process
        code = 70
        try:
            send(handle, ["refused", "%s: %s" % (type(error).__name__, error)])
        except OSError:
            pass
    os._exit(code)


def _set_score(value: str) -> str:
    """Set for how large the kernel takes this process where memory is short; return what it was."""
    with open("/proc/self/oom_score_adj", "r+") as file:
        score = file.read()
        file.seek(0)
        file.write(value)
    return score


def receive(handle: int) -> bytes:
    """Read one message."""
    size = int.from_bytes(_read(handle, 8), "big")
    if size > _MAX_MESSAGE_BYTES:
        raise EOFError
    return _read(handle, size)


def _read(handle: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(handle, size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def send(handle: int, words: "Iterable[str]") -> None:
    """Write one message to the supervisor: text only, because it must not trust what it reads."""
    data = "\0".join(words).encode("utf-8", "backslashreplace")
    data = len(data).to_bytes(8, "big") + data
    while data:
        data = data[os.write(handle, data) :]


class _EnvironmentUse:
    """Notes which variables are read or set in ``os.environ``; ``*`` for all of them."""

    def __init__(self) -> None:
        self.names: Set[str] = set()
        self.is_paused = False
        self._class: Any = type(os.environ)
        names = ("__getitem__", "__setitem__", "__delitem__", "__iter__")
        self._own = {name: self._class.__dict__[name] for name in names}

    def start(self) -> None:
        for name, own in self._own.items():
            setattr(self._class, name, self._noting(own, name == "__iter__"))

    def stop(self) -> None:
        for name, own in self._own.items():
            setattr(self._class, name, own)

    def _noting(self, own: "Any", is_all: bool) -> "Any":
        def method(environ: "Any", *args: "Any") -> "Any":
            if not self.is_paused and not _is_selective():
                self.names.add("*" if is_all else str(args[0]))
            return own(environ, *args)

        return method


def _is_selective() -> bool:
    """Whether a module looks through all variables for those with a prefix of its own."""
    frame: Any = sys._getframe(2)
    for _ in range(4):  # `items` has frames between
        if frame is None:
            return False
        if frame.f_globals.get("__name__") in _SELECTIVE:
            return True
        frame = frame.f_back
    return False


class _FileNotes:
    """Notes which files ``open`` opens, or would open if they were there, and which modules read the working folder.

    Attributes
    ----------
    paths
        The files: settings, for example.
    modules
        Names of the modules that have read it.
    """

    def __init__(self) -> None:
        #: Settings that libraries look for without opening them.
        self.paths: Set[str] = {os.path.abspath("matplotlibrc"), os.path.abspath(".numba_config.yaml")}
        self.modules: Set[str] = set()
        self._open: Any = open
        self._getcwd: Any = os.getcwd

    def start(self) -> None:
        import builtins
        import io

        own_open, own_getcwd, paths, modules = self._open, self._getcwd, self.paths, self.modules

        def open(file: "Any", *args: "Any", **more: "Any") -> "Any":
            if not isinstance(file, int):
                paths.add(os.path.join(own_getcwd(), os.fsdecode(file)))
            return own_open(file, *args, **more)

        def getcwd() -> str:
            frame: Any = sys._getframe(1)
            while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _PATH_MODULES:
                frame = frame.f_back
            modules.add("?" if frame is None else frame.f_globals.get("__name__", "?"))
            return str(own_getcwd())

        builtins.open = io.open = open
        os.getcwd = getcwd

    def stop(self) -> None:
        """Give everybody their functions again; raise `NotUsable` if somebody may keep ours."""
        import builtins
        import io

        had = "gc" in sys.modules
        import gc

        io.open = self._open
        for module, name, own in ((builtins, "open", self._open), (os, "getcwd", self._getcwd)):
            ours = getattr(module, name)
            setattr(module, name, own)
            for holder in gc.get_referrers(ours):
                if isinstance(holder, dict):
                    _replace(holder, ours, own)
                elif isinstance(holder, staticmethod):
                    for names in gc.get_referrers(holder):
                        if isinstance(names, dict):
                            _replace(names, holder, staticmethod(own))
                else:  # an object whose attributes are not in a dict, since Python 3.11: a handler of logging
                    try:
                        _replace(object.__getattribute__(holder, "__dict__"), ours, own)
                    except (AttributeError, TypeError):
                        pass
            holder = names = None
            frame = sys._getframe()
            if any(one is not frame for one in gc.get_referrers(ours)):
                raise NotUsable("its imports keep a function of this process")
        if not had:
            del sys.modules["gc"]


def _replace(names: "Dict[str, Any]", old: "Any", new: "Any") -> None:
    """Replace a value among the names of a module or a class."""
    import gc

    owner = None
    for one in gc.get_referrers(names):
        if isinstance(one, type) and "__module__" in names:
            owner = one
    for name, value in list(names.items()):
        if value is old:
            if owner is None:
                names[name] = new
            else:
                setattr(owner, name, new)  # its attributes may be in a cache


class _NameNotes:
    """Finder that finds nothing, and notes which modules are searched in the folders of ``sys.path``."""

    def __init__(self) -> None:
        self.names: Set[str] = set()

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if path is None:
            self.names.add(name)
        return None


class _WarmModules:
    """The imported modules, and whether a job would import the same.

    Parameters
    ----------
    order
        The supervisor's order: ``lines`` (top-level names and text of each import), ``argv``, ``memory``, ``path``.
    handle
        The socket to the supervisor.
    """

    def __init__(self, order: "Dict[str, Any]", handle: int) -> None:
        self._order, self._handle = order, handle
        self.reads, self._opened, self._searched = _EnvironmentUse(), _FileNotes(), _NameNotes()
        self.count = 0
        self._folder = ""
        self._files: Dict[str, Any] = {}
        self._folders: List[Tuple[str, Any]] = []

    def load(self) -> None:
        """Import what can be imported; raise `NotUsable` if this process cannot become a job."""
        if sys.implementation.name != "cpython" or not _FIRST <= sys.version_info[:2] <= _LAST:
            raise NotUsable("this Python is not known")
        main = sys.modules["__main__"]
        argv = list(sys.argv)
        sys.argv[:] = self._order["argv"]
        main.__file__ = self._order["path"]
        self._import()
        del main.__file__
        sys.argv[:] = argv
        self._check_process()
        self._note_files()
        self._folder = os.path.join(os.getcwd(), "")
        os.chdir("/")  # a folder that is in use can be neither unmounted nor replaced

    def _import(self) -> None:
        finder = next((one for one in sys.meta_path if type(one).__module__ == "sitecustomize"), None)
        if finder is None:
            raise NotUsable("its hooks are not there")
        run_hook: Any = finder._run  # type: ignore[attr-defined]

        def run_unnoted(hook: str, module: "Any") -> None:
            self.reads.is_paused = True  # hooks of the agent look at whether a variable is set, and read it later
            try:
                run_hook(hook, module)
            finally:
                self.reads.is_paused = False

        names = {"__name__": "__main__", "__builtins__": __builtins__}
        sys.meta_path.insert(0, self._searched)
        finder._run = run_unnoted  # type: ignore[attr-defined]
        self.reads.start()
        self._opened.start()
        try:
            for modules, text in self._order["lines"]:
                if not all(self._exists(name, finder) for name in modules):
                    break  # a module of the user's, which each run loads itself
                exec(compile(text, self._order["path"], "exec"), names)
                self.count += 1
        finally:
            self.reads.stop()
            self._opened.stop()
            del finder._run  # type: ignore[attr-defined]
            sys.meta_path.remove(self._searched)

    def _exists(self, name: str, own: "Any") -> bool:
        """Whether a module can be imported; an import that fails would leave traces."""
        if name in sys.modules:
            return True
        finders = [one for one in sys.meta_path if one is not own and one is not self._searched]
        return any(one.find_spec(name, None) is not None for one in finders if hasattr(one, "find_spec"))

    def _check_process(self) -> None:
        """Raise `NotUsable` unless this process has nothing but modules."""
        if os.fstat(1).st_size or os.fstat(2).st_size:
            raise NotUsable("its imports print")
        loaded = next((name for name in _COLD if name in sys.modules), "")
        if loaded:
            raise NotUsable("%s is imported" % loaded)
        threading = sys.modules.get("threading")
        if threading is not None and threading.active_count() > 1:
            raise NotUsable("its imports start a thread")
        if sys.getprofile() is not None or sys.gettrace() is not None:
            raise NotUsable("it is traced")
        site = sys.modules.get("site")
        if site is None or (site.ENABLE_USER_SITE and self._exists("usercustomize", None)):
            raise NotUsable("it has a usercustomize")
        for name in os.listdir("/proc/self/fd"):
            try:
                link = os.readlink("/proc/self/fd/" + name)
            except OSError:  # the one of the list itself
                continue
            if int(name) == SCRIPT_HANDLE or (link.startswith("socket:") and int(name) != self._handle):
                raise NotUsable("its imports open %s" % link)
            if link.startswith(("/dev/nvidia", "/dev/dri", "/dev/kfd")):
                raise NotUsable("its imports open a GPU")
        with open("/proc/self/task/%d/children" % os.getpid()) as file:
            if file.read().strip():
                raise NotUsable("its imports start a process")
        with open("/proc/self/statm") as file:
            if int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") > self._order["memory"]:
                raise NotUsable("its modules are large")

    def _note_files(self) -> None:
        """Note the files of all modules; raise `NotUsable` for one that is not of an installed package."""
        library = os.path.dirname(os.__file__)
        roots = [library]
        roots += [one for one in sys.path if os.path.basename(one) in ("site-packages", "dist-packages", "lib-dynload")]
        starts = tuple(os.path.join(root, "") for root in roots)
        is_installed = False
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None)
            if not isinstance(path, str) or path == "<frozen>" or name.startswith(("amltrain_", "sitecustomize")):
                continue
            if not os.path.isabs(path) and module.__spec__ is None:  # made by a package, as torch.ops
                continue
            if not path.startswith(starts):
                raise NotUsable("%s is not an installed package" % name)
            is_installed = is_installed or not path.startswith(starts[0]) or "-packages" in path
            self._files[path] = _signature(path)
        if not is_installed:
            raise NotUsable("it imports no package")
        self._files.update((one, _signature(one)) for one in self._opened.paths if not one.startswith("/proc/"))
        self._folders = [(one, _signature(one)) for one in sys.path]

    def checked(self, job: "Dict[str, Any]") -> int:
        """Return the descriptor of a job's script; raise `NotUsable` if a cold start could show something else."""
        for path, noted in [*self._files.items(), *self._folders]:
            if _signature(path) != noted:
                raise NotUsable("%s has changed" % path)
        if os.fstat(1).st_size or os.fstat(2).st_size:
            raise NotUsable("it has printed")
        if os.path.join(os.path.realpath(job["cwd"]), "") != self._folder:
            self._check_folder(self._folder, job["cwd"])
        script = job["argv"][2]
        folder = os.path.dirname(os.path.realpath(script))
        for entry in os.listdir(folder):
            if self._would_find(folder, entry) or entry.endswith((".dist-info", ".egg-info", ".egg")):
                raise NotUsable("%s is beside the script" % entry)
        handle = os.open(script, os.O_RDONLY)
        _check_syntax(handle, script)
        return handle

    def _check_folder(self, own: str, other: str) -> None:
        """Raise `NotUsable` if something that was imported in this working folder could differ in another one."""
        modules = self._opened.modules.difference(_FOLDER_NAMES)
        if modules:
            raise NotUsable("%s has read the working folder" % modules.pop())
        if any(one.startswith(own) for one in sys.path):
            raise NotUsable("it searches modules in the working folder")
        for path, noted in self._files.items():
            if path.startswith(own) and (noted is not None or _signature(os.path.join(other, path[len(own) :]))):
                raise NotUsable("%s is in the working folder" % path[len(own) :])

    def _would_find(self, folder: str, entry: str) -> bool:
        """Whether one of the imports would have found a file or folder beside the script."""
        name, dot, _ = entry.partition(".")
        if name not in self._searched.names or name in sys.builtin_module_names:
            return False
        module = sys.modules.get(name)
        path = os.path.join(folder, entry)
        is_plain = not dot and os.path.isdir(path) and not any(one.startswith("__init__.") for one in os.listdir(path))
        # A folder without code of its own is a module only where there is no other one.
        return not (is_plain and getattr(module, "__file__", None))


def _signature(path: str) -> "Any":
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _check_syntax(handle: int, path: str) -> None:
    """Raise `NotUsable` for a script whose errors and warnings of syntax would name another file."""
    with open(handle, "rb", closefd=False) as file:
        source = file.read()
    had = "warnings" in sys.modules
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            code = compile(source, path, "exec", dont_inherit=True)
    except Exception as error:  # warnings too: a fresh Python shows what is wrong with it
        raise NotUsable("its script does not compile: %s" % error) from None
    if not had:
        del sys.modules["warnings"]
    import _imp

    _imp._fix_co_filename(code, path + "c")  # type: ignore[attr-defined]
    if code.co_filename != path + "c":
        raise NotUsable("this Python does not change the name of a script")


def _become(job: "Dict[str, Any]", script: int, placeholder: str, handle: int) -> None:
    """Make this process that of the job, up to its script."""
    log = os.open(job["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    _overwrite_memory(job["argv"], job["set"].get(MARK, ""))
    os.dup2(script, SCRIPT_HANDLE, False)
    os.close(script)
    for name in job["unset"]:
        os.environ.pop(name, None)
    os.environ.update(job["set"])
    os.chdir(job["cwd"])
    for module, name in _FOLDER_NAMES.items():
        if module in sys.modules:
            setattr(sys.modules[module], name, os.getcwd())
    path = job["argv"][2]
    sys.argv[:] = job["argv"][2:]
    getattr(sys, "orig_argv", [])[:] = job["argv"]
    logging: Any = sys.modules.get("logging")
    if logging is not None:  # its milliseconds count from the start of the script
        import time

        own = logging._startTime
        logging._startTime = time.time_ns() if isinstance(own, int) else time.time()
    send(handle, ["ok"])
    if receive(handle) != GO:  # without it the job starts in another process
        raise EOFError
    os.close(handle)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    _rename_script(path, placeholder)


def _overwrite_memory(argv: "List[str]", mark: str) -> None:
    """Let ``/proc/<pid>/cmdline`` and the mark in ``/proc/<pid>/environ`` be the job's."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    arg_start, arg_end, env_start = (int(one) for one in fields[45:48])
    with open("/proc/self/environ", "rb") as file:
        block = b"\0" + file.read()
    entry = ("\0%s=%s\0" % (MARK, NO_MARK)).encode()
    at = block.find(entry)
    words = b"".join(os.fsencode(word) + b"\0" for word in argv)
    marked = ("%s=%s" % (MARK, mark)).encode()
    room = len(entry) - 2
    if at < 0 or len(words) > arg_end - arg_start or len(marked) > room:
        raise NotUsable("its command line is longer")
    memory = os.open("/proc/self/mem", os.O_WRONLY)
    try:
        os.pwrite(memory, words.ljust(arg_end - arg_start, b"\0"), arg_start)
        os.pwrite(memory, marked.ljust(room, b"\0"), env_start + at)
    finally:
        os.close(memory)


def _rename_script(path: str, placeholder: str) -> None:
    """Give the script its own name as soon as its code begins: Python has opened it by the name of a descriptor."""
    import _imp

    names = vars(sys.modules["__main__"])

    def see(frame: "Any", event: str, arg: "Any") -> None:
        if event != "call" or frame.f_globals is not names or frame.f_code.co_filename != placeholder:
            return
        sys.setprofile(None)
        os.close(SCRIPT_HANDLE)
        _imp._fix_co_filename(frame.f_code, path)  # type: ignore[attr-defined]
        names["__file__"] = names["__loader__"].path = path
        sys.path_importer_cache.pop(placeholder, None)
        sys.path_importer_cache[path] = None

    sys.setprofile(see)
