"""Thumbnails of image files: small, and never more than a missing one for a file that is hostile."""

from __future__ import annotations

import base64
import io
import struct
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest
from PIL import Image

from jupyter_amltrain.rpc import child_process
from jupyter_amltrain.tracking import thumbnails as module
from jupyter_amltrain.tracking.thumbnails import LARGE_BYTES, SMALL_BYTES, media_type, thumbnails


def image(kind: str = "PNG", size: tuple[int, int] = (800, 600), mode: str = "RGB", noise: bool = True) -> bytes:
    data = io.BytesIO()
    values = np.random.default_rng(1).integers(0, 255, (size[1], size[0], 4 if mode == "RGBA" else 3), np.uint8)
    (Image.fromarray(values, mode) if noise else Image.new(mode, size, "red")).save(data, kind)
    return data.getvalue()


def size_of(url: str) -> tuple[int, int]:
    return Image.open(io.BytesIO(content(url))).size


def content(url: str) -> bytes:
    return base64.b64decode(url.partition(",")[2])


def bomb(side: int) -> bytes:
    """A PNG file of some kilobytes with `side` times `side` pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = zlib.compressobj(9)
    row = b"\0" * (side // 8 + 1)
    packed = b"".join(rows.compress(row) for _ in range(side)) + rows.flush()
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def svg(body: str = "", head: str = 'width="288pt" height="216pt"') -> bytes:
    return f'<?xml version="1.0"?>\n<!-- x -->\n<svg {head}>{body}</svg>'.encode()


@pytest.mark.thorough
def test_thumbnails_of_images_are_within_limits() -> None:
    files = [image(), image("JPEG", (4000, 3000)), image("WEBP"), image("GIF"), image("PNG", (30, 20), "RGBA", False)]
    drawn = thumbnails(files)
    assert [(one.width, one.height) for one in drawn[:2]] == [(800, 600), (4000, 3000)]
    for one in drawn:
        assert one.is_image and 0 < len(content(one.small)) <= SMALL_BYTES and len(content(one.large)) <= LARGE_BYTES
        assert size_of(one.large)[1] >= size_of(one.small)[1]
    assert size_of(drawn[4].large) == (30, 20)


def test_thumbnail_of_svg_is_the_file_itself_if_small() -> None:
    small, large, unknown = thumbnails([svg("<g/>"), svg("<g/>" * 5000), svg("", 'width="100%"')])
    assert (small.width, small.height) == (384, 288) and content(small.small) == svg("<g/>")
    assert large.width == 384 and not large.large
    assert (unknown.width, unknown.height) == (0, 0)


def test_hostile_files_cost_only_their_own_thumbnail() -> None:
    good = image(size=(64, 64))
    hostile = [
        b"",
        b"text",
        bomb(30_000),
        bomb(9000),
        good[:200],
        b"\x89PNG\r\n\x1a\n" + b"\xff" * 5000,
        b"GIF89a",
        b"<svg",
    ]
    begin = time.monotonic()
    drawn = thumbnails([good, *hostile, good])
    assert drawn[0].large and drawn[-1].large and time.monotonic() - begin < 60
    assert not any(one.large for one in drawn[1:-2])
    assert [one.is_image for one in drawn[1:3]] == [False, False]


def test_process_that_dies_costs_one_thumbnail(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import os, sys; from jupyter_amltrain.tracking import thumbnails as module; draw = module.draw\n"
        "module.draw = lambda data: os.abort() if data == b'die' else draw(data)\nmodule.main()"
    )
    monkeypatch.setattr(child_process, "command", lambda name: [sys.executable, "-c", code])
    drawn = thumbnails([image(), b"die", image()])
    assert [bool(one.large) for one in drawn] == [True, False, True] and drawn[1].is_image


def test_process_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(child_process, "command", lambda name: [sys.executable, "-c", "import time; time.sleep(600)"])
    begin = time.monotonic()
    assert [one.large for one in thumbnails([image(), image()])] == ["", ""] and time.monotonic() - begin < 30


def test_process_imports_neither_numpy_nor_matplotlib() -> None:
    code = (
        "import sys, io; from jupyter_amltrain.tracking import thumbnails as module\n"
        "module.draw(sys.stdin.buffer.read()); print({'numpy', 'matplotlib', 'mlflow'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], input=image(), capture_output=True, check=True)
    assert done.stdout.strip() == b"set()"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\xff\xd8\xff\xe0", "image/jpeg"), (b"RIFF\0\n\0\0WEBPVP8", "image/webp"), (b" \n<svg>", "image/svg+xml"),
        (b"<!DOCTYPE svg><svg xmlns='x'>", "image/svg+xml"), (b"<html><svg>", ""), (b"<svgx>", ""), (b"-----BEGIN", ""),
    ],
)  # fmt: skip
def test_media_type_is_that_of_the_content(data: bytes, kind: str) -> None:
    assert media_type(data) == kind
