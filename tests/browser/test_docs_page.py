"""The page of the REST API: operations, a token, a request and its answer; nothing leaves the service."""

import re
from collections.abc import Iterator

import pytest
from nginx_lab import NginxLab
from playwright.sync_api import expect


@pytest.fixture(params=["alone", "behind a prefix"])
def url(request, service, tmp_path) -> Iterator[str]:
    if request.param == "alone":
        yield service.url
    else:
        with NginxLab(tmp_path, service.port) as proxy:
            yield proxy.url


def test_the_api_is_read_and_tried_with_a_token_and_nothing_leaves_the_service(open_page, service, url):
    page, said = open_page(), []
    page.goto(f"{url}/")
    expect(page.get_by_label("Token")).to_be_visible()
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="API").click()
    expect(page).to_have_url(f"{url}/docs")
    whoami = page.locator("#operations-access-whoami")
    expect(page.locator(".opblock-tag-section")).not_to_have_count(0)
    page.get_by_role("button", name="Authorize").click()
    page.get_by_label("auth-bearer-value").first.fill(service.token)
    page.get_by_role("button", name=re.compile("apply credentials", re.IGNORECASE)).first.click()
    page.get_by_role("button", name="Close", exact=True).first.click()
    if not whoami.is_visible():
        page.locator("#operations-tag-access .expand-operation").click()
    whoami.locator(".opblock-summary-control").click()
    whoami.get_by_role("button", name="Try it out").click()
    whoami.get_by_role("button", name="Execute").click()
    expect(whoami.locator(".live-responses-table")).to_contain_text('"name": "lab"')
    assert not said
