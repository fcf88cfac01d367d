"""Checks of a script before it is sent, for errors that would certainly make it fail."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import threading
import tokenize
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.errors import PreflightError

if TYPE_CHECKING:
    import symtable

#: File name that warnings show for the code.
_FILE = "<amltrain: code of a job>"

_PATTERN = rf"{_FILE}\Z"

_PARSE_ATTEMPTS = 5
_parsing = threading.Lock()


def parse(text: str | bytes) -> ast.Module:
    """Return the syntax tree of `text`; raises the errors of :func:`ast.parse`."""
    tree: ast.Module = _parsed(text, "exec")
    return tree


def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """Return all nodes of a tree, which several checks look at, as :func:`ast.walk` yields them."""
    nodes: list[ast.AST] | None = getattr(tree, "_amltrain_nodes", None)
    if nodes is None:
        nodes = list(ast.walk(tree))
        tree._amltrain_nodes = nodes  # type: ignore[attr-defined]
    return nodes


def literal(text: str) -> Any:
    """Return the value of a literal; raises the errors of :func:`ast.literal_eval`."""
    return ast.literal_eval(_parsed(text.lstrip(" \t"), "eval"))


def check_syntax(tree: ast.Module) -> None:
    """Raise ``SyntaxError`` for errors that the parser accepts, such as ``break`` outside a loop."""
    _quiet()
    compile(tree, _FILE, "exec", dont_inherit=True)


def table(text: str) -> symtable.SymbolTable:
    """Return the symbol table of a module's text; raises ``SyntaxError`` as compiling it would."""
    import symtable  # slow: keep it out of %load_ext

    _quiet()
    return symtable.symtable(text, _FILE, "exec")


def _parsed(text: str | bytes, mode: str) -> Any:
    """Return the syntax tree of `text`; repeats what a thread parsing at the same time has spoiled.

    Python 3.11 and 3.12 count the depth of the tree once for the whole interpreter, so that
    two threads that parse at once may fail with ``SystemError`` (python/cpython#106905).
    The lock keeps threads of this package apart; the cell of a notebook is beyond it.
    """
    _quiet()
    for _ in range(_PARSE_ATTEMPTS):
        with _parsing, contextlib.suppress(SystemError):
            return ast.parse(text, _FILE, mode)
    return ast.parse(text, _FILE, mode)


def _quiet() -> None:
    # The first filter wins. Each change makes Python repeat warnings that were already shown, so the filters
    # are changed only if needed.
    first = warnings.filters[0] if warnings.filters else None
    if getattr(first and first[3], "pattern", "") != _PATTERN:
        warnings.filterwarnings("ignore", module=_PATTERN)


# Syntax of IPython only. The patterns are applied to the starts of statements in a text
# that is not valid Python, so they never see `%` as an operator, `!=` or strings.
_MAGIC = re.compile(r"\s*%{1,2}[A-Za-z_]")

_SHELL = re.compile(r"\s*!")

_HELP = re.compile(r"\s*(\?{1,2}\s*\S|%{0,2}[\w.*]+(\[\d+\])?\s*\?{1,2}\s*$)")

_ASSIGNED = re.compile(r"\s*[A-Za-z_][\w.,\s\[\]'\"]*=\s*(?P<sign>!|%[A-Za-z_])")

#: Calls that read from the keyboard.
_KEYBOARD = frozenset({"input", "builtins.input", "getpass.getpass"})

#: A text without any of these words needs no further check.
_KEYBOARD_WORDS = ("input", "getpass")


def check(text: str, *, first_line: int = 1, where: str = "Cell line") -> ast.Module:
    """Check the text of a cell or script and return its syntax tree.

    Parameters
    ----------
    text
        Python source with ``\\n`` line ends.
    first_line
        Number that messages give to the first line of `text` (2 for a cell, whose
        line 1 is the magic itself).
    where
        Text before the line number in messages.

    Raises
    ------
    PreflightError
        Names the line, its text and what to write instead.
    """
    checker = _Checker(text, first_line, where)
    return checker.check()


class _Checker:
    def __init__(self, text: str, first_line: int, where: str) -> None:
        self.text = text
        self.lines = text.split("\n")
        self.first_line = first_line
        self.where = where

    def error(self, lineno: int, what: str, hint: str) -> PreflightError:
        number = lineno + self.first_line - 1
        return PreflightError(
            f"{self.where} {number}, {_shown(self.line(lineno))}: {what}",
            hint=hint,
            code="preflight.code",
            details={"line": number},
        )

    def line(self, lineno: int) -> str:
        return self.lines[lineno - 1] if 0 < lineno <= len(self.lines) else ""

    def check(self) -> ast.Module:
        try:
            self.text.encode()
        except UnicodeEncodeError as error:
            lineno = self.text.count("\n", 0, error.start) + 1
            raise self.error(lineno, "invalid character (a lone surrogate).", "Type the line again.") from None
        try:
            tree = parse(self.text)
            self.check_top_level(tree)
            if any(word in self.text for word in _KEYBOARD_WORDS):
                self.check_keyboard(tree)
            check_syntax(tree)
        except SyntaxError as error:
            self.check_ipython()
            raise self.syntax(error) from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise PreflightError(
                f"The text is not Python source: {error or type(error).__name__}.",
                hint="Look for null characters or very deep nesting.",
            ) from None
        return tree

    def syntax(self, error: SyntaxError) -> PreflightError:
        lineno = min(error.lineno or 1, len(self.lines))
        line = self.line(lineno)
        at = (error.offset or 1) - 1
        # The message has one line, so it quotes the text at the error in place of a caret.
        rest = line[at : at + 20].strip()
        near = f" at {rest!r}" if rest and rest != line.strip() else ""
        return self.error(lineno, f"{error.msg}{near}.", "Correct the line and run the cell again.")

    def check_ipython(self) -> None:
        """Raise for the first line that only IPython understands."""
        for lineno, line in enumerate(self.lines, 1):
            assigned = _ASSIGNED.match(line)
            shell = bool(_SHELL.match(line)) or (assigned and assigned["sign"] == "!")
            magic = bool(_MAGIC.match(line)) or assigned
            help_line = bool(_HELP.match(line))
            if not (shell or magic or help_line) or not self.begins_statement(lineno):
                continue
            if help_line:
                what, hint = "Help with '?' does not work here", "Move the line to another cell or delete it."
            elif shell:
                what = "Shell commands with '!' do not work here"
                hint = "Move the line to another cell, or write subprocess.run([...], check=True)."
            else:
                what = "Magics do not work here"
                hint = "Move the line to another cell or delete it."
            raise self.error(lineno, f"{what}: this cell runs as a plain Python script.", hint)

    def begins_statement(self, lineno: int) -> bool:
        """Whether line `lineno` is outside all brackets and strings."""
        before = "\n".join(self.lines[: lineno - 1]) + "\n"
        try:
            for _ in tokenize.generate_tokens(io.StringIO(before).readline):
                pass
        except (tokenize.TokenError, SyntaxError):
            return False
        return not before.endswith("\\\n")

    def check_top_level(self, tree: ast.Module) -> None:
        for node in outside_functions(tree):
            if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith) or (
                isinstance(node, ast.comprehension) and node.is_async
            ):
                lineno = node.target.lineno if isinstance(node, ast.comprehension) else node.lineno
                raise self.error(
                    lineno,
                    "'await' outside a function works in a cell only.",
                    "Put it in 'async def main()' and end with: asyncio.run(main())",
                )
            if isinstance(node, ast.Return):
                raise self.error(node.lineno, "'return' outside a function.", "Use sys.exit() to end a script.")

    def check_keyboard(self, tree: ast.Module) -> None:
        bound, origin = _bound(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = node.func
            if isinstance(called, ast.Name):
                full = "" if called.id in bound else origin.get(called.id, called.id)
            elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                full = f"{origin.get(called.value.id, '?')}.{called.attr}"
            else:
                continue
            if full not in _KEYBOARD:
                continue
            raise self.error(
                node.lineno,
                f"{full}() reads from the keyboard, which a run does not have.",
                "Pass the value: --param name=value"
                + (" or, kept out of every file, --secret NAME." if "getpass" in full else "."),
            )


def _shown(line: str, width: int = 60) -> str:
    line = line.strip()
    return repr(line if len(line) <= width else line[: width - 1] + "…")


def outside_functions(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes that run when the module is executed."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        yield child
        yield from outside_functions(child)


def _bound(tree: ast.Module) -> tuple[set[str], dict[str, str]]:
    """Return the names that the script binds, and the origin of imported names."""
    bound: set[str] = set()
    origin: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                origin[name] = alias.name if alias.asname else name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                origin[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return bound, origin


def is_literal(node: ast.expr) -> bool:
    """Whether an expression is a literal."""
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True
