"""Files with packages become what the agent builds."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.jobs import environments
from jupyter_amltrain.jobs.environments import build_request, completed, read_environment
from jupyter_amltrain.jobs.flag_values import environment_of
from jupyter_amltrain.schema.environment import Environment
from jupyter_amltrain.schema.job import JobSpec, validated


def of(folder: Path, name: str, text: str) -> Environment:
    (folder / name).write_text(text)
    return read_environment(environment_of(str(folder / name)))


@pytest.mark.parametrize(
    ("dependencies", "python", "packages"),
    [
        ("[python=3.11, pip]", "3.11", ()),
        ("[python==3.11.4, pip=23, {pip: [six, 'idna<3']}]", "3.11.4", ("six", "idna<3")),
        ("['python>=3.10,<3.13', pip]", ">=3.10,<3.13", ()),
        ("[conda-forge::python=3.12.*]", "3.12", ()),
        ("[{pip: [six]}]", "", ("six",)),
    ],
)
def test_conda_file_without_conda_packages_is_for_uv(
    tmp_path: Path, dependencies: str, python: str, packages: tuple[str, ...]
) -> None:
    result = of(tmp_path, "conda.yml", f"name: x\ndependencies: {dependencies}\n")
    assert (result.python, result.packages, result.conda_text) == (python, packages, "")


def test_conda_file_with_conda_packages_is_kept_with_absolute_paths(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("six\n")
    text = "name: x\nchannels: [c]\ndependencies: [python=3.11, gsl, pip, {pip: [-r more.txt, idna]}]\n"
    result = of(tmp_path, "conda.yaml", text)
    document = yaml.safe_load(result.conda_text)
    assert document == {"channels": ["c"], "dependencies": ["gsl", "pip", "python=3.11", {"pip": ["six", "idna"]}]}
    request = build_request(result, "python3", has_our_disk=False)
    assert request["conda"] and not request["packages"] and not request["python"] and not request["tool"]


def test_project_file_gives_dependencies_and_python(tmp_path: Path) -> None:
    text = '[project]\nname = "x"\nrequires-python = ">=3.10"\ndependencies = ["six>1", "idna"]\n'
    result = of(tmp_path, "pyproject.toml", text)
    assert result.packages == ("six>1", "idna") and result.python == ">=3.10"


PROJECT = """
[project]
name = "x"
dependencies = ["six"]
[project.optional-dependencies]
train = ["idna", "git+https://h/y.git"]
[dependency-groups]
dev = ["ruff", {include-group = "test"}]
test = ["pytest"]
"""


def test_extras_and_groups_of_a_project_are_included(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    monkeypatch.chdir(tmp_path)
    filled = environments.read_environment(environment_of("pyproject.toml[train, dev]"))
    assert filled.packages == ("six", "idna", "git+https://h/y.git", "ruff", "pytest")
    assert environment_of("uv.lock[train]").project == str(tmp_path / "pyproject.toml")
    with pytest.raises(SpecError, match="dev, test, train"):
        environments.read_environment(environment_of("pyproject.toml[trian]"))


def test_extras_of_a_lock_are_options_of_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "uv.lock").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(environments, "submitter_uv", lambda: "uv")
    called: list[list[str]] = []

    def run(argv: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        called.append(argv)
        return subprocess.CompletedProcess(argv, 0, "six==1\n", "")

    monkeypatch.setattr(environments.subprocess, "run", run)
    assert environments.read_environment(environment_of("uv.lock[train,dev]")).packages == ("six==1",)
    options = called[0][called[0].index("--extra") :]
    assert options[:4] == ["--extra", "train", "--group", "dev"]


def test_project_with_lock_gives_exact_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uv.lock").write_text("")
    lines = "-e .\nsix==1.16.0 ; python_full_version >= '3.8'\n"
    monkeypatch.setattr(environments, "submitter_uv", lambda: "uv")
    done = subprocess.CompletedProcess([], 0, lines, "")
    monkeypatch.setattr(environments.subprocess, "run", lambda *_, **__: done)
    result = of(tmp_path, "pyproject.toml", '[project]\nname = "x"\ndependencies = ["six"]\n')
    assert result.packages == (f"-e {tmp_path}", "six==1.16.0 ; python_full_version >= '3.8'")


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("conda.yml", "dependencies: [\n", "line 2"),
        ("conda.yml", "channels: []\n", "dependencies"),
        ("conda.yml", "dependencies: [python=3.11, 3]\n", "dependencies"),
        ("conda.yml", "dependencies: [{pip: [six, 'a >> b']}]\n", "entry 2"),
        ("conda.yml", "channels: ['https://me:s3cret@h/c']\ndependencies: [blas]\n", "password"),
        ("conda.yml", "channels: ['https://h/t/tk-s3cret/c']\ndependencies: [blas]\n", "password"),
        ("conda.yml", "dependencies: ['https://me:s3cret@h/c::blas']\n", "password"),
        ("pyproject.toml", "[project\n", "pyproject.toml"),
        ("pyproject.toml", "[tool]\n", "project"),
        ("pyproject.toml", '[project]\ndynamic = ["dependencies"]\n', "dynamic"),
        ("pyproject.toml", '[project]\ndependencies = ["a >> b"]\n', "dependency 1"),
        ("pyproject.toml", '[project]\ndependencies = ["a"]\n[tool.uv.sources]\na = {path = "x"}\n', "uv lock"),
    ],
)
def test_error_in_file_is_one_line_that_names_it(tmp_path: Path, name: str, text: str, word: str) -> None:
    with pytest.raises(SpecError, match=word) as caught:
        of(tmp_path, name, text)
    assert "\n" not in str(caught.value) and "s3cret" not in str(caught.value)


def job(text: str, environment: Environment) -> JobSpec:
    return JobSpec(name="x", script=text, notebook_dir=".", environment=environment)


@pytest.mark.parametrize(
    ("text", "packages", "adds"),
    [
        ("import mlflow\n", ("six",), True),
        ("def f():\n    from mlflow import log_metric\n", ("six",), True),
        ("import six\n", ("six",), False),
        ("import mlflow\n", ("MLflow>=2",), False),
        ("import mlflow\n", ("mlflow_skinny==3",), False),
        ("print('mlflow')\n", ("six",), False),
    ],
)
def test_script_with_mlflow_gets_it_unless_file_has_it(text: str, packages: tuple[str, ...], adds: bool) -> None:
    result = completed(job(text, Environment(pip=packages)))
    assert ("mlflow-skinny" in result.environment.packages) is adds and bool(result.notes) is adds
    assert completed(result) == result


def test_packages_can_be_added_to_those_of_the_kernel_but_not_to_a_name(tmp_path: Path) -> None:
    result = completed(job("import pytest\n", Environment(kernel=True, pip=("six",))))
    assert any(line.startswith("pytest==") for line in result.environment.packages)
    assert result.environment.packages[-1] == "six" and result.environment.python
    with pytest.raises(SpecError) as caught:
        validated(job("x = 1", Environment(name="digits:1", pip=("six",))))
    assert caught.value.field == "environment.pip"
    with pytest.raises(SpecError) as caught:
        validated(job("x = 1", Environment(pip=("x @ https://me:hidden@h/x.whl",))))
    assert caught.value.code == "spec.secret" and "hidden" not in str(caught.value)


def test_pip_of_kernel_environment_has_what_the_kernel_lacks_or_has_in_another_version() -> None:
    spec = completed(
        job("import pytest, absent_module\n", Environment(kernel=True, pip=("absent-package", "Pytest<9")))
    )
    assert [line for line in spec.environment.packages if "ytest" in line or "absent" in line] == [
        "absent-package",
        "Pytest<9",
    ]


def job_file(environment: Environment) -> JobSpec:
    return JobSpec(name="j", script_name="job.yml", job_type="command", command="true", environment=environment)


def test_inline_conda_file_with_python_alone_is_built() -> None:
    spec = completed(job_file(Environment(conda_text="dependencies: [python=3.11]\n", image="x/y:1")))
    assert environments.is_built(spec) and spec.environment.python == "3.11" and completed(spec) == spec


def test_repeated_job_file_keeps_the_conda_packages_of_the_first(tmp_path: Path) -> None:
    file = tmp_path / "conda.yml"
    file.write_text("dependencies: [numpy]\n")
    first = completed(job_file(Environment(conda=str(file))))
    file.write_text("dependencies: [scipy]\n")
    assert completed(first) == first and "numpy" in first.environment.conda_text


def test_service_gets_conda_packages_and_refuses_lines_of_this_machine(tmp_path: Path) -> None:
    service = environments.for_service(Environment(conda_text="dependencies: [numpy, {pip: [rich]}]\n", pip=("rich",)))
    assert service.conda_file["dependencies"][0] == "numpy"
    with pytest.raises(SpecError) as caught:
        environments.for_service(Environment(requirements="requirements.txt", packages=("-c numpy<2", "pandas")))
    assert "numpy<2" in str(caught.value)


def test_kernel_environment_is_built_on_another_machine_only() -> None:
    spec = job("import pytest\n", Environment(kernel=True))
    assert completed(spec) == spec and not environments.is_built(spec)
    there = completed(spec, has_our_disk=False)
    assert environments.is_built(there) and there.environment.packages[0].startswith("pytest==")
