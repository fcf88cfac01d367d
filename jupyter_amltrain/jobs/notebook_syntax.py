"""Translates what only a notebook understands (``!ls``, ``%time``, ``await``) to Python at the same lines.

IPython finds the magics; what they mean in a job is in :mod:`jupyter_amltrain.agent.notebook_runtime`, which travels
with the script, so that the target needs no IPython.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.resources
import re
import shlex
import string
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from jupyter_amltrain.agent.notebook_runtime import INSTALL, MODULE, TIMER
from jupyter_amltrain.errors import PreflightError
from jupyter_amltrain.jobs import bindings, notebook_names, preflight
from jupyter_amltrain.jobs.edits import Edit, edit_of, edited

_CALL = f"__import__({MODULE!r})"
#: A text without any of these is Python, and has nothing that a notebook adds.
_TRIGGER = re.compile(r"[%!?]|\b(?:await|async|get_ipython|display)\b|^\s*>>> |^In \[", re.MULTILINE)
#: Line magics that change the notebook, and nothing in a job.
_SILENT = frozenset({"matplotlib", "config", "load_ext", "reload_ext", "unload_ext", "autoreload", "xmode"})
#: Line magics that are commands of the shell.
_SHELL = frozenset({"ls", "cat", "mkdir", "rm", "rmdir", "cp", "mv", "head", "tail", "ll", "man", "sx", "system"})
#: Line magics that a function of the module does, with the text of the line.
_FUNCTIONS = {"env": "env", "set_env": "env", "cd": "cd", "run": "run", "timeit": "measured"}
_INSTALL = re.compile(
    r"\s*(?:(?:\{sys\.executable\}|\$?\{?sys\.executable\}?|\S*python[\d.]*|uv)\s+)?(?:-m\s+)?"
    r"(?:pip[\d.]*|conda|mamba)\s+install\s+(?P<rest>.*)"
)
_HELP = frozenset({"pinfo", "pinfo2", "psearch"})
#: Cell magics that are refused, and what to write instead.
_INSTEAD = {
    "capture": "Delete the line: the log of the run has the output.",
    "script": "Write %%bash, or subprocess.run([...], check=True).",
    "prun": "Write cProfile.run(...).",
    "debug": "Delete the line: a run has no keyboard.",
    "html": "Delete the cell: it shows text and computes nothing.",
    "sql": "Send the result: run the query in another cell.",
}
#: Statements that cannot stand behind ``with ...:`` on one line.
_COMPOUND = (
    ast.For, ast.While, ast.If, ast.With, ast.Try, ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef, ast.Match,
)  # fmt: skip


class Translated(NamedTuple):
    """A cell as Python.

    Attributes
    ----------
    text
        The Python source, with the lines of the cell.
    reads
        Names that commands read in texts: ``!ls {folder}``.
    defines
        Names that commands define: ``_exit_code``, those of ``%run file.py``.
    before
        Statements for the line above the cell.
    after
        Lines behind it.
    packages
        Requirements that the cell installs.
    notes
        Sentences for the user.
    """

    text: str
    reads: frozenset[str] = frozenset()
    defines: frozenset[str] = frozenset()
    before: tuple[str, ...] = ()
    after: str = ""
    packages: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@functools.lru_cache(maxsize=64)
def translated(cell: str, *, first_line: int = 1, where: str = "Cell line") -> Translated:
    """Return a cell as Python; a text with an error of syntax is returned as it is.

    Parameters
    ----------
    first_line, where
        As :func:`.preflight.check` takes them.

    Raises
    ------
    PreflightError
        The cell has a magic that does nothing useful in a job.
    """
    if not _TRIGGER.search(cell):
        return Translated(cell)
    return _Translation(cell, first_line, where).result()


def files(script: str, modules: Iterable[str]) -> dict[str, str | bytes]:
    """Return the module beside a script that calls it; nothing for other scripts."""
    if not any(MODULE in text for text in (script, *modules)):
        return {}
    source = importlib.resources.files("jupyter_amltrain.agent").joinpath("notebook_runtime.py").read_bytes()
    return {f"{MODULE}.py": source}


class _Translation:
    def __init__(self, cell: str, first_line: int, where: str) -> None:
        self._cell, self._lines = cell, cell.split("\n")
        self._first_line, self._where = first_line, where
        self._reads: set[str] = set()
        self._defines: set[str] = set()
        self._before: list[str] = []
        self._after = ""
        self._packages: list[str] = []
        self._notes: list[str] = []

    def result(self) -> Translated:
        text = self._without_cell_magic(self._cell)
        try:
            tree = preflight.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            text = _of_ipython(text)
            try:
                tree = preflight.parse(text)
            except (SyntaxError, ValueError, RecursionError, MemoryError):  # the check of the text names the line
                return Translated(text)
        edits = [*self._magics(tree, text), *self._awaits(tree, text)]
        if re.search(r"\bdisplay\b", text):
            self._before.insert(0, INSTALL)  # one of the notebook takes precedence
            self._defines.add("display")
        return Translated(
            edited(text, edits),
            frozenset(self._reads),
            frozenset(self._defines),
            tuple(self._before),
            self._after,
            tuple(self._packages),
            tuple(self._notes),
        )

    def _error(self, line: int, what: str, hint: str) -> PreflightError:
        number, text = line + self._first_line - 1, self._lines[line - 1].strip() if line <= len(self._lines) else ""
        shown = text if len(text) <= 60 else f"{text[:59]}…"
        return PreflightError(
            f"{self._where} {number}, {shown!r}: {what}", hint=hint, code="preflight.code", details={"line": number}
        )

    # ---- cell magics

    def _without_cell_magic(self, text: str) -> str:
        """Return the text with the cell magic at its start as Python."""
        lead = len(text) - len(text.lstrip("\n\t "))
        match = re.match(r"%%(\w+)[ \t]*(.*)\n?", text[lead:])
        if match is None:
            return text
        name, line, body = match[1], match[2], text[lead + match.end() :]
        body += "" if not body or body.endswith("\n") else "\n"  # as IPython passes it
        number = text.count("\n", 0, lead) + 1
        if name == "time" and body.strip():
            self._after = "_amltrain_timer.show()\n"
            return "\n" * (number - 1) + f"{TIMER}\n" + body
        if name == "timeit" and body.strip():
            self._read_code(f"{body}\n{line}")
            call = f"measured({line!r}, {body!r})"
        elif name in ("bash", "sh") and body.strip():
            call = f"script({f'{name} {line}'.strip()!r}, {body!r})"
        elif name in ("writefile", "file"):
            self._read_text(line)
            call = f"writefile({line!r}, {body!r})"
        else:
            hint = _INSTEAD.get(name, "Delete the line, or write Python instead.")
            raise self._error(number, f"%%{name} does not work in a run.", hint)
        return "\n" * (number - 1) + f"{_CALL}.{call}" + "\n" * max(1, body.count("\n"))

    # ---- line magics and shell commands

    def _magics(self, tree: ast.Module, text: str) -> Iterator[Edit]:
        statements = {id(node.value): node for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not _is_of_shell(node.func):
                continue
            try:
                words = [ast.literal_eval(one) for one in node.args]
            except ValueError:  # the user's own call, with variables
                continue
            assert isinstance(node.func, ast.Attribute)
            made = self._call(node.func.attr, words, node.lineno, id(node) in statements)
            if made is not None:
                yield edit_of(node, made)

    def _call(self, method: str, words: list[Any], line: int, is_statement: bool) -> str | None:
        match method, words:
            case (("system" | "getoutput"), [str(command)]):
                if self._installs(command, line):
                    return "None"
                return self._command(method, command)
            case "run_line_magic", [str(name), str(rest), *_]:
                return self._line_magic(name, rest, line, is_statement)
            case "run_cell_magic", [str(name), *_]:
                raise self._error(line, f"%%{name} does not work here.", "Put it on the first line of the cell.")
        return None

    def _command(self, method: str, command: str) -> str:
        self._read_text(command)
        self._defines.add("_exit_code")
        return f"{_CALL}.{method}({command!r})"

    def _line_magic(self, name: str, rest: str, line: int, is_statement: bool) -> str:
        if name in _SILENT:
            return "None"
        if name in _HELP:
            raise self._error(
                line, "help with '?' works in a notebook only.", "Move the line to another cell or delete it."
            )
        if name in ("pip", "conda", "mamba"):
            if self._installs(f"{name} {rest}", line):
                return "None"
            return self._command("system", f"{name} {rest}")
        if name == "time":
            return self._time(rest, line, is_statement)
        if name == "pwd":
            return "__import__('os').getcwd()"
        if name in _SHELL:
            return self._command("system", rest if name in ("sx", "system") else f"{name} {rest}".strip())
        if name in _FUNCTIONS:
            if name == "timeit":
                self._read_code(rest)
            if name == "run":
                self._run_file(rest, line)
            self._read_text(rest)
            return f"{_CALL}.{_FUNCTIONS[name]}({rest!r})"
        hint = _INSTEAD.get(name, "Move the line to another cell or delete it.")
        raise self._error(line, f"%{name} does not work in a run.", hint)

    def _time(self, rest: str, line: int, is_statement: bool) -> str:
        inner = translated(rest, first_line=line + self._first_line - 1, where=self._where)
        self._reads |= inner.reads
        self._defines |= inner.defines
        try:
            body = preflight.parse(inner.text).body
        except SyntaxError as error:
            raise self._error(line, f"{error.msg}.", "Correct the line and run the cell again.") from None
        if len(body) == 1 and isinstance(body[0], ast.Expr):
            return f"{_CALL}.time(lambda: ({inner.text.strip()}))"
        if body and is_statement and not any(isinstance(node, _COMPOUND) for node in body):
            return f"with {_CALL}.Timer(): {inner.text.strip()}"
        self._read_code(inner.text)
        self._defines |= notebook_names.defined_names(inner.text)
        return f"{_CALL}.timed({inner.text!r})"

    def _run_file(self, rest: str, line: int) -> None:
        words = [word for word in rest.split() if not word.startswith("-")]
        if not words or words[0].endswith(".ipynb"):
            raise self._error(line, "%run of a notebook does not work in a run.", "Run a .py file, or its cells here.")
        try:
            with open(words[0] if words[0].endswith(".py") else f"{words[0]}.py", encoding="utf-8") as file:
                self._defines |= notebook_names.defined_names(file.read())
        except (OSError, SyntaxError, ValueError):  # the run says so
            pass

    def _installs(self, command: str, line: int) -> bool:
        """Whether a command installs packages, which become those of the run."""
        match = _INSTALL.fullmatch(command.strip())
        if match is None:
            return False
        try:
            words = shlex.split(re.split(r"\s(?:&&|\|\||[;|]|\d?>|#)", match["rest"])[0])
        except ValueError:
            words = []
        names = [word for word in words if not word.startswith("-")]
        other = {"-r", "--requirement", "-e", "--editable", "-i", "--index-url", "--extra-index-url", "-f", "-c"}
        if not names or other & set(words) or any(one in match["rest"] for one in "${"):
            hint = "Name the packages: --pip NAME; of a file: --env requirements.txt"
            raise self._error(line, "a run does not install packages while it runs.", hint)
        self._packages += [one for one in names if one not in self._packages]
        number = line + self._first_line - 1
        self._notes.append(
            f"{self._where} {number} does not run: the run has {', '.join(names)} from its start (--pip)."
        )
        return True

    def _read_text(self, text: str) -> None:
        """Note the names that ``$name`` and ``{expression}`` read."""
        self._reads |= {match.lstrip("$") for match in re.findall(r"\$[^\W\d]\w*", text)}
        try:
            fields = [field for _, field, _, _ in string.Formatter().parse(text) if field]
        except ValueError:  # braces of the shell
            return
        for field in fields:
            self._read_code(field.partition("!")[0])

    def _read_code(self, text: str) -> None:
        try:
            tree = preflight.parse(text.strip())
        except SyntaxError:  # not Python, or with options before it
            self._reads |= set(re.findall(r"[^\W\d]\w*", text))
            return
        self._reads |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        with contextlib.suppress(SyntaxError):
            self._reads |= {word for one in bindings.code_texts(tree) for word in re.findall(r"\w+", one)}

    # ---- await

    def _awaits(self, tree: ast.Module, text: str) -> Iterator[Edit]:
        found = False
        for node in preflight.outside_functions(tree):
            if isinstance(node, ast.Await):
                yield Edit(node.lineno, node.col_offset, node.lineno, node.col_offset + 5, f"{_CALL}.wait(")
                yield _insert_behind(node, ")")
            elif isinstance(node, ast.AsyncFor):
                yield _async_word(text, node.lineno, node.col_offset)
                yield from _wrapped(node.iter, "items")
            elif isinstance(node, ast.AsyncWith):
                yield _async_word(text, node.lineno, node.col_offset)
                for item in node.items:
                    yield from _wrapped(item.context_expr, "entered")
            elif isinstance(node, ast.comprehension) and node.is_async:
                yield _async_before(text, node.target)
                yield from _wrapped(node.iter, "items")
            else:
                continue
            found = True
        if found:
            self._before.append(f"{_CALL}.start_loop()")


def _is_of_shell(node: ast.expr) -> bool:
    """Whether an expression is an attribute of ``get_ipython()``."""
    owner = node.value if isinstance(node, ast.Attribute) else None
    return isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "get_ipython"


def _insert_behind(node: ast.expr, text: str) -> Edit:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return Edit(node.end_lineno, node.end_col_offset, node.end_lineno, node.end_col_offset, text)


def _wrapped(node: ast.expr, function: str) -> Iterator[Edit]:
    yield Edit(node.lineno, node.col_offset, node.lineno, node.col_offset, f"{_CALL}.{function}(")
    yield _insert_behind(node, ")")


def _async_word(text: str, line: int, column: int) -> Edit:
    """Return the edit that deletes ``async`` and the space behind it."""
    rest = text.split("\n")[line - 1].encode()[column:]
    return Edit(line, column, line, column + len(rest) - len(rest[5:].lstrip()), "")


def _async_before(text: str, target: ast.expr) -> Edit:
    """Return the edit that deletes the ``async`` of a comprehension, whose target is known."""
    lines = [line.encode() for line in text.split("\n")]
    before = b"\n".join([*lines[: target.lineno - 1], lines[target.lineno - 1][: target.col_offset]])
    start = before.rindex(b"async")
    return _async_word(text, before.count(b"\n", 0, start) + 1, start - (before.rfind(b"\n", 0, start) + 1))


def _of_ipython(text: str) -> str:
    """Return the text with magics as calls of ``get_ipython()``, each on the line where it began."""
    from IPython.core import inputtransformer2 as ipython

    class Manager(ipython.TransformerManager):
        def do_one_token_transform(self, lines: list[str]) -> tuple[bool, list[str]]:
            tokens = ipython.make_tokens_by_line(lines)
            kinds: list[Any] = self.token_transformers
            found = [one for kind in kinds if (one := kind.find(tokens))]
            order: Callable[[Any], Any] = ipython.TokenTransformBase.sortby
            for transformer in sorted(found, key=order):
                try:
                    made = transformer.transform(lines)
                except SyntaxError:
                    continue
                # A command on several lines becomes one line; empty ones take the place of the others.
                at = transformer.start_line + 1
                return True, [*made[:at], *["\n"] * (len(lines) - len(made)), *made[at:]]
            return False, lines

    lead = len(text) - len(text.lstrip("\n"))
    transform: Callable[[str], str] = Manager().transform_cell  # type: ignore[no-untyped-call]
    try:
        return "\n" * lead + transform(text[lead:])
    except Exception:  # a text that is neither
        return text
