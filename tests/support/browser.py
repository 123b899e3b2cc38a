"""Chromium for tests of pages. Without it, or without playwright, these tests are skipped."""

import shutil
from contextlib import contextmanager

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


@contextmanager
def chromium():
    """A browser without a window."""
    with sync_api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        except sync_api.Error as error:
            pytest.skip(f"chromium does not start: {error}")
        yield browser
        browser.close()


def serious_violations(page):
    """Violations of accessibility rules that axe finds serious or critical: the rule and the elements."""
    found = axe.Axe().run(page).response["violations"]
    bad = [each for each in found if each["impact"] in ("serious", "critical")]
    return [(each["id"], [node["html"] for node in each["nodes"]]) for each in bad]
