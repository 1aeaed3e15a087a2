"""
Looks through the built documentation in a real browser, as a reader with a screen and with a phone.

    python .ci/check_site.py docs/_build/html [--shots FOLDER]

On every page: no error in the console, nothing fetched from elsewhere, no broken image, nothing
wider than the screen, one heading of the first order, no id twice. Then titles are unique, the
phone's menu opens, and the search for each word of SEARCHES finds its page among the first. Sphinx
checks the links, if it is called with -W.

The browser is a Chromium of the system; where there is none, it is installed by apt-get if that
may be done, and else the script says that nothing was looked at. It needs the package playwright,
but none of the browsers that come with it.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SCREENS = {"desktop": (1280, 900), "phone": (390, 844)}
BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
OPTIONS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
# What readers searched for, and the page that is to be among the first FIRST results.
SEARCHES = {
    "batch_first": "guide/faq",
    "batch first": "guide/faq",
    "DLPack": "guide/gpu",
    "mixed precision": "guide/torch",
    "ROCm": "guide/faq",
    "state dict": "guide/torch",
    "TPU": "guide/faq",
    "block_lstm_grad": "reference/lstm",
    "clip": "guide/",
    "CudnnLSTM": "guide/weights",
    "bidirectional": "guide/faq",
    "dropout": "guide/training",
    "GPU": "guide/gpu",
    "HardSigmoid": "guide/onnx",
    "Keras": "guide/weights",
    "license": "guide/faq",
    "memory": "guide/training",
    "NaN": "guide/faq",
    "padding": "guide/lengths",
    "resets": "guide/lengths",
    "privacy": "guide/by_example",
    "return_sequences": "guide/faq",
    "stateful": "guide/cudnn_rnn",
    "streaming": "guide/cudnn_rnn",
    "threads": "guide/cpu",
    "Windows": "guide/faq",
}
FIRST = 3
PATIENCE = 180_000  # ms, on a machine that may have other work
# What a page is asked, in the browser.
LOOK = """() => {
    const wide = document.documentElement.clientWidth;
    const seen = new Map();
    // Beyond the edge, and in nothing that scrolls by itself but the page.
    const beyond = e => {
        if (e.getBoundingClientRect().right <= wide + 1) return false;
        for (let p = e.parentElement; p && p.tagName != "ARTICLE"; p = p.parentElement)
            if (getComputedStyle(p).overflowX != "visible") return false;
        return true;
    };
    for (const e of document.querySelectorAll("[id]")) seen.set(e.id, (seen.get(e.id) || 0) + 1);
    return {
        title: document.title,
        overflow: document.documentElement.scrollWidth - wide,
        widest: [...document.querySelectorAll("article *")]
            .filter(beyond).map(e => e.tagName + "." + e.className).slice(0, 3),
        images: [...document.images]
            .filter(i => !(i.complete && i.naturalWidth)).map(i => i.src.slice(0, 200)),
        headings: document.querySelectorAll("article h1").length,
        twice: [...seen].filter(([_, n]) => n > 1).map(([id, _]) => id),
    };
}"""


def find_browser() -> str | None:
    """Return the path of a Chromium, installed now if need be; None if there is none to be had."""
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    if sys.platform == "linux" and shutil.which("apt-get") and os.geteuid() == 0:
        install = ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]
        none, environment = subprocess.DEVNULL, os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        with suppress(subprocess.TimeoutExpired):
            for command in (["apt-get", "update"], install):
                subprocess.run(
                    command, stdin=none, stdout=none, stderr=none, env=environment, timeout=300
                )
    return shutil.which("chromium")


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Says nothing."""

    def log_message(self, *args: object) -> None:
        """Say nothing."""


class Server(http.server.ThreadingHTTPServer):
    """Lets the browser go on before an answer is complete."""

    def handle_error(self, *args: object) -> None:
        """Say nothing: what is missing, the browser tells."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine."""
    handler = functools.partial(Quiet, directory=str(folder))
    with Server(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class Look:
    """What was found on the pages of a site."""

    def __init__(self, site: str, shots: Path | None) -> None:
        self.site, self.shots = site, shots
        self.faults: list[str] = []
        self.titles: dict[str, str] = {}

    def fault(self, where: str, what: object) -> None:
        """Note a fault."""
        self.faults.append(f"{where}: {what}")

    def watch(self, page, screen: str) -> None:
        """Note what the browser reports; let nothing leave this machine."""

        def route(request) -> None:
            if request.request.url.startswith((self.site, "data:")):
                request.continue_()
            else:
                self.fault(page.url, f"fetches {request.request.url}")
                request.abort()

        def response(answer) -> None:
            if answer.status >= 400:
                self.fault(page.url, f"{answer.url} answers {answer.status}")

        def console(message) -> None:
            if message.type in ("error", "warning"):
                self.fault(f"{page.url} ({screen})", f"console: {message.text}")

        page.route("**/*", route)
        page.on("response", response)
        page.on("console", console)
        page.on("pageerror", lambda error: self.fault(page.url, f"script: {error}"))

    def page(self, page, path: str, screen: str) -> None:
        """Look at one page on one screen."""
        page.goto(self.site + path)
        # What is shown late, such as images far below, is to be there too.
        page.evaluate("for (const i of document.images) i.loading = 'eager'")
        page.wait_for_load_state("load")
        found, where = page.evaluate(LOOK), f"{path} ({screen})"
        if found["overflow"] > 0 or found["widest"]:
            self.fault(where, f"wider than the screen: {found['overflow']} px, {found['widest']}")
        for image in found["images"]:
            self.fault(where, f"broken image {image}")
        if found["headings"] != 1 and path not in ("search.html", "genindex.html"):
            self.fault(where, f"{found['headings']} headings of the first order")
        if found["twice"]:
            self.fault(where, f"ids that are there twice: {found['twice']}")
        self.titles[path] = found["title"]
        if self.shots:
            name = path.removesuffix(".html").replace("/", "_")
            page.screenshot(path=self.shots / f"{name}.{screen}.png")

    def check_titles(self) -> None:
        """No two pages have the same title."""
        pages: dict[str, str] = {}
        for path, title in self.titles.items():
            if title in pages:
                self.fault(path, f"has the title of {pages[title]}: {title}")
            pages[title] = path

    def check_search(self, page) -> None:
        """Search for each word, and see its page among the first results."""
        for word, expected in SEARCHES.items():
            page.goto(f"{self.site}search.html?q={word}")
            try:
                # The summary is written when all results are there.
                page.locator("#search-results .search-summary").filter(
                    has_text=re.compile("found|did not match")
                ).wait_for()
            except Exception as error:
                self.fault("search", f"{word}: {error}")
                continue
            links = page.locator("#search-results > ul > li > a:first-of-type")
            first = links.evaluate_all("all => all.map(a => a.href)")[:FIRST]
            if not any(link.startswith(self.site + expected) for link in first):
                self.fault("search", f"{word} finds {first}, not {expected}")
            page.wait_for_load_state("networkidle")  # Excerpts are fetched after the results.

    def check_menu(self, page) -> None:
        """On a phone the tree of pages comes in when its button is touched."""
        page.goto(self.site)
        menu = page.locator(".sidebar-tree")
        before = menu.bounding_box()["x"]
        page.locator(".mobile-header label[for=__navigation]").click()
        page.wait_for_timeout(500)
        after = menu.bounding_box()["x"]
        if not before < 0 <= after:
            self.fault("menu", f"moves from {before} to {after}")


def main() -> int:
    """Look at everything and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shots", type=Path, help="where pictures of the pages go")
    options = parser.parse_args()
    paths = sorted(p.relative_to(options.folder).as_posix() for p in options.folder.rglob("*.html"))
    assert "index.html" in paths, f"{options.folder} is no site"

    browser_path = find_browser()
    if browser_path is None:
        print("The site was NOT looked at in a browser: there is no Chromium, and none to be had.")
        return 0
    from playwright.sync_api import sync_playwright

    if options.shots:
        options.shots.mkdir(parents=True, exist_ok=True)
    with served(options.folder) as site, sync_playwright() as driver:
        look = Look(site, options.shots)
        with tempfile.TemporaryDirectory() as profile:
            for screen, (width, height) in SCREENS.items():
                context = driver.chromium.launch_persistent_context(
                    Path(profile, screen),
                    executable_path=browser_path,
                    args=list(OPTIONS),
                    viewport={"width": width, "height": height},
                )
                page = context.pages[0]
                page.set_default_timeout(PATIENCE)
                look.watch(page, screen)
                for path in paths:
                    look.page(page, path, screen)
                if screen == "phone":
                    look.check_menu(page)
                else:
                    look.check_search(page)
                version = context.browser.version if context.browser else ""
                context.close()
        look.check_titles()
    print(*look.faults, sep="\n")
    print(
        f"{len(paths)} pages, each on {' and '.join(SCREENS)}, search and menu,"
        f" in Chromium {version}: {len(look.faults)} faults"
    )
    return len(look.faults) > 0


if __name__ == "__main__":
    sys.exit(main())
