"""What notebook syntax means in a job: shell commands, timings, ``await`` outside functions, ``display``.

The module travels alone, as ``_amltrain_notebook.py`` beside a job's script, so it imports only the standard library.
The script calls it where the cell had ``!ls`` or ``%time``; names are those of the line that calls.
"""

import builtins
import contextlib
import os
import re
import string
import subprocess
import sys
import time as _time
from typing import Any, Dict, Iterator, List, Optional, Tuple

#: Name of this module beside the script.
MODULE = "_amltrain_notebook"
#: First statement of a script that shows values: it imports this module, and defines ``display``.
INSTALL = "__import__('%s').install()" % MODULE
#: First statement of a cell that measures its time.
TIMER = "_amltrain_timer = __import__('%s').Timer()" % MODULE
#: A loop of ``%timeit`` takes at least so many seconds, and is repeated so many times.
_LOOP_S, _REPEAT = 0.2, 7
#: ``$name`` outside single quotes, and ``$$name``, as IPython's DollarFormatter finds them.
_DOLLAR = re.compile(r"\$(?P<name>\$?[\w.]+)(?=(?:[^']*'[^']*')*[^']*$)")


# ---- names of the calling line


def _names(depth: int) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Return the global and local names of a caller; 1 is who called the function that calls this."""
    frame = sys._getframe(depth + 1)
    return frame.f_globals, frame.f_locals


def expanded(text: str, depth: int = 1) -> str:
    """Return a command with ``$name`` and ``{expression}`` replaced, as IPython does: all of them or none."""
    module, local = _names(depth + 1)
    formatter = string.Formatter()

    def value(field: str, form: Optional[str] = None, how: Optional[str] = None) -> str:
        whole = ":".join([field, form]) if form else field  # IPython reads what follows a colon as a slice
        return str(formatter.convert_field(eval(whole, module, local), how))

    parts: List[str] = []
    try:
        for start, field, form, how in formatter.parse(text):
            at = 0
            for match in _DOLLAR.finditer(start):
                name = match["name"]
                parts += [start[at : match.start("name") - 1], name if name[0] == "$" else value(name)]
                at = match.end()
            parts += [start[at:], "" if field is None else value(field, form, how)]
    except Exception:  # a variable of the shell, or braces of awk: IPython leaves all of the text, too
        return text
    return "".join(parts)


# ---- shell commands


class Lines(list):  # type: ignore[type-arg]
    """Lines of a command's output: ``.n`` is one text, ``.s`` has spaces between them, ``.p`` are paths."""

    @property
    def l(self) -> List[str]:  # noqa: E743  # the name that IPython's has
        return list(self)

    @property
    def n(self) -> str:
        return "\n".join(self)

    nlstr = n
    list = l

    @property
    def s(self) -> str:
        return " ".join(self)

    spstr = s

    @property
    def p(self) -> List[Any]:
        import pathlib

        return [pathlib.Path(line) for line in self if os.path.exists(line)]

    paths = p

    def grep(self, pattern: str, prune: bool = False, field: Optional[int] = None) -> "Lines":
        """Return the lines that a regular expression matches, or with `prune` the others."""
        lines = [(line.split() + [""] * 100)[field] if field is not None else line for line in self]
        found = [bool(re.search(pattern, line, re.IGNORECASE)) for line in lines]
        return Lines(line for line, is_match in zip(self, found) if is_match != prune)

    def fields(self, *numbers: int) -> "Lines":
        """Return some of the fields of each line."""
        rows = [line.split() for line in self]
        if not numbers:
            return Lines(rows)
        return Lines(" ".join(row[i] for i in numbers if -len(row) <= i < len(row)) for row in rows)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or replaced by the script with anything
            stream.flush()


def _user_shell() -> Optional[str]:
    """Return the shell that IPython would use; ``None`` for the system's."""
    path = os.environ.get("SHELL", "")
    return path if path.endswith("sh") and os.access(path, os.X_OK) else None  # a service may have ``nologin``


def system(command: str) -> None:
    """Run ``!command``; its exit code is ``_exit_code``."""
    module, _ = _names(1)
    command = expanded(command)
    _flush()
    code = subprocess.call(command, shell=True, executable=_user_shell())
    module["_exit_code"] = code if code <= 128 else 128 - code


def getoutput(command: str) -> Lines:
    """Run ``lines = !command``."""
    command = expanded(command)
    _flush()
    done = subprocess.run(
        command, shell=True, executable=_user_shell(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return Lines(done.stdout.decode(errors="replace").splitlines())


def script(program: str, body: str) -> None:
    """Run the cell below ``%%bash`` or ``%%sh``; raises if it fails."""
    _flush()
    words = program.split()
    done = subprocess.Popen(words, stdin=subprocess.PIPE)
    done.communicate(body.encode())
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, words)


# ---- times


def _seconds(seconds: float, digits: int = 3) -> str:
    """Return a time as ``%time`` prints it: ``1min 2s``, ``1.5 s``, ``20 ms``."""
    if seconds >= 60:
        parts = []
        left = int(seconds)
        for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
            count, left = divmod(left, size)
            if count:
                parts.append("%d%s" % (count, unit))
        return " ".join(parts)
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6), ("ns", 1e9)):
        if seconds * factor >= 1 or unit == "ns":
            return "%.*g %s" % (digits, seconds * factor, unit)
    return ""


def _cpu_times() -> Tuple[float, float]:
    """Return the CPU time of this process so far, in user and in system mode (seconds)."""
    try:
        import resource
    except ImportError:  # Windows
        return os.times()[0], os.times()[1]
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime, used.ru_stime


class Timer:
    """Measures ``%time`` and ``%%time``; as a context, or from its creation to :meth:`show`."""

    def __init__(self) -> None:
        self._cpu, self._wall = _cpu_times(), _time.perf_counter()

    def __enter__(self) -> "Timer":
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            self.show()

    def show(self) -> None:
        """Print the times."""
        wall, cpu = _time.perf_counter() - self._wall, _cpu_times()
        user, system = cpu[0] - self._cpu[0], cpu[1] - self._cpu[1]
        if sys.platform != "win32":
            print("CPU times: user %s, sys: %s, total: %s" % tuple(map(_seconds, (user, system, user + system))))
        print("Wall time: %s" % _seconds(wall))


def time(value: Any) -> Any:
    """Return the value of the expression of ``%time``, a function without arguments, and print how long it took."""
    with Timer():
        return value()


def timed(statements: str) -> None:
    """Execute the compound statement of ``%time``."""
    module, local = _names(1)
    code = compile(statements, "<timed exec>", "exec")
    with Timer():
        exec(code, module, local)


class TimeitResult:
    """Times of ``%timeit -o``: seconds of one loop, for each repetition."""

    def __init__(self, loops: int, timings: List[float], digits: int = 3) -> None:
        self.loops, self.repeat, self.timings, self._digits = loops, len(timings), timings, digits
        self.all_runs = [one * loops for one in timings]
        self.best, self.worst = min(timings), max(timings)
        self.average = sum(timings) / len(timings)
        self.stdev = (sum((one - self.average) ** 2 for one in timings) / len(timings)) ** 0.5

    def __str__(self) -> str:
        return "%s ± %s per loop (mean ± std. dev. of %d run%s, %s loop%s each)" % (
            _seconds(self.average, self._digits),
            _seconds(self.stdev, self._digits),
            self.repeat,
            "" if self.repeat == 1 else "s",
            format(self.loops, ","),
            "" if self.loops == 1 else "s",
        )

    __repr__ = lambda self: "<TimeitResult : %s>" % self  # noqa: E731


def measured(line: str, body: Optional[str] = None) -> Optional[TimeitResult]:
    """Measure the statement of ``%timeit``, or the cell below ``%%timeit``, whose line is the setup."""
    import timeit

    module, local = _names(1)
    options, statement = _options(line, "nrp", "oqtc")
    setup = "pass"
    if body is not None:
        setup, statement = statement or "pass", body
    timer = timeit.Timer(statement, setup, globals={**module, **local})
    loops, repeat = int(options.get("n", 0)), int(options.get("r", _REPEAT))
    if not loops:
        for power in range(10):
            loops = 10**power
            if timer.timeit(loops) >= _LOOP_S:
                break
    result = TimeitResult(loops, [one / loops for one in timer.repeat(repeat, loops)], int(options.get("p", 3)))
    if "q" not in options:
        print(result)
    return result if "o" in options else None


def _options(line: str, with_value: str, switches: str) -> Tuple[Dict[str, str], str]:
    """Return the options at the start of a line, and the rest of it."""
    options: Dict[str, str] = {}
    rest = line.strip()
    while True:
        match = re.match(r"-(?:(?P<name>[%s])\s*(?P<value>\d+)|(?P<flag>[%s]))(?:\s+|$)" % (with_value, switches), rest)
        if match is None:
            return options, rest
        options[match["name"] or match["flag"]] = match["value"] or ""
        rest = rest[match.end() :]


# ---- files and environment


def env(line: str = "") -> Any:
    """Do ``%env``: all variables, the value of one, or ``%env NAME=VALUE``."""
    line = expanded(line.strip())
    if not line:
        return dict(os.environ)
    name, separator, value = line.partition("=") if "=" in line else line.partition(" ")
    if not separator:
        if name in os.environ:
            return os.environ[name]
        raise KeyError("Environment variable %s is not set" % name)
    os.environ[name.strip()] = value.strip()
    print("env: %s=%s" % (name.strip(), value.strip()))
    return None


def cd(line: str = "") -> None:
    """Do ``%cd``."""
    line = expanded(line.strip())
    quiet = line.startswith("-q")
    line = (line[2:] if quiet else line).strip().strip("\"'")
    last = os.environ.get("OLDPWD", os.getcwd())
    here = os.getcwd()
    os.chdir(last if line == "-" else os.path.expanduser(line or "~"))
    os.environ["OLDPWD"] = here
    if not quiet:
        print(os.getcwd())


def run(line: str) -> None:
    """Do ``%run file.py``: execute a file, and take the names that it defines."""
    import runpy
    import shlex

    module, _ = _names(1)

    words = shlex.split(expanded(line))
    is_inside = "-i" in words[:1]
    name, *args = [word for word in words if word not in ("-i", "-e", "-n") or word not in words[:1]]
    if not os.path.exists(name) and os.path.exists(name + ".py"):
        name += ".py"
    before, path = sys.argv, list(sys.path)
    sys.argv, sys.path[0:0] = [name, *args], [os.path.dirname(os.path.abspath(name))]
    try:
        found = runpy.run_path(name, module if is_inside else None, "__main__")
    except SystemExit as end:
        if end.code:
            raise
        return
    finally:
        sys.argv, sys.path[:] = before, path
    module.update({key: value for key, value in found.items() if not (key.startswith("__") and key.endswith("__"))})


def writefile(line: str, body: str) -> None:
    """Write the cell below ``%%writefile``."""
    line = expanded(line.strip())
    append = line.startswith("-a ")
    name = os.path.expanduser((line[3:] if append else line).strip().strip("\"'"))
    exists = os.path.exists(name)
    print("%s %s" % ("Appending to" if append and exists else "Overwriting" if exists else "Writing", name))
    with open(name, "a" if append else "w", encoding="utf-8") as file:
        file.write(body)


# ---- display


def display(*values: Any, **options: Any) -> Any:
    """Show values: between the lines of the log with their rich forms, else as text."""
    try:
        return __import__("amltrain_display").display(*values, **options)  # among the hooks of a job
    except ImportError:
        pass
    try:
        text = __import__("amltrain_pretty").pretty
    except ImportError:
        text = repr
    for value in values:
        print(text(value))
    return None


def install() -> None:
    """Add the functions that a notebook has to the builtins, unless IPython has done it."""
    if not hasattr(builtins, "display"):
        builtins.display = display  # type: ignore[attr-defined]


# ---- await


_loop: Any = None


def start_loop() -> None:
    """Make the event loop of the script, in which ``asyncio.create_task`` works outside functions."""
    import asyncio

    global _loop
    _loop = asyncio.new_event_loop()
    asyncio.set_event_loop(_loop)
    asyncio._set_running_loop(_loop)


def wait(awaitable: Any) -> Any:
    """Return the value of ``await awaitable``."""
    import asyncio

    async def result() -> Any:
        return await awaitable

    asyncio._set_running_loop(None)
    try:
        return _loop.run_until_complete(result())
    finally:
        asyncio._set_running_loop(_loop)


def items(iterable: Any) -> Iterator[Any]:
    """Yield what ``async for`` takes."""
    iterator = iterable.__aiter__()
    while True:
        try:
            yield wait(iterator.__anext__())
        except StopAsyncIteration:
            return


class entered:
    """A context for ``async with``."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __enter__(self) -> Any:
        return wait(type(self._context).__aenter__(self._context))

    def __exit__(self, *error: Any) -> Any:
        return wait(type(self._context).__aexit__(self._context, *error))
