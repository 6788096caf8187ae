"""Checker of external links, tested without the network."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.tools import links

PAGE = """
[one](https://one.test/page#part), [two](https://two.test/), <https://three.test/a_(b)>, [image](pictures/x.png)
[yours](https://agents.example.com/x), [here](http://localhost:8000/), `[code](https://code.test/)`

```sh
curl [x](https://shell.test/)
```
"""


def test_links_of_prose_are_found(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "other.md").write_text("[one](https://one.test/page)")

    external_links = links.external_links([tmp_path / "page.md", tmp_path / "other.md"])

    assert external_links == {
        "https://one.test/page": ["page.md", "other.md"],
        "https://two.test/": ["page.md"],
        "https://three.test/a_(b)": ["page.md"],
    }


def test_the_readme_and_the_docs_are_checked() -> None:
    names = {str(path.relative_to(links.ROOT)) for path in links.pages()}

    assert {"README.md", "docs/comparison.md", "examples/django_shop/README.md"} <= names
    assert "https://docs.temporal.io/" in links.external_links(links.pages())


def test_only_a_missing_page_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        if request.url.host == "down.test":
            raise httpx.ConnectError("refused")
        return httpx.Response({"missing.test": 404, "closed.test": 403}.get(request.url.host, 200))

    pages = {f"https://{host}.test/": ["page.md"] for host in ("missing", "closed", "down", "fine")}
    with httpx.Client(transport=httpx.MockTransport(respond)) as client:
        broken = links.check(pages, lambda url: links.problem_of(url, client))

    assert broken == ["https://missing.test/"]
    assert capsys.readouterr().out.splitlines() == [
        "broken: https://missing.test/ (status 404) in page.md",
        "not checked: https://closed.test/ (status 403) in page.md",
        "not checked: https://down.test/ (ConnectError: refused) in page.md",
    ]
