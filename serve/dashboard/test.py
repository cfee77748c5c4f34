"""Checks the dashboard in a headless Chromium, over a server with small models and real traffic.

    python test.py PATH_TO_LAZYBATCH FOLDER_FOR_SCREENSHOTS

Ends with status 1 if a check fails. Needs chromium and chromedriver on the path.
"""

import http.client
import json
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from urllib.parse import quote

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

MODELS = Path(__file__).resolve().parent.parent / "conformance" / "models"
# A name that would be seen if names were put in as HTML.
EVIL = "<img src=x onerror=alert(1)> <b>bold"
LSTM = 'max_batch_size: 16 parameters { key: "sla_ms" value { string_value: "400" } }'
PATIENCE = 30
# Block and node, or block and nodes from the first to the last.
NODES = re.compile(r".+\.\d+(-\d+)?")
LSTM_ROW = "#rows tr:nth-child(3)"
# Of the timeline above its axis, as `d`; of a copy, since the console complains of canvases that are often read.
PIXELS = """const c = document.getElementById('timeline'), copy = document.createElement('canvas');
    copy.width = c.width; copy.height = c.height;
    const pen = copy.getContext('2d', { willReadFrequently: true }); pen.drawImage(c, 0, 0);
    const d = pen.getImageData(0, 0, c.width, c.height - 20).data;
    """


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    def __init__(self, binary, folder, port, *options):
        command = [binary, "serve", "--models", str(folder), "--http-port", str(port), "--grpc-port", "0",
                   "--metrics-port", "0", "--threads", "1", "--no-measure", *options]
        self.port = port
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        if not any(line.strip() == "ready" for line in self.process.stdout):
            raise SystemExit("the server ended before it was ready")

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=40)


def lstm(length):
    row = [0.25] * (16 * length)
    return {"name": "x", "datatype": "FP32", "shape": [1, length, 16], "data": row}


def infer(server, model, *inputs):
    status, text = server.ask("POST", f"/v2/models/{quote(model, safe='')}/infer", json.dumps({"inputs": inputs}))
    assert status == 200, text


def add(server, model):
    of = lambda name: {"name": name, "datatype": "FP32", "shape": [1, 16], "data": [1] * 16}
    infer(server, model, of("INPUT0"), of("INPUT1"))


class Traffic:
    """Sequences of mixed lengths from several clients, until it is left."""

    def __init__(self, server, clients=8):
        self.server, self.over, self.errors = server, threading.Event(), []
        self.threads = [threading.Thread(target=self.run, args=(n,)) for n in range(clients)]

    def run(self, seed):
        rng = random.Random(seed)
        try:
            while not self.over.is_set():
                infer(self.server, "lstm", lstm(rng.choice([40, 200, 500])))
                if seed % 2:
                    add(self.server, "add")
                    add(self.server, EVIL)
        except Exception as error:
            self.errors.append(error)

    def __enter__(self):
        for thread in self.threads:
            thread.start()

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()
        assert not self.errors, self.errors


class Page:
    """The page, and what a user sees of it."""

    def __init__(self, url, profile):
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for flag in ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                     "--disable-background-networking", "--disable-component-update", "--disable-sync",
                     "--disable-dev-shm-usage", "--window-size=1280,1500", f"--user-data-dir={profile}"]:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = webdriver.ChromeService(shutil.which("chromedriver"))
        self.driver = webdriver.Chrome(options=options, service=service)
        self.url = url
        self.driver.get(url)

    def one(self, css):
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def script(self, text, *args):
        return self.driver.execute_script(text, *args)

    def text(self, css):
        return self.script("return document.querySelector(arguments[0]).textContent", css)

    def count(self, css):
        return self.script("return document.querySelectorAll(arguments[0]).length", css)

    def until(self, holds, what):
        end = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < end, f"{what}: not within {PATIENCE} s"
            time.sleep(0.05)

    def is_live(self):
        self.until(lambda: self.text("#status") == "live", "the page is live")

    def press(self, *keys):
        ActionChains(self.driver).send_keys(*keys).perform()

    def prefers(self, theme):
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def size(self, width, height):
        wanted = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", wanted)

    def colours(self, css):
        """Text and ground of an element, as three numbers each."""
        found = self.script(
            """let at = document.querySelector(arguments[0]); const text = getComputedStyle(at).color;
            let ground; do { ground = getComputedStyle(at).backgroundColor; at = at.parentElement; }
            while (at && /, 0\\)$|transparent/.test(ground)); return [text, ground]""", css)
        return [[float(n) for n in re.findall(r"[\d.]+", c)[:3]] for c in found]

    def severe(self):
        """What the console complained about since it was last asked."""
        return [e["message"] for e in self.driver.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]

    def requested(self):
        """Addresses that were asked for since the last time."""
        messages = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        # The browser's own first page is not ours.
        return [url for url in sent if not url.startswith(("data:", "chrome:"))]


def brightness(colour):
    def linear(c):
        c /= 255
        return c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4

    red, green, blue = map(linear, colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(colours):
    light, dark = sorted(map(brightness, colours), reverse=True)
    return (light + 0.05) / (dark + 0.05)


CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


@check
def without_traffic_it_says_so(world):
    page = world.page
    page.is_live()
    assert page.text("#engines .empty") == "Nothing is in flight."
    assert re.fullmatch(r"Decides by \S+\.", page.text("#engines .rule")), page.text("#engines .rule")
    assert page.script("return document.getElementById('timeline').getAttribute('aria-label')").startswith("No launches")
    assert page.text("#t-rate") == "0" and page.text("#t-sla") == "–"
    world.picture("idle")


@check
def names_of_models_are_text(world):
    page = world.page
    names = page.script("return [...document.querySelectorAll('#rows th')].map((n) => n.textContent)")
    assert names == [EVIL, "add", "lstm"], names
    assert page.count("img") == 0 and page.count("b") == 0
    assert EVIL in page.script("return [...document.querySelectorAll('#legend li')].map((n) => n.textContent)")


@check
def traffic_is_seen_in_every_part(world):
    page = world.page
    with Traffic(world.server):
        page.until(lambda: page.count(".subs li .chips span") >= 2, "sub-batches with members")
        page.until(lambda: page.count(".subs li.runs") >= 1, "a sub-batch that runs")
        at = "return document.querySelector('.subs li .at')?.textContent ?? ''"
        page.until(lambda: NODES.fullmatch(page.script(at)), "the nodes at which a sub-batch stands")
        page.until(lambda: float(page.text("#t-rate")) > 1, "a rate of answers")
        page.until(lambda: float(page.text("#t-batch")) > 1, "batches of more than one")
        page.until(lambda: page.text("#t-p99").endswith("s"), "latencies")
        assert page.text("#t-sla").endswith("%")
        label = "return document.getElementById(arguments[0]).getAttribute('aria-label')"
        page.until(lambda: "launches of" in page.script(label, "timeline"), "launches")
        painted = PIXELS + """const seen = new Set();
            for (let i = 0; i < d.length; i += 4) if (d[i + 3] === 255) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]);
            return seen.size"""
        page.until(lambda: page.script(painted) >= 2, "bars in colours")
        page.until(lambda: page.count("#c-rate polyline") == 3, "a line for each model")
        assert "lstm" in page.script(label, "c-rate")
        time.sleep(6)
        world.picture("light")
        world.picture_of("dark", "dark")
        page.size(420, 1500)
        world.picture("narrow")
        wide = page.script("return [document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1], f"the page scrolls sideways: {wide}"
        page.size(1280, 1500)


@check
def merges_are_seen_as_they_happen(world):
    """In the figures of the model, in the table of launches, and as notches on top of bars."""
    page = world.page
    notches = PIXELS + """const ink = getComputedStyle(c).color.match(/\\d+/g).slice(0, 3).map(Number);
        let seen = 0;
        for (let i = 0; i < d.length; i += 4)
          if (d[i + 3] === 255 && ink.every((part, k) => d[i + k] === part)) seen += 1;
        return seen"""
    joined = "return [...document.querySelectorAll('#slices td:nth-child(6)')].map((n) => Number(n.textContent))"
    opens = "document.getElementById('slices-details').open = arguments[0]"
    page.script(opens, True)
    with Traffic(world.server):
        page.until(lambda: float(page.text(LSTM_ROW + " td:nth-child(12)")) > 0, "merges per second of lstm")
        page.until(lambda: any(num > 0 for num in page.script(joined)), "a launch with members that joined")
        page.until(lambda: page.script(notches) > 0, "a notch on a bar")
    page.script(opens, False)


@check
def the_batch_table_shows_a_merge(world):
    """By two frames made up here: in the second one a request stands in another sub-batch."""
    shown = world.page.script(
        """const sub = (id, requests, runs) => ({ id, model: "lstm", at: "net.0", samples: requests.length,
          members: requests.map((request) => [request, 1]), num_members: requests.length,
          is_running: runs, has_started: true });
        const frame = (table, now) => {
          tables([{ name: "made up", table, more: 0 }], now);
          return [...document.querySelectorAll(".subs li")].map((at) =>
            [at.querySelector(".state").textContent, at.classList.contains("joined")]);
        };
        const frames = [frame([sub(1, [1, 2], false), sub(2, [3], true)], 1000),
          frame([sub(1, [1, 2, 3], true)], 1200), frame([sub(1, [1, 2, 3], true)], 4000)];
        page.homes.delete("made up");
        return frames""")
    apart, merged, later = shown
    assert apart == [["runs", False], ["parked", False]], apart
    assert merged == [["runs, merged", True]], merged
    assert later == [["runs", False]], later


@check
def figures_are_those_of_the_server(world):
    page, row = world.page, "#rows tr:nth-child({})"
    for place, model in enumerate([EVIL, "add", "lstm"], 1):
        _, text = world.server.ask("GET", f"/v2/models/{quote(model, safe='')}/stats")
        answered = json.loads(text)["model_stats"][0]["inference_stats"]["success"]["count"]
        cell = row.format(place) + " td:nth-child(14)"
        page.until(lambda: int(page.text(cell)) == int(answered), f"{answered} answers of {model}")
        assert int(answered) > 0
    page.until(lambda: page.text("#t-flight") == "0" and page.text("#t-waiting") == "0", "nothing left")
    page.until(lambda: page.count(".subs li") == 0, "an empty table")


@check
def the_timeline_has_a_table_for_the_keyboard(world):
    page = world.page
    for _ in range(5):
        add(world.server, "add")
    page.script("document.querySelector('#slices-details summary').focus()")
    page.press(Keys.ENTER)
    page.until(lambda: "add" in page.text("#slices"), "launches in the table")
    page.press(Keys.ENTER)
    page.until(lambda: not page.script("return document.getElementById('slices-details').open"), "closed")


@check
def the_keyboard_reaches_everything_and_is_seen(world):
    page = world.page
    page.script("document.activeElement.blur(); window.scrollTo(0, 0)")
    page.driver.get(page.url)
    page.is_live()
    seen = []
    for _ in range(5):
        page.press(Keys.TAB)
        seen.append(page.script(
            """const at = document.activeElement, style = getComputedStyle(at);
            return [at.id || at.className || at.tagName, at.matches(':focus-visible') && style.outlineStyle !== 'none']"""))
    names = [name for name, _ in seen]
    assert names[:3] == ["skip", "pause", "theme"], seen
    assert "SUMMARY" in names and names.count("scroll") == 1, seen
    assert all(visible for _, visible in seen), seen
    labelled = page.script(
        """return [...document.querySelectorAll('section')].every((s) =>
        document.getElementById(s.getAttribute('aria-labelledby'))?.textContent)""")
    assert labelled and page.count("section") == 5
    page.script("document.querySelector('.skip').focus()")
    page.press(Keys.ENTER)
    assert page.script("return document.activeElement.id") == "models"


@check
def a_key_pauses_and_goes_on(world):
    page = world.page
    page.press("p")
    page.until(lambda: page.text("#status") == "paused", "paused")
    assert page.script("return document.getElementById('pause').getAttribute('aria-pressed')") == "true"
    frame = page.script("return page.lastFrame")
    time.sleep(1)
    assert page.script("return page.lastFrame") == frame
    page.press("p")
    page.is_live()
    page.until(lambda: page.script("return page.lastFrame") > frame, "frames go on")


@check
def both_themes_are_there_and_can_be_read(world):
    page = world.page
    body = lambda: brightness(page.colours("body")[1])
    page.prefers("dark")
    page.until(lambda: body() < 0.1, "dark where the system is")
    page.prefers("light")
    page.until(lambda: body() > 0.8, "light where the system is")
    for name, fits in [("light", lambda: body() > 0.8), ("dark", lambda: body() < 0.1)]:
        page.press("t")
        assert page.text("#theme-name") == name
        page.until(fits, name)
        for css in ["body", "#status", "#pause", "#t-rate", ".hint", "#rows td", "thead th", "figcaption", ".dot"]:
            least = 3 if css == ".dot" else 4.5
            colours = page.colours(css)
            if css == ".dot":
                colours = [colours[0], page.colours("section")[1]]
            assert contrast(colours) >= least, (name, css, contrast(colours))
    page.driver.refresh()
    page.is_live()
    assert page.text("#theme-name") == "dark" and body() < 0.1, "it is kept"
    page.press("t")
    assert page.text("#theme-name") == "system"


@check
def nothing_is_asked_of_others_and_the_console_is_silent(world):
    requested = world.page.requested()
    assert len(requested) >= 4, requested
    assert all(url.startswith(world.page.url) for url in requested), requested
    assert world.page.severe() == []


@check
def it_goes_on_when_the_server_does(world):
    page = world.page
    world.server.end()
    page.until(lambda: "lost" in page.text("#status"), "it says that it lost the server")
    world.picture("lost")
    world.start()
    page.is_live()
    add(world.server, "add")
    page.until(lambda: page.text("#rows tr:nth-child(2) td:nth-child(14)") == "1", "counts of the new server")
    for message in page.severe():
        assert "/lazybatch/events" in message, message
    assert all(url.startswith(page.url) for url in page.requested())


@check
def a_token_is_asked_for(world):
    page, port = world.page, free_port()
    with tempfile.NamedTemporaryFile("w") as tokens:
        tokens.write("viewer:right-token\n")
        tokens.flush()
        server = Server(world.binary, world.models, port, "--token-file", tokens.name)
        try:
            page.driver.get(f"http://127.0.0.1:{port}/")
            page.until(lambda: page.text("#status") == "needs a token", "it asks")
            assert page.script("return document.activeElement.id") == "token"
            page.press("tp")
            assert page.text("#theme-name") == "system", "keys are typed"
            page.press(Keys.ENTER)
            page.until(lambda: "does not know" in page.text("#ask-why"), "a wrong one is told")
            page.press("\u201cright\u201d", Keys.ENTER)
            page.until(lambda: page.script("return document.getElementById('token').value") == "", "it was taken")
            assert "does not know" in page.text("#ask-why") and page.text("#status") == "needs a token"
            world.picture("token")
            page.press("right-token")
            page.press(Keys.ENTER)
            page.is_live()
            assert page.script("return document.getElementById('ask').hidden")
            page.driver.refresh()
            page.is_live()
            for message in page.severe():
                assert "401" in message and "/lazybatch/events" in message, message
        finally:
            server.end()


class World:
    def __init__(self, binary, models, pictures, profile):
        self.binary, self.models, self.pictures = binary, models, pictures
        self.port = free_port()
        self.start()
        self.page = Page(f"http://127.0.0.1:{self.port}/", profile)

    def start(self):
        self.server = Server(self.binary, self.models, self.port)

    def picture(self, name):
        time.sleep(0.5)
        (self.pictures / f"{name}.png").write_bytes(self.page.driver.get_screenshot_as_png())

    def picture_of(self, name, theme):
        self.page.prefers(theme)
        self.picture(name)
        self.page.prefers("light")


def write(folder):
    for name, file, config in [("add", "add", ""), (EVIL, "add", ""), ("lstm", "lstm", LSTM)]:
        version = folder / name / "1"
        version.mkdir(parents=True)
        shutil.copy(MODELS / f"{file}.onnx", version / "model.onnx")
        (folder / name / "config.pbtxt").write_text(config)


def main():
    pictures = Path(sys.argv[2])
    pictures.mkdir(parents=True, exist_ok=True)
    failed = []
    with tempfile.TemporaryDirectory() as models, tempfile.TemporaryDirectory() as profile:
        write(Path(models))
        world = World(sys.argv[1], models, pictures, profile)
        world.page.prefers("light")
        try:
            for function in CHECKS:
                name = function.__name__.replace("_", " ")
                try:
                    function(world)
                    print(f"ok      {name}", flush=True)
                except Exception:
                    failed.append(name)
                    print(f"FAILED  {name}", flush=True)
                    traceback.print_exc(limit=-3)
        finally:
            world.page.driver.quit()
            world.server.end()
    print(f"{len(CHECKS)} checks, {len(failed)} failed; screenshots in {pictures}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
