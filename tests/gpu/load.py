"""A load of known length and memory: ``python load.py <MiB> <seconds of matmul>``.

Prints one JSON line when it holds its memory, when it begins and ends to compute, and waits
for a line of input before each step.
"""

from __future__ import annotations

import json
import sys
import time

import torch


def say(what: str) -> None:
    free, total = torch.cuda.mem_get_info()
    figures = {"what": what, "t": time.time(), "used": total - free, "total": total}
    figures["reserved"] = torch.cuda.memory_reserved()
    print(json.dumps(figures), flush=True)


def main(mebibytes: int, seconds: float) -> None:
    sys.stdin.readline()
    side = 8192
    a, b = (torch.randn(side, side, device="cuda", dtype=torch.float16) for _ in range(2))
    c = torch.empty_like(a)
    held = torch.ones(mebibytes << 20, dtype=torch.uint8, device="cuda")
    torch.matmul(a, b, out=c)  # makes what the library keeps for itself
    torch.cuda.synchronize()
    say("holds")
    sys.stdin.readline()
    say("begins")
    end = time.time() + seconds
    while time.time() < end:
        for _ in range(20):
            torch.matmul(a, b, out=c)
        torch.cuda.synchronize()
    say("ends")
    sys.stdin.readline()
    say("gone" if held.is_cuda else "")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
