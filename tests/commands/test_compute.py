"""``compute`` in a cell and in a shell: create, start, stop, scale, delete."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.cli import main
from jupyter_amltrain.commands import compute
from jupyter_amltrain.commands.compute import VALUE_PREFIX, line_of
from jupyter_amltrain.commands.parser import HelpRequested
from jupyter_amltrain.commands.registry import parser_of
from jupyter_amltrain.demo import FakeTarget
from jupyter_amltrain.errors import CommandError, QuotaExceeded
from jupyter_amltrain.schema.fields import Field, checked_target, fields_of
from jupyter_amltrain.schema.target import TargetInfo

from ..helpers import until


def parse(line: str, prog: str = "%aml_compute") -> argparse.Namespace:
    return parser_of("compute", prog).parse(line.split())


def typed(line: str) -> str:
    """What a magic's line prints."""
    lines: list[str] = []
    args = parse(line)
    result = compute.run(args, wait=args.wait, write=lines.append)
    return "\n".join([*lines, result])


def table() -> list[str]:
    return compute.listing_text(compute.listing()).splitlines()


def test_compute_create_flags_come_from_fields() -> None:
    args = parse("create big --kind fake --size gpu-v100 --max-nodes 4 --low-priority --idle-minutes=2")
    given = {k[len(VALUE_PREFIX) :]: v for k, v in vars(args).items() if k.startswith(VALUE_PREFIX)}
    assert given == {"size": "gpu-v100", "max_nodes": "4", "low_priority": True, "idle_minutes": "2"}
    create = parser_of("compute", "%aml_compute").verbs["create"]
    flags = {flag for action in create._actions for flag in action.option_strings}
    fields = [field for field in fields_of(FakeTarget) if field.flag]
    assert {field.flag for field in fields} <= flags
    text = " ".join(create.format_help().split())
    assert all(field.help in text for field in fields)  # the form says the same
    assert "default 15" in text and "gpu-8xa100" in text


def test_boolean_flag_default_on_can_be_turned_off() -> None:
    from jupyter_amltrain.commands.compute import _add_field
    from jupyter_amltrain.commands.parser import Parser

    parser = Parser(prog="p", description="d")
    _add_field(parser, Field(name="shell", flag="--shell", kind="bool", default=True, help="Open one"))
    _add_field(parser, Field(name="tags", flag="--tags", kind="list", default=()))
    given = vars(parser.parse(["--no-shell", "--tags", "a", "--tags", "b"]))
    assert given[f"{VALUE_PREFIX}shell"] is False and given[f"{VALUE_PREFIX}tags"] == ["a", "b"]
    assert not [name for name in vars(parser.parse([])) if name.startswith(VALUE_PREFIX)]


def test_repeated_host_is_several_machines() -> None:
    line = "attach gpus --kind ssh --host a --host ann@b:22"
    args = parse(line)
    assert vars(args)[f"{VALUE_PREFIX}host"] == "a,ann@b:22"
    assert line_of("attach", "gpus", "ssh", {"host": "a, ann@b:22"}) == f"%aml_compute {line}"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("create", "required: NAME"),
        ("create big --kind fake --sise 3", "--sise. Did you mean --size"),
        ("create big --kind fake --size", "expected one argument, SIZE"),
        ("scale", "required: target"),
        ("attach vm --hots here", "unknown flag --hots."),
        ("attach", "required: NAME"),
        ("delete a b", "unexpected argument 'b'"),
        ("creat big", "Did you mean create?"),
    ],
)
def test_compute_line_invalid_is_refused(line: str, message: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse(line)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("verb", ["create", "attach", "scale", "delete"])
def test_compute_verb_help_shows_usage(verb: str) -> None:
    with pytest.raises(HelpRequested) as caught:
        parse(f"{verb} --help")
    assert "\n\nusage: %aml_compute" in str(caught.value)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({}, "%aml_compute create big --kind fake"),
        ({"size": "", "max_nodes": 1, "low_priority": False, "name": "big"}, "%aml_compute create big --kind fake"),
        (
            {"size": "gpu-v100", "max_nodes": 4, "low_priority": True, "idle_minutes": 30.0, "quota": "8"},
            "%aml_compute create big --kind fake --size gpu-v100 --max-nodes 4 --idle-minutes 30 --low-priority"
            " --quota 8",
        ),
        ({"size": "a b"}, "%aml_compute create big --kind fake --size 'a b'"),
    ],
)
def test_compute_form_values_become_parseable_line(values: dict[str, Any], line: str) -> None:
    assert line_of("create", "big", "fake", values) == line
    if "'" not in line:
        args = parse(line.partition(" ")[2])
        again = {k[len(VALUE_PREFIX) :]: v for k, v in vars(args).items() if k.startswith(VALUE_PREFIX)}
        assert checked_target(FakeTarget, "big", again) == checked_target(FakeTarget, "big", values)
    assert line_of("scale", "big", values={"nodes": 4}) == "%aml_compute scale big --nodes 4"
    changed = {"min_nodes": 1, "max_nodes": 4, "idle_minutes": 30.0}
    line = "%aml_compute scale big --min-nodes 1 --max-nodes 4 --idle-minutes 30"
    assert line_of("scale", "big", values=changed) == line
    again = {
        k[len(VALUE_PREFIX) :]: v for k, v in vars(parse(line.partition(" ")[2])).items() if k.startswith(VALUE_PREFIX)
    }
    assert again == {"min_nodes": "1", "max_nodes": "4", "idle_minutes": "30"}
    assert line_of("dismiss", "big") == ""


def test_compute_target_lifecycle_in_notebook(api: Any) -> None:
    line = "create big --kind fake --size gpu-v100 --max-nodes 4"
    with pytest.raises(CommandError) as caught:
        typed(line)
    assert str(caught.value) == (
        "Costs up to 4 x 3.06 = 12.24 USD per hour while nodes run; all of them stop after 15 min idle."
        f" To go ahead, type: %aml_compute {line} --yes"
    )
    output = typed(f"{line} --provisioning 0.5 --yes")
    assert output.startswith("big is being created.") and "%aml_compute list" in output and "--wait" in output
    until(lambda: "0 of 4" in table()[-1])
    header, _, big = table()
    assert header.split() == ["target", "kind", "state", "size", "nodes", "CPUs", "memory", "GPUs", "price", "now"]
    assert "1 x Fake V100 16GB" in big and "0.00 USD/h" in big and "0 running, 0 queued" in big
    output = typed("scale big --nodes 2 --yes --wait")
    assert output.splitlines()[-1] == "big is scaled to 2 machines." and "from 0 to 2 machines" in output
    assert "6.12 USD/h" in table()[-1]
    assert compute.use("big") and table()[-1].startswith("*")
    with pytest.raises(CommandError, match=r"--nodes: 9"):
        typed("scale big --nodes 9")
    with pytest.raises(CommandError, match=r"'big': .* %aml_compute delete big --yes --wait"):
        typed("delete big --wait")
    assert "go to local" in typed("delete big --yes --wait")
    assert len(table()) == 2 and table()[-1].startswith("*  local")


def test_compute_magic_and_form_errors_are_equal(api: Any) -> None:
    values = {"size": "gpu-v10", "max_nodes": "99", "min_nodes": "x"}
    wrong = checked_target(FakeTarget, "b", values)[1]
    with pytest.raises(CommandError) as caught:
        typed("create b --kind fake --size gpu-v10 --max-nodes 99 --min-nodes x")
    assert set(wrong) == {"name", *values}
    for field in wrong:
        assert f"{'NAME' if field == 'name' else '--' + field.replace('_', '-')}: {wrong[field]}" in str(caught.value)


def test_compute_create_failure_is_raised_and_listed(api: Any) -> None:
    with pytest.raises(QuotaExceeded, match="used up"):
        typed("create bad --kind fake --size cpu-4 --fails create --yes --wait")
    assert "failed" in table()[-1] and "used up" in table()[-1]
    assert typed("delete bad") == "bad is deleted."
    with pytest.raises(CommandError, match="--kind: .*'fak'.*fake"):
        typed("create bad --kind fak")
    with pytest.raises(CommandError, match="'local'.*delete"):
        typed("delete local --yes")


def test_compute_api_functions_manage_targets(api: Any) -> None:
    with pytest.raises(CommandError, match=r"0.23 USD.* confirmed=True"):
        api.create_target("one", "fake", size="cpu-4")
    assert api.create_target("one", "fake", size="cpu-4", confirmed=True) == "one is created."
    assert api.stop_target("one") == "one is stopped."
    assert api.start_target("one", confirmed=True) == "one is started."
    assert api.create_target("one", "fake", size="cpu-4").startswith("one already exists")
    with pytest.raises(CommandError, match="size: 'cpu-5'.*cpu-4"):
        api.create_target("two", "fake", size="cpu-5")
    with pytest.raises(CommandError, match="does not support scale"):
        api.scale_target("one", 2)
    assert [row.state for row in api.compute_rows(60.0)] == ["ready", "ready"]
    assert api.delete_target("one", confirmed=True) == "one is deleted."


def test_compute_operation_failure_is_shown_until_test(api: Any) -> None:
    typed("create big --kind fake --size gpu-v100 --max-nodes 4 --fails scale --yes --wait")
    with pytest.raises(QuotaExceeded):
        typed("scale big --nodes 2 --yes --wait")
    assert "scale failed just now" in table()[-1] or "scale failed" in table()[-1] and "ago" in table()[-1]
    assert compute.show("big").reachable
    assert "failed" not in table()[-1] and "0 running" in table()[-1]


@pytest.mark.thorough
def test_cli_hint_lines_are_cli_commands(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "--dry-run", "nothing.py"]) == 2
    assert main(["runs", "show"]) == 2
    assert main(["compute", "use", "nothing"]) == 2
    assert main(["compute", "show"]) == 0 and main(["compute", "list"]) == 0 and main(["runs"]) == 0
    Path("ok.py").write_text("print(1)")
    assert main(["submit", "ok.py", "--wait"]) == 0
    assert main(["runs", "show"]) == 0 and main(["runs", "list"]) == 0 and main(["model", "list"]) == 0
    captured = capsys.readouterr()
    assert not re.search(r"(?<!%)%aml_", captured.out + captured.err)


@pytest.mark.thorough
def test_cli_compute_create_waits(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["compute", "create", "big", "--kind", "fake", "--size", "cpu-4"]
    assert main(line) == 2
    error = capsys.readouterr().err
    assert error.endswith(" amltrain compute create big --kind fake --size cpu-4 --yes\n")
    assert main([*line, "--provisioning", "2", "--yes"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "big is created.\n" and captured.err.startswith("Creating the machine: 0 %")

    def listed() -> list[tuple[str, str, str]]:
        assert main(["compute", "list", "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        return [(row["target"], row["state"], row["size"]) for row in rows]

    # What does not answer soon is listed as it is known.
    until(lambda: listed() == [("local", "ready", ""), ("big", "ready", "cpu-4")])
    assert main(["compute", "delete", "big", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"message": "big is deleted."}
    assert main([*line, "--fails", "create", "--yes"]) == 1  # the target refused
    assert main(["compute", "attach", "vm"]) == 2
    assert main([*line, "--yes", "--wait"]) == 0  # it waits anyway


def test_check_says_how_to_install_what_is_missing() -> None:
    programs = {"uv": "/usr/bin/uv", "conda": "", "docker": "", "other": ""}
    text = compute.show_text(TargetInfo(target="box", kind="ssh", programs=programs))
    rows = {name: rest for name, _, rest in (line.partition(" ") for line in text.splitlines())}
    assert rows["uv"].strip() == "/usr/bin/uv" and "conda-forge" in rows["conda"] and "apt-get" in rows["docker"]
    assert rows["other"].strip() == "not installed"
