"""The names of a script: what it assigns, what it reads, and which assignments override a parameter."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import difflib
import enum
import re
import symtable
from collections.abc import Collection, Iterable, Iterator, Sequence

from jupyter_amltrain.jobs import preflight

#: Calls after which nobody can tell from the text what is assigned or read.
_OPAQUE_CALLS = frozenset({"globals", "locals", "vars", "exec", "eval"})
#: Attributes by which a script reaches its own module from outside.
_OPAQUE_ATTRIBUTES = frozenset({"modules", "__dict__", "__globals__"})
_OPAQUE_WORDS = re.compile(rf"\b(?:{'|'.join(sorted(_OPAQUE_CALLS | _OPAQUE_ATTRIBUTES))}|__main__|import\s*\(?\s*\*)")
#: Calls whose texts are code with names of variables (pandas, numexpr, DuckDB), and such a name in any text.
_CODE_CALLS = frozenset({"query", "eval", "evaluate", "sql", "execute"})
_AT_NAME = re.compile(r"@\w+")


@dataclasses.dataclass(frozen=True)
class Names:
    """Names of a module.

    Attributes
    ----------
    assigned
        Bound at module level anywhere in the text: also in branches, and by functions that declare them ``global``.
    read
        Looked up at module level or from inside a function or class.
    opaque
        The text uses ``globals()``, ``exec``, ``import *`` or the like, so both sets may be too small.
    texts
        The string constants that are code: arguments of ``query``, ``eval`` and the like, and texts with ``@name``
        (``df.query("x > @lr")``). A word in any other text is no use of a variable.
    """

    assigned: frozenset[str]
    read: frozenset[str]
    opaque: bool
    texts: tuple[str, ...]

    def mentioned(self, name: str) -> bool:
        """Whether a string constant has `name` as a word."""
        pattern = re.compile(rf"\b{re.escape(name)}\b")
        return any(pattern.search(text) for text in self.texts)

    def near(self, name: str, among: Collection[str]) -> str:
        """A question with the names of `among` that look like `name`; empty when none does."""
        known = sorted(one for one in among if not hasattr(builtins, one) and not one.startswith("__"))
        found = difflib.get_close_matches(name, known, 2, 0.6)
        # `epochs` for `number_of_epochs` is too far away for difflib.
        found = found or [one for one in known if len(name) > 2 and name in one.split("_")][:2]
        return f"Did you mean {' or '.join(found)}?" if found else ""


def names_of(tree: ast.Module, text: str) -> Names:
    """Return the names of a text that compiles; `tree` is its syntax tree."""
    assigned: set[str] = set()
    read: set[str] = set()
    _collect(preflight.table(text), assigned, read, top=True)
    opaque = False
    for node in preflight.nodes_of(tree):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            read.add(node.target.id)  # for a symbol table it is an assignment only
        opaque = opaque or is_opaque(node)
    return Names(frozenset(assigned), frozenset(read), opaque, tuple(code_texts(tree)))


def code_texts(tree: ast.Module) -> list[str]:
    """Return the string constants of a script that are code; see :class:`Names`."""
    texts: list[str] = []
    for node in preflight.nodes_of(tree):
        if isinstance(node, ast.Call) and _called(node) in _CODE_CALLS:
            texts += [
                one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)
            ]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts += _AT_NAME.findall(node.value)
    return texts


def _called(node: ast.Call) -> str:
    """Return the last part of the name of what is called."""
    return getattr(node.func, "attr", None) or getattr(node.func, "id", None) or ""


def unread(names: Names, params: Iterable[str], also: Collection[str] = ()) -> list[str]:
    """Return the parameters that nothing reads; `also` are names that are read elsewhere."""
    if names.opaque:
        return []
    return [name for name in params if name not in names.read and name not in also and not names.mentioned(name)]


def _collect(table: symtable.SymbolTable, assigned: set[str], read: set[str], *, top: bool) -> None:
    for symbol in table.get_symbols():
        binds = symbol.is_assigned() or symbol.is_imported()
        if binds and (top or symbol.is_declared_global()):
            assigned.add(symbol.get_name())
        # A class body that assigns a name of its own may have read the module's before.
        if symbol.is_referenced() and (top or symbol.is_global() or table.get_type() == "class"):
            read.add(symbol.get_name())
    for child in table.get_children():
        _collect(child, assigned, read, top=False)


def may_be_opaque(text: str) -> bool:
    """Whether :func:`is_opaque` may be true of a part of a script; cheap."""
    return _OPAQUE_WORDS.search(text) is not None


def is_opaque(node: ast.AST) -> bool:
    """Whether a part of a script makes it unknown from the text what is assigned or read."""
    if isinstance(node, ast.Name):
        return node.id in _OPAQUE_CALLS
    if isinstance(node, ast.Attribute):
        return node.attr in _OPAQUE_ATTRIBUTES
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = {alias.name for alias in node.names}
        return bool(names & {"*", "__main__", "modules", *_OPAQUE_CALLS}) or (
            isinstance(node, ast.ImportFrom) and node.module == "__main__"
        )
    return False


# ---- overrides


@dataclasses.dataclass(frozen=True)
class Overrides:
    """Assignments that take the place of a parameter's value before anything reads it.

    Attributes
    ----------
    literals
        Statements such as ``lr = 0.1``, whose value can be replaced.
    other
        The first one that cannot be replaced (``lr = compute()``), if any.
    possible
        Those that stand under a condition.
    """

    literals: tuple[ast.Assign | ast.AnnAssign, ...]
    other: ast.AST | None
    possible: tuple[ast.AST, ...]


def overrides_of(tree: ast.Module, name: str) -> Overrides:
    """Find what overrides the value that `name` has before the first line of `tree`."""
    literals: list[ast.Assign | ast.AnnAssign] = []
    while True:
        scan = _Scan(name, literals)
        ended = scan.block(tree.body)
        if ended is not _Flow.ASSIGNED or scan.hit is None:
            return Overrides(tuple(literals), None, tuple(scan.possible))
        if not scan.replaceable:
            return Overrides(tuple(literals), scan.hit, tuple(scan.possible))
        assert isinstance(scan.hit, ast.Assign | ast.AnnAssign)
        literals.append(scan.hit)  # go on as if the parameter's value stood there


def is_read_first(tree: ast.Module, name: str) -> bool:
    """Whether a script may read `name` before it certainly assigns it."""
    return _Scan(name, ()).block(tree.body) is _Flow.READ


class _Flow(enum.Enum):
    """How far the text before a point has come with a name."""

    GOES_ON = enum.auto()  #: neither read nor certainly assigned
    READ = enum.auto()  #: it may have been read
    ASSIGNED = enum.auto()  #: certainly assigned, and not read before
    ENDED = enum.auto()  #: nothing after it is executed


class _Scan:
    """One walk over the statements in the order in which they are executed.

    Parameters
    ----------
    passed
        Statements that are known already and count as no assignment.
    """

    def __init__(self, name: str, passed: Collection[ast.AST]) -> None:
        self.name = name
        self.hit: ast.AST | None = None
        self.replaceable = False
        self.possible: list[ast.AST] = []
        self._passed = passed
        self._readers: set[str] = set()  #: functions that read the name when they are called

    def block(self, statements: Iterable[ast.stmt]) -> _Flow:
        for statement in statements:
            if (flow := self.statement(statement)) is not _Flow.GOES_ON:
                return flow
        return _Flow.GOES_ON

    def _assigned(self, node: ast.AST, *, replaceable: bool = False) -> _Flow:
        if node in self._passed:
            return _Flow.GOES_ON
        self.hit, self.replaceable = node, replaceable
        return _Flow.ASSIGNED

    def _perhaps(self, flow: _Flow) -> _Flow:
        """The flow behind a part that may be skipped and that ended with `flow`."""
        if flow is _Flow.ASSIGNED and self.hit is not None:
            self.possible.append(self.hit)
        return _Flow.READ if flow is _Flow.READ else _Flow.GOES_ON

    def _one_of(self, flows: Sequence[_Flow], hits: Sequence[ast.AST | None]) -> _Flow:
        """The flow behind branches of which exactly one is taken."""
        if _Flow.READ in flows:
            return _Flow.READ
        live = [flow for flow in flows if flow is not _Flow.ENDED]
        found = [hit for flow, hit in zip(flows, hits, strict=True) if flow is _Flow.ASSIGNED and hit is not None]
        if not live:
            return _Flow.ENDED
        if found and all(flow is _Flow.ASSIGNED for flow in live):
            return self._assigned(found[0])
        self.possible += found
        return _Flow.GOES_ON

    def _branch(self, statements: Sequence[ast.stmt]) -> tuple[_Flow, ast.AST | None]:
        flow = self.block(statements)
        return flow, self.hit if flow is _Flow.ASSIGNED else None

    def statement(self, node: ast.stmt) -> _Flow:
        match node:
            case ast.Assign():
                return self._assign(node)
            case ast.AnnAssign():
                return self._annotated(node)
            case ast.AugAssign():
                if isinstance(node.target, ast.Name) and node.target.id == self.name:
                    return _Flow.READ
                return self._in_turn(node.value, node.target)
            case ast.If():
                return self._if(node)
            case ast.While():
                return self._while(node)
            case ast.For() | ast.AsyncFor():
                return self._for(node)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    if (flow := self.expression(item.context_expr)) is not _Flow.GOES_ON:
                        return flow
                    if item.optional_vars is not None and self.name in _stored(item.optional_vars):
                        return self._assigned(node)
                return self.block(node.body)
            case ast.Try():
                return self._try(node)
            case ast.Match():
                return self._match(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return self._function(node)
            case ast.ClassDef():
                return self._class(node)
            case ast.Import() | ast.ImportFrom():
                bound = {alias.asname or alias.name.partition(".")[0] for alias in node.names}
                return self._assigned(node) if self.name in bound else _Flow.GOES_ON
            case ast.Global():
                return self._assigned(node) if self.name in node.names else _Flow.GOES_ON
            case ast.Delete():
                return _Flow.READ if any(self.name in _stored(t) for t in node.targets) else _Flow.GOES_ON
            case ast.Raise():
                flow = self._in_turn(node.exc, node.cause)
                return _Flow.ENDED if flow is _Flow.GOES_ON else flow
            case ast.Break() | ast.Continue():
                return _Flow.ENDED
        if type(node).__name__ == "TypeAlias":  # Python 3.12
            return self._assigned(node) if self.name in _stored(getattr(node, "name", node)) else _Flow.GOES_ON
        if type(node).__name__ == "TryStar":
            return self._try(node)  # type: ignore[arg-type]  # of the same fields
        return self._in_turn(*ast.iter_child_nodes(node))

    def _assign(self, node: ast.Assign) -> _Flow:
        if (flow := self.expression(node.value)) is not _Flow.GOES_ON:
            return flow
        for target in node.targets:
            if self.name in _stored(target):
                single = isinstance(target, ast.Name) and len(node.targets) == 1
                return self._assigned(node, replaceable=single and preflight.is_literal(node.value))
            if isinstance(target, ast.Name) and isinstance(node.value, ast.Lambda) and self._reads(node.value.body):
                self._readers.add(target.id)
            if (flow := self.expression(target)) is not _Flow.GOES_ON:
                return flow
        return _Flow.GOES_ON

    def _annotated(self, node: ast.AnnAssign) -> _Flow:
        if node.value is None:
            return _Flow.GOES_ON
        if (flow := self.expression(node.value)) is not _Flow.GOES_ON:
            return flow
        if isinstance(node.target, ast.Name) and node.target.id == self.name:
            return self._assigned(node, replaceable=bool(node.simple) and preflight.is_literal(node.value))
        return self.expression(node.target)

    def _if(self, node: ast.If) -> _Flow:
        if (flow := self.expression(node.test)) is not _Flow.GOES_ON:
            return flow
        if _always(node.test):
            return self.block(node.body)
        one, other = self._branch(node.body), self._branch(node.orelse)
        return self._one_of((one[0], other[0]), (one[1], other[1]))

    def _while(self, node: ast.While) -> _Flow:
        if (flow := self.expression(node.test)) is not _Flow.GOES_ON:
            return flow
        flow = self.block(node.body)
        if not _always(node.test):
            flow = self._perhaps(flow)
        return _Flow.GOES_ON if flow is _Flow.ENDED else flow  # a `break` ends the loop only

    def _for(self, node: ast.For | ast.AsyncFor) -> _Flow:
        if (flow := self.expression(node.iter)) is not _Flow.GOES_ON:
            return flow
        if self.name in _stored(node.target):
            return self._assigned(node)
        flow = self._perhaps(self.block(node.body))
        return flow if flow is _Flow.READ else self._perhaps(self.block(node.orelse))

    def _try(self, node: ast.Try) -> _Flow:
        flow, hit = self._branch(node.body)
        replaceable = self.replaceable
        if flow is _Flow.READ:
            return flow
        handlers = [self._branch(handler.body) for handler in node.handlers]
        named = [handler for handler in node.handlers if handler.name == self.name]
        if flow is _Flow.ASSIGNED and hit is not None:
            # A handler that assigns it, too, would still override a value that is put into the body.
            elsewhere = named or any(one is _Flow.ASSIGNED for one, _ in handlers)
            return self._assigned(hit, replaceable=replaceable and not elsewhere)
        # That a handler reads it is no use of the value where nothing is raised, which is the rule.
        self.possible += [*named, *(one for _, one in handlers if one is not None)]
        if flow is _Flow.GOES_ON and (flow := self.block(node.orelse)) in (_Flow.READ, _Flow.ASSIGNED):
            return flow if flow is _Flow.READ or not node.handlers else self._perhaps(flow)
        return self.block(node.finalbody)

    def _match(self, node: ast.Match) -> _Flow:
        if (flow := self.expression(node.subject)) is not _Flow.GOES_ON:
            return flow
        branches: list[tuple[_Flow, ast.AST | None]] = []
        for case in node.cases:
            captures = {getattr(one, "name", None) or getattr(one, "rest", None) for one in ast.walk(case.pattern)}
            if self.name in captures:
                branches.append((_Flow.ASSIGNED, case.pattern))
                continue
            if case.guard is not None and self._perhaps(self.expression(case.guard)) is _Flow.READ:
                return _Flow.READ
            branches.append(self._branch(case.body))
        last = node.cases[-1]
        if not (isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None and last.guard is None):
            branches.append((_Flow.GOES_ON, None))  # no case may fit
        return self._one_of([flow for flow, _ in branches], [hit for _, hit in branches])

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> _Flow:
        defaults = [default for default in node.args.kw_defaults if default is not None]
        flow = self._in_turn(*node.decorator_list, *node.args.defaults, *defaults)
        if flow is not _Flow.GOES_ON:
            return flow
        if node.name == self.name:
            return self._assigned(node)
        if any(self._reads(inner) for inner in node.body):
            self._readers.add(node.name)
        self.possible += self._global_assignments(node)  # it may be called before anything reads the name
        return _Flow.GOES_ON

    def _global_assignments(self, definition: ast.AST) -> list[ast.AST]:
        """Assignments to the module's name in functions that declare it ``global``."""
        inner = list(ast.walk(definition))
        if not any(isinstance(node, ast.Global) and self.name in node.names for node in inner):
            return []
        return [n for n in inner if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id == self.name]

    def _class(self, node: ast.ClassDef) -> _Flow:
        flow = self._in_turn(*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords))
        if flow is not _Flow.GOES_ON:
            return flow
        self.possible += self._global_assignments(node)
        inner = _Scan(self.name, ())  # what a class body assigns is an attribute
        inner._readers = set(self._readers)
        if inner.block(node.body) is _Flow.READ:
            return _Flow.READ
        return self._assigned(node) if node.name == self.name else _Flow.GOES_ON

    # ---- expressions

    def _in_turn(self, *nodes: ast.AST | None) -> _Flow:
        for node in nodes:
            if node is not None and (flow := self.expression(node)) is not _Flow.GOES_ON:
                return flow
        return _Flow.GOES_ON

    def expression(self, node: ast.AST) -> _Flow:
        match node:
            case ast.Name():
                loaded = isinstance(node.ctx, ast.Load) and (node.id == self.name or node.id in self._readers)
                return _Flow.READ if loaded else _Flow.GOES_ON
            case ast.Call(func=ast.Name(id=called)) if called in _OPAQUE_CALLS:
                return _Flow.READ  # as `lr = globals().get("lr", 0.1)` does
            case ast.NamedExpr():
                if (flow := self.expression(node.value)) is not _Flow.GOES_ON:
                    return flow
                return self._assigned(node) if self.name in _stored(node.target) else _Flow.GOES_ON
            case ast.BoolOp():
                if (flow := self.expression(node.values[0])) is not _Flow.GOES_ON:
                    return flow
                return self._perhaps(self._in_turn(*node.values[1:]))
            case ast.IfExp():
                if (flow := self.expression(node.test)) is not _Flow.GOES_ON:
                    return flow
                if self._perhaps(self.expression(node.body)) is _Flow.READ:
                    return _Flow.READ
                return self._perhaps(self.expression(node.orelse))
            case ast.Lambda():
                defaults = [default for default in node.args.kw_defaults if default is not None]
                return self._in_turn(*node.args.defaults, *defaults)
            case ast.Call():
                if (flow := self._in_turn(*ast.iter_child_nodes(node))) is not _Flow.GOES_ON:
                    return flow
                given = [*node.args, *(keyword.value for keyword in node.keywords)]
                called_back = any(isinstance(one, ast.Lambda) and self._reads(one.body) for one in given)
                return _Flow.READ if called_back else _Flow.GOES_ON
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                if (flow := self.expression(node.generators[0].iter)) is not _Flow.GOES_ON:
                    return flow
                if any(self.name in _stored(generator.target) for generator in node.generators):
                    return _Flow.GOES_ON  # a name of its own
                return self._perhaps(self._in_turn(*ast.iter_child_nodes(node)))
        return self._in_turn(*ast.iter_child_nodes(node))

    def _reads(self, node: ast.AST) -> bool:
        return any(isinstance(n, ast.Name) and n.id in (self.name, *self._readers) for n in ast.walk(node))


def _stored(target: ast.AST) -> Iterator[str]:
    """Names that an assignment to `target` binds (those in ``x[i]`` and ``x.a`` are read)."""
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from _stored(part)
    elif isinstance(target, ast.Starred):
        yield from _stored(target.value)


def _always(test: ast.expr) -> bool:
    """Whether a condition holds in every script: ``True``, or ``__name__ == "__main__"``."""
    if isinstance(test, ast.Constant):
        return bool(test.value)
    match test:
        case (
            ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant(value="__main__")])
            | ast.Compare(left=ast.Constant(value="__main__"), ops=[ast.Eq()], comparators=[ast.Name(id="__name__")])
        ):
            return True
    return False
