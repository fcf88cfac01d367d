"""Scripts whose lines take known parts of the time: each measures its own."""

from __future__ import annotations

SCRIPTS = {
    "sleeps": """
for _ in range(30):
    t = now(); _time.sleep(0.1); add("a", t)
    t = now(); _time.sleep(0.3); add("b", t)
""",
    "pure_python": """
for _ in range(30):
    t = now(); work(0.1); add("a", t)
    t = now(); work(0.3); add("b", t)
""",
    # Python that gives up the lock before anybody has waited for it for long.
    "short_bursts": """
for _ in range(1800):
    t = now(); work(0.004); add("a", t)
    t = now(); _time.sleep(0.004); add("b", t)
""",
    "in_step_with_a_period": """
for _ in range(300):
    t = now(); work(0.02); add("a", t)
    t = now(); _time.sleep(0.03); add("b", t)
""",
    "numpy": """
t = now(); import numpy; add("import", t)
x = numpy.random.rand(400, 400)
end = now() + 14
while now() < end:
    t = now(); y = x @ x @ x; add("product", t)
    t = now(); z = numpy.sort(x, axis=None); add("sort", t)
    t = now(); work(0.02); add("python", t)
""",
    "native_without_the_lock": """
import hashlib, zlib
data = bytes(range(256)) * 20000
end = now() + 14
while now() < end:
    t = now(); hashlib.sha256(data).digest(); add("hash", t)
    t = now(); zlib.compress(data, 9); add("compress", t)
    t = now(); work(0.01); add("python", t)
""",
    # A read of the file gives the lock away every 20 lines or so.
    "rows_of_a_file": """
with open("rows.csv", "w") as file:
    file.writelines(",".join(["3.125"] * 65) + "\\n" for _ in range(2000))
end = now() + 10
while now() < end:
    with open("rows.csv") as file:
        for _ in range(2000):
            t = now(); row = file.readline(); add("read", t)
            t = now(); numbers = [float(part) for part in row.split(",")]; add("parse", t)
""",
    "native_with_the_lock": """
numbers = list(range(300000))
end = now() + 14
while now() < end:
    t = now(); sum(numbers); sum(numbers); add("sum", t)
    t = now(); sorted(numbers, key=str); add("sorted", t)
    t = now(); _time.sleep(0.05); add("sleep", t)
""",
    "a_second_in_one_call": """
_time.sleep(0.3)  # the thread begins after some milliseconds, but not while a native function keeps the lock
for _ in range(6):
    t = now(); sum(range(30000000)); add("call", t)
    t = now(); _time.sleep(0.5); add("sleep", t)
    t = now(); work(0.5); add("python", t)
""",
    "recursion": """
def down(depth):
    if depth:
        return down(depth - 1)
    t = now(); work(0.03); add("bottom", t)
    t = now(); _time.sleep(0.02); add("rest", t)
for _ in range(220):
    t = now(); down(60); add("call", t)
    t = now(); work(0.02); add("other", t)
""",
    "generators": """
def numbers(count):
    for one in range(count):
        t = now(); work(0.02); add("make", t)
        yield one
for one in numbers(300):
    t = now(); work(0.03); add("use", t)
""",
    "comprehension": """
def value(x): work(0.001); return x
for _ in range(70):
    t = now(); found = [value(x) for x in range(100)]; add("list", t)
    t = now(); found = sum(value(x) for x in range(50)); add("generator", t)
    t = now(); found = {x: value(x) for x in range(50)}; add("dict", t)
""",
    "classes": """
import functools
class Model:
    @functools.lru_cache(maxsize=1)
    def slow(self, x):
        t = now(); work(0.02); add("slow", t)
    @property
    def fast(self):
        t = now(); work(0.01); add("fast", t)
    def __enter__(self):
        t = now(); _time.sleep(0.01); add("enter", t)
    def __exit__(self, *error):
        t = now(); work(0.01); add("exit", t)
model = Model()
for k in range(280):
    t = now(); model.slow(k); add("call", t)
    t = now(); model.fast; add("property", t)
    with model:
        t = now(); work(0.005); add("body", t)
""",
    "exceptions": """
def fails():
    t = now(); work(0.02); add("try", t)
    raise ValueError
for _ in range(280):
    try:
        fails()
    except ValueError:
        t = now(); work(0.015); add("except", t)
    finally:
        t = now(); _time.sleep(0.015); add("finally", t)
""",
    "asyncio_tasks": """
import asyncio
async def load():
    t = now(); await asyncio.sleep(0.03); add("await", t)
async def main():
    for _ in range(250):
        await load()
        t = now(); work(0.02); add("compute", t)
        t = now(); await asyncio.gather(asyncio.sleep(0.01), asyncio.sleep(0.005)); add("gather", t)
asyncio.run(main())
""",
    "lock_and_queue": """
import queue, threading
items, lock = queue.Queue(), threading.Lock()
def produce():
    for _ in range(220):
        _time.sleep(0.04)
        items.put(1)
threading.Thread(target=produce, name="producer").start()
for _ in range(220):
    t = now(); items.get(); add("get", t)
    t = now(); work(0.02); add("use", t)
""",
    "subprocesses": """
import subprocess
for _ in range(24):
    t = now(); subprocess.run(["sleep", "0.3"]); add("run", t)
    t = now(); work(0.2); add("python", t)
""",
    "sockets": """
import socket, threading
ours, theirs = socket.socketpair()
def serve():
    while theirs.recv(1):
        _time.sleep(0.03)
        theirs.sendall(b"x")
threading.Thread(target=serve, name="server", daemon=True).start()
for _ in range(280):
    t = now(); ours.sendall(b"x"); ours.makefile("rb", buffering=0).read(1); add("ask", t)
    t = now(); work(0.02); add("use", t)
""",
    "deep_stack": """
def under(depth, call): return under(depth - 1, call) if depth else call()
def inner():
    for _ in range(160):
        t = now(); work(0.05); add("a", t)
        t = now(); _time.sleep(0.03); add("b", t)
under(600, inner)
""",
    "loader_in_process": """
t = now(); import torch; add("import", t)
class Data(torch.utils.data.Dataset):
    def __len__(self): return 800
    def __getitem__(self, at):
        _time.sleep(0.005); return torch.zeros(8)
batches = iter(torch.utils.data.DataLoader(Data(), batch_size=8))
for _ in range(96):
    t = now(); x = next(batches); add("next", t)
    t = now(); work(0.05); add("step", t)
""",
    "loader_with_workers": """
t = now(); import torch; add("import", t)
class Data(torch.utils.data.Dataset):
    def __len__(self): return 960
    def __getitem__(self, at):
        _time.sleep(0.05); return torch.zeros(8)
batches = iter(torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=4))
for _ in range(112):
    t = now(); x = next(batches); add("next", t)
    t = now(); work(0.03); add("step", t)
""",
    "operators_with_the_lock": """
a, b = 7 ** 300000, 11 ** 280000
for _ in range(55):
    t = now(); c = a * b; add("product", t)
    t = now(); _time.sleep(0.05); add("sleep", t)
    t = now(); work(0.05); add("python", t)
""",
}
