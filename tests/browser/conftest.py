"""Chromium, one page a test; a server of tales or of the default model, with a folder of states; counts for tests/run; screenshots in build/browser/."""
import os
import shutil
import sys

import pytest
from playwright.sync_api import sync_playwright

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "api"))
from server import BUILD, MODEL, Server  # noqa: E402

SHOTS = os.path.join(BUILD, "browser")


@pytest.fixture(scope="session")
def browser():
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not path:
        pytest.skip("Chromium is not installed")
    os.makedirs(SHOTS, exist_ok=True)
    with sync_playwright() as p:
        b = p.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        yield b
        b.close()


class Own(Server):
    """A server on a port that it keeps when it comes back."""

    def __init__(self, *flags, name, model):
        self.flags, self.of = flags, {"name": name, "model": model}
        super().__init__(*flags, **self.of)

    def back(self):
        super().__init__("--port", self.port, *self.flags, **self.of)


@pytest.fixture
def serve(tmp_path, request):
    made = []

    def make(*flags, model=MODEL):
        made.append(Own("--state-dir", tmp_path / "states", *flags, model=model, name=f"browser-{request.node.name.split('[')[0]}"))
        return made[-1]

    (tmp_path / "states").mkdir()
    yield make
    for s in made:
        s.kill()


@pytest.fixture
def open_page(browser, request):
    """open_page(server, **settings): the page in a context of its own. What the page's script or policy complains of fails the test."""
    contexts, complaints = [], []

    def make(server, **settings):
        context = browser.new_context(base_url=server.url, **settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15000)
        page.on("pageerror", lambda e: complaints.append(str(e)))
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" and "Content Security" in m.text else None)
        page.goto("/")
        return page

    yield make
    for i, context in enumerate(contexts):
        for page in context.pages:
            page.screenshot(path=os.path.join(SHOTS, f"{request.node.name}-{i}.png"))
        context.close()
    assert not complaints, complaints


def pytest_terminal_summary(terminalreporter):
    count = {k: len(terminalreporter.stats.get(k, [])) for k in ("passed", "failed", "error", "skipped")}
    with open(os.path.join(BUILD, "browser.counts"), "w") as f:
        print(count["passed"], count["failed"] + count["error"], count["skipped"], file=f)
