"""The speed of `lifelabel serve` relative to `Model.score_files`, and its behaviour under load.

    python -m benchmarks.serve RUN IMAGES [--count 200] [--connections 8] [--json F]
    python -m benchmarks.serve RUN IMAGES --load
    python -m benchmarks.serve RUN IMAGES --requests 5000

(none)      Uploads of all images over several connections, one image per request and 8 images per request, in turns
            with `score_files`, which `lifelabel predict` calls, in another process. The client shares the cores with
            the server. Figures are medians over the turns. If other programs run, they take less time from several
            processes than from one: then compare the CPU time per image (of the server and its decoding processes).
--load      200 connections at once, with good, damaged, too large and slow uploads, to a server with --max-requests.
            Prints the answers by kind and status. A bad upload must get a 4xx, no request a 5xx.
--requests  So many requests of one image. Prints the memory of the server and its decoding processes after a tenth of
            them, after half and after all.

RUN is a run folder or a model folder, IMAGES a folder of photographs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.common import Results, make_parser, medians

PER_REQUEST = 8
BOUNDARY = b"--------lifelabel"
CONNECTIONS = 200
SECONDS = 30
"""The time limit of a request with --load."""
Address = tuple[str, int]
SCORER = """
import sys, time
import lifelabel
from lifelabel.utils.memory import keep_freed_memory
keep_freed_memory()
model = lifelabel.load(sys.argv[1], sys.argv[2])
for _ in sys.stdin:
    start, used = time.perf_counter(), time.process_time()
    assert not any(isinstance(found, str) for _, found in model.score_files(sys.argv[3:]))
    print(time.perf_counter() - start, time.process_time() - used, flush=True)
"""


@contextlib.contextmanager
def server(run: Path, device: str, *flags: str) -> Iterator[tuple[Address, int]]:
    """A server in a process of its own: its address and process id."""
    command = [sys.executable, "-m", "lifelabel", "serve", str(run), "--port", "0", "--device", device, *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.search(r"http://(.+):(\d+)$", line.strip())
        if not found:
            sys.exit("the server does not start")
        yield (found[1], int(found[2])), process.pid
        process.send_signal(signal.SIGTERM)
        if process.wait(30) != 0:
            sys.exit(f"the server ended with code {process.returncode}")
    finally:
        process.kill()


def body_of(files: Sequence[bytes]) -> bytes:
    head = b'Content-Disposition: form-data; name="files"; filename="a.jpg"\r\nContent-Type: image/jpeg\r\n\r\n'
    parts = (b"--" + BOUNDARY + b"\r\n" + head + data + b"\r\n" for data in files)
    return b"".join(parts) + b"--" + BOUNDARY + b"--\r\n"


def head_of(length: int) -> bytes:
    return (
        b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=" + BOUNDARY +
        b"\r\nContent-Length: " + str(length).encode() + b"\r\n\r\n"
    )  # fmt: skip


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    assert length
    return int(head.split(b" ", 2)[1]), await reader.readexactly(int(length[1]))


async def upload(address: Address, requests: Sequence[bytes], connections: int) -> Counter[int]:
    """Send all requests over some connections that are kept open. The number of answers by status."""
    left, statuses = iter(requests), Counter[int]()

    async def client() -> None:
        reader, writer = await asyncio.open_connection(*address, limit=1 << 20)
        for body in left:
            writer.write(head_of(len(body)) + body)
            await writer.drain()
            statuses[(await answer(reader))[0]] += 1
        writer.close()

    await asyncio.gather(*(client() for _ in range(connections)))
    return statuses


def throughput(given: argparse.Namespace, paths: list[Path], files: list[bytes], results: Results) -> None:
    with server(given.run, given.device) as (address, pid), scorer(given.run, given.device, paths) as score:

        def uploads(per_request: int) -> tuple[float, float]:
            bodies = [body_of(files[i : i + per_request]) for i in range(0, len(files), per_request)]
            start, used = time.perf_counter(), cpu_seconds(pid)
            statuses = asyncio.run(upload(address, bodies, given.connections))
            assert set(statuses) == {200}, statuses
            return time.perf_counter() - start, cpu_seconds(pid) - used

        measures = {f"{n} per request": functools.partial(uploads, n) for n in (1, PER_REQUEST)}
        found = medians({"score_files": score, **measures})
    first = found["score_files"]
    for name, (elapsed, cpu) in found.items():
        figures = {"images/s": len(paths) / elapsed, "ratio": first[0] / elapsed, "CPU ratio": first[1] / cpu}
        results.add(name, figures | {"ms of CPU per image": 1000 * cpu / len(paths)})


@contextlib.contextmanager
def scorer(run: Path, device: str, paths: list[Path]) -> Iterator[Callable[[], tuple[float, float]]]:
    """A function that scores the files in a process of its own. It returns the seconds and the CPU seconds."""
    command = [sys.executable, "-c", SCORER, str(run), device, *map(str, paths)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        jobs, answers = process.stdin, process.stdout

        def score() -> tuple[float, float]:
            jobs.write("\n")
            jobs.flush()
            seconds, cpu = map(float, answers.readline().split())
            return seconds, cpu

        yield score
        jobs.close()


def cpu_seconds(pid: int) -> float:
    """The CPU time of the server and of its decoding processes."""
    fields = (Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split() for each in (pid, *children(pid)))
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


async def one(address: Address, kind: str, data: bytes) -> tuple[str, int, bytes]:
    """One upload on a connection of its own."""
    reader, writer = await asyncio.open_connection(*address, limit=1 << 20)
    body = body_of([data])
    with contextlib.suppress(ConnectionError):  # the server may answer before it has read everything
        writer.write(head_of(len(body)))
        step = 100 if kind == "slow" else len(body)
        for start in range(0, len(body), step):
            if reader.at_eof() or reader._buffer:  # type: ignore[attr-defined]  # the answer is there
                break
            writer.write(body[start : start + step])
            await writer.drain()
            await asyncio.sleep(1 if kind == "slow" else 0)
    status, text = await answer(reader)
    writer.close()
    return kind, status, text


def under_load(given: argparse.Namespace, files: list[bytes], results: Results) -> None:
    bad = {
        "corrupt": files[0][: len(files[0]) // 3] + bytes(len(files[0]) // 3),
        "not an image": b"text " * 1000,
        "empty": b"",
        "too large": files[0] + bytes(3_000_000),
        "slow": files[0],
    }
    jobs = [("good", files[i % len(files)]) for i in range(CONNECTIONS // 2)]
    jobs += [*bad.items()] * (CONNECTIONS // 2 // len(bad))
    random.Random(0).shuffle(jobs)

    async def run(address: Address) -> list[tuple[str, int, bytes]]:
        return await asyncio.gather(*(one(address, *job) for job in jobs))

    flags = ("--timeout", str(SECONDS), "--max-bytes", "2000000", "--max-requests", str(given.max_requests))
    with server(given.run, given.device, *flags) as (address, _):
        found = asyncio.run(run(address))
    counts = Counter((kind, status) for kind, status, _ in found)
    for (kind, status), count in sorted(counts.items()):
        results.add(f"{kind} {status}", count)
        if status != 200:
            print(f"  {next(text for k, s, text in found if (k, s) == (kind, status)).decode()[:100]}", flush=True)
    wrong = [key for key in counts if key[1] >= 500 or (key[0] != "good" and key[1] < 400)]
    print("every bad upload has a 4xx, and there is no 5xx" if not wrong else f"WRONG: {wrong}", flush=True)


def memory_of(pid: int) -> tuple[float, float]:
    """Megabytes of the server and of its decoding processes."""
    page = os.sysconf("SC_PAGE_SIZE") / 1e6
    sizes = [int(Path(f"/proc/{each}/statm").read_text().split()[1]) * page for each in (pid, *children(pid))]
    return sizes[0], sum(sizes[1:])


def memory(given: argparse.Namespace, files: list[bytes], results: Results) -> None:
    bodies = [body_of([data]) for data in files]
    sizes, done = [], 0
    with server(given.run, given.device) as (address, pid):
        for count in (given.requests // 10, given.requests // 2, given.requests):
            requests = [bodies[i % len(bodies)] for i in range(done, count)]
            statuses = asyncio.run(upload(address, requests, given.connections))
            assert set(statuses) == {200}, statuses
            done, (of_server, decoding) = count, memory_of(pid)
            sizes.append(of_server + decoding)
            results.add(f"{count:,}", {"server, MB": of_server, "decoding, MB": decoding})
    results.add("growth", sizes[-1] / sizes[0] - 1)


def main() -> None:
    flags = {"count": 200, "connections": 8, "load": False, "max_requests": 400, "requests": int}
    given = make_parser(__doc__, "run", "images", **flags).parse_args()
    paths = sorted(path for path in given.images.iterdir() if path.suffix.lower() in (".jpg", ".jpeg"))[: given.count]
    files = [path.read_bytes() for path in paths]
    row = "upload and status" if given.load else "requests" if given.requests else ""
    size = sum(map(len, files)) // len(files) // 1000
    results = Results(given, row, str(given.run), f"{len(files)} images of {size} kB")
    if given.load:
        under_load(given, files, results)
    elif given.requests:
        memory(given, files, results)
    else:
        throughput(given, paths, files, results)


if __name__ == "__main__":
    main()
