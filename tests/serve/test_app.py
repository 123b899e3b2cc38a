import json
import shutil

import pytest
from report.run_folders import write_run
from support.models import CLASSES, write
from support.web_client import make_client


def test_classes(client):
    found = client.get("/classes").json()["classes"]
    assert [each["name"] for each in found] == list(CLASSES)
    assert [each["task"] for each in found] == [1, 1, 2, 2, 2]
    assert [each["threshold"] for each in found] == [0.3, 0.4, 0.5, 0.45, 0.55]
    assert found[0]["related"] == [{"name": "sea", "probability": 0.8}, {"name": "boat", "probability": 0.5}]


def test_facts_of_the_model(client):
    found = client.get("/model").json()
    assert (found["method"], found["classes"], found["tasks"], found["maps"]) == ("fine-tuning", 5, 2, True)
    assert found["figures"] == {"mAP": 0.5, "CF1": 0.4, "OF1": 0.3}
    assert found["kept_tasks"] == [1, 2, 3]
    assert found["limits"]["max_images"] == 4


def test_health_metrics_and_the_description(client):
    assert client.get("/health").json() == {"status": "ok"}
    assert (client.head("/health").status_code, client.head("/health").content) == (200, b"")
    assert client.get("/nothing").status_code == 404
    text = client.get("/metrics").text
    assert 'lifelabel_requests_total{path="/health",status="200"}' in text
    assert 'lifelabel_requests_total{path="other",status="404"}' in text
    for name in ("queue_images", "request_seconds_bucket", "decode_seconds_count", "bad_images", "images_total"):
        assert f"lifelabel_{name}" in text
    calls = {"/predict", "/classes", "/model", "/health", "/metrics", "/report"}
    assert set(client.get("/openapi.json").json()["paths"]) == calls


def test_the_pages_load_nothing_from_other_sites(client):
    for path in ("/", "/docs", "/page.css", "/page.js"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "//" not in answer.text.replace("http://127.0.0.1:8000", "").replace("// ", "")
    docs = client.get("/docs").text
    assert "POST /predict" in docs and "curl -F files=@photo.jpg" in docs and "threshold" in docs


def test_headers_of_every_answer(client):
    for answer in (client.get("/"), client.get("/x"), client.post("/predict"), client.get("/metrics")):
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'") and "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://["}],
)
def test_pages_of_other_sites_cannot_send_images(client, image, headers):
    assert client.post("/predict", files=[("files", image())], headers=headers).status_code == 403


def test_our_own_page_can(client, image):
    headers = {"Origin": "http://testserver", "Sec-Fetch-Site": "same-origin"}
    assert client.post("/predict", files=[("files", image())], headers=headers).status_code == 200


def test_other_names_of_the_server_are_refused(run_folder):
    with make_client(run_folder, hosts={"localhost", "127.0.0.1", "::1"}) as client:
        for host in ("localhost", "127.0.0.1:8000", "LOCALHOST:1", "[::1]:8000"):
            assert client.get("/health", headers={"Host": host}).status_code == 200, host
        for host in ("evil.example", "localhost.evil.example:8000", "", "127.0.0.1.evil.example"):
            answer = client.get("/health", headers={"Host": host})
            assert (answer.status_code, "--allow-host" in answer.text) == (400, True), host
        assert client.get("/report").status_code == 400  # the client calls itself testserver


def test_the_report_of_the_run_is_in_a_sandbox(run_folder, tmp_path):
    (tmp_path / "run").mkdir()
    shutil.copytree(run_folder / "model", tmp_path / "run" / "model")
    (tmp_path / "run" / "report.html").write_text("<p>the report</p>")
    with make_client(tmp_path / "run") as client:
        answer = client.get("/report")
    (tmp_path / "run" / "report.html").rename(tmp_path / "secret")
    (tmp_path / "run" / "report.html").symlink_to(tmp_path / "secret")
    with make_client(tmp_path / "run") as client:
        assert client.get("/report").status_code == 404
    assert answer.text == "<p>the report</p>"
    assert answer.headers["content-security-policy"].startswith("sandbox allow-scripts allow-downloads; default-src")


def test_a_report_is_made_of_a_run_without_one(run_folder, tmp_path):
    shutil.copytree(run_folder / "model", write_run(tmp_path / "run") / "model")
    with make_client(tmp_path / "run") as client:
        first, second = client.get("/report"), client.get("/report")
    assert first.status_code == 200 and "<html" in first.text and second.text == first.text


def test_folders_without_a_report(run_folder, client, caplog):
    answer = client.get("/report")  # this run has a model only
    assert (answer.status_code, str(run_folder) in answer.text, str(run_folder) in caplog.text) == (404, False, True)
    assert answer.json()["error"].startswith("no report: ")
    with make_client(run_folder / "model") as alone:
        assert alone.get("/model").json()["kept_tasks"] == []
        answer = alone.get("/report")
    assert answer.status_code == 404 and "only a model" in answer.json()["error"]


def test_hostile_names_stay_data(tmp_path):
    names = ("<script>alert(1)</script>", '"', "a", "b", "c")
    write(tmp_path / "model", classes=names)
    with make_client(tmp_path / "model") as client:
        answer = client.get("/classes")
        assert answer.headers["content-type"] == "application/json"
        assert json.loads(answer.text)["classes"][0]["name"] == names[0]
        assert client.get("/model").status_code == 200


def test_a_damaged_model_of_a_task(run_folder, tmp_path, image, caplog):
    (tmp_path / "run" / "model-task-1").mkdir(parents=True)
    shutil.copytree(run_folder / "model", tmp_path / "run" / "model")
    with make_client(tmp_path / "run") as client:
        answer = client.post("/predict?task=1", files=[("files", image())])
        assert (answer.status_code, str(tmp_path) in answer.text, str(tmp_path) in caplog.text) == (500, False, True)
        assert client.post("/predict", files=[("files", image())]).status_code == 200
