"""Links of the pages to files outside docs/, for the site: mkdocs knows only what lies in docs/.

On GitHub `../kernels/attention/README.md` is a file of the repository. On the site such a link
becomes one to the repository, if `repo_url` says where that is, and else plain text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
_OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]*|cluster/[^)#]*)(#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """The page with its links to files outside docs/ changed. ValueError for a file that is not
    there, since mkdocs does not see these links any more."""

    def changed(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        path = ((DOCS / page.file.src_path).parent / target).resolve()
        if not path.exists():
            raise ValueError(f"{page.file.src_path}: no file {target}")
        if path.suffix == ".md" and path.is_relative_to(DOCS):
            return found[0]
        repository = config.repo_url
        if not repository:
            return text
        return f"[{text}]({repository}/blob/main/{path.relative_to(ROOT)}{anchor})"

    return _OUTSIDE.sub(changed, markdown)
