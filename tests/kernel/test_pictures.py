"""Pictures of runs over a real controller: of live and ended runs, bounded, and never trusted."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.frontend import picture_handlers
from jupyter_amltrain.frontend.handlers import RequestHandlers
from jupyter_amltrain.kernel.pictures import pictures_of
from jupyter_amltrain.kernel.shown_files import MAX_PICTURES
from jupyter_amltrain.output.mime import bundle_of
from tests.helpers import DEADLINE, api_of, until
from tests.tracking.test_thumbnails import bomb, image, svg


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with api_of(tmp_path_factory.mktemp("pictures")) as module:
        yield module


def ask(api: Any, request: Any) -> Any:
    handlers = RequestHandlers(api.controller())
    return api.controller().loop.call(handlers.answer(request), DEADLINE)


def write(files: dict[str, bytes], folder: Path) -> str:
    """Code of a job that copies files into its run folder."""
    folder.mkdir(exist_ok=True)
    lines = ["import os, pathlib, shutil", "run = pathlib.Path(os.environ['AML_OUTPUT_DIR']).parent"]
    for number, (name, data) in enumerate(files.items()):
        (folder / str(number)).write_bytes(data)
        lines.append(f"path = run / {name!r}; path.parent.mkdir(parents=True, exist_ok=True)")
        lines.append(f"shutil.copyfile({str(folder / str(number))!r}, path)")
    return "\n".join(lines)


def drawn(run: Any) -> Any:
    """The record of a run whose pictures all have thumbnails."""
    record = run.record()
    return record if record.pictures and all(picture.thumbnail for picture in record.pictures) else None


@pytest.mark.thorough
def test_figures_of_cell_are_in_its_record(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    code = (
        "import matplotlib.pyplot as plt, mlflow\nplt.plot([1, 2]); plt.title('Loss'); plt.show()\n"
        "fig, ax = plt.subplots(); ax.plot([1]); mlflow.log_figure(fig, 'plots/confusion.png'); plt.close(fig)\n"
        "import numpy; mlflow.log_image(numpy.zeros((8, 8, 3), 'uint8'), key='samples/a', step=3)\nplt.plot([3])"
    )
    run = api.submit(code).wait(DEADLINE)
    record = until(lambda: drawn(run), "the thumbnails")
    found = {(picture.name, picture.kind, picture.title) for picture in record.pictures}
    assert found == {("confusion.png", "artifact", ""), ("samples/a step 3", "artifact", "")}
    assert [(one.picture, one.title) for one in record.displays] == [
        ("pictures/figure-1.png", "Loss"), ("pictures/figure-2.png", ""),
    ]  # fmt: skip
    assert all(picture.thumbnail.startswith("data:image/") and picture.width for picture in record.pictures)
    assert "confusion.png" in bundle_of(record)[0]["text/plain"]
    (first, *_) = run.pictures
    assert first.name == "figure-1.png" and first._repr_png_() == first.read()
    assert base64.b64decode(first._repr_mimebundle_()["image/png"]) == first.read()
    until(lambda: run.run.tracking == "imported", "the record in MLflow")
    (copy,) = Path(run.run.project).rglob("figures/figure-1.png")
    assert copy.read_bytes() == first.read()


def test_pictures_of_live_run_appear(api: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    code = write({"pictures/a.png": image(size=(64, 48))}, tmp_path / "files")
    run = api.submit(
        f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n{code}\ntime.sleep(600)"
    )
    frames: list[Any] = []
    run.watch(lambda record, picture: frames.append(record))
    until(lambda: frames and frames[-1].state == "running", "running")
    gate.touch()
    until(lambda: frames[-1].pictures and frames[-1].pictures[0].thumbnail, "the thumbnail in a frame")
    assert frames[-1].state == "running" and (frames[-1].pictures[0].width, frames[-1].pictures[0].height) == (64, 48)
    run.cancel()
    with pytest.raises(AmlTrainError):
        run.wait(DEADLINE)


@pytest.mark.thorough
def test_first_record_of_ended_run_has_picture_of_its_last_moment(api: Any, tmp_path: Path) -> None:
    """As `plt.show()` in the last line of a cell: executed notebooks are saved with this record."""
    gate, own = tmp_path / "gate", api.controller()
    files = {f"artifacts/{name}.png": image() for name in ("first", "last")}
    lines = write(files, tmp_path / "files").split("\n")
    wait = f"import time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    run = api.submit("\n".join([*lines[:4], wait, *lines[4:]]), gpus=0)
    records: list[Any] = []
    own.loop.post(own.watch(run.handle, lambda record, picture: records.append(record), 20))
    until(lambda: any(record.pictures for record in records), "the first picture")
    gate.touch()
    run.wait(DEADLINE)
    until(lambda: any(record.done for record in records), "the last record")
    ended = next(record for record in records if record.done)
    assert [picture.path.rpartition("/")[2] for picture in ended.pictures] == ["first.png", "last.png"]


@pytest.mark.thorough
def test_many_pictures_are_bounded_in_record(api: Any, tmp_path: Path) -> None:
    files = {f"artifacts/runs/x/artifacts/{number:02}.png": image() for number in range(MAX_PICTURES + 5)}
    run = api.submit(write(files, tmp_path / "files")).wait(DEADLINE)
    record = until(lambda: drawn(run), "the thumbnails")
    assert len(record.pictures) == MAX_PICTURES and record.pictures_hidden == 5
    assert sum(len(picture.thumbnail) for picture in record.pictures) <= 60_000
    assert len(msgspec.json.encode(record)) < 75_000


def test_files_that_are_no_images_make_room_for_older_ones(api: Any, tmp_path: Path) -> None:
    files = {"pictures/good.png": image(size=(30, 20))}
    files |= {f"artifacts/{number:02}.png": b"no image" for number in range(2 * MAX_PICTURES)}
    run = api.submit(write(files, tmp_path / "files")).wait(DEADLINE)
    record = until(lambda: drawn(run), "the thumbnails")
    assert [picture.name for picture in record.pictures] == ["good.png"] and not record.pictures_hidden


@pytest.mark.thorough
def test_hostile_files_are_neither_followed_nor_shown(api: Any, tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(image(size=(10, 10)))
    files = {
        "artifacts/text.png": b"no image", "artifacts/bomb.png": bomb(30_000), "artifacts/page.svg": b"<html><svg>",
        "artifacts/script.svg": svg("<script>alert(1)</script>"), "pictures/torn.png": image()[:300],
        "artifacts/<img src=x onerror=alert(1)>\n.png": image(size=(10, 10)),
    }  # fmt: skip
    code = write(files, tmp_path / "files") + (
        f"\nos.symlink({str(secret)!r}, run / 'artifacts' / 'link.png'); os.mkfifo(run / 'pictures' / 'fifo.png')"
        "\nos.symlink('/', run / 'artifacts' / 'root')\nopen(run / 'artifacts' / 'big.png', 'wb').truncate(300 << 20)"
    )
    run = api.submit(code).wait(DEADLINE)
    record = run.record()
    shown = {os.path.basename(picture.path): picture.thumbnail for picture in record.pictures}
    assert not {"text.png", "page.svg", "link.png", "fifo.png"} & shown.keys()
    assert (
        not shown["bomb.png"] and not shown["big.png"] and shown["script.svg"].startswith("data:image/svg+xml;base64,")
    )
    assert all("\n" not in picture.name for picture in record.pictures)
    for path in ("artifacts/link.png", "../../targets.json", "job.json", "artifacts/text.png", "artifacts/big.png"):
        with pytest.raises(CommandError):
            ask(api, picture_handlers.GetPicture(handle=run.handle, path=path))


def test_whole_picture_comes_in_parts(api: Any, tmp_path: Path) -> None:
    data = image(size=(700, 500))
    run = api.submit(write({"pictures/a.png": data}, tmp_path / "files")).wait(DEADLINE)
    listed = ask(api, picture_handlers.GetPictures(handle=run.handle))
    assert [picture.path for picture in listed.pictures] == ["pictures/a.png"] and not listed.hidden
    parts: list[str] = []
    while sum(len(base64.b64decode(part)) for part in parts) < len(data):
        offset = sum(len(base64.b64decode(part)) for part in parts)
        reply = ask(api, picture_handlers.GetPicture(handle=run.handle, path="pictures/a.png", offset=offset))
        assert reply.bytes == len(data) and reply.mime == "image/png" and reply.data
        parts.append(reply.data)
    assert len(parts) > 1 and base64.b64decode("".join(parts)) == data


def test_record_without_pictures_is_as_before(api: Any) -> None:
    record = api.submit("print(1)").wait(DEADLINE).record()
    assert record.pictures == () and "figures" not in bundle_of(record)[0]["text/plain"]


def test_name_of_logged_image_has_key_and_step() -> None:
    names = [
        "images/val~a+step+12+timestamp+1700000000+h2-uuid.png",
        "images/b%step%3%timestamp%17%x-y.png",
        "plain+step.png",
    ]
    rows = [{"path": f"artifacts/runs/1/artifacts/{name}", "size": 1, "modified": 1.0} for name in names]
    assert [picture.name for picture in pictures_of(rows)] == ["val/a step 12", "b step 3", "plain+step.png"]
    assert json.dumps(msgspec.to_builtins(pictures_of(rows)))
