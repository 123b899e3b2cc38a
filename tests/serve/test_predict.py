import asyncio
import json

import numpy as np
import pytest
from PIL import Image
from support.drawn_images import encoded
from support.web_client import MULTIPART, body_of

pytest.importorskip("fastapi", reason="fastapi is not installed")
from starlette.requests import Request

from lifelabel.serve.limits import Limits
from lifelabel.serve.requests import Refused, read_uploads


def send(client, *files, **query):
    parts = [("files", (f"{number}.jpg", data)) for number, data in enumerate(files)]
    return client.post("/predict", files=parts, params=query)


def labels(result):
    return {label["name"]: label["probability"] for label in result["labels"]}


def rotated(image):
    exif = Image.Exif()
    exif[274] = 6
    return image((64, 48), "JPEG", exif=exif)


@pytest.mark.parametrize("query", [{}, {"threshold": 0.4}, {"top": 2}, {"threshold": 0.45, "top": 3}, {"threshold": 0}])
def test_labels_and_probabilities_are_those_of_the_model(client, model, image, tmp_path, query):
    files = [
        image(), image((32, 32)), image((640, 480), "JPEG"), image((50, 60), mode="RGBA"), image(mode="L"),
        rotated(image),
    ]  # fmt: skip
    for data in files:
        (tmp_path / "a").write_bytes(data)
        answer = send(client, data, **query)
        assert answer.status_code == 200
        expected = model.predict(tmp_path / "a", **query)
        found = labels(answer.json()["results"][0])
        assert list(found) == list(expected)
        assert list(found.values()) == pytest.approx(list(expected.values()), rel=1e-5)


def test_a_label_has_its_threshold_and_its_task(client, model, image):
    found = send(client, image(), top=5).json()["results"][0]["labels"]
    tasks = dict(zip(model.classes, model.info.task_of_class, strict=True))
    thresholds = dict(zip(model.classes, model.thresholds, strict=True))
    assert {each["name"]: each["task"] for each in found} == {name: task + 1 for name, task in tasks.items()}
    assert {each["name"]: each["threshold"] for each in found} == pytest.approx(thresholds)
    assert {each["threshold"] for each in send(client, image(), top=5, threshold=0).json()["results"][0]["labels"]} == {
        0
    }


def test_files_are_answered_in_order_and_bad_ones_have_errors(client, image):
    answer = send(client, image(), b"text", image(seed=1), image()[:100])
    results = answer.json()["results"]
    assert answer.status_code == 200
    assert [each["name"] for each in results] == ["0.jpg", "1.jpg", "2.jpg", "3.jpg"]
    assert ["labels" in each for each in results] == [True, False, True, False]
    assert (results[1]["error"], results[1]["status"]) == ("not an image of a known format", 415)
    assert results[3]["status"] == 400
    alone = send(client, image(seed=1)).json()["results"][0]
    assert labels(results[2]) == pytest.approx(labels(alone), rel=1e-5)


LARGE = encoded(Image.new("1", (1001, 1000)))


def test_if_no_file_can_be_used_the_status_is_that_of_the_files(client, image):
    for data, status, reason in (
        (b"text", 415, "not an image of a known format"), (b"", 400, "an empty file"),
        (image()[:500], 400, "truncated"), (b"\x89PNG" + bytes(100), 400, "corrupt"),
        (LARGE, 413, "more than 1 megapixels"),
    ):  # fmt: skip
        answer = send(client, data)
        assert answer.status_code == status, answer.text
        assert answer.json()["error"] == f"0.jpg: {reason}"
    assert send(client, b"text", b"text").status_code == 415
    assert send(client, b"text", LARGE).status_code == 400


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("threshold=2", "threshold: "), ("threshold=nan", "threshold: "), ("threshold=a", "threshold: "),
        ("top=0", "top: "), ("top=1.5", "top: "), ("task=0", "task: "), ("maps=7", "maps: "), ("typo=1", "typo: "),
        ("task=9", "there is no model after task 9: give one of 1, 2, 3"),
    ],
)  # fmt: skip
def test_wrong_parameters(client, image, query, reason):
    answer = client.post(f"/predict?{query}", files=[("files", image())])
    assert answer.status_code == 422
    assert answer.json()["error"].startswith(reason)


def test_requests_that_are_no_images(client, image):
    for answer, status, reason in (
        (client.post("/predict", content=image()), 415, "send images as multipart/form-data"),
        (client.post("/predict", data={"a": "1"}), 415, "send images as multipart/form-data"),
        (client.post("/predict", files=[("image", image())]), 422, "'image' is not a file named files"),
        (client.post("/predict", files=[("files", image())], data={"top": 3}), 422, "'top' is not a file named files"),
        (client.post("/predict", files=[("files", image())] * 5), 413, "more than 4 images in a request"),
        (client.post("/predict", files=[("files", bytes(1_000_000))]), 413, "more than 1,000,000 bytes in a request"),
    ):
        assert answer.status_code == status, answer.text
        assert answer.json()["error"].startswith(reason)
    for body, status in ((b"--x--\r\n", 422), (b"garbage", 400), (b"", 422)):
        answer = client.post("/predict", content=body, headers={"Content-Type": MULTIPART})
        assert answer.status_code in (400, status), (body, answer.text)
    assert client.post("/predict", content=b"", headers={"Content-Type": "multipart/form-data"}).status_code == 400


@pytest.mark.parametrize("charset", ["undefined", "idna", "punycode", "utf-7", "no-such-charset"])
def test_the_charset_of_a_client_is_not_used(client, image, charset):
    body = body_of(image(), name="xn--zzzzzzzz999999999")
    answer = client.post("/predict", content=body, headers={"Content-Type": f"{MULTIPART}; charset={charset}"})
    assert answer.status_code == 200, answer.text
    assert [each["name"] for each in answer.json()["results"]] == ["xn--zzzzzzzz999999999"]


def test_a_body_that_is_cut_short_is_refused(client, image):
    whole, headers = body_of(image(), image(seed=1)), {"Content-Type": MULTIPART}
    assert len(client.post("/predict", content=whole, headers=headers).json()["results"]) == 2
    for length in (len(whole) - 8, len(whole) - 100):
        answer = client.post("/predict", content=whole[:length], headers=headers)
        assert answer.status_code == 400 and "last boundary is missing" in answer.json()["error"]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize(
    ("parts", "end", "status"), [(4, b"--x--\r\n", None), (4, b"--x-", 400), (5, b"--x--\r\n", 413)]
)
def test_parts_are_counted_in_chunks_of_any_size(size, parts, end, status):
    body = body_of(*[b"\r\n--xx"] * parts, end=end)
    chunks = [
        {"type": "http.request", "body": body[k : k + size], "more_body": True} for k in range(0, len(body), size)
    ]
    chunks[-1]["more_body"] = False

    async def receive():
        return chunks.pop(0)

    scope = {"type": "http", "app": None, "headers": [(b"content-type", MULTIPART.encode())]}

    def read():
        return asyncio.run(read_uploads(Request(scope, receive), Limits(max_images=4)))

    if status is None:
        assert [upload.size for upload in read()] == [6] * 4
    else:
        with pytest.raises(Refused) as refused:
            read()
        assert refused.value.status_code == status


def test_a_body_without_a_length_is_limited_too(client):
    body = body_of(bytes(5_000_000))
    chunks = (body[start : start + 100_000] for start in range(0, len(body), 100_000))
    assert client.post("/predict", content=chunks, headers={"Content-Type": MULTIPART}).status_code == 413


def test_names_are_only_echoed(client, image):
    name = "../../etc/passwd\x1b[2J" + "x" * 500
    answer = client.post("/predict", files=[("files", (name, image()))])
    found = answer.json()["results"][0]["name"]
    assert found.startswith("../../etc/passwd") and len(found) == 100 and found.isprintable()


def test_maps_show_where_the_evidence_is(client, image):
    without, found = (send(client, image(), top=3, maps=maps).json()["results"][0] for maps in (False, True))
    assert labels(found) == pytest.approx(labels(without))
    for label, plain in zip(found["labels"], without["labels"], strict=True):
        grid = np.array(label["map"])
        assert grid.shape == (4, 4) and grid.min() >= 0 and grid.max() in (0, 1)
        assert "map" not in plain


def test_models_after_earlier_tasks_are_loaded_when_they_are_used(client, image):
    models = client.service.models
    for task in (1, 2, 3, 1):
        assert send(client, image(), task=task).status_code == 200
    assert models.of_task.cache_info().currsize == 2


def test_too_many_requests(client, image, monkeypatch):
    monkeypatch.setattr(client.service, "_running", 8)
    answer = send(client, image())
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")


def test_a_request_that_takes_too_long(client, image, monkeypatch):
    async def wait(*_):
        await asyncio.sleep(60)

    monkeypatch.setattr(client.service.batcher, "score", wait)
    monkeypatch.setattr(client.service, "limits", type(client.service.limits)(timeout=0.2))
    answer = send(client, image())
    assert (answer.status_code, answer.headers["connection"]) == (408, "close")
    monkeypatch.undo()
    assert send(client, image()).status_code == 200  # its place is free again


def test_an_error_of_the_device_is_one_answer(client, image, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(client.service.models.main, "logits", fail)
    answer = send(client, image())
    assert (answer.status_code, answer.json()) == (500, {"error": "an error in the server: see its log"})
    assert "out of memory" in caplog.text
    monkeypatch.undo()
    assert send(client, image()).status_code == 200


def test_images_of_several_files_share_a_forward_pass(client, image):
    def batches():
        text = client.get("/metrics").text
        return float(text.split("lifelabel_batch_images_count ")[1].split()[0])

    before = batches()
    assert send(client, *(image(seed=seed) for seed in range(4))).status_code == 200
    assert batches() - before < 4


def test_the_answer_fits_its_description(client, image):
    schema = client.get("/openapi.json").json()
    answer = send(client, image(), b"text", maps=True).json()
    assert set(answer) <= set(schema["components"]["schemas"]["Predictions"]["properties"])
    assert set(answer["results"][0]["labels"][0]) == set(schema["components"]["schemas"]["Label"]["properties"])
    assert json.dumps(schema).count('"404"') == 1
