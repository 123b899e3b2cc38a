"""The page in a real browser."""

import pytest
from support.browser import chromium, needs_chromium, serious_violations

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def opened(browser, server):
    """Opens a page of the server. No script must fail, and nothing be requested from other sites."""
    pages = []

    def open_page(path="/", width=1280, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        page, seen = context.new_page(), []
        page.on("console", lambda message: seen.append(message.text))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("request", lambda r: r.url.startswith((server, "blob:", "data:")) or seen.append(r.url))
        page.goto(server + path)
        pages.append((context, seen))
        return page, seen

    yield open_page
    for context, seen in pages:
        assert seen == []
        context.close()


def add(page, image, *names):
    files = [{"name": name, "mimeType": "image/png", "buffer": image((60, 40), seed=n)} for n, name in enumerate(names)]
    page.set_input_files("#files", files)
    page.get_by_text(f"{len(names)} of {len(names)} picture").wait_for()


def test_uploads_show_labels_that_follow_the_threshold(opened, image, model):
    page, _ = opened()
    add(page, image, "one.png", "<b>two</b>.png")
    assert page.locator("#cards h2").all_text_contents() == ["one.png", "<b>two</b>.png"]
    rows = page.locator("#cards > li").first.locator(".labels > li")
    assert sorted(rows.locator(".name").all_text_contents()) == sorted(model.classes)
    meter = page.get_by_role("meter").first
    assert 0 <= float(meter.get_attribute("aria-valuenow")) <= 1
    shown = page.locator("#cards > li").first.locator(".labels:not(.others) > li")
    page.get_by_label("Probability", exact=True).fill("0.05")
    many = shown.count()
    page.get_by_label("Probability", exact=True).fill("0.95")
    assert page.get_by_label("one probability").is_checked()
    assert many > shown.count()
    page.get_by_role("button", name="Remove one.png").click()
    assert page.locator("#cards h2").all_text_contents() == ["<b>two</b>.png"]


def test_maps_and_models_after_earlier_tasks(opened, image):
    page, _ = opened()
    add(page, image, "one.png")
    page.get_by_label("one probability").check()
    page.locator("summary").click()
    where = page.get_by_role("button", name="Where is the evidence").first
    where.press("Enter")
    page.locator("canvas:visible").wait_for()
    assert where.get_attribute("aria-pressed") == "true"
    where.click()
    assert page.locator("canvas:visible").count() == 0
    with page.expect_response(lambda response: "task=1" in response.url) as answer:
        page.get_by_label("Model", exact=True).select_option("after task 1")
    assert answer.value.status == 200
    page.get_by_text("1 of 1 picture").wait_for()


SEND = """([kind, bytes]) => {
  const data = new DataTransfer();
  data.items.add(new File([Uint8Array.from(bytes)], `${kind}.png`, { type: "image/png" }));
  const event = kind === "drop" ? new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true })
    : new ClipboardEvent("paste", { clipboardData: data, bubbles: true });
  document.body.dispatchEvent(event);
}"""


def test_photographs_are_dropped_and_pasted(opened, image):
    page, _ = opened()
    for kind in ("drop", "paste"):
        page.evaluate(SEND, [kind, list(image())])
    page.get_by_text("2 of 2 pictures done").wait_for()
    assert page.locator("#cards h2").all_text_contents() == ["drop.png", "paste.png"]
    assert page.locator("#cards .error").count() == 0


def test_errors_of_a_proxy_and_of_maps_are_shown(opened, image):
    page, seen = opened()
    add(page, image, "one.png")
    bad = {"status": 502, "body": "<html>bad gateway</html>", "content_type": "text/html"}
    page.route("**/predict*", lambda route: route.fulfill(**bad))
    page.get_by_label("one probability").check()
    page.locator("summary").click()
    where = page.get_by_role("button", name="Where is the evidence").first
    where.click()
    page.get_by_text("status 502").wait_for()
    assert where.get_attribute("aria-pressed") == "false"
    assert all("502" in text for text in seen)  # the browser itself reports the status
    seen.clear()


def test_a_file_that_is_not_an_image_has_an_error_in_its_card(opened):
    page, seen = opened()
    page.set_input_files("#files", [{"name": "a.txt", "mimeType": "text/plain", "buffer": b"text"}])
    page.get_by_text("not an image of a known format").wait_for()
    assert [text for text in seen if "415" not in text] == []  # the browser itself reports the status
    seen.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility_on_a_small_screen(opened, image, scheme):
    page, _ = opened(width=380, color_scheme=scheme, bypass_csp=True)
    add(page, image, "a-long-name-" * 8 + ".png")
    page.locator("summary").click()
    page.locator(".where:visible").first.click()
    page.locator("canvas:visible").wait_for()
    assert serious_violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 380


def test_the_description_of_the_api(opened):
    page, _ = opened("/docs", width=380, bypass_csp=True)
    assert serious_violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
