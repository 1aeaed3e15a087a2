"""
The page of the package on an index, made of README.md when a wheel or an sdist is built.

One setting, `repository` under [tool.hatch.metadata.hooks.custom] of pyproject.toml, is the address
of the public repository, such as https://github.com/OWNER/cupyrnn. It fills in the project's
addresses, and README's links and pictures become absolute. Without it the page has no addresses:
links become plain text, and pictures are left out.
"""

import re
from pathlib import Path

try:
    from hatchling.metadata.plugin.interface import MetadataHookInterface
except ImportError:  # for the tests, which only call the functions
    MetadataHookInterface = object

LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|mailto:)([^)\s]+)\)")
PICTURE = re.compile(r'<img src="(?!https?:)([^"]+)"([^>]*)>')
INSTALL = """From an index:

```sh
pip install cupyrnn
```

"""


def page_of(readme: str, repository: str, version: str) -> str:
    """Return README as a page that stands by itself."""
    repository = repository.rstrip("/")
    if not repository:
        page = PICTURE.sub("", readme)
        return re.sub(r"\[\]\([^)\s]*\)", "", LINK.sub(r"\1", page))
    page = PICTURE.sub(rf'<img src="{repository}/raw/v{version}/\1"\2>', readme)
    page = LINK.sub(rf"[\1]({repository}/blob/v{version}/\2)", page.replace("](#", "](README.md#"))
    return page.replace("From a clone, each in", f"{INSTALL}From a clone, each in", 1)


def urls_of(repository: str, version: str) -> dict[str, str]:
    """Return the project's addresses, none without a repository."""
    repository = repository.rstrip("/")
    if not repository:
        return {}
    return {
        "Homepage": repository,
        "Documentation": f"{repository}/blob/v{version}/docs/index.md",
        "Changelog": f"{repository}/blob/v{version}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


class ProjectPage(MetadataHookInterface):
    """What hatchling asks for what pyproject.toml calls dynamic."""

    def update(self, metadata: dict) -> None:
        """Fill in the page and the addresses."""
        root = Path(self.root)
        version = re.search(
            r'__version__ = "(.*)"', (root / "cupyrnn/__init__.py").read_text(encoding="utf-8")
        )[1]
        repository = self.config.get("repository", "")
        readme = (root / "README.md").read_text(encoding="utf-8")
        text = page_of(readme, repository, version)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls_of(repository, version)
