"""The page at `/` of a server, in a real browser: Chromium without a screen, driven as a person would.

Every page of these tests is watched: it may ask nobody but its server, and a browser may have nothing to complain of.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional

from holdfast.data.sources import dataset
from holdfast.model.example import decode_example
from holdfast.model.export import ExportOptions, export_module, write_checked
from holdfast.model.kinds.python_class import draft
from holdfast.model.user_code import parse_class
from tests.process.harness import SCRIPTS
from tests.process.serving import Served

pytestmark = pytest.mark.process

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
DESKTOP, PHONE = {"width": 1200, "height": 820}, {"width": 360, "height": 740}
#: Strokes, in parts of the drawing area's width and height.
ZERO = [(0.5 + 0.17 * math.sin(math.tau * k / 24), 0.5 - 0.3 * math.cos(math.tau * k / 24)) for k in range(25)]
ONE = [(0.5, 0.15), (0.5, 0.5), (0.5, 0.85)]
FOUR = [[(0.55, 0.12), (0.25, 0.6), (0.78, 0.6)], [(0.6, 0.35), (0.6, 0.88)]]

Point = tuple[float, float]


def png(pixels: numpy.ndarray[Any, Any]) -> bytes:
    """A picture (height, width, 3) as a file."""
    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.tobytes() for row in pixels.astype("u1"))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def export_digits(root: Path, epochs: int = 12) -> None:
    """Train a small model for a few seconds, and export it as the next version."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for batches as small as these, more of them only wait for each other
    data = dataset("digits", "train")
    images, labels = torch.from_numpy(data.features), torch.from_numpy(data.labels)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = net()
        optimizer = torch.optim.Adam(module.parameters(), 3e-3)
        for _ in range(epochs):
            for rows in torch.randperm(len(images)).split(64):
                functional.cross_entropy(module(images[rows]), labels[rows]).backward()
                optimizer.step()
                optimizer.zero_grad()
    options = ExportOptions(name="digits", classes=tuple(data.classes), source={"run": "runs/digits", "step": 276})
    export_module(module.eval(), (images[3:4],), root, options)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    export_digits(root / "digits")
    for name in ("Colour", "Words", "Sums"):
        example = None
        if name == "Sums":
            example = decode_example(b'{"measures": [[1.5, 2.5, 3.5, 4.5]], "age": [30]}', "here")
            example.datatypes["age"], example.arrays["age"] = "INT32", example.arrays["age"].astype("<i4")
        made, sample = draft(parse_class(f"{SCRIPTS}/page_models.py:{name}"), name.lower(), example, variable={})
        write_checked(root / name.lower(), made, sample)
    return {path.name: path for path in root.iterdir()}


@pytest.fixture(scope="module")
def served(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(*models.values(), directory=tmp_path_factory.mktemp("served") / "run") as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here (Debian's package: chromium)")
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (holdfast[dev])")
    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else FLAGS  # root has no sandbox
    with driver.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield started
        started.close()


@contextlib.contextmanager
def opened(
    browser: Any, served: Served, model: str = "", *, phone: bool = False, complaints: str = ""
) -> Iterator[Any]:
    """A page of its own. `complaints`: what the browser may complain of, as it does of every answer that is no 200."""
    context = browser.new_context(
        viewport=PHONE if phone else DESKTOP, device_scale_factor=2 if phone else 1, has_touch=phone, is_mobile=phone,
    )  # fmt: skip
    context.set_default_timeout(20_000)
    page = context.new_page()
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("websocket", lambda socket: asked.append(socket.url))
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    try:
        page.goto(f"{served.addresses['http']}/#{model}")
        yield page
    finally:
        context.close()
    origin = served.addresses["http"] + "/"
    assert [url for url in asked if not url.startswith((origin, f"blob:{origin}"))] == []
    assert asked
    assert [text for text in said if not complaints or not re.search(complaints, text)] == []


def draw(page: Any, *strokes: Sequence[Point]) -> None:
    box = page.locator(".pad").bounding_box()
    for stroke in strokes:
        points = [(box["x"] + box["width"] * x, box["y"] + box["height"] * y) for x, y in stroke]
        page.mouse.move(*points[0])
        page.mouse.down()
        for point in points[1:]:
            page.mouse.move(*point, steps=5)
        page.mouse.up()


def sees(page: Any, locator: str, text: str) -> None:
    """Wait until it says this."""
    page.locator(locator).filter(has_text=re.compile(text)).first.wait_for()


def drop(page: Any, name: str, data: bytes) -> None:
    """As if a file were dragged here from a folder."""
    transfer = page.evaluate_handle(
        """([name, bytes]) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(bytes)], name, {type: "image/png"}));
            return transfer;
        }""",
        [name, list(data)],
    )
    page.locator(".pad").dispatch_event("dragover", {"dataTransfer": transfer})
    page.locator(".pad").dispatch_event("drop", {"dataTransfer": transfer})


def test_a_digit_is_drawn_and_recognised(browser: Any, served: Served) -> None:
    with opened(browser, served, "digits") as page:
        page.locator(".pad").wait_for()
        for label, strokes in (("0", [ZERO]), ("1", [ONE]), ("4", FOUR)):
            page.get_by_role("button", name="Clear").click()
            sees(page, "#answer", "appears here")
            draw(page, *strokes)
            sees(page, "#label", f"^{label}$")
        assert page.locator(".bars li").count() == 10
        page.get_by_role("button", name="Undo").click()  # the second stroke of the 4
        draw(page, FOUR[1])
        sees(page, "#label", "^4$")
        # What was sent is what the JSON tab shows, and its answer is that of a client without a browser.
        page.get_by_role("tab", name="JSON").click()
        body = page.locator("#body").input_value()
        assert numpy.array(json.loads(body)["input"]).shape == (1, 8, 8)
        assert served.ask("/predict/digits", body.encode()).json["label"] == "4"
        curl = page.locator("pre").first.text_content()
        assert curl.startswith('curl -d \'{"input":[[[')
        assert curl.endswith(f" {served.addresses['http']}/predict/digits")


def test_the_example_is_sent_as_it_is(browser: Any, served: Served) -> None:
    with opened(browser, served, "digits") as page:
        page.get_by_role("button", name="Example").click()
        page.locator("#label").wait_for()
        page.get_by_role("tab", name="JSON").click()
        sent = json.loads(page.locator("#body").input_value())
        example = served.ask("/example/digits").json
        assert numpy.array(sent["input"]).reshape(-1).tolist() == example["inputs"][0]["data"]


def test_live_figures_follow_what_others_ask(browser: Any, served: Served) -> None:
    with opened(browser, served, "sums") as page:
        sees(page, "#live", "No request yet|so far")
        before = served.ask("/page.json").json
        count = next(one["requests"] for one in before["models"] if one["name"] == "sums")
        for _ in range(3):
            assert served.ask("/predict/sums", b'{"measures": [1, 2, 3, 4], "age": 5}').json["outputs"] == {"sum": 15.0}
        sees(page, "#live", f"{count + 3} requests? so far")
        sees(page, "#live dd", r"^[\d.]+ ms$")
        sees(page, ".replicas", "0: ready")
        assert page.locator(".chart polyline").count() == 1


def test_a_picture_is_dropped_and_another_chosen(browser: Any, served: Served) -> None:
    picture = numpy.zeros((60, 40, 3))
    picture[..., 2] = 200
    with opened(browser, served, "colour") as page:
        page.locator(".pad").wait_for()
        drop(page, "sea.png", png(picture))
        sees(page, "#label", "^blue$")
        page.locator("input[type=file]").set_input_files(
            {"name": "leaf.png", "mimeType": "image/png", "buffer": png(picture[..., [0, 2, 1]])}
        )
        sees(page, "#label", "^green$")
        page.get_by_label("Invert").check()  # red and blue are left then
        sees(page, "#label", "^(red|blue)$")
        page.get_by_role("tab", name="JSON").click()
        sees(page, ".json", "characters, of which these are the first|Sent as it stands here")
        page.get_by_role("tab", name="Form").click()
        drop(page, "nothing.png", b"no picture at all")
        sees(page, ".picture .error", "nothing.png is no picture")


def test_numbers_begin_with_the_example(browser: Any, served: Served) -> None:
    with opened(browser, served, "sums") as page:
        page.get_by_label("measures, number 1", exact=True).wait_for()
        assert page.get_by_label("measures, number 4", exact=True).input_value() == "4.5"
        page.get_by_role("button", name="Predict").click()
        sees(page, "#answer .single", "^42$")
        page.get_by_label("age", exact=True).fill("40")
        page.keyboard.press("Enter")
        sees(page, "#answer .single", "^52$")
        page.get_by_label("age", exact=True).fill("")
        page.keyboard.press("Enter")
        sees(page, "#answer .failure", "Not asked")


def test_texts_and_what_the_server_says_of_a_failure(browser: Any, served: Served) -> None:
    with opened(browser, served, "words", complaints="status of (500|400)") as page:
        page.get_by_label("text, text").fill("machines come\nand go <b>")
        page.keyboard.press("Control+Enter")
        sees(page, "#answer .single", "^5$")
        sees(page, "#answer .said", "^MACHINES COME\nAND GO <B>$")
        page.get_by_label("text, text").fill("boom")
        page.get_by_role("button", name="Predict").click()
        sees(page, "#answer .failure", r"Not answered \(500\)The model raised ValueError for this request\.")
        page.get_by_role("tab", name="JSON").click()
        page.locator("#body").fill('{"text": 3}')
        page.get_by_role("button", name="Send").click()
        said = served.ask("/predict/words", b'{"text": 3}').json["error"]
        sees(page, "#answer .failure", re.escape(said))


def test_the_model_is_chosen_by_keyboard(browser: Any, served: Served) -> None:
    with opened(browser, served, "words") as page:
        page.get_by_label("text, text").wait_for()
        page.get_by_label("Model", exact=True).select_option("sums")
        page.get_by_label("age", exact=True).wait_for()
        page.get_by_role("tab", name="Form").focus()
        page.keyboard.press("ArrowRight")
        assert page.get_by_role("tab", name="JSON").get_attribute("aria-selected") == "true"
        assert page.locator("#panel-json").is_visible() and not page.locator("#panel-form").is_visible()
        unnamed = page.evaluate(
            """() => [...document.querySelectorAll("input, select, textarea, button")].filter((one) =>
                !one.labels?.length && !one.getAttribute("aria-label") && !one.textContent.trim()).length"""
        )
        assert unnamed == 0


def test_on_a_phone_a_finger_draws(browser: Any, served: Served) -> None:
    with opened(browser, served, "digits", phone=True) as page:
        page.locator(".pad").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        box = page.locator(".pad").bounding_box()
        touch = page.context.new_cdp_session(page)

        def point(at: Point) -> list[dict[str, float]]:
            return [{"x": box["x"] + box["width"] * at[0], "y": box["y"] + box["height"] * at[1]}]

        touch.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": point(ZERO[0])})
        for at in ZERO[1:]:
            touch.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": point(at)})
        touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        sees(page, "#label", "^0$")
        assert page.evaluate("scrollY") == 0  # the finger drew, and did not scroll
        sees(page, "#glance", r"^0 · ")
        assert page.locator("#glance").is_visible()  # the answer itself lies below
        page.locator("#answer").scroll_into_view_if_needed()
        page.locator("#glance").wait_for(state="hidden")
        page.locator("#glance + section").scroll_into_view_if_needed()
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


def test_a_new_version_shows_without_reloading(browser: Any, models: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(models["digits"], tmp_path / "digits")
    with (
        Served(tmp_path / "digits", directory=tmp_path / "run") as server,
        opened(browser, server) as page,
    ):
        sees(page, "#state", "Ready · version 1")
        draw(page, ONE)
        sees(page, "#answer-time", "version 1")
        export_digits(tmp_path / "digits", epochs=3)
        sees(page, "#state", "Ready · version 2")
        sees(page, "#notice", "Version 2 answers now; it was version 1 before.")
        sees(page, "#answer-time", "version 2")  # what was drawn is still there, and was asked again


def test_a_token_is_asked_for_and_not_kept(browser: Any, models: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "token"
    options = ("--token-file", str(file))
    with Served(models["sums"], directory=tmp_path / "run", options=options) as server:
        assert server.ask("/").status == server.ask("/page/main.js").status == 200
        for path in ("/page.json", "/example/sums", "/v2", "/v2/models/sums/config"):
            assert server.ask(path).status == 401
        with opened(browser, server, complaints="status of 401") as page:
            page.get_by_label("Token").fill("wrong" * 8)
            page.keyboard.press("Enter")
            sees(page, "#token-error", "Not accepted. This server asks for its token")
            page.get_by_label("Token").fill(file.read_text().strip())
            page.keyboard.press("Enter")
            page.get_by_role("button", name="Predict").click()
            sees(page, "#answer .single", "^42$")
            page.get_by_role("tab", name="JSON").click()
            curl = page.locator("pre").first.text_content()
            assert "Bearer $TOKEN" in curl and file.read_text().strip() not in page.content()
            assert page.evaluate("localStorage.length + sessionStorage.length + document.cookie.length") == 0
            page.reload()
            sees(page, "#token", "asks for its token")


def test_headers_keep_a_browser_to_its_server(served: Served) -> None:
    answered = served.ask("/")
    assert answered.headers["content-type"] == "text/html; charset=utf-8"
    for path in ("/", *re.findall(rb'(?:href|src)="(page/[^"]+)"', answered.body)):
        found = served.ask(path if isinstance(path, str) else "/" + path.decode())
        policy = found.headers["content-security-policy"].split("; ")
        assert found.status == 200
        assert {"default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"} <= {*policy}
        assert not any(word in policy for word in ("unsafe-inline", "unsafe-eval"))
        assert found.headers["x-content-type-options"] == "nosniff"
        assert found.headers["referrer-policy"] == "no-referrer"
        found_elsewhere = re.sub(rb"http://www\.w3\.org/2000/svg", b"", found.body)
        assert b"http://" not in found_elsewhere and b"https://" not in found_elsewhere
    assert served.ask("/", b"{}").status == 405


def test_an_example_is_told_or_said_to_be_missing(served: Served) -> None:
    assert served.ask("/example/sums").json["inputs"][0]["data"] == [1.5, 2.5, 3.5, 4.5]
    missing = served.ask("/example/nothing")
    assert (missing.status, "There is no model 'nothing'" in missing.json["error"]) == (404, True)
