"""Hooks of mkdocs: pages of the repository's root, settings, errors and the HTTP API from the code, the mark, and links
for a site.

README.md is the start page of the site. A link to a file that the site does not contain becomes its text.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, normpath, relpath

from error_tables import with_texts
from http_api import with_operations
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from a2a_celery.settings import ENV_PREFIX, VALUE_TYPES, Settings, declarations, default_of

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
}
"""Pages in the repository's root, with their paths in the site."""
MARK = ("a2a_celery/gateway/ui/icon.svg", "images/mark.svg")
"""Mark of the operator's page, which is also the mark of the site, with its path in the site."""
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()#\s]+)(#[^()\s]*)?\)")
"""Pattern of a Markdown link, with groups for its text, its path and its anchor."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages in the repository's root and the mark."""
    files.append(File.generated(config, MARK[1], content=(ROOT / MARK[0]).read_text(encoding="utf-8")))
    for name, path in ROOT_PAGES.items():
        files.append(File.generated(config, path, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def settings_reference() -> Iterator[str]:
    """Yield a section for each setting: its variable, type, default, rules and docstring."""
    [model] = ast.parse(inspect.getsource(Settings)).body
    assert isinstance(model, ast.ClassDef)
    texts = {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in zip(model.body, model.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
    for name, (types, rules) in declarations().items():
        lines = [
            f"- Variable: `{ENV_PREFIX}{name.upper()}`",
            f"- Value: {' or '.join(VALUE_TYPES[kind][0] for kind in types)}",
            f"- Default: `{default_of(name)!r}`",
            *(f"- Rule: {rule.text}" for rule in rules),
        ]
        yield "\n".join([f"## {name}", "", *lines, "", texts[name], ""])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with links that lead to pages of the site."""
    path = page.file.src_uri
    if path == "reference/settings-model.md":
        return "\n".join([markdown, *settings_reference()])
    if path == "errors.md":
        markdown = with_texts(markdown)
    if path == "reference/http-api.md":
        markdown = with_operations(markdown)
    names = {site: name for name, site in ROOT_PAGES.items()}
    source = names.get(path, f"docs/{path}")
    known = {file.src_uri for file in files}
    return LINK.sub(lambda link: site_link(link, source, path, known), markdown)


def site_link(link: re.Match[str], source: str, path: str, known: set[str]) -> str:
    """Return a link of the file `source` for its page `path` of the site.

    Args:
        link: Match of `LINK`.
        source: Path of the file in the repository.
        path: Path of the page in the site.
        known: Paths of the site's files.
    """
    text, target, anchor = link[1], link[2], link[3] or ""
    if "://" in target or target.startswith("mailto:"):
        return link[0]
    file = normpath(f"{dirname(source)}/{target}") if dirname(source) else normpath(target)
    site = ROOT_PAGES.get(file, file.removeprefix("docs/"))
    if site in known:
        return f"[{text}]({relpath(site, dirname(path) or '.')}{anchor})"
    if (ROOT / file).exists():
        return text  # a folder or a file of the source code
    return link[0]  # mkdocs reports the broken link
