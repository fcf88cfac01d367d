"""Names in the expression that raised, in its line, and in the rest of its statement: in this order.

The module travels alone, as ``amltrain_failing_names.py`` among the hooks of a job.
"""

from __future__ import annotations

import ast
import itertools
import linecache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

    #: A step from a value to its part: an attribute, a constant index, or the index that a variable has.
    Step = Tuple[str, Union[str, int]]

    class Path(NamedTuple):
        """A name with what follows it: ``self.layers[0]``."""

        root: str
        steps: Tuple[Step, ...]

else:
    from collections import namedtuple

    Path = namedtuple("Path", "root steps")

#: Characters of a source that is parsed, and of a line.
_MAX_SOURCE, _MAX_LINE = 1 << 20, 200
#: Names of one statement.
_MAX_PATHS = 24


def span_of(traceback: Any) -> Optional[Tuple[int, int, int, int]]:
    """Return where the expression that raised stands, from Python 3.11 on; ``None`` if it is not known."""
    code = traceback.tb_frame.f_code
    if traceback.tb_lasti < 0 or not hasattr(code, "co_positions"):
        return None
    found = next(itertools.islice(code.co_positions(), traceback.tb_lasti // 2, None), None)
    return None if found is None or None in found else found


def line_of(file: str, line: int) -> str:
    """Return a line of a source, without the space around it."""
    return linecache.getline(file, line).strip()[:_MAX_LINE].encode("utf-8", "replace").decode()


class ParsedSources:
    """The parsed sources of a failure's files."""

    def __init__(self) -> None:
        self._trees: Any = {}

    def paths(self, code: Any, line: int, span: Optional[Tuple[int, int, int, int]]) -> List[Path]:
        """Return the names of the statement in a line: first those of the expression that raised.

        Parameters
        ----------
        code
            The code of the frame.
        span
            Place of that expression, as :func:`span_of` returns it.
        """
        try:
            return self._paths(code, line, span)
        except Exception:  # for example nested too deeply
            return []

    def _paths(self, code: Any, line: int, span: Optional[Tuple[int, int, int, int]]) -> List[Path]:
        tree = self._tree_of(code)
        parts = [] if tree is None else _parts(tree, line)
        found: Any = {}
        if span is not None:
            for part in parts:
                for node in ast.walk(part):
                    if _span_of(node) == span:
                        found.update(dict.fromkeys(_paths_in(node)))
        here = [path for part in parts for path, first, last in _placed_paths(part) if first <= line <= last]
        rest = [path for part in parts for path in _paths_in(part)]
        return list(dict.fromkeys([*found, *here, *rest]))[:_MAX_PATHS]

    def _tree_of(self, code: Any) -> Any:
        """Return the tree of a function, which is parsed sooner than its file; of other code that of the file."""
        key = code.co_filename, code.co_firstlineno if not code.co_name.startswith("<") else 0
        if key not in self._trees:
            lines = linecache.getlines(key[0])
            block = _block(lines, key[1]) if key[1] else ""
            self._trees[key] = _parsed(block, key[1] - 2) if block else None
            if self._trees[key] is None:
                self._trees[key] = _parsed("".join(lines), 0)
        return self._trees[key]


def _parsed(source: str, above: int) -> Any:
    """Return the tree of a source, with the number of lines above it added to its lines."""
    try:
        tree = ast.parse(source) if 0 < len(source) <= _MAX_SOURCE else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the file has changed since, for example
        return None
    return ast.increment_lineno(tree, above) if tree is not None and above else tree


def _block(lines: Sequence[str], first: int) -> str:
    """Return the lines of a function below a line of its own indent, so that columns stay as they are."""
    if not 0 < first <= len(lines):
        return ""
    start = lines[first - 1]
    indent = len(start) - len(start.lstrip())
    block = ["if 1:\n" if indent else "0\n"]
    has_body = False
    for line in lines[first - 1 :]:
        depth = len(line) - len(line.lstrip())
        if has_body and line.strip() and depth <= indent and line.lstrip()[0] not in ")]}#":
            break
        has_body = has_body or depth > indent
        block.append(line)
    return "".join(block)


def _parts(tree: Any, line: int) -> List[Any]:
    """Return the expressions of the innermost statements that contain a line, and of others with a part in it."""
    found: List[Any] = []
    bodies = [tree.body]
    while bodies:
        inner = [one for body in bodies for one in body if _first_line(one) <= line <= (one.end_lineno or one.lineno)]
        if inner:
            outer = [one for one in found if one.lineno <= line <= one.end_lineno]  # `if x: f(x)`
            found = [*(part for one in inner for part in _own_parts(one)), *outer]
        bodies = [body for one in inner for body in _bodies(one)]
    return found


def _first_line(node: Any) -> int:
    return min([int(node.lineno), *(int(one.lineno) for one in getattr(node, "decorator_list", ()))])


def _bodies(node: Any) -> Iterator[Any]:
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        body = getattr(node, name, None)
        if isinstance(body, list) and body:
            first = body[0]
            if isinstance(first, ast.stmt):
                yield body
            else:  # handlers of exceptions, cases of a match
                for one in body:
                    yield one.body


def _own_parts(statement: Any) -> Iterator[Any]:
    """Return the expressions of a statement, of a compound one only those of its head."""
    for _, value in ast.iter_fields(statement):
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ast.expr):
                yield one
            elif isinstance(one, (ast.withitem, ast.keyword)):
                yield one.context_expr if isinstance(one, ast.withitem) else one.value
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield from statement.args.defaults


def _span_of(node: Any) -> Any:
    if not hasattr(node, "end_lineno"):
        return None
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _paths_in(node: Any) -> List[Path]:
    return [path for path, _, _ in _placed_paths(node)]


def _placed_paths(node: Any) -> Iterator[Tuple[Path, int, int]]:
    """Return the names in an expression with their first and last line, in the order of the text."""
    path = _path(node)
    if path is not None:
        yield path, node.lineno, node.end_lineno
        if not path.steps:
            return
    for child in ast.iter_child_nodes(node):
        is_part = path is not None and child is getattr(node, "value", None) and _path(child) is not None
        if is_part and isinstance(node, ast.Attribute):  # of `self.fc.weight` the whole is enough
            yield from _indices_in(child)
        else:
            yield from _placed_paths(child)


def _indices_in(node: Any) -> Iterator[Tuple[Path, int, int]]:
    for child in ast.walk(node):
        if isinstance(child, ast.Subscript):
            yield from _placed_paths(child.slice)


def _path(node: Any) -> Optional[Path]:
    """Return a name, its attribute, or its part by a constant or a name; ``None`` for another expression."""
    steps: List[Step] = []
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            steps.append((".", node.attr))
        elif isinstance(node, ast.Subscript):
            index = _index(node.slice)
            if index is None:
                return None
            steps.append(index)
        else:
            return None
        node = node.value
    return Path(node.id, tuple(reversed(steps)))


def _index(node: Any) -> Optional[Step]:
    if type(node).__name__ == "Index":  # Python 3.8
        node = node.value
    constant: Any = node.value if isinstance(node, ast.Constant) else None
    if type(constant) in (str, int):
        return "[]", constant
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return ("[]", -node.operand.value) if type(node.operand.value) is int else None
    return ("[name]", node.id) if isinstance(node, ast.Name) else None


def text_of(path: Path) -> str:
    """Return a path as the script writes it."""
    text: str = path.root
    for kind, key in path.steps:
        text += ".%s" % key if kind == "." else "[%s]" % (key if kind == "[name]" else repr(key))
    return text
