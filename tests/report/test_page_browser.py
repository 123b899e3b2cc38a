"""The report in a real browser: charts, inputs, untrusted text, small screens, colours and accessibility."""

import re
from contextlib import contextmanager

import pytest
from report.page_runs import FILE, HOSTILE, LABELS, make_table, shown
from support.browser import chromium, needs_chromium, serious_violations

from lifelabel.report.page import report_html
from lifelabel.report.tables import table_texts

pytestmark = needs_chromium
SCROLL = "figure => figure.scrollIntoView({ block: 'center' })"
COPIED = """
  window.copied = [];
  document.addEventListener("copy", () => {
    const area = document.activeElement;
    window.copied.push(area.value.slice(area.selectionStart, area.selectionEnd));
  });
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return make_table(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def address(table, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report_html(table), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def opened(browser, address):
    """Opens the page. At the end nothing must have been requested, and no script failed or opened a dialog."""

    @contextmanager
    def open_page(script="", width=1280, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        page, seen = context.new_page(), []
        page.on("console", lambda message: seen.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("dialog", lambda dialog: (seen.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: request.url.startswith("data:") or seen.append(request.url))
        if script:
            page.add_init_script(script)
        page.goto(address)
        yield page
        assert seen == [address]
        context.close()

    return open_page


def chart(page, name):
    """The figure whose id begins with `name`, drawn."""
    figure = page.locator(f"figure[id^=figure-{name}]:visible").first
    figure.evaluate(SCROLL)
    figure.locator(".plot.drawn svg").wait_for()
    return figure


def drawing(figure):
    return figure.locator("svg").inner_html()


def without_ids(drawing):
    """A drawing without the numbers of its gradients, which differ each time, and without hidden labels."""
    return re.sub(r"gradient_\d+| aria-label=\"[^\"]*\"", "", drawing)


def wait_for_change(page, figure, before):
    """The drawing of a figure, when it is another one than `before`."""
    page.wait_for_function(
        "([id, before]) => (document.querySelector(`#${id} svg`)?.innerHTML ?? before) !== before",
        arg=[figure.get_attribute("id"), before],
    )
    return drawing(figure)


def draw_all(page):
    for figure in page.locator("figure.chart:visible").all():
        figure.evaluate(SCROLL)
        figure.locator(".plot.drawn svg").wait_for()
    return page.locator("figure.chart:visible").count()


def test_every_chart_is_drawn_when_it_comes_into_view(opened):
    with opened() as page:
        page.locator(".plot.drawn svg").first.wait_for()
        before = page.locator(".plot.drawn").count()
        assert draw_all(page) > before
        assert page.get_by_text("This chart cannot be drawn").count() == 0
        hidden = page.locator("figure.chart:not(:visible) .plot.drawn")
        assert hidden.count() == 0


@pytest.mark.parametrize("width", [470, 900, 1280])
def test_no_legend_is_cut_off(opened, width):
    outside = """figure => {
      const frame = figure.querySelector("svg").getBoundingClientRect();
      const box = (text) => text.getBoundingClientRect();
      const texts = [...figure.querySelectorAll(".role-legend text")];
      return texts.filter((text) => box(text).right > frame.right || box(text).bottom > frame.bottom).length;
    }"""
    with opened(width=width) as page:
        for name in ("learning-curves", "precision-recall", "false-positives"):
            assert chart(page, name).evaluate(outside) == 0


def test_the_slider_and_the_play_button_move_the_matrix(opened):
    with opened() as page:
        figure = chart(page, "matrix")
        last = drawing(figure)
        slider = figure.get_by_role("slider", name="task")
        slider.focus()
        slider.press("ArrowLeft")
        first = wait_for_change(page, figure, last)
        assert slider.input_value() == "1"
        page.clock.install()
        figure.get_by_role("button", name="Play").click()
        assert figure.get_by_role("button", name="Stop").is_visible()
        page.clock.run_for(1000)
        assert without_ids(wait_for_change(page, figure, first)) == without_ids(last)
        assert slider.input_value() == "2"
        assert figure.get_by_role("button", name="Play").is_visible()  # it stops at the end


def test_with_reduced_motion_nothing_plays(opened):
    with opened(reduced_motion="reduce") as page:
        figure = chart(page, "matrix")
        assert figure.get_by_role("button", name="Play").count() == 0


def test_one_choice_of_the_method_for_all_sections_that_have_it(opened):
    with opened() as page:
        agcn = drawing(chart(page, "forgetting"))
        page.locator("#forgetting").get_by_label("method").select_option(LABELS["fine-tuning"])
        assert drawing(chart(page, "forgetting")) != agcn
        assert page.locator("#changes select").input_value() == "1"
        assert chart(page, "class-changes-fine-tuning").is_visible()
        assert chart(page, "matrix-agcn").is_visible()  # fine-tuning has no matrix
        page.set_viewport_size({"width": 600, "height": 900})
        page.locator("#changes").get_by_label("method").select_option(LABELS["agcn"])
        assert drawing(chart(page, "forgetting-agcn")) != agcn
        assert 500 < chart(page, "forgetting-agcn").locator("svg").bounding_box()["width"] <= 600


def column(page, number):
    return page.locator(f"#results tbody tr:first-child > :nth-child({number})").all_inner_texts()


def test_the_table_is_sorted_by_mouse_and_keyboard(opened):
    with opened() as page:
        head = page.locator("#results th").nth(1)
        head.get_by_role("button").click()
        assert column(page, 2) == ["90.00", "60.50 ± 0.71", "40.00"]
        assert head.get_attribute("aria-sort") == "descending"
        page.keyboard.press("Enter")
        assert column(page, 2) == ["40.00", "60.50 ± 0.71", "90.00"]
        assert head.get_attribute("aria-sort") == "ascending"
        page.locator("#results th").nth(0).get_by_role("button").press("Space")
        assert column(page, 1) == sorted(LABELS.values())
        assert page.locator("#results [aria-sort]").count() == 1
        below = page.locator("#results tbody").filter(has_text="agcn").locator("tr").nth(1)
        assert below.inner_text().startswith("Forgetting")  # it moves with its row


WITHOUT_CLIPBOARD = COPIED + 'Object.defineProperty(navigator, "clipboard", { value: undefined });'
REFUSED = COPIED + 'navigator.clipboard.writeText = () => Promise.reject(new Error("no permission"));'
ALLOWED = "window.copied = []; navigator.clipboard.writeText = async (text) => { copied.push(text); };"


@pytest.mark.parametrize("script", [ALLOWED, WITHOUT_CLIPBOARD, REFUSED], ids=["allowed", "missing", "refused"])
def test_the_table_is_copied(opened, table, script):
    with opened(script) as page:
        for name in ("Markdown", "CSV", "LaTeX"):
            page.get_by_role("button", name=f"Copy as {name}").click()
            page.get_by_text(f"Copied as {name}.").wait_for()
        assert page.evaluate("copied") == list(table_texts(table).values())
        assert page.locator("textarea").count() == 0


def cards(page):
    return page.locator(".card").all_inner_texts()


def test_the_labels_of_pictures_follow_task_threshold_and_method(opened):
    with opened() as page:
        section = page.locator("#pictures")
        first, second = cards(page)
        assert first.startswith("b.jpg") and second.startswith(FILE)  # a wrong label of 0.75 is before one of 0.72
        assert [line.strip() for line in second.split("\n") if line.strip()] == [
            FILE, "✓ right", f"{HOSTILE[0]} 0.95", "✗ wrong", f"{shown(HOSTILE[3])} 0.72", "○ missed",
            f"{HOSTILE[2]} 0.30",
        ]  # fmt: skip
        section.get_by_label("threshold").fill("0.95")
        assert "✗" not in "".join(cards(page))
        assert cards(page)[0].startswith(FILE)  # it misses a label of 0.30, the other picture one of 0.40
        section.get_by_label("after task").fill("1")
        assert all("later" in card and HOSTILE[2] in card for card in cards(page))
        section.get_by_label("method").select_option(LABELS["multi-task"])
        assert section.get_by_label("after task").input_value() == "2"  # it has one task
        assert page.locator("#pictures [role=status]").inner_text().startswith(LABELS["multi-task"])
        assert page.locator(".card img").first.evaluate("image => image.naturalWidth") == 24


def test_hostile_names_are_text(opened):
    """`opened` checks that no dialog opened and that nothing was requested."""
    with opened() as page:
        draw_all(page)
        text = page.locator("body").inner_text()
        for name in (*HOSTILE, *LABELS.values()):
            assert shown(name) in text
        assert "49" not in page.title()
        labels = "".join(chart(page, "matrix").locator("svg text").all_text_contents())
        assert "{{7*7}}" in labels and "<script>" in labels
        chart(page, "learning-curves").locator(".mark-symbol path").first.hover(force=True)
        tip = page.locator("#vg-tooltip-element.visible")
        tip.wait_for()
        assert any(label in tip.inner_text() for label in LABELS.values())


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_dark_colours_by_preference_and_by_button(opened):
    with opened(color_scheme="dark") as page:
        dark, chart_in_dark = background(page), drawing(chart(page, "learning"))
        page.emulate_media(color_scheme="light")
        chart_in_light = wait_for_change(page, chart(page, "learning"), chart_in_dark)
        light = background(page)
        assert (dark, light) == ("rgb(21, 24, 29)", "rgb(255, 255, 255)")
        page.get_by_role("button", name="Dark colours").click()
        assert background(page) == dark
        again = wait_for_change(page, chart(page, "learning"), chart_in_light)
        assert without_ids(again) == without_ids(chart_in_dark)
        page.get_by_role("button", name="Light colours").click()
        assert background(page) == light


def test_inputs_keep_their_values_when_the_colours_change(opened):
    with opened(color_scheme="light") as page:
        figure = chart(page, "matrix")
        last = drawing(figure)
        figure.get_by_role("slider", name="task").fill("1")
        first = wait_for_change(page, figure, last)
        page.get_by_role("button", name="Dark colours").click()
        wait_for_change(page, figure, first)
        page.get_by_role("button", name="Light colours").click()
        page.wait_for_timeout(300)
        assert without_ids(drawing(figure)) == without_ids(first)


def test_a_phone_does_not_scroll_sideways(opened):
    with opened(width=380) as page:
        draw_all(page)
        for details in page.locator("details").all():
            details.evaluate("each => { each.open = true; }")
        assert page.evaluate("document.documentElement.scrollWidth") <= 380


def test_everything_is_drawn_for_print_in_light_colours(opened):
    with opened(color_scheme="dark") as page:
        number = page.locator("figure.chart:visible").count()
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        page.set_viewport_size({"width": 720, "height": 1000})  # A4
        page.wait_for_function("number => document.querySelectorAll('.plot.drawn svg').length === number", arg=number)
        assert background(page) == "rgb(255, 255, 255)"
        assert (
            page.locator("button:visible, input:visible, select:visible").count()
            == page.locator("th button").count() - page.locator("details th button").count()
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= 720
        printed = drawing(page.locator("figure.chart").first)
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        page.emulate_media(media="screen")
        assert wait_for_change(page, page.locator("figure.chart").first, printed)


def test_the_keyboard_reaches_everything(opened):
    with opened() as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        assert page.locator(".skip").bounding_box()["x"] >= 0
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "content"
        page.keyboard.press("Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_violation(opened, scheme):
    with opened(color_scheme=scheme) as page:
        draw_all(page)
        for details in page.locator("details:visible").all():
            details.evaluate("each => { each.open = true; }")
        assert serious_violations(page) == []
