from __future__ import annotations

import shlex

import pytest

from jupyter_amltrain.commands.parser import HelpRequested
from jupyter_amltrain.commands.registry import NOUNS, SHELL_NOUNS, parser_of
from jupyter_amltrain.errors import CommandError

COMMAND_LINES = [*(("%aml_", name) for name in NOUNS), *(("amltrain ", name) for name in SHELL_NOUNS)]


def failure(command: str, line: str, prog: str = "") -> str:
    with pytest.raises(CommandError) as caught:
        parser_of(command, prog or f"%aml_{command}").parse(line.split())
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("line", "guess"),
    [
        ("--target-name gpu", "--target?"),
        ("--targt gpu", "--target"),
        ("--params lr=1", "--param"),
        ("--time-out 3", "--timeout"),
        ("--dryrun", "--dry-run"),
        ("--secert X", "--secret"),
        ("--gpu 1", "--gpus"),
        ("--wiat", "--wait"),
        ("--target=x --outt=acc", "--out"),
    ],
)
def test_unknown_flag_error_suggests_similar_flag(line: str, guess: str) -> None:
    message = failure("submit", line)
    assert f"unknown flag {[x for x in line.split() if x.startswith('--')][-1].partition('=')[0]}." in message
    assert "Did you mean" in message and guess in message


@pytest.mark.parametrize(
    ("line", "name"), [("--epochs 5", "epochs"), ("--batch-size 32", "batch_size"), ("--lr=0.1", "lr")]
)
def test_unknown_flag_that_is_a_parameter_names_param(line: str, name: str) -> None:
    assert f"--param {name}=" in failure("submit", line)


def test_unknown_flag_without_match_points_to_help() -> None:
    assert failure("submit", "--zzz").endswith("See: %aml_submit?")
    assert failure("submit", "--zzz", "amltrain submit").endswith("See: amltrain submit --help")


def test_abbreviated_flag_is_refused() -> None:
    assert "unknown flag --targ." in failure("submit", "--targ local")


@pytest.mark.parametrize(
    ("line", "guess"),
    [
        ("lst", "Did you mean list"),
        ("log", "Did you mean logs"),
        (
            "stop",
            "Commands: list, show, logs",
        ),
        ("local/digits-k3f9x", "Did you mean: %aml_runs show local/digits-k3f9x"),
    ],
)
def test_unknown_verb_error_suggests_similar_verb(line: str, guess: str) -> None:
    assert guess in failure("runs", line)


def test_missing_value_or_extra_argument_is_refused() -> None:
    assert "--gpus: expected one argument" in failure("submit", "--gpus")
    assert "unexpected argument 'b.py'" in failure("runs", "show a.py b.py")
    assert "required: run" in failure("runs", "cancel")


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ("train.py --param lr=1 -- --gpus 2", ["--gpus", "2"]),
        ("train.py conf.yaml --gpus 2", ["conf.yaml", "--gpus", "2"]),
        ("train.py --gpus 1 --lr 0.1", ["--lr", "0.1"]),
        ("--gpus 1 train.py fit --lr=0.1 -v", ["fit", "--lr=0.1", "-v"]),
        ("-m package.train fit", ["fit"]),
        ("--module=package.train --gpus=1 fit --wait", ["fit", "--wait"]),
        ("train.py --name a --wait", []),
        ("train.py -", ["-"]),
    ],
)
def test_words_behind_the_script_are_its_arguments(line: str, rest: list[str]) -> None:
    args = parser_of("submit", "%aml_submit").parse(line.split())
    assert args.rest == rest and (args.script == "train.py" or args.module == "package.train")


@pytest.mark.parametrize("line", ["train.py --parm lr=1", "train.py --targte gpu x"])
def test_misspelled_flag_behind_the_script_is_no_argument(line: str) -> None:
    assert "unknown flag" in failure("submit", line)


def test_runs_without_verb_lists() -> None:
    parser = parser_of("runs", "%aml_runs")
    assert parser.parse([]).verb == "list"
    assert parser.parse(["--limit", "3"]).limit == 3
    assert parser.parse(["logs", "--tail", "5"]).run == "last"
    assert parser.parse(["delete", "a", "b", "-f"]).force


def test_submit_parser_reads_all_flags() -> None:
    line = (
        "train.py --target gpu --source . --param lr=0.1 --param n=[1] --out a,b --out c --env-var OMP_NUM_THREADS=2"
        " --secret TOKEN --gpus 2 --name n --experiment e --tag team=x --timeout 1h30m --wait --dry-run --as run"
    )
    found = parser_of("submit", "%aml_submit").parse(line.split())
    assert found.param == [("lr", 0.1), ("n", [1])]
    assert found.out == [["a", "b"], ["c"]]
    assert (found.timeout, found.gpus, found.secret, found.as_name) == (5400.0, 2, ["TOKEN"], "run")


@pytest.mark.parametrize(("front", "command"), COMMAND_LINES)
def test_help_begins_with_sentence_and_examples(command: str, front: str) -> None:
    parser = parser_of(command, front + command)
    with pytest.raises(HelpRequested) as caught:
        parser.parse(["--help"])
    text = str(caught.value)
    first, blank, second = text.splitlines()[:3]
    assert first.endswith(".") and not blank and second == "Examples::"
    assert text.index("Examples") < text.index("usage:") and front + command in text
    assert max(map(len, text.splitlines())) <= 100
    for verb in parser.verbs.values():
        with pytest.raises(HelpRequested, match="usage: "):
            verb.parse(["-h"])


def test_help_examples_are_valid() -> None:
    """What the help says to copy is parsed by the same parser."""
    for front, command in COMMAND_LINES:
        text = parser_of(command, front + command).format_help()
        lines = [x.strip() for x in text.partition("usage:")[0].splitlines() if x.startswith("    ")]
        assert lines
        for line in lines:
            words = shlex.split(line.partition(f"{front}{command}")[2].partition(" -- ")[0])
            parser_of(command, front + command).parse(words)


def test_require_gpu_invalid_error_names_both_values() -> None:
    for line in ("--require-gpu", "--require-gpu --wait", "--require-gpu never", "--require-gpu="):
        message = failure("submit", line)
        assert "stop" in message and "warn" in message, line
    assert "Did you mean warn?" in failure("submit", "--require-gpu wran")
    assert parser_of("submit", "%aml_submit").parse(["--gpu-ids", "index"]).gpu_ids == "index"
    assert "Did you mean index?" in failure("submit", "--gpu-ids indexes")
    found = parser_of("submit", "%aml_submit").parse(["--require-gpu", "stop", "--gpu-grace", "2m"])
    assert (found.require_gpu, found.gpu_grace) == ("stop", 120.0)


def test_monitor_parser_reads_flags() -> None:
    parser = parser_of("monitor", "%aml_monitor")
    found = parser.parse([])
    assert (found.target, found.gpus, found.window, found.rate) == (None, None, 600.0, 1.0)
    found = parser.parse(["vm", "--gpus", "3,0-1", "--window", "all", "--rate", ".5"])
    assert (found.target, found.gpus, found.window, found.rate) == ("vm", [0, 1, 3], 0.0, 0.5)
    for line, text in {
        "--gpus 0,x": "list of GPU numbers",
        "--gpus 3-1": "list of GPU numbers",
        "--gpus ,": "list of GPU numbers",
        "--window 0": "Write 90s, 10m, 2h or all",
        "--window soon": "--window: expected a time",
        "--rate 11": "from 0.1 to 10",
        "--rate fast": "from 0.1 to 10",
        "--windw 3": "Did you mean --window",
        "--once": "unknown flag --once",
        "vm --gpus": "expected one argument, N,N",
    }.items():
        assert text in failure("monitor", line), line
    assert parser_of("monitor", "amltrain monitor").parse(["--once", "--json"]).once


def test_dashboard_and_export_parsers_read_flags() -> None:
    parser = parser_of("runs", "%aml_runs")
    assert parser.parse(["dashboard", "digits", "--window", "1h"]).window == 3600
    assert parser.parse(["dashboard"]).run == "last"
    found = parser.parse(["export", "last", "a.csv"])
    assert (found.run, found.file) == ("last", "a.csv")
    assert "required: file" in failure("runs", "export last")
    assert "unknown command 'dashboard'" in failure("runs", "dashboard", "amltrain runs")  # it needs a page


def test_submit_parser_reads_machine_package_and_data_flags() -> None:
    from jupyter_amltrain.commands.submit import parse_submit
    from jupyter_amltrain.schema.environment import Environment
    from jupyter_amltrain.schema.inputs import JobInput, JobOutput
    from jupyter_amltrain.schema.job import Distribution, Resources

    line = (
        "--nodes 2 --processes 4 --distribution mpi --instance-type Standard_NC6s_v3 --shm-size 8g"
        " --docker-args=--ipc=host --env AzureML-x --derive-env --input data=azureml:digits:1,download"
        " --input n=3,literal --output model,mlflow_model --identity managed --service jupyterlab --service tensorboard"
        " --priority low --tier spot --gpus 1"
    )
    spec = parse_submit(line.split(), "pass").spec
    assert spec.resources == Resources(
        gpus=1, nodes=2, instance_type="Standard_NC6s_v3", shm_size="8g", docker_args="--ipc=host"
    )
    assert spec.distribution == Distribution(kind="mpi", processes=4)
    assert spec.environment == Environment(name="AzureML-x@latest", derive=True)
    assert spec.inputs == {
        "data": JobInput(path="azureml:digits:1", mode="download"), "n": JobInput(type="literal", value=3),
    }  # fmt: skip
    assert spec.outputs == {"model": JobOutput(type="mlflow_model")}
    assert (spec.identity, spec.services) == ("managed", ("jupyterlab", "tensorboard"))
    assert (spec.priority, spec.tier) == ("low", "spot")
    assert parse_submit(["--nodes", "2"], "pass").spec.distribution.kind == "pytorch"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--env A=TELLTALE", "Did you mean --env-var A=...?"),
        ("--docker-args '-e HF_TOKEN=TELLTALE_1234'", "looks like a secret"),
        ("--docker-args --env=API_KEY=TELLTALE", "expected one argument"),
        ("--priority hgih", "Did you mean high?"),
        ("--tier gold", "spot (low priority"),
        ("--input a=x --input a=y", "a is given twice"),
        ("--nodes 0", "--nodes 0"),
        ("--nodes two", "whole number"),
        ("--node 2", "Did you mean --nodes"),
    ],
)
def test_submit_flag_invalid_is_refused(line: str, message: str) -> None:
    import shlex

    from jupyter_amltrain.commands.submit import parse_submit

    with pytest.raises(CommandError) as caught:
        parse_submit(shlex.split(line), "pass")
    assert message in str(caught.value) and "TELLTALE" not in str(caught.value)
