"""What the site adds to docs/: the pages of the repository's root, and links that lead between the two."""

import logging
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
# Where a page of the root stands in the site. Licences and files of code have no page there.
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
SOURCES = {page: source for source, page in PAGES.items()}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)

log = logging.getLogger("mkdocs.hooks.ropewalk")


def on_files(files, config):
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown, page, config, files):
    here = page.file.src_uri
    source = SOURCES.get(here, f"docs/{here}")

    def mended(match):
        image, text, target, anchor = match.groups()
        if not target or "://" in target or target.startswith("mailto:"):
            return match.group()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not (ROOT / path).exists():
            log.warning("%s: no file %s", source, target)
        if path in PAGES:
            goal = PAGES[path]
        elif path.startswith("docs/") and (ROOT / path).is_file():
            goal = path.removeprefix("docs/")
        elif path == "docs/decisions":
            goal = "decisions/late-binding-and-codel.md"
        else:
            # A file of the repository that is not in the site: its name is enough.
            return text if "`" in text or path in text else f"{text} (`{path}`)"
        relative = posixpath.relpath(goal, posixpath.dirname(here) or ".")
        return f"{image}[{text}]({relative}{anchor or ''})"

    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(mended, part) for part in parts)
