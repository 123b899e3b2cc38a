"""Requests to `lifelabel serve`: no status of 500 or more, and the server answers afterwards."""

from collections import Counter

import pytest
from faults.mutations import ODD_TEXTS, damaged
from faults.settings import generate
from hypothesis import given
from hypothesis import strategies as st
from support.drawn_images import encoded, noise
from support.models import learned, write
from support.web_client import MULTIPART, body_of, make_client

pytest.importorskip("fastapi", reason="fastapi is not installed")


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("requests")
    write(folder / "model", method=learned("fine-tuning"))
    with make_client(folder) as client:
        yield client


@pytest.fixture
def answers(client, count):
    """The statuses of all answers. None may be 500 or more."""
    statuses = Counter()
    yield statuses
    count(requests=statuses.total(), requests_5xx=sum(n for status, n in statuses.items() if status >= 500))
    assert not any(status >= 500 for status in statuses), statuses
    assert client.get("/health").json() == {"status": "ok"}


def test_requests_of_the_schema(client, answers, size, seed):
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    for found in schema.get_all_operations():

        @generate(size.requests, seed)
        @given(case=found.ok().as_strategy())
        def test(case):
            words = case.as_transport_kwargs(base_url=str(client.base_url))
            given = {
                name: words[name]
                for name in ("method", "url", "params", "headers", "json", "data", "files")
                if words.get(name)
            }
            answers[client.request(**given).status_code] += 1

        test()


@st.composite
def uploads(draw):
    """(content, headers, query) of a request to /predict: a damaged image, a damaged body, or odd parameters."""
    data = encoded(noise(40, 30), draw(st.sampled_from(("JPEG", "PNG", "GIF", "WEBP", "BMP"))))
    kind, query = MULTIPART, {}
    match draw(st.integers(0, 2)):
        case 0:
            content = body_of(draw(damaged(data)))
        case 1:
            content = draw(damaged(body_of(data)))
            kind = draw(
                st.sampled_from((kind, kind, "multipart/form-data", "text/plain", "multipart/form-data; boundary="))
            )
        case _:
            content = body_of(data)
            names = st.sampled_from(("threshold", "top", "task", "maps", "x"))
            query = draw(st.dictionaries(names, st.sampled_from((*(text[:2000] for text in ODD_TEXTS), "0.5", "3"))))
    return content, {"Content-Type": kind}, query


def test_damaged_uploads(client, answers, size, seed):
    @generate(size.uploads, seed)
    @given(uploads())
    def test(given):
        content, headers, query = given
        answers[client.post("/predict", content=content, headers=headers, params=query).status_code] += 1

    test()
