"""Requirements on the line and in files become lines that mean the same in another folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.jobs.requirement_files import RequirementReader, has_password, name_of, split_specs
from tests.wheels import make_wheel


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("pandas", ["pandas"]),
        ("pandas >= 2, < 3", ["pandas >= 2, < 3"]),
        ("pandas>=2 scikit-learn[a,b]==1.5", ["pandas>=2", "scikit-learn[a,b]==1.5"]),
        ("git+https://h/x.git@main#egg=x", ["git+https://h/x.git@main#egg=x"]),
        ("git+https://h/x.git pandas", ["git+https://h/x.git", "pandas"]),
        ("x @ git+https://h/x@v1 ; python_version>'3'", ["x @ git+https://h/x@v1 ; python_version>'3'"]),
    ],
)
def test_value_of_pip_flag_holds_one_requirement_or_several(text: str, parts: list[str]) -> None:
    assert split_specs(text) == parts


@pytest.mark.parametrize("text", ["", "pandas >> 2", "-r file", "x @ https://me:hidden@h/x.whl"])
def test_wrong_value_of_pip_flag_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        split_specs(text)
    assert "hidden" not in str(caught.value) and caught.value.code == "flag.value"


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ("x @ git+ssh://git@github.com/o/r.git", False),
        ("--index-url https://__token__:${TOKEN}@h/simple", False),
        ("--index-url https://${NAME}:${TOKEN}@h/simple", False),
        ("--index-url https://${TOKEN}@h/simple", False),
        ("x @ git+ssh://git:literal@h/r.git", True),
        ("--index-url https://literal@h/simple", True),
        ("--index-url https://literal:@h/simple", True),
        ("--index-url https://${NAME}:literal@h/simple", True),
        ("--index-url https://__token__:literal${TOKEN}@h/simple", True),
    ],
)
def test_password_is_what_is_literal_and_no_user_of_ssh(text: str, has: bool) -> None:
    assert has_password(text) is has


def read(folder: Path, text: str, has_our_disk: bool = True) -> tuple[str, ...]:
    (folder / "requirements.txt").write_text(text)
    return RequirementReader("requirements.txt", has_our_disk).read(str(folder / "requirements.txt"))


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("# all\n\npandas>=2  # why\nnumpy\n", ("pandas>=2", "numpy")),
        ("pandas \\\n  >=2\n", ("pandas   >=2",)),
        ("--find-links=wheels\n-f https://h/w\n", ("--find-links {0}/wheels", "--find-links https://h/w")),
        ("-r more.txt\nnumpy\n", ("six", "numpy")),
        ("-c more.txt\nnumpy\n", ("-c six", "numpy")),
        ("-i https://h/simple\n--pre\n--no-index\n", ("--index-url https://h/simple", "--no-index")),
        ("-e ./wheels[test]\n", ("-e {0}/wheels[test]",)),
        ("six==1.0 --hash=sha256:ab\n", ("six==1.0 --hash=sha256:ab",)),
        ("git+ssh://git@h/x.git@v1#subdirectory=a  # why\n", ("git+ssh://git@h/x.git@v1#subdirectory=a",)),
        ("x[a] @ git+https://h/x ; os_name == 'nt'\n", ("x[a] @ git+https://h/x ; os_name == 'nt'",)),
        ("--index-url https://${USER}:${TOKEN}@h/simple\n", ("--index-url https://${USER}:${TOKEN}@h/simple",)),
        ("x @ https://h/${NAME}/x.whl\nhttps://h/y-1-py3-none-any.whl\n", None),
    ],
)
def test_line_of_file_is_kept_with_absolute_paths(tmp_path: Path, text: str, lines: tuple[str, ...] | None) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "more.txt").write_text("six\n")
    expected = (
        tuple(text.split())
        if lines is None
        else tuple(line.format(tmp_path) if "{0}" in line else line for line in lines)
    )
    result = read(tmp_path, text)
    assert result == expected or lines is None and " ".join(result).split() == text.split()


def test_local_package_has_digest_of_its_content(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "alpha")
    first = read(tmp_path, f"./{wheel.name}\n")
    assert first[0].startswith(f"{wheel}  # ") and first == read(tmp_path, f"{wheel}\n")
    make_wheel(tmp_path, "alpha", code="changed = 1\n")
    assert read(tmp_path, f"./{wheel.name}\n") != first
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text("")
    whole = read(tmp_path, "./project\n")
    (project / "more.py").write_text("x = 1\n")
    assert whole[0].startswith(str(project)) and read(tmp_path, "./project\n") != whole


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("numpy\npandas >> 2\n", "line 2"),
        ("numpy\n./nothere.whl\n", "line 2"),
        ("--nonsense\n", "line 1"),
        ("-r nothere.txt\n", "nothere.txt"),
        ("-r requirements.txt\n", "itself"),
        ("# x\n--index-url https://me:hidden@h/simple\n", "line 2"),
        ("numpy @@ x\n", "line 1"),
        ("a\nnumpy @ file:///home/conda/feedstock_root/build_artifacts/numpy_1/work\n", "line 2: numpy"),
        ("git+https://me:hidden@h/x.git\n", "line 1"),
    ],
)
def test_error_in_file_names_its_line(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert line in message and "\n" not in message and "hidden" not in message


def test_relative_path_is_refused_for_another_machine(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    assert read(tmp_path, "--find-links /there/wheels\n", has_our_disk=False) == ("--find-links /there/wheels",)
    with pytest.raises(SpecError, match="line 1"):
        read(tmp_path, "--find-links wheels\n", has_our_disk=False)


@pytest.mark.parametrize(
    ("line", "name"),
    [("Scikit_Learn>=1", "scikit-learn"), ("mlflow", "mlflow"), ("-c x", ""), ("./x", ""), ("a.b[c]==1", "a-b")],
)
def test_name_of_line_is_normalized(line: str, name: str) -> None:
    assert name_of(line) == name
