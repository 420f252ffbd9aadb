"""A real Chromium before a real service."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from service_lab import ServiceLab

CHROMIUM = shutil.which("chromium")
STATIC = Path(__file__).parents[2] / "api" / "static" / "index.html"
# Nothing that looks for a network outside, and no sandbox, which root may not have.
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
LAPTOP = {"width": 1440, "height": 900}
# A machine that does other things as well answers late.
PATIENCE_MS = 30_000


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Of one module: while Playwright runs, this thread has an event loop, and tests of others want their own."""
    missing = "" if CHROMIUM else "there is no chromium on this machine"
    if not STATIC.exists():
        missing = "the dashboard is not built: `make dashboard`"
    if missing and os.environ.get("CI"):
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS), timeout=4 * PATIENCE_MS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[Callable[..., Page]]:
    """A page of its own profile; fails at the end where a script of ours failed or asked another host for anything."""
    contexts, troubles = [], []

    def opened(*, theme: str = "light", viewport: dict[str, int] = LAPTOP) -> Page:
        context = chromium.new_context(
            color_scheme=theme, viewport=viewport, permissions=["clipboard-read", "clipboard-write"]
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda asked: asked.url.startswith(OWN) or troubles.append(asked.url))
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not troubles


OWN = ("http://127.0.0.1:", "blob:", "data:")


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceLab]:
    """One for all tests that look at campaigns of their own."""
    with ServiceLab(tmp_path_factory.mktemp("service")) as lab:
        yield lab


@pytest.fixture
def sign_in() -> Callable[[Page, ServiceLab], None]:
    """Open the dashboard and paste the token, as a person does."""

    def signed_in(page: Page, service: ServiceLab) -> None:
        page.goto(service.url)
        page.get_by_label("Token").fill(service.token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_test_id("whoami")).to_contain_text("lab")

    return signed_in


@pytest.fixture
def page(open_page: Callable[..., Page], service: ServiceLab, sign_in: Callable[[Page, ServiceLab], None]) -> Page:
    """Signed in at the service of all tests."""
    page = open_page()
    sign_in(page, service)
    return page
