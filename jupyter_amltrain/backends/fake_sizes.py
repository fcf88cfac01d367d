"""The machines that fake targets can have, as data, and what a check of one finds."""

from __future__ import annotations

from types import MappingProxyType

import msgspec

from jupyter_amltrain.backends.fake_telemetry import BASELINE, CPUS, MEMORY, NAME, SIZE, uuid_of
from jupyter_amltrain.spec.target import FakeTarget, TargetInfo


class FakeSize(msgspec.Struct, frozen=True):
    """A kind of machine; memory in bytes (of one GPU: MiB), price per hour."""

    cpus: int
    memory: int
    gpus: int
    gpu_name: str
    gpu_memory: int
    price: float

    @property
    def model(self) -> tuple[str, int]:
        """What a GPU is called, and MiB on it."""
        return (self.gpu_name, self.gpu_memory) if self.gpus else (NAME, SIZE)


_GIB = 1 << 30
#: By the name in :class:`~jupyter_amltrain.spec.target.FakeTarget`.
SIZES = MappingProxyType(
    {
        "cpu-4": FakeSize(4, 16 * _GIB, 0, "", 0, 0.23),
        "cpu-32": FakeSize(32, 128 * _GIB, 0, "", 0, 1.81),
        "gpu-v100": FakeSize(6, 112 * _GIB, 1, "Fake V100 16GB", 16_384, 3.06),
        "gpu-8xa100": FakeSize(96, 900 * _GIB, 8, "Fake A100 40GB", 40_960, 27.2),
        "gpu-8xh100": FakeSize(96, 1900 * _GIB, 8, NAME, SIZE, 98.32),
    }
)
CURRENCY = "USD"
#: A low-priority machine costs this part of the price.
LOW = 0.2
_UNSIZED = FakeSize(CPUS, MEMORY, 0, NAME, SIZE, 0.0)


def size_of(target: FakeTarget) -> FakeSize:
    """The machine of a target; one without a size is the machine that all fakes once were."""
    return SIZES[target.size] if target.size else msgspec.structs.replace(_UNSIZED, gpus=target.gpus)


def scripted(target: FakeTarget) -> FakeTarget:
    """`target` with as many GPUs as its size has."""
    return msgspec.structs.replace(target, gpus=size_of(target).gpus)


def found(target: FakeTarget, running: int = 0, queued: int = 0) -> TargetInfo:
    """What a check of a target finds."""
    size = size_of(target)
    return TargetInfo(
        target=target.name,
        kind="fake",
        cpus=size.cpus,
        memory=size.memory,
        gpus=tuple(
            {
                "index": i,
                "name": size.gpu_name,
                "uuid": uuid_of(0, i),
                "memory_total": size.gpu_memory << 20,
                "memory_used": BASELINE << 20,
            }
            for i in range(size.gpus)
        ),
        slots={
            "cpu": {"total": size.cpus, "free": size.cpus},
            "gpu": {"total": size.gpus, "free": size.gpus},
        },
        running=running,
        queued=queued,
        survives={"kernel": {"answer": "no", "why": "it lives in this kernel's memory"}},
    )
