"""The registry: whatever it lists can be typed, completed and explained, in a cell and in a shell."""

from __future__ import annotations

import argparse
import inspect
from typing import Any

import msgspec
import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

from jupyter_amltrain import cli, magics
from jupyter_amltrain.api import submit
from jupyter_amltrain.commands.completion import CompletionNames, complete
from jupyter_amltrain.commands.forms import compose, submit_actions, submit_fields
from jupyter_amltrain.commands.registry import (
    NOUNS,
    SHELL_NOUNS,
    Command,
    Context,
    Result,
    noun_of,
    parser_of,
    run,
    shell_text,
)
from jupyter_amltrain.commands.submit import parse_submit
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.jobs.flags import FLAGS
from jupyter_amltrain.schema.job import JobSpec

VERBS = [(noun.name, command) for noun in NOUNS.values() for command in noun.commands]


def ids(value: Any) -> str:
    return value if isinstance(value, str) else value.verb or "-"


@pytest.fixture(scope="module")
def shell() -> Any:
    """A shell with the extension loaded; Tab needs no target."""
    ip = InteractiveShell()
    magics.register(ip)
    yield ip
    magics.unregister(ip)


def tab(shell: InteractiveShell, line: str) -> list[str]:
    with provisionalcompleter():
        return [c.text for c in shell.Completer.completions(line, len(line))]


@pytest.mark.parametrize("noun", NOUNS)
def test_tab_after_magic_of_noun_offers_its_verbs(shell: InteractiveShell, noun: str) -> None:
    verbs = [command.verb for command in NOUNS[noun].commands if command.magic]
    offered = tab(shell, f"%aml_{noun} " + ("" if verbs[0] else "--"))
    assert offered[: len(verbs)] == verbs if verbs[0] else "--help" in offered


@pytest.mark.parametrize(("noun", "command"), VERBS, ids=ids)
def test_tab_completes_every_verb_and_its_flags(shell: InteractiveShell, noun: str, command: Command) -> None:
    for prog in (f"%aml_{noun}", f"amltrain {noun}"):
        verb = command.verb
        if not command.on(prog):
            assert verb not in parser_of(noun, prog).verbs
            continue
        if verb:
            offered = [offer.text for offer in complete(noun, verb[:-1], CompletionNames(), prog=prog).offers]
            assert verb in offered
        parser = parser_of(noun, prog).verbs[verb] if verb else parser_of(noun, prog)
        flags = {flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")}
        assert {offer.text for offer in complete(noun, f"{verb} --", CompletionNames(), prog=prog).offers} == flags
        if prog.startswith("%"):
            assert set(tab(shell, f"{prog} {verb} --".replace("  ", " "))) == flags


@pytest.mark.parametrize("noun", SHELL_NOUNS)
def test_help_of_noun_and_of_command_line_names_its_verbs(noun: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([noun, "--help"]) == 0 and cli.main([]) == 0
    text = capsys.readouterr().out
    assert NOUNS[noun].summary in text
    assert all(command.summary in text for command in NOUNS[noun].commands if command.shell and command.verb)


def test_unknown_noun_names_close_match() -> None:
    with pytest.raises(CommandError, match="runs") as caught:
        noun_of("rnus")
    assert caught.value.code == "command.unknown"


def test_new_verb_of_a_noun_is_typed_completed_and_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_amltrain.commands import runs

    def count(args: argparse.Namespace, context: Context) -> Result:
        return Result(f"{context.prog} counts {args.n}")

    new = Command(verb="count", summary="Count.", run=count, flags=lambda parser: parser.flag("n"), json=True)
    monkeypatch.setattr(runs, "COMMANDS", (*runs.COMMANDS, new))
    parser_of.cache_clear()
    try:
        assert run("runs", ["count", "3"], Context(prog="%aml_runs")).text == "%aml_runs counts 3"
        assert [offer.text for offer in complete("runs", "cou", CompletionNames()).offers] == ["count"]
        assert parser_of("runs", "amltrain runs").parse(["count", "3", "--json"]).json
    finally:
        parser_of.cache_clear()


def test_commands_in_sentences_are_of_the_shell() -> None:
    for noun in SHELL_NOUNS:
        assert shell_text(f"See: %aml_{noun} x") == f"See: amltrain {noun} x"
    assert shell_text("Write %%aml_submit above a cell.") == "Write %%aml_submit above a cell."


# ---- the table of a job's flags


def test_every_flag_is_a_field_of_the_job_a_keyword_and_a_field_of_the_form() -> None:
    keywords = inspect.signature(submit).parameters
    form = {field.flag for field in submit_fields()}
    for flag in FLAGS:
        struct: Any = JobSpec
        for part in flag.field.split("."):
            fields = {field.name: field.type for field in msgspec.structs.fields(struct)}
            assert part in fields, flag.field
            struct = fields[part]
        assert flag.name in keywords and flag.name in (submit.__doc__ or ""), flag.name
        assert flag.flag in form and flag.help


def test_every_flag_without_a_place_in_a_job_file_is_rejected_there(tmp_path: Any) -> None:
    (tmp_path / "job.yml").write_text("command: true\nenvironment: azureml:e:1\n")
    for flag in FLAGS:
        if flag.yaml is None or flag.switch:
            continue
        value = {"params": "a=1", "env": "A=1", "inputs": "a=azureml:b:1", "timeout": "5m", "gpu_grace": "5m"}
        value = (value | {"distribution.config": "config"}).get(
            flag.field, next(iter((*flag.offers, *getattr(flag.type, "choices", ()))), "1")
        )
        if flag.field == "out":
            value = "a"
        with pytest.raises(CommandError) as caught:
            parse_submit([str(tmp_path / "job.yml"), f"{flag.flag}={value}"])
        assert (caught.value.code, caught.value.field) == ("submit.flag_of_file", flag.field)


def test_unknown_keyword_of_submit_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="shade"):
        submit("pass", shade="red")


@pytest.mark.parametrize(
    ("line", "field", "form"),
    [
        (["--gpus", "many"], "resources.gpus", "gpus"),
        (["--env-var", "1A=2"], "env", "env-var"),
        (["--env", "A=1"], "environment", "env"),
        (["--nodes", "0"], "resources.nodes", "nodes"),
        (["--input", "a=x,downlaod"], "inputs", "input"),
        (["--name", "a/b"], "name", "name"),
        (["--as", "1a"], "as", "as"),
    ],
)
def test_error_of_a_flag_names_its_field_and_its_place_in_the_form(line: list[str], field: str, form: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse_submit(line, "pass", prog="%%aml_submit")
    assert caught.value.field == field and caught.value.code
    assert form in submit_actions()
    assert list(compose(f"%%aml_submit {' '.join(line)}", None, cell="pass").errors) == [form]


def test_error_in_code_has_the_line_as_data() -> None:
    for first_line in (1, 2):
        with pytest.raises(CommandError) as caught:
            parse_submit([], "x = 1\ny = (", prog="%%aml_submit", first_line=first_line)
        assert caught.value.details["line"] == first_line + 1
