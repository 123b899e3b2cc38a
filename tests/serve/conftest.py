"""A small run folder, a client of its application, and a real server."""

import contextlib
import re
import signal
import subprocess

import numpy as np
import pytest
from PIL import Image
from support import command_server
from support.drawn_images import encoded
from support.models import learned, write
from support.web_client import make_client

pytest.importorskip("fastapi", reason="fastapi is not installed")

RELATIONS = (((1, 0.8), (2, 0.5)), ((0, 0.7),), ((0, 0.6),), ((0, 0.5),), ((0, 0.4),))


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    """A folder with a model of two tasks, and those after task 1 and 2 (the same network: only the folders matter)."""
    folder, method = tmp_path_factory.mktemp("serve") / "run", learned("fine-tuning")
    write(folder / "model", method=method, relations=RELATIONS, thresholds=(0.3, 0.4, 0.5, 0.45, 0.55))
    for task in (1, 2, 3):
        write(folder / f"model-task-{task}", method=method)
    return folder


@pytest.fixture(scope="session")
def model(run_folder):
    import lifelabel

    return lifelabel.load(run_folder, "cpu")


@pytest.fixture(scope="session")
def client(run_folder):
    with make_client(run_folder) as client:
        yield client


@pytest.fixture(scope="session")
def image():
    """The bytes of an image of noise."""

    def make(size=(48, 40), kind="PNG", seed=0, mode="RGB", **settings):
        pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 4), np.uint8)
        return encoded(Image.fromarray(pixels).convert(mode), kind, **settings)

    return make


@pytest.fixture(scope="session")
def start():
    """`lifelabel serve` in its own process: the process and its address."""

    @contextlib.contextmanager
    def run(*args):
        words = ["serve", *args, "--port", "0", "--device", "cpu"]
        process = command_server.start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            line = process.stdout.readline()
            found = re.search(r"at (http://\S+)$", line.strip())
            assert found, line + process.stderr.read()
            yield process, found[1]
        finally:
            process.kill()
            process.communicate()

    return run


@pytest.fixture(scope="session")
def server(start, run_folder):
    """The address of a real server. At the end of the tests it must end on Ctrl-C."""
    with start(run_folder, "--timeout", 2, "--workers", 1) as (process, address):
        yield address
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=20)
        assert (out, process.returncode) == ("stopped\n", 0) and not re.search("ERROR|boundary", errors), errors
