"""The server in a process of its own."""

import contextlib
import http.client
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support import command_server
from support.web_client import MULTIPART, body_of


def connect(address):
    host, port = urlsplit(address).hostname, urlsplit(address).port
    return socket.create_connection((host, port), timeout=20)


def head_of(length):
    return (
        f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: {MULTIPART}\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


def status_of(connection):
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status


def test_sigterm_ends_the_server_after_the_running_requests(start, run_folder, image):
    with start(run_folder, "--workers", 1) as (process, address):
        (decoder,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        body = body_of(image())
        with connect(address) as connection, connect(address):  # the second one is idle
            connection.sendall(head_of(len(body)) + body[:50])
            time.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            connection.sendall(body[50:])
            assert status_of(connection) == 200
        out, errors = process.communicate(timeout=20)
        assert (process.returncode, out, errors) == (0, "stopped\n", "")
        assert not Path("/proc", decoder).exists()


def test_slow_uploads_and_slow_heads_end(server, image):
    body = body_of(image())
    with connect(server) as upload, connect(server) as head, connect(server) as silent:
        upload.sendall(head_of(len(body)) + body[:50])
        head.sendall(b"GET /health HTTP/1.1\r\nHost:")
        started = time.perf_counter()
        assert status_of(upload) == 408
        assert upload.recv(1) == b""  # closed
        assert head.recv(1) == silent.recv(1) == b""
        assert time.perf_counter() - started < 10


def test_a_client_that_disconnects_is_no_error(server, image):
    body = body_of(image())
    with connect(server) as connection:
        connection.sendall(head_of(len(body)) + body[:50])
    for _ in range(50):
        time.sleep(0.05)
        with contextlib.closing(http.client.HTTPConnection(urlsplit(server).netloc, timeout=20)) as client:
            client.request("GET", "/metrics")
            text = client.getresponse().read().decode()
        if 'path="/predict",status="499"' in text:
            break
    assert 'path="/predict",status="499"' in text and 'status="500"' not in text


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (head_of(10**12), 413),
        (head_of(7) + b"garbage", 400),
        (b"\x16\x03\x01\x02garbage\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n", 400),
    ],
    ids=["large", "garbage in the body", "garbage", "another name"],
)
def test_wrong_requests_are_refused_at_once_and_not_logged(server, sent, status):
    """The fixture `server` checks the stderr of the server when it stops."""
    with connect(server) as connection:
        connection.sendall(sent)
        assert status_of(connection) == status


def test_mistakes_are_one_line(refused, run_folder, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert refused("serve", run_folder, "--port", port).startswith(f"cannot listen on 127.0.0.1 port {port}: ")
    assert refused("serve", run_folder, "--port", 70000) == "--port must be 0 to 65535, not 70000"
    assert refused("serve", run_folder, "--workers", 0) == "--workers must be 1 to 256, not 0"
    assert refused("serve", run_folder, "--max-pixels", 10**9).startswith("--max-pixels must be 1 to 100,000,000")
    assert "has no model" in refused("serve", tmp_path, "--port", 0)


def test_decoding_processes_that_do_not_start_are_one_line(refused, run_folder, monkeypatch):
    from lifelabel.serve import decoding

    for program in ("/bin/false", "/no/such/program"):
        monkeypatch.setattr(decoding.sys, "executable", program)
        assert refused("serve", run_folder, "--port", 0).startswith("a process that decodes images does not start")


def test_a_signal_during_the_start_ends_the_server(run_folder):
    """A decoding process that never gets ready. The program waits for it, but not after SIGTERM."""
    code = """
import sys
from lifelabel.serve import decoding
decoding.sys = type("", (), {"executable": sys.argv.pop(), "path": sys.path})
from lifelabel.cli.main import main
main()
"""
    sleeper = run_folder.parent / "sleeper"
    sleeper.write_text("#!/bin/sh\ntouch $0.started\nexec sleep 60\n")
    sleeper.chmod(0o755)
    words = ["serve", run_folder, "--port", "0", "--device", "cpu", "--workers", "1", sleeper]
    process = command_server.start(*words, code=code, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while not sleeper.with_suffix(".started").exists():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=20) == ("stopped\n", "") and process.returncode == 0
    finally:
        process.kill()


def test_a_client_that_does_not_read_its_answer_is_disconnected(start, run_folder, tmp_path):
    shutil.copytree(run_folder / "model", tmp_path / "model")
    (tmp_path / "report.html").write_bytes(bytes(20_000_000))  # more than the buffers of the system hold
    with start(tmp_path, "--timeout", 1, "--workers", 1) as (_, address), connect(address) as connection:
        connection.sendall(b"GET /report HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(3)
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while data := connection.recv(1 << 20):
                received += len(data)
        assert received < 20_000_000  # what the system had buffered


@pytest.mark.parametrize(
    ("host", "allow", "names"),
    [
        ("127.0.0.1", (), {"127.0.0.1", "localhost", "::1"}),
        ("::1", ("Labels.example.org:8443",), {"127.0.0.1", "localhost", "::1", "labels.example.org"}),
        ("0.0.0.0", (), None),
        ("192.0.2.1", ("x",), {"192.0.2.1", "x"}),
    ],
)
def test_the_names_of_a_server(host, allow, names):
    from lifelabel.serve.server import _names

    assert _names(host, allow) == names


def test_without_fastapi_the_line_has_the_command_that_installs_it(refused, run_folder, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("lifelabel.serve.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert refused("serve", run_folder) == "uvicorn is not installed: pip install 'lifelabel[serve]'"
