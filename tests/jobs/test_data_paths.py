from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_amltrain.jobs.data_paths import named_here, only_here, written_elsewhere


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "project" / "data").mkdir(parents=True)
    for name in ("data/train.csv", "table.parquet", "helper.py", "README"):
        (tmp_path / "project" / name).write_text("x")
    (tmp_path / "far.csv").write_text("x")
    return tmp_path / "project"


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("import pandas as pd\ndf = pd.read_csv('data/train.csv')", [("data/train.csv", 2)]),
        ("open(file='./table.parquet')", [("./table.parquet", 1)]),
        ("path = 'data/train.csv'\nopen(path)\nopen('data/train.csv')", [("data/train.csv", 1)]),
        ("open('../far.csv')", [("../far.csv", 1)]),
        ("open('data/absent.csv'); open('out.csv', 'w')", []),
        ("print('see data/train.csv')\nurl = 'https://host/table.parquet'", []),
        ("'data/train.csv'", []),  # no argument: a docstring
        ("open('README')", []),  # one word is more often no path
        ("open('helper.py')", []),  # travels
        ("this is no Python 'data/train.csv'", []),
    ],
)
def test_paths_that_exist_only_here_are_found(folder: Path, script: str, found: list[tuple[str, int]]) -> None:
    sent = {str(folder / "script.py"), str(folder / "helper.py")}
    assert [one[:2] for one in only_here(named_here(script.encode(), folder), sent)] == found


def test_absolute_path_counts_in_home_alone(folder: Path) -> None:
    script = f"open({str(folder / 'table.parquet')!r}); open('/etc/passwd.d/x'); open('/etc/hostname.txt')"
    assert [path.text for path in only_here(named_here(script.encode(), folder), ())] == [str(folder / "table.parquet")]


def test_files_that_travel_are_not_found(folder: Path) -> None:
    sent = {str(folder / "data" / "train.csv"), str(folder / "script.py")}
    assert only_here(named_here(b"open('data/train.csv'); list('./data/')", folder), sent) == []


@pytest.mark.parametrize(
    "script",
    [
        "df.to_csv('table.parquet')",
        "open('table.parquet', 'w')",
        "plt.savefig('table.parquet')",
        "np.save('table.parquet', x)",
    ],
)
def test_files_that_are_written_are_not_found(folder: Path, script: str) -> None:
    assert named_here(script.encode(), folder) == []


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("torch.save(model, 'model.pt')", ["model.pt"]),
        ("df.to_csv('out/table.csv', index=False)", ["out/table.csv"]),
        ("open('log.txt', 'w').write('x'); plt.savefig('a.png')", ["log.txt", "a.png"]),
        ("df.to_csv('./outputs/table.csv'); np.save('logs/x.npy', x); np.save('/mnt/x.npy', x)", []),
        ("plt.savefig('a.png'); mlflow.log_artifact('a.png')", []),
        ("open('log.txt'); pd.read_csv('table.csv'); text.write('a sentence.')", []),
        ("def broken(:", []),
    ],
)
def test_relative_paths_that_are_written_are_found_unless_they_are_kept(script: str, found: list[str]) -> None:
    assert [one.text for one in written_elsewhere(script.encode())] == found


@pytest.mark.parametrize(
    "expression",
    [
        "os.path.join(os.path.dirname(__file__), 'data', 'train.csv')",
        "os.path.dirname(os.path.abspath(__file__)) + '/data/train.csv'",
        "Path(__file__).parent / 'data' / 'train.csv'",
        "pathlib.Path(__file__).resolve().parent.joinpath('data', 'train.csv')",
        "Path(__file__).resolve().parents[0] / f'data/train.csv'",
        "HERE / 'train.csv'",
    ],
)
def test_data_beside_the_script_is_found_from_its_file(folder: Path, expression: str) -> None:
    script = f"HERE = Path(__file__).parent / 'data'\nopen({expression})"
    found = named_here(script.encode(), folder.parent, str(folder / "train.py"))
    assert str(folder / "data" / "train.csv") in [one.path for one in found]


@pytest.mark.parametrize("call", ["@hydra.main(version_base=None, {})", "initialize({})\n#"])
def test_configuration_of_hydra_is_found_beside_the_script(folder: Path, call: str) -> None:
    text = call.format("config_path='data', config_name='train'") + "\ndef main(cfg): pass\n"
    (folder / "data" / "train.yaml").write_text("a: 1")
    found = named_here(text.encode(), folder.parent, str(folder / "app.py"))
    assert [one.path for one in found] == [str(folder / "data"), str(folder / "data" / "train.yaml")]
