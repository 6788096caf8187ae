"""Check the external links in the Markdown files of the root folder, docs/ and examples/, over the network.

python -m tests.tools.links
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tests.support import ROOT

LINK = re.compile(r"\]\((https?://[^\s)]+)\)|<(https?://[^\s>]+)>")
"""Pattern of an external link in Markdown."""

CODE = re.compile(r"^```.*?^```|``.+?``|`[^`\n]*`", re.MULTILINE | re.DOTALL)
RESERVED = ("example.com", "example.org", "example.net", "localhost", "127.0.0.1")
"""Placeholder hosts in examples. Links to them are not checked."""

BROKEN = (404, 410)
"""Status codes of a page that does not exist. Servers may send other error codes to clients that are not browsers."""

CALLS_AT_ONCE = 4
TIMEOUT = 30.0


def pages() -> list[Path]:
    """Return the Markdown files whose links are checked."""
    folders = [path for name in ("docs", "examples") for path in (ROOT / name).rglob("*.md")]
    return sorted([*ROOT.glob("*.md"), *folders])


def external_links(files: Iterable[Path]) -> dict[str, list[str]]:
    """Return the names of the files that contain each external link. Links have no anchors. URLs in code are
    ignored."""
    links: defaultdict[str, list[str]] = defaultdict(list)
    for file in files:
        for match in LINK.finditer(CODE.sub("", file.read_text(encoding="utf-8"))):
            url = (match[1] or match[2]).partition("#")[0]
            host = urlsplit(url).hostname or ""
            name = str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else file.name
            if not host.endswith(RESERVED) and name not in links[url]:
                links[url].append(name)
    return {url: names for url, names in links.items() if names}


def problem_of(url: str, client: httpx.Client) -> tuple[str, bool]:
    """Return the problem of a link, or "" for a working link, and True if the link is certainly broken."""
    try:
        with client.stream("GET", url) as response:
            status = response.status_code
    except httpx.HTTPError as e:
        return f"{type(e).__name__}: {e}", isinstance(e, httpx.UnsupportedProtocol)
    return ("", False) if status < 400 else (f"status {status}", status in BROKEN)


def check(links: dict[str, list[str]], problem: Callable[[str], tuple[str, bool]]) -> list[str]:
    """Print each link with a problem, and return the broken links."""
    broken = []
    with ThreadPoolExecutor(CALLS_AT_ONCE) as threads:
        for url, (text, is_broken) in zip(links, threads.map(problem, links), strict=True):
            if text:
                print(f"{'broken' if is_broken else 'not checked'}: {url} ({text}) in {', '.join(links[url])}")
            if is_broken:
                broken.append(url)
    return broken


def main() -> int:
    """Check all links. Return 1 if a link is broken or no link could be checked."""
    links = external_links(pages())
    headers = {"User-Agent": "a2a-celery-links", "Accept": "text/html,*/*"}
    working_links = []

    def problem(url: str) -> tuple[str, bool]:
        text, is_broken = problem_of(url, client)
        if not text or is_broken:
            working_links.append(url)
        return text, is_broken

    with httpx.Client(follow_redirects=True, timeout=TIMEOUT, headers=headers) as client:
        broken = check(links, problem)
    print(f"{len(links)} links, {len(working_links)} checked, {len(broken)} broken")
    return 1 if broken or not working_links else 0


if __name__ == "__main__":
    sys.exit(main())
