"""The sampler's files: ticks, minutes, summary; also over kills and full disks."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jupyter_amltrain.agent.telemetry.summary import Summary
from jupyter_amltrain.agent.telemetry.telemetry_files import Minutes, Tick

from .conftest import Agent, until
from .scripted_sampler import EPOCH, UUIDS, ScriptedSampler
from .test_gpus import gpus  # noqa: F401

HOST = 9
NAMES = ("util", "peak", "memory", "power", "temperature", "sm_clock")
#: What the fake driver has beside them.
FIGURES = ("memory_busy", "throttled_power", "throttled_heat")
WIDTH = len(NAMES) + len(FIGURES)


@pytest.fixture
def stage(tmp_path: Path) -> ScriptedSampler:
    return ScriptedSampler(tmp_path)


def jitter(count: int, seconds: int) -> list[str]:
    """Curves of GPUs in training."""
    dice = random.Random(5)
    return [
        f"{gpu} {t} {dice.randint(88, 100)} {61000 + gpu + (t // 30) * 7} {dice.uniform(550, 680):.1f}"
        f" {dice.randint(58, 64)} {dice.randrange(1700, 1980, 15)}"
        for gpu in range(count)
        for t in range(seconds)
    ]


def test_telemetry_file_has_header_and_rows(stage: ScriptedSampler) -> None:
    stage.curves(["* 0 40 2000 300 50 1500", "1 2 60 2600 99.94 51 1510"])
    stage.play([1, 2, 3.5], sampler=True, uuids=UUIDS[:2])
    head, slow, *rest = stage.lines()
    assert head["gpu_columns"] == [*NAMES, *FIGURES] and len(head["gpu_units"]) == WIDTH and head["gpu_note"] == ""
    assert head["columns"][2:] == [
        "cpu", "memory", "processes", "host_cpu", "host_memory", "read_bytes", "write_bytes", "net_rx", "net_tx",
    ]  # fmt: skip
    assert head["gpus"][1] == {
        "index": 1, "uuid": UUIDS[1], "name": "Fake H100 80GB", "mig": False,
        "memory_total": 81920, "power_limit": 700, "baseline": 2000, "baseline_util": 40, "reserved": 0,
    }  # fmt: skip
    assert slow["seq"] == 0 and slow["gpu"][0] == [
        0, {"mem_clock": 2619, "throttle": 0, "ecc": 0, "power_limit": 700, "mine": 0, "others": 0},
    ]  # fmt: skip
    assert [row[:2] for row in rest] == [[0, EPOCH + 1], [1, EPOCH + 2], [2, EPOCH + 3.5]]
    one, other = rest[2][2 + HOST : -WIDTH], rest[2][-WIDTH:]
    assert one[:6] == [40, 40, 2000, 300, 50, 1500] and other[:6] == [60, 60, 2600, 99.9, 51, 1510]
    assert one[7:] == other[7:] == [0, 0]  # not throttled
    # There is no run: its processes are not reported, the machine is.
    assert rest[2][2:5] == [None] * 3 and rest[2][6] > 1e8 and rest[2][9] is not None


def test_telemetry_without_driver_has_host_and_note(stage: ScriptedSampler) -> None:
    stage.switch(BROKEN=1)
    stage.play([1, 2], sampler=True, uuids=UUIDS[:2])
    head, *rows = stage.lines()
    assert head["gpus"] == [] and "NVML does not work here" in head["gpu_note"]
    assert [len(row) for row in rows] == [2 + HOST] * 2


def test_telemetry_notes_are_written_once(stage: ScriptedSampler) -> None:
    stage.switch(LOST="0:2.5:7")
    stage.play(range(1, 70), sampler=True, uuids=UUIDS[:1])
    notes = [line for line in stage.lines()[1:] if isinstance(line, dict) and "note" in line]
    assert [(line["seq"], line["t"], line["note"]) for line in notes] == [
        (2, EPOCH + 3, "GPU 0 fell off the bus"), (7, EPOCH + 8, "GPU 0 is back"),
    ]  # fmt: skip
    assert stage.summary()["notes"] == [[line["t"], line["note"]] for line in notes]


def test_slow_values_are_written_on_change_and_every_five_minutes(stage: ScriptedSampler) -> None:
    stage.curves(["* 0 50 1000 300", "0 20 50 1000 695", "0 30 50 1000 300"])
    stage.play(range(1, 310), sampler=True, uuids=UUIDS[:2])
    slow = [line for line in stage.lines()[1:] if isinstance(line, dict) and "gpu" in line]
    whole = [line["seq"] for line in slow if len(line["gpu"]) == 2 and len(line["gpu"][0][1]) == 6]
    assert whole == [0, 299]
    changes = [line["gpu"] for line in slow if line["seq"] not in whole]
    assert changes == [[[0, {"throttle": 4}]], [[0, {"throttle": 0}]]]


def check_minutes(stage: ScriptedSampler) -> None:
    head, *minutes = stage.lines("minutes-0.jsonl")
    columns = [f"gpu{gpu}.{name}" for gpu in range(2) for name in (*NAMES, *FIGURES)]
    assert head["columns"][HOST:] == columns
    rows = stage.rows()
    assert [row[0] for row in rows] == list(range(len(rows)))
    data = (stage.run / "telemetry" / "node-0.jsonl").read_bytes()
    last = -1
    for seq, first, end, count, offset, low, mean, high in minutes:
        of_it = [row for row in rows if last < row[0] <= seq]
        assert len({int(row[1] // 60) for row in of_it}) == 1
        last = seq
        assert (first, end, count) == (of_it[0][1], of_it[-1][1], len(of_it))
        assert data[:offset].splitlines()[-1].startswith(b"[%d," % seq) and data[offset - 1 : offset] == b"\n"
        table = np.array([row[2 + HOST :] for row in of_it], dtype=float)
        assert np.array_equal(np.array(low[HOST:]), table.min(0))
        assert np.array_equal(np.array(high[HOST:]), table.max(0))
        assert np.allclose(np.array(mean[HOST:]), table.mean(0), rtol=0.006)
    assert last >= 0 and int(rows[-1][1] // 60) == int(rows[last + 1][1] // 60)


def check_summary(stage: ScriptedSampler) -> None:
    summary, rows = stage.summary(), stage.rows()
    assert summary["seq"] == rows[-1][0]
    t = np.array([row[1] for row in rows])
    assert summary["seconds"] == pytest.approx(t[-1] - t[0], abs=0.06)
    for i, gpu in enumerate(summary["gpus"]):
        columns = np.array([row[2 + HOST :] for row in rows], dtype=float).T[WIDTH * i :]
        util, _, memory, power, temperature, _ = columns[:6]
        assert gpu["util_mean"] == pytest.approx(util.mean(), abs=0.051)
        for name, q in (("util_p50", 50), ("util_p95", 95)):
            assert gpu[name] == np.percentile(util, q, method="inverted_cdf")
        assert gpu["idle_share"] == pytest.approx((util < 10).mean(), abs=1e-4)
        assert gpu["memory_peak"] == memory.max() and gpu["memory_mean"] == pytest.approx(memory.mean(), abs=0.06)
        assert gpu["energy_wh"] == pytest.approx(np.trapezoid(power, t) / 3600, abs=1e-3)
        assert gpu["power_mean"] == pytest.approx(np.trapezoid(power, t) / (t[-1] - t[0]), abs=0.06)
        assert gpu["temperature_max"] == temperature.max()


def test_minutes_and_summary_match_samples(stage: ScriptedSampler) -> None:
    lines = jitter(2, 400)
    lines[:60] = [f"0 {t} {t % 20} 900 70 40 300" for t in range(60)]
    stage.curves(lines)
    stage.play([*range(1, 100), *np.arange(100.5, 390, 1.25).tolist()], sampler=True, uuids=UUIDS[:2])
    check_minutes(stage)
    check_summary(stage)


@pytest.mark.thorough
def test_killed_sampler_continues_file(stage: ScriptedSampler) -> None:
    stage.curves(jitter(2, 400))
    stage.play(range(1, 46), -9, sampler=True, uuids=UUIDS[:2], kill=45)
    assert not (stage.run / "telemetry" / "summary-0.json").exists()
    # It remembers who there was, and what they held before the run.
    baseline = stage.lines()[0]["gpus"][0]["baseline"]
    stage.play(range(47, 70), -9, sampler=True, uuids=UUIDS[:2], kill_at_minute=True)
    stage.play(range(70, 150), -9, sampler=True, uuids=UUIDS[:2], kill=80)
    stage.play(range(152, 190), sampler=True, uuids=UUIDS[:2])  # ended well, and yet it comes back
    stage.play(range(191, 300), sampler=True, uuids=UUIDS[:2])
    heads = [line for line in stage.lines() if isinstance(line, dict) and "columns" in line]
    assert len(heads) == 1 and heads[0]["gpus"][0]["baseline"] == baseline
    check_minutes(stage)
    check_summary(stage)
    whole = stage.summary()
    (stage.run / "telemetry" / "summary-0.json").unlink()  # lost: made again from all ticks
    stage.play([300], sampler=True, uuids=UUIDS[:2], close=True)
    assert stage.summary()["gpus"][0]["energy_wh"] == pytest.approx(whole["gpus"][0]["energy_wh"], rel=0.01)
    check_summary(stage)


def test_sampler_restarted_without_driver_recovers(stage: ScriptedSampler) -> None:
    stage.curves(["* 0 40 2000 300 50 1500"])
    stage.play([1, 2], sampler=True, uuids=UUIDS[:2])
    stage.switch(UNLOAD="2.5:8")
    stage.play(range(3, 16), sampler=True, uuids=UUIDS[:2])
    rows = stage.rows()
    assert [row[0] for row in rows] == list(range(15)) and {len(row) for row in rows} == {2 + HOST + 2 * WIDTH}
    assert rows[3][2 + HOST :] == [None] * 2 * WIDTH and rows[-1][-WIDTH:][:6] == [40, 40, 2000, 300, 50, 1500]


@pytest.mark.thorough
@pytest.mark.parametrize("count", [8, 64])
def test_telemetry_size_is_bounded(stage: ScriptedSampler, count: int) -> None:
    stage.switch(GPUS=count)
    stage.curves(jitter(count, 300))
    stage.play([t + 0.37 for t in range(1, 300)], sampler=True, uuids=UUIDS[:count])
    files = (stage.run / "telemetry").glob("*.jsonl")
    ticks = len(stage.rows())
    # "612.5,12346e6,120,1234567e3,1234567e3" in place of five times null, a number of five
    # digits, and longer counters of the network.
    fill = (14 + 3 + 3) * ticks
    per = (sum(path.stat().st_size for path in files) + fill) / ticks / count
    print(f"{per:.1f} bytes a GPU and tick, {count} GPUs")
    assert per <= 48


def random_ticks(seed: int, count: int) -> list[Tick]:
    dice = random.Random(seed)
    t, ticks = EPOCH, []
    for seq in range(count):
        t = round(t + dice.choice([0.1, 1.0, 1.3, 90.0 if dice.random() < 0.01 else 1.0]), 3)
        values: list[Any] = [dice.uniform(0, 900), dice.randrange(1 << 35), dice.randrange(3)] + [1] * 6
        values += [dice.randrange(101), 100, dice.randrange(80000), dice.uniform(50, 700), dice.randrange(90), 1000]
        values = [None if k >= HOST and dice.random() < 0.1 else value for k, value in enumerate(values)]
        ticks.append(Tick(seq, t, values, 100 * (seq + 1)))
    return ticks


@pytest.mark.parametrize("seed", range(8))
def test_summary_is_independent_of_sampler_kills(tmp_path: Path, seed: int) -> None:
    head = {"columns": ["seq", "t", "cpu", "memory", "processes", *"abcdef"], "gpus": [{"index": 0, "baseline": 10}]}
    dice, ticks = random.Random(seed), random_ticks(seed, 700)

    def whole(folder: Path, kills: float) -> tuple[list[str], dict[str, Any]]:
        (folder / "telemetry").mkdir(parents=True)

        def start() -> tuple[Minutes, Summary, int]:
            minutes, summary = Minutes(str(folder), head["columns"][2:]), Summary(str(folder), head)
            earlier = min(minutes.seq, summary.seq)
            return minutes, summary, earlier + 1

        minutes, summary, at = start()
        top = 0  # the ticks that are in the file
        while at < len(ticks):
            if minutes.closes(ticks[at].t):
                closed = minutes.close()
                if dice.random() < kills:
                    minutes, summary, at = start()
                    continue
                summary.add(closed)
                summary.save()
            minutes.add(ticks[at])
            at, top = at + 1, max(top, at)
            if dice.random() < kills:
                minutes, summary, at = start()
        summary.add(minutes.ticks)
        return minutes.path and Path(minutes.path).read_text().splitlines(), summary.value()

    lines, figures = whole(tmp_path / "plain", 0.0)
    lines_killed, figures_killed = whole(tmp_path / "killed", 0.02)
    assert lines == lines_killed
    assert figures == figures_killed
    cpu = [tick.values[0] for tick in ticks]
    assert figures["cpu_mean"] == pytest.approx(np.mean(cpu), abs=0.06) and figures["cpu_peak"] == max(cpu)


def test_telemetry_of_gpu_run_has_memory_of_run_and_others(
    gpus: Agent,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    lines = [f"epoch {time.time()}", "* 0 0 900 80", "1 0 77 5000 300 60 1700"]
    (tmp_path / "curves").write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("AMLTRAIN_FAKE_NVML_CURVES", str(tmp_path / "curves"))
    run = gpus.submit("import time; print('up'); time.sleep(600)", gpus=2)
    rank = gpus.running(run, "up")["rank"]["pid"]
    (tmp_path / "processes").write_text(f"0 {rank} {3 << 30}\n1 {os.getpid()} {1 << 30}\n")

    def seen() -> Any:
        """Return the rows of both GPUs: a reading may fall between the two lines of the file."""
        rows = [row for line in gpus.telemetry(run) if "processes" in line for row in line["processes"]]
        return rows if {row[0] for row in rows} >= {0, 1} else None

    rows = [row[:4] for row in until(seen, "the processes of both GPUs")]
    assert [0, rank, "mine", 3072] in rows and [1, os.getpid(), "other", 1024] in rows
    head = gpus.telemetry(run)[0]
    assert [gpu["uuid"] for gpu in head["gpus"]] == UUIDS[:2] and head["gpus"][1]["baseline"] == 5000
    gpus.good("cancel", run=run)
    gpus.wait(run)
    ticks = [line for line in gpus.telemetry(run) if isinstance(line, list)]
    assert ticks[-1][-WIDTH:][:6] == [77, 77, 5000, 300, 60, 1700]
    assert [row[0] for row in ticks] == list(range(len(ticks)))
    # The summary is there when the run has ended, though no minute was over.
    assert '"memory_peak":5000' in (gpus.run_folder(run) / "telemetry" / "summary-0.json").read_text()


def test_job_starts_after_first_gpu_reading(gpus: Agent, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    run = gpus.submit("print('up')", gpus=1)
    gpus.wait(run)
    head = gpus.telemetry(run)[0]
    assert head["gpus"][0]["baseline"] == 1024
