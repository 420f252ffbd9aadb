"""Takes the README's pictures of the dashboard: a campaign of a running service, in both themes.

    meshtune run docs/site/screenshots.yaml
    python docs/site/screenshots.py http://127.0.0.1:8000 TOKEN_FILE CAMPAIGN

The pictures of the README are of this campaign, which is simulated and found a gain. Needs Chromium and the packages of
development. Writes docs/images/dashboard-NAME.png for each of `pages` below.
"""

from __future__ import annotations

import json
import shutil
import sys
import urllib.request
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

FOLDER = Path(__file__).parents[1] / "images"
WIDTH = 1280


def take(url: str, token: str, campaign: str) -> None:
    """Every page once it is complete."""
    best = _best_trial(url, token, campaign)
    pages = (
        ("campaigns", "#/", "campaign-table", "light", 400),
        ("campaign", f"#/campaigns/{campaign}", "why-steps", "light", 1000),
        ("campaign-dark", f"#/campaigns/{campaign}?tab=charts", "why-steps", "dark", 1400),
        ("trial", f"#/campaigns/{campaign}/trials/{best}", "step-times", "light", 860),
        ("create", "#/new?from=" + campaign, "predicted-best", "light", 860),
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, place, waits_for, theme, height in pages:
            page = browser.new_page(color_scheme=theme, viewport={"width": WIDTH, "height": height})
            page.add_init_script(f"localStorage.setItem('meshtune.token', '{token}')")
            page.goto(f"{url}/{place}")
            _wait(page, waits_for)
            page.screenshot(path=FOLDER / f"dashboard-{name}.png")
            page.close()
        browser.close()


def _wait(page: Page, testid: str) -> None:
    """Until all of it is there and holds still."""
    page.get_by_test_id(testid).first.wait_for()
    expect(page.get_by_role("status", name="Loading")).to_have_count(0, timeout=60_000)
    page.wait_for_timeout(1000)


def _best_trial(url: str, token: str, campaign: str) -> int:
    request = urllib.request.Request(f"{url}/v1/campaigns/{campaign}", headers={"authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        number: int = json.load(answer)["summary"]["recommended"]["trial"]
        return number


if __name__ == "__main__":
    address, token_file, id = sys.argv[1:]
    take(address.rstrip("/"), Path(token_file).read_text(encoding="utf-8").strip(), id)
