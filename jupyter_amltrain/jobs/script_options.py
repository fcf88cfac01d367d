"""Options of a script's parser, read from its source: argparse, click, typer, fire, absl, Hydra, OmegaConf."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from jupyter_amltrain.errors import SubmitError
from jupyter_amltrain.jobs import preflight
from jupyter_amltrain.schema.param_forms import OTHERS, STYLES
from jupyter_amltrain.text import close_matches

#: Parsers by what their use looks like in the text of a script.
_MARKS = ("argparse", "click", "typer", "fire", "hydra", "from_cli", "absl", "tyro")


class ScriptOptions(NamedTuple):
    """What is known of a script's parser.

    Attributes
    ----------
    forms
        Form of each parameter (:mod:`..schema.param_forms`); that of ``*`` is for all others.
    is_complete
        Whether the script takes no other parameter.
    """

    forms: dict[str, str]
    is_complete: bool = False


def options_of(text: str) -> ScriptOptions:
    """Return the options of a script; runs no code."""
    if not any(mark in text for mark in _MARKS):
        return ScriptOptions({})
    try:
        tree = preflight.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return ScriptOptions({})
    modules = _imported(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [_last(call.func) for call in calls]
    if any(ast.unparse(call.func) in ("OmegaConf.from_cli", "omegaconf.OmegaConf.from_cli") for call in calls):
        return ScriptOptions({OTHERS: STYLES["hydra"]})
    if "hydra" in modules:
        return ScriptOptions({OTHERS: STYLES["hydra"]})
    if "fire" in modules and "Fire" in names:
        return ScriptOptions({OTHERS: STYLES["fire"]})
    if "absl" in modules and "flags" in text:
        return ScriptOptions({OTHERS: STYLES["absl"]})
    if "typer" in modules:
        return _typer(tree)
    if "click" in modules:
        return _click(tree)
    return _argparse(calls, names) if "add_argument" in names else ScriptOptions({})


def forms_of(text: str, names: Collection[str], script: str, style: str = "") -> dict[str, str]:
    """Return the forms of the parameters `names` of a script.

    Parameters
    ----------
    script
        Its name, for messages.
    style
        Value of ``--style``, in place of what the text says.

    Raises
    ------
    SubmitError
        The script does not take one of them.
    """
    if style:
        return {OTHERS: STYLES[style]}
    found = options_of(text)
    unknown = [name for name in names if name.replace("-", "_") not in found.forms]
    if unknown and found.is_complete:
        near = close_matches(unknown[0].replace("-", "_"), found.forms, 1, 0.6)
        known = ", ".join(sorted(found.forms)) or "none"
        raise SubmitError(
            f"--param {unknown[0]}: {script} has no such option.",
            hint=f"Did you mean: --param {near[0]}=..." if near else f"It has: {known}.",
            code="submit.unknown_param",
            field="params",
        )
    forms = {name: found.forms[key] for name in names if (key := name.replace("-", "_")) in found.forms}
    return forms | ({OTHERS: found.forms[OTHERS]} if OTHERS in found.forms else {})


def _imported(tree: ast.AST) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules.add((node.module or "").partition(".")[0])
    return modules


def _last(node: ast.expr) -> str:
    """Return the last part of the name of a function."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {one.arg: one.value for one in call.keywords if one.arg}


# ---- argparse


def _argparse(calls: list[ast.Call], names: list[str]) -> ScriptOptions:
    forms: dict[str, str] = {}
    is_complete = names.count("ArgumentParser") == 1 and "parse_args" in names
    unsure = {"parse_known_args", "add_subparsers", "add_argparse_args", "set_defaults", "from_argparse_args"}
    is_complete = is_complete and not unsure & set(names)
    parsers = {"ArgumentParser", "add_argument_group", "add_mutually_exclusive_group", "add_argument"}
    for call, name in zip(calls, names, strict=True):
        if name == "ArgumentParser" and {"parents", "fromfile_prefix_chars"} & set(_keywords(call)):
            is_complete = False
        if name == "add_argument":
            words = [_constant(one) for one in call.args]
            if (
                not words
                or not all(isinstance(word, str) for word in words)
                or len(call.keywords) != len(_keywords(call))
            ):
                is_complete = False
                continue
            key, form = _argument([str(word) for word in words], _keywords(call))
            forms.setdefault(key, form)
        elif name not in parsers and any(_last(one) in ("parser", "ap", "argparser", "p") for one in call.args):
            is_complete = False  # another function may add options
    return ScriptOptions(forms, is_complete)


def _argument(words: list[str], keywords: Mapping[str, ast.expr]) -> tuple[str, str]:
    """Return the name of an option of argparse, and its form."""
    long = next((word for word in words if word.startswith("--")), words[0])
    key = str(_constant(keywords.get("dest")) or long.lstrip("-")).replace("-", "_")
    if not long.startswith("-"):
        return key, "positional"
    action = keywords.get("action")
    kind = _constant(action) or (_last(action) if action is not None else "")
    if kind == "BooleanOptionalAction":
        return key, f"pair {long} --no-{long.lstrip('-')}"
    if kind in ("store_true", "store_const", "count"):
        return key, f"on {long}"
    if kind == "store_false":
        return (key, f"off {long}") if "dest" in keywords else (key, f"on {long}")
    if kind in ("append", "extend") and "nargs" not in keywords:
        return key, f"repeat {long}"
    many = _constant(keywords.get("nargs"))
    return key, f"list {long}" if many in ("+", "*") or isinstance(many, int) else f"value {long}"


# ---- click and typer


def _decorators(tree: ast.AST) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, list[ast.expr]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.decorator_list:
            yield node, node.decorator_list


def _click(tree: ast.AST) -> ScriptOptions:
    forms: dict[str, str] = {}
    commands, is_complete = 0, True
    for _, decorators in _decorators(tree):
        for one in decorators:
            name = _last(one.func if isinstance(one, ast.Call) else one)
            commands += name in ("command", "group")
            is_complete = is_complete and name != "group"
            if name not in ("option", "argument"):
                is_complete = is_complete and name in ("command", "pass_context")
                continue
            words = [_constant(arg) for arg in one.args] if isinstance(one, ast.Call) else []
            if not words or not all(isinstance(word, str) for word in words) or not isinstance(one, ast.Call):
                is_complete = False
                continue
            key, form = _click_option([str(word) for word in words], _keywords(one))
            forms.setdefault(key, form)
    return ScriptOptions(forms, is_complete and commands == 1)


def _click_option(words: list[str], keywords: Mapping[str, ast.expr]) -> tuple[str, str]:
    own = [word for word in words if not word.startswith("-")]
    long = next((word for word in words if word.startswith("--")), words[0])
    on, _, off = long.partition("/")
    key = (own[0] if own else on.lstrip("-")).replace("-", "_").lower()
    if not long.startswith("-"):
        return key, "positional"
    if off:
        return key, f"pair {on.strip()} {off.strip()}"
    if _constant(keywords.get("is_flag")) is True or "flag_value" in keywords or "count" in keywords:
        return key, f"on {on}"
    if _constant(keywords.get("multiple")) is True:
        return key, f"repeat {on}"
    return key, f"list {on}" if isinstance(_constant(keywords.get("nargs")), int) else f"value {on}"


def _typer(tree: ast.AST) -> ScriptOptions:
    runs = {_last(arg) for node in ast.walk(tree) if isinstance(node, ast.Call) and _last(node.func) == "run"
            for arg in node.args}  # fmt: skip
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in runs]
    functions += [
        node for node, found in _decorators(tree)
        if isinstance(node, ast.FunctionDef)
        and any(_last(one.func if isinstance(one, ast.Call) else one) == "command" for one in found)
    ]  # fmt: skip
    forms: dict[str, str] = {}
    for function in functions:
        for name, form in _typer_parameters(function):
            forms.setdefault(name, form)
    return ScriptOptions(forms, len(functions) == 1)


def _typer_parameters(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    arguments = function.args
    ordered = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(ordered) - len(arguments.defaults)) + [*arguments.defaults]
    for one, default in [
        *zip(ordered, defaults, strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]:
        annotation = ast.unparse(one.annotation) if one.annotation is not None else ""
        call = next(_typer_calls(default, one.annotation), None)
        if call is None and "Context" in annotation:
            continue
        if (default is None and call is None) or (call is not None and _last(call.func) == "Argument"):
            yield one.arg, "positional"
            continue
        words = [str(word) for arg in (call.args if call else []) if isinstance(word := _constant(arg), str)]
        word = next((word for word in words if word.startswith("--")), "--" + one.arg.replace("_", "-"))
        plain = annotation.replace(" ", "").removeprefix("Annotated[").partition(",")[0]
        on, _, off = word.partition("/")
        if plain in ("bool", "Optional[bool]", "bool|None"):
            yield one.arg, f"pair {on} {off}" if off else f"on {on}" if words else f"pair {on} --no-{on[2:]}"
        else:
            yield one.arg, f"{'repeat' if 'ist[' in annotation else 'value'} {word}"


def _typer_calls(*nodes: ast.expr | None) -> Iterator[ast.Call]:
    """Yield the calls of ``typer.Option`` and ``typer.Argument`` in a default or an annotation."""
    for node in nodes:
        if node is not None:
            for one in ast.walk(node):
                if isinstance(one, ast.Call) and _last(one.func) in ("Option", "Argument"):
                    yield one
