import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.drawn_images import encoded

from lifelabel.images.transforms import load_batch
from lifelabel.model.inputs import Images
from lifelabel.serve import decoding
from lifelabel.serve.decoder import ANSWER, decode_square
from lifelabel.serve.decoding import DecoderPool
from lifelabel.serve.guard import Metrics
from lifelabel.serve.limits import Limits
from lifelabel.serve.requests import Refused


@pytest.mark.parametrize("size", [(64, 64), (65, 64), (31, 200), (700, 500), (1, 1)])
@pytest.mark.parametrize(("kind", "mode"), [("JPEG", "RGB"), ("PNG", "RGBA"), ("WEBP", "RGB"), ("GIF", "L")])
def test_pixels_are_those_that_a_model_is_trained_with(tmp_path, image, size, kind, mode):
    data = image(size, kind, mode=mode)
    path = tmp_path / "a"
    path.write_bytes(data)
    expected = load_batch(Images([path]), np.arange(1), 64, "none", None)[0][0]
    assert decode_square(data, 64, 1_000_000) == expected.tobytes()


def test_the_process_imports_no_torch():
    code = "import sys, lifelabel.serve.decoder; sys.exit('torch' in sys.modules or 'torchvision' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def given(data):
    async def read():
        return data

    return read


def run(test, **limits):
    """Run a test of a pool with one process."""

    async def with_pool():
        pool = DecoderPool(Limits(**{"workers": 1, "timeout": 20, **limits}), Metrics())
        await pool.start()
        try:
            await test(pool)
        finally:
            await pool.close()
            pids = [worker._process.pid for worker in pool._workers]
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    asyncio.run(with_pool())


@pytest.fixture
def signals(monkeypatch):
    """Signals that the next processes get together with an image, in order."""
    left, answer = [], decoding._Worker.answer

    async def after_signal(worker, *job):
        if left:
            os.kill(worker._process.pid, left.pop(0))
        return await answer(worker, *job)

    monkeypatch.setattr(decoding._Worker, "answer", after_signal)
    return left


async def reason(pool, read):
    with pytest.raises(Refused) as refused:
        await pool.decode(read, 32)
    return refused.value.status_code, refused.value.detail


def test_a_process_that_crashes_or_hangs_is_replaced(image, signals):
    async def test(pool):
        pool.seconds = 5
        signals.append(signal.SIGKILL)
        assert (await pool.decode(given(image()), 32)).shape == (32, 32, 3)  # by another process
        signals.extend([signal.SIGSEGV, signal.SIGKILL])
        status, text = await reason(pool, given(image()))
        assert (status, text.partition(",")[0]) == (503, "the process that decodes images was killed")
        signals.extend([signal.SIGABRT, signal.SIGSEGV])
        assert await reason(pool, given(image())) == (400, "crashed the decoder")
        pool.seconds = 0.5
        signals.append(signal.SIGSTOP)
        assert await reason(pool, given(image())) == (400, "took more than 0.5 seconds to decode")
        assert (await pool.decode(given(image()), 32)).shape == (32, 32, 3)
        assert len(pool._workers) == 1 and not signals

    run(test)


@pytest.mark.parametrize(
    "answer",
    [
        ANSWER.pack(200, 0xFFFFFFFF),  # 4 GB of pixels
        ANSWER.pack(200, 10) + bytes(10),
        ANSWER.pack(500, 3) + b"bad",
        ANSWER.pack(400, 100_000) + bytes(100_000),
    ],
    ids=["huge", "wrong size", "wrong status", "long reason"],
)
def test_the_answers_of_a_process_are_not_trusted(image, answer):
    async def test(pool):
        (worker,) = pool._workers
        worker._answers = asyncio.StreamReader()
        worker._answers.feed_data(answer)
        worker._answers.feed_eof()
        assert (await pool.decode(given(image()), 32)).shape == (32, 32, 3)  # by another process

    run(test)


def test_a_request_that_ends_does_not_give_its_answer_to_the_next_one(image, signals):
    async def test(pool):
        signals.append(signal.SIGSTOP)
        stopped = asyncio.ensure_future(pool.decode(given(image(seed=1)), 32))
        await asyncio.sleep(0.2)
        stopped.cancel()
        found = await pool.decode(given(image()), 32)
        assert found.tobytes() == decode_square(image(), 32, 1000**2)

    run(test)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")
def test_memory_is_limited(image):
    large = encoded(Image.new("RGB", (9000, 9000)))  # 243 MB; the file has 240 kB

    async def test(pool):
        object.__setattr__(pool._limits, "max_pixels", 100_000_000)  # the process was started for fewer
        status, text = await reason(pool, given(large))
        assert status in (400, 413) and ("memory" in text or "crashed" in text)
        assert (await pool.decode(given(image()), 32)).shape == (32, 32, 3)
        status = Path(f"/proc/{next(iter(pool._workers))._process.pid}/limits").read_text()
        assert "Max file size             0" in status

    run(test, max_pixels=1000)
