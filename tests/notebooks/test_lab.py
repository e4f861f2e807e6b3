"""The course in a real JupyterLab in a real browser: cells run, figures and widgets appear, and follow the keyboard.

Needs Chromium in PATH: skipped without it, but failed on CI. MINISPEC_SCREENSHOTS=FOLDER keeps the screenshots.
"""

import io
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import nbformat
import psutil
import pytest
from PIL import Image
from playwright.sync_api import expect, sync_playwright

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (  # root in a container needs the first two; the others keep the browser off the network
    "--no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)
OWN = (  # folders of the test's own, so that the user's are left alone
    "JUPYTER_CONFIG_DIR JUPYTER_DATA_DIR JUPYTER_RUNTIME_DIR JUPYTERLAB_SETTINGS_DIR JUPYTERLAB_WORKSPACES_DIR IPYTHONDIR"
)
OPTIONS = (  # the first two end a server whose tests were killed
    "--ServerApp.shutdown_no_activity_timeout=300 --MappingKernelManager.cull_idle_timeout=300 --ServerApp.port_retries=0 "
    "--LabApp.expose_app_in_browser=True --no-browser --allow-root"
)
QUIET = {"fetchNews": "false", "checkForUpdates": False}  # nothing is asked of the network, and no question pops up
IDLE = "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
CELLS = "jupyterapp.shell.currentWidget.content.model.toJSON().cells"
LOADED = "image => image.naturalWidth > 0"
DONE = f"""() => {{
    const code = {CELLS}.filter(cell => cell.cell_type === 'code');
    const failed = code.some(cell => cell.outputs.some(output => output.output_type === 'error'));
    return ({IDLE})() && (failed || code.every(cell => cell.execution_count));
}}"""


@pytest.fixture(scope="module")
def browser():
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no {', '.join(NAMES)} in PATH")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=FLAGS.split())
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory):
    """Origin and token of a JupyterLab over the notebooks without outputs; it ends, kernels and all, with the tests."""
    root = tmp_path_factory.mktemp("lab")
    (root / "notebooks").mkdir()
    for name in PLAY:
        notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        nbformat.write(notebook, root / "notebooks" / name)
    settings = root / "JUPYTERLAB_SETTINGS_DIR" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps(QUIET))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port, token = free.getsockname()[1], secrets.token_hex(16)
    command = [sys.executable, "-m", "jupyter", "lab", *OPTIONS.split()]
    command += [f"--ServerApp.port={port}", f"--ServerApp.root_dir={root / 'notebooks'}"]
    environment = {**os.environ, "JUPYTER_TOKEN": token, **{name: str(root / name) for name in OWN.split()}}
    log, origin = root / "log", f"http://127.0.0.1:{port}"
    with log.open("w") as out:
        server = psutil.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    try:
        for _ in range(300):
            assert server.poll() is None, log.read_text()
            try:
                urllib.request.urlopen(f"{origin}/api", timeout=5)
                break
            except (urllib.error.URLError, TimeoutError):
                time.sleep(0.2)
        yield origin, token
    finally:
        family = [server, *(server.children(recursive=True) if server.is_running() else [])]
        server.terminate()
        for process in (alive := psutil.wait_procs(family, timeout=20)[1]):
            process.kill()
        psutil.wait_procs(alive)


def menu(page, name, *path):
    page.get_by_role("menuitem", name=name, exact=True).click()
    for name in path:
        page.locator(".lm-Menu").get_by_text(name, exact=True).click()


def play_with_race(page, live):
    """A prompt of one's own, and the button pressed by keyboard."""
    expect(live.get_by_role("combobox")).to_have_count(2)
    expect(live.locator("img")).to_be_hidden()  # nothing has run yet
    image, fields = live.locator("img"), live.locator(".widget-html-content")
    live.get_by_role("textbox").fill("Count to three.")
    live.get_by_role("button", name="Run").focus()
    page.keyboard.press("Enter")
    for field in fields.all():  # the line of numbers, and what each method wrote
        expect(field).not_to_be_empty(timeout=120_000)
    assert fields.count() == 3
    expect(live.get_by_role("button", name="Run")).to_be_enabled(timeout=120_000)
    expect(image).to_be_visible()
    expect(image).not_to_have_js_property("naturalHeight", 0)
    left, right = (field.bounding_box() for field in fields.all()[1:])
    assert left["x"] + left["width"] <= right["x"]  # the two texts stand side by side
    expect(fields.first).to_contain_text(re.compile(r"\d+ tokens, \d+ passes"))


def play_with_acceptance(page, live):
    """One of eight sliders moved by keyboard: picture and line follow."""
    image, words = live.locator("img"), live.locator(".widget-html-content")
    expect(live.get_by_role("slider")).to_have_count(8)
    expect(words).to_contain_text("p 0.40 0.30 0.20 0.10; q 0.10 0.20 0.30 0.40;")
    src = image.get_attribute("src")
    live.get_by_role("slider").first.focus()  # p(a), from 4 to 5
    page.keyboard.press("ArrowRight")
    expect(words).to_contain_text("p 0.45 0.27 0.18 0.09; q 0.10 0.20 0.30 0.40;")
    expect(image).not_to_have_attribute("src", src)


PLAY = {"00_start_here.ipynb": play_with_race, "03_rejection_sampling.ipynb": play_with_acceptance}


@pytest.fixture(scope="module", params=PLAY, ids=[name[:2] for name in PLAY])
def opened(request, browser, lab):
    """A notebook that was opened and run; it collects what the browser complains about and what it asks of others."""
    (origin, token), page = lab, browser.new_page(viewport={"width": 1280, "height": 800})
    committed = nbformat.read(NOTEBOOKS / request.param, as_version=4)
    book = SimpleNamespace(name=request.param, page=page, committed=committed, complaints=[], asked=[])
    page.on("console", lambda message: book.complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: book.complaints.append(str(error)))

    def outside(route):
        if route.request.url.endswith("/colab-badge.svg"):  # stands in the notebook: answered here
            return route.fulfill(content_type="image/svg+xml", body="<svg xmlns='http://www.w3.org/2000/svg'/>")
        book.asked.append(route.request.url)
        route.abort()

    page.route(lambda url: url.startswith("http") and not url.startswith(origin), outside)
    page.goto(f"{origin}/lab/workspaces/{book.name[:2]}/tree/{book.name}?token={token}")  # a workspace of its own: one tab
    page.wait_for_function(IDLE, timeout=60_000)
    menu(page, "Run", "Run All Cells")
    page.wait_for_function(DONE, timeout=300_000, polling=500)
    book.cells = [nbformat.from_dict(cell) for cell in page.evaluate(CELLS)]
    book.live = page.locator(".jp-OutputArea-output:has(.widget-image)")
    yield book
    page.close()


def outputs(cells):
    return [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]


def alts(cells):
    return [output.metadata["image/png"]["alt"] for output in outputs(cells) if "image/png" in output.get("data", {})]


def test_every_cell_runs_without_error_or_stderr(opened):
    assert [
        output for output in outputs(opened.cells) if output.output_type == "error" or output.get("name") == "stderr"
    ] == []
    assert [cell.source for cell in opened.cells if cell.cell_type == "code" and not cell.execution_count] == []


def test_figures_and_widget_appear(opened):
    figures = opened.page.locator(".jp-RenderedImage img")
    assert alts(opened.cells) == alts(opened.committed.cells) and figures.count() == len(alts(opened.cells)) > 0
    assert all(figure.evaluate(LOADED) for figure in figures.all())
    shown = [figure.get_attribute("alt") for figure in figures.all()]
    assert shown in (alts(opened.cells), [None] * figures.count())  # JupyterLab (4.6) leaves the alt text out
    assert opened.live.count() == 1
    expect(opened.live.locator(".widget-image")).to_have_count(1)


def test_widget_follows_the_keyboard(opened):
    opened.live.scroll_into_view_if_needed()  # what is out of sight takes no focus
    PLAY[opened.name](opened.page, opened.live)


def shot(element, **where):
    element.scroll_into_view_if_needed()  # first: a cell that comes into sight may move those below it
    return Image.open(io.BytesIO(element.screenshot(**where))).convert("RGB")


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_figures_stay_white(opened, theme, tmp_path):
    """Every picture in the theme; the first one and the widget also go into a file."""
    folder, page = Path(os.environ.get("MINISPEC_SCREENSHOTS") or tmp_path), opened.page
    folder.mkdir(parents=True, exist_ok=True)
    menu(page, "Settings", "Theme", f"JupyterLab {theme}")
    expect(page.locator("body")).to_have_attribute("data-jp-theme-name", f"JupyterLab {theme}")
    first = page.locator(".jp-OutputArea:has(.jp-RenderedImage)").first
    for what, element in {"figure": first, "widget": opened.live}.items():
        shot(element, path=folder / f"{opened.name[:2]}-{what}-{theme.lower()}.png")
    pictures = page.locator(".jp-RenderedImage img, .widget-image")
    for picture in filter(lambda picture: picture.evaluate(LOADED), pictures.all()):
        seen = shot(picture)
        corners = [seen.getpixel((x, y)) for x in (2, seen.width - 3) for y in (2, seen.height - 3)]
        assert corners == [(255, 255, 255)] * 4


def test_nothing_is_complained_of_and_nobody_else_asked(opened):
    assert opened.complaints == [] and opened.asked == []
