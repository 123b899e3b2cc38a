"""A client of the web application of `lifelabel serve`, in this process, and bodies of its requests."""

import contextlib

MULTIPART = "multipart/form-data; boundary=x"
LIMITS = {
    "max_bytes": 1_000_000, "max_pixels": 1_000_000, "max_images": 4, "max_requests": 8, "timeout": 20, "workers": 1,
}  # fmt: skip


@contextlib.contextmanager
def make_client(path, hosts=None, **limits):
    """A client of the application of a run folder or a model folder, within its start and end."""
    from starlette.testclient import TestClient

    from lifelabel.serve.app import create_app
    from lifelabel.serve.limits import Limits
    from lifelabel.serve.models import Models
    from lifelabel.serve.service import Service

    service = Service(Models(path, "cpu"), Limits(**{**LIMITS, **limits}))
    with TestClient(create_app(service, hosts), raise_server_exceptions=False) as client:
        client.service = service
        yield client


def body_of(*files, name="a.png", end=b"--x--\r\n"):
    """The body of a request of the type `MULTIPART`."""
    head = f'--x\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'.encode()
    return b"".join(head + data + b"\r\n" for data in files) + end
