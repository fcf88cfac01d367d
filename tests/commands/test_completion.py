from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.commands.completion import CompletionNames, complete
from jupyter_amltrain.commands.registry import NOUNS, SHELL_NOUNS, parser_of

COMMAND_LINES = [*(("%aml_", name) for name in NOUNS), *(("amltrain ", name) for name in SHELL_NOUNS)]


class Names(CompletionNames):
    """CompletionNames names without a disk."""

    def refresh(self, deadline: float = 0) -> CompletionNames:
        return self

    def targets(self) -> list[str]:
        return ["local", "lab-vm", "gpu-cluster"]

    def runs(self, *, ended: bool | None = None) -> list[str]:
        states = {"local/new-2": False, "lab-vm/digits-7": True, "local/digits-1": True}
        return [name for name, done in states.items() if ended is None or done is ended]

    def gpus(self) -> list[int]:
        return [0, 1, 2, 3]


def offers(command: str, line: str, cell: str = "") -> list[str]:
    return [offer.text for offer in complete(command, line, Names(), cell).offers]


@pytest.mark.parametrize(("front", "command"), COMMAND_LINES)
def test_completion_offers_every_flag_and_verb(command: str, front: str) -> None:
    parser = parser_of(command, front + command)
    if parser.verbs:
        found = complete(command, "", Names(), prog=front + command).offers
        assert [offer.text for offer in found] == list(parser.verbs)
    for verb, its in {"": parser, **parser.verbs}.items():
        if its.verbs:
            continue
        long = {flag for action in its._actions for flag in action.option_strings if flag.startswith("--")}
        found = complete(command, f"{verb} --", Names(), prog=front + command).offers
        assert {offer.text for offer in found} == long and found[-1].text == "--help"


@pytest.mark.parametrize(
    ("command", "line", "expected"),
    [
        ("submit", "--ta", ["--target", "--tag"]),
        ("submit", "--wait --wa", []),  # given already
        ("submit", "--param a=1 --par", ["--param"]),  # may be given again
        ("submit", "--target ", ["local", "lab-vm", "gpu-cluster"]),
        ("submit", "--target=l", ["local", "lab-vm"]),
        ("submit", "--require-gpu ", ["stop", "warn"]),
        ("submit", "--require-gpu w", ["warn"]),
        ("submit", "--gpus ", ["0", "1", "2", "3", "4"]),
        ("submit", "--distribution ", ["pytorch", "mpi", "tensorflow", "deepspeed", "horovod", "ray"]),
        ("submit", "--identity m", ["managed"]),
        ("submit", "--service vscode --service t", ["tensorboard"]),
        ("submit", "--tier s", ["spot", "standard"]),
        ("submit", "--priority=h", ["high"]),
        ("submit", "--input da", []),
        ("model", "", ["list", "register", "download"]),
        ("model", "register digits --type ", ["custom_model", "mlflow_model"]),
        ("model", "register digits --run lab", ["lab-vm/digits-7"]),
        ("submit", "--param ", []),
        ("submit", "x.py -- --ta", []),  # the script's own
        ("runs", "l", ["list", "logs", "lines", "last"]),
        ("runs", "--li", ["--limit"]),  # of the first verb
        ("runs", "list --target lo", ["local"]),
        ("runs", "logs ", ["local/new-2", "last", "lab-vm/digits-7", "local/digits-1"]),
        ("runs", "logs dig", ["digits-7", "digits-1"]),  # an id without its target
        ("runs", "logs lab", ["lab-vm/digits-7"]),
        ("runs", "logs last ", ["--tail", "--follow", "--rank", "--raw", "--step"]),
        ("runs", "cancel ", ["local/new-2"]),
        ("runs", "delete ", ["lab-vm/digits-7", "local/digits-1"]),
        ("runs", "delete local/digits-1 ", ["lab-vm/digits-7"]),
        ("runs", "delete -f lo", ["local/digits-1"]),
        ("runs", "dashboard last --window ", ["10m", "1h", "all"]),
        ("runs", "nonsense ", []),
        ("compute", "use g", ["gpu-cluster"]),
        ("compute", "list ", []),
        ("compute", "s", ["show", "start", "stop", "scale", "sizes", "support"]),
        ("compute", "delete ", ["lab-vm", "gpu-cluster"]),  # this machine stays
        ("compute", "create big --k", ["--kind"]),
        ("compute", "create big --kind ", ["amlcompute", "serverless", "instance", "fake"]),
        ("compute", "create big --size gpu-8", ["gpu-8xa100", "gpu-8xh100"]),
        ("compute", "scale lab-vm --n", ["--nodes"]),
        ("monitor", "", ["local", "lab-vm", "gpu-cluster"]),
        ("monitor", "local --gpus 0,", ["1", "2", "3"]),
        ("monitor", "--rate ", ["0.5", "1", "2"]),
    ],
)
def test_completion_of_line_offers_matches(command: str, line: str, expected: list[str]) -> None:
    assert offers(command, line) == expected


def test_completion_of_out_offers_cell_variables() -> None:
    cell = "import os\nloss: float = 3\nif loss == 3:\n    x = 1\naccuracy = 1\nprint(acc=2)\n"
    assert offers("submit", "--out ", cell) == ["accuracy", "loss"]
    assert offers("submit", "--out accuracy,", cell) == ["loss"]
    assert offers("submit", "--out accuracy --out ", cell) == ["loss"]


def test_completion_offers_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "two words.py", "notes.txt", "lib/model.py", ".hidden.py", "run.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert offers("submit", "") == ["lib/", "train.py", "two\\ words.py"]
    assert offers("submit", "lib/m") == ["lib/model.py"]
    assert offers("submit", "two\\ w") == ["two\\ words.py"]
    assert offers("submit", "'two w") == ["'two words.py"]
    assert offers("submit", "--source ") == ["lib/"]
    assert offers("submit", "nowhere/x") == []
    assert offers("runs", "export last ") == ["lib/", "run.csv"]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state root with two targets and three runs, never opened by a controller."""
    monkeypatch.setenv("AMLTRAIN_HOME", str(tmp_path))
    for at, (name, state) in enumerate({"old-1": "completed", "mid-2": "running", "new-3": "failed"}.items()):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "job.json").write_text("{}")
        (folder / "state.json").write_text(json.dumps({"state": state}))
        os.utime(folder / "job.json", (1000 + at, 1000 + at))
    (tmp_path / "runs" / "no-run").mkdir()
    (tmp_path / "targets.json").write_text(json.dumps({"schema": 1, "targets": {"vm": {}}}))
    return tmp_path


def test_completion_names_without_controller_come_from_disk(root: Path) -> None:
    from jupyter_amltrain.kernel import session

    known = CompletionNames().refresh(60)
    assert known.targets() == ["local", "vm"]
    assert known.runs() == ["local/new-3", "local/mid-2", "local/old-1"]
    assert known.runs(ended=False) == ["local/mid-2"]
    assert known.runs(ended=True) == ["local/new-3", "local/old-1"]
    assert session.current_controller() is None  # none was made for that


@pytest.mark.parametrize("damage", ["{", "[]", '{"targets": 3}'])
def test_completion_with_damaged_file_omits_only_its_names(root: Path, damage: str) -> None:
    (root / "targets.json").write_text(damage)
    (root / "runs" / "mid-2" / "state.json").write_text(damage)
    known = CompletionNames().refresh(60)
    assert known.targets() == ["local"] and known.runs()[0] == "local/new-3" and len(known.runs()) == 3


def test_completion_without_state_root_offers_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMLTRAIN_HOME", str(tmp_path / "never-made"))
    known = CompletionNames().refresh(60)
    assert known.targets() == ["local"] and known.runs() == []
    assert not (tmp_path / "never-made").exists()


def test_completion_with_busy_controller_does_not_wait(api: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMLTRAIN_HOME", str(root))
    gate = threading.Event()

    async def block() -> None:
        gate.wait(60)  # the loop does nothing else

    blocked = api.controller().loop.post(block())
    try:
        assert CompletionNames().refresh(60).runs()[0] == "local/new-3"
        assert not blocked.done()
    finally:
        gate.set()
        blocked.result(60)


def test_completion_with_slow_disk_does_not_wait(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    real = os.scandir

    def slow(path: Any) -> Any:
        gate.wait(60)
        return real(path)

    monkeypatch.setattr("jupyter_amltrain.commands.completion.os.scandir", slow)
    known = CompletionNames()
    assert known.refresh(0.01).runs() == []  # returned while the reader still waits
    assert known.refresh(0.01).runs() == []
    gate.set()
    assert known.refresh(60).runs()[0] == "local/new-3"


def test_completion_offers_conda_files_and_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conda.yml").write_text("")
    (tmp_path / "code.py").write_text("")
    (tmp_path / "context").mkdir()
    assert offers("submit", "--env co") == ["context/", "conda.yml"]
    assert offers("submit", "--input data=co") == ["context/", "code.py", "conda.yml"]
    assert offers("model", "download digits --to co") == ["context/"]
