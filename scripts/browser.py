"""What tests and measurements in a browser share: Chromium driven by Selenium, studies to look at, pages and terminals that show them."""

import fcntl
import html
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path

import cache

PACKAGES = ["selenium==4.36.0", "pillow==11.3.0", "pyte==0.8.2", "axe-core-python==0.1.0"]
PATIENCE_S = 120
WIDE, NARROW = (1280, 800), (375, 812)
VIEWS = ["overview", "running", "timeline", "trials", "analysis", "compare", "nodes"]


def skip(why):
    print(f"browser-tests: {'FAILED' if os.environ.get('CI') == 'true' else 'SKIPPED'}, {why}", file=sys.stderr)
    sys.exit(1 if os.environ.get("CI") == "true" else 0)


def install(name="browser", more=()):
    """Starts this script again with a Python that has Selenium, and more if that is wanted, if this one has none."""
    packages = [*PACKAGES, *more]
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            skip("there is no chromium with chromedriver: install the packages chromium and chromium-driver")
        print("browser-tests: installing chromium and chromium-driver by apt-get", file=sys.stderr)
        command = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", "chromium", "chromium-driver", "fonts-dejavu-core"]
        for attempt in (["apt-get", "update", "-qq"], command):
            done = subprocess.run(attempt, capture_output=True, text=True)
        if done.returncode != 0:
            skip(f"chromium cannot be installed: {done.stderr.strip()[-300:]}")
    home = cache.folder() / "tools" / name
    python, marker = home / "bin" / "python", home / "installed"
    if not marker.exists() or marker.read_text() != " ".join(packages):
        print(f"browser-tests: installing {' '.join(packages)} into {home}", file=sys.stderr)
        for command in ([sys.executable, "-m", "venv", str(home)], [str(python), "-m", "pip", "install", "--quiet", *packages]):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                skip(f"Selenium cannot be installed: {done.stderr.strip()[-300:]}")
        marker.write_text(" ".join(packages))
    if Path(sys.prefix).resolve() != home.resolve():
        os.execv(python, [str(python), *sys.argv])


# Studies.

TRAIN = """
import json, sys
for line in open(sys.argv[1]):
    epochs = float(line)
    print(json.dumps({"epochs": epochs, "accuracy": 1 - 1 / (1 + epochs)}), flush=True)
"""


def ask_tell(program, folder, yaml, objective, trials):
    """A study that was asked and told: `objective` makes what is told of parameters."""
    file = folder.with_suffix(".yaml")
    file.write_text(yaml)
    process = subprocess.Popen([program, "ask-tell", file, "--folder", folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def say(request):
        process.stdin.write(json.dumps(request) + "\n")
        return json.loads(process.stdout.readline())

    for _ in range(trials):
        trial = say({"ask": 1})
        say({"tell": {"id": trial["id"], **objective(trial["params"])}})
    process.stdin.close()
    assert process.wait() == 0


def study_file(trials=40, seed=3):
    return f"""
space:
  lr: {{log: [5e-3, 5e-1]}}
  momentum: {{float: [0.5, 0.97]}}
  weight_decay: {{log: [1e-6, 1e-2]}}
  optimizer: [sgd, adam]
objective: {{maximize: accuracy}}
trial: {{trainable: cifar10, epochs: 12, initial_batch: 128, max_batch: 4Ki, max_batch_per_gpu: 1Ki}}
search: {{trials: {trials}, parallel: 5, seed: {seed}, early_stopping: {{rule: asha, grace: 3, reduction: 2}}}}
"""


def emulated(program, folder, trials=40, seed=3):
    file = folder.with_suffix(".yaml")
    file.write_text(study_file(trials, seed))
    command = [program, "run", file, "--emulate", "2x4xt4,1x4xa100", "--time-scale", "0.01", "--folder", folder, "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def failing(program, folder):
    """A study in which some trials fail with a traceback."""
    script = folder.with_suffix(".py")
    script.write_text("import json, os\nx = json.loads(os.environ['POLLUX_TUNE_PARAMS'])['x']\n"
                      "print('begins with', x)\nassert x < 0.7, f'{x} is too much'\nprint(json.dumps({'loss': x}))\n")
    file = folder.with_suffix(".yaml")
    file.write_text(f"space: {{x: {{float: [0, 1]}}}}\nobjective: {{minimize: loss}}\ntrial: {{command: [{sys.executable}, {script}]}}\n"
                    "search: {trials: 8, parallel: 2, algorithm: random, seed: 1}\n")
    subprocess.run([program, "run", file, "--folder", folder, "--cpu", "--quiet"], stdout=subprocess.DEVNULL, check=True)


class Asked:
    """A study whose trials run here: it is asked and told, and goes on."""

    def __init__(self, program, folder, yaml):
        file = folder.with_suffix(".yaml")
        file.write_text(yaml)
        self.process = subprocess.Popen([program, "ask-tell", file, "--folder", folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(self, *requests):
        """All at once, and all answers: one for each."""
        self.process.stdin.write("".join(json.dumps(request) + "\n" for request in requests))
        self.process.stdin.flush()
        return [json.loads(self.process.stdout.readline()) for _ in requests]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()


class Page:
    """A process with a page."""

    def __init__(self, command, stream):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE if stream == "stdout" else subprocess.DEVNULL,
                                        stderr=subprocess.PIPE if stream == "stderr" else subprocess.DEVNULL, text=True)
        lines = getattr(self.process, stream)
        for line in lines:
            if found := re.match(r"dashboard: (http://\S+)", line):
                self.address = found[1]
                self.base = self.address.split("/?")[0]
                return
        raise AssertionError(f"{command} printed no address")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def serve(program, *folders):
    return Page([program, "dashboard", *folders, "--port", "0"], "stdout")


class Running:
    """A study that runs, whose trials report what a test tells them to."""

    def __init__(self, program, root):
        self.fifo = root / "epochs"
        os.mkfifo(self.fifo)
        (root / "train.py").write_text(TRAIN)
        (root / "live.yaml").write_text(f"""
space: {{x: {{float: [0, 1]}}}}
objective: {{maximize: accuracy}}
trial: {{command: [{sys.executable}, {root / "train.py"}, {self.fifo}], epochs: 50}}
search: {{trials: 5, parallel: 1}}
""")
        self.folder = root / "live"
        self.page = Page([program, "run", root / "live.yaml", "--folder", self.folder, "--cpu", "--dashboard"], "stderr")
        # Until the first trial reads it.
        self.pipe = open(self.fifo, "w", buffering=1)

    def report(self, epochs):
        self.pipe.write(f"{epochs}\n")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.page.__exit__()
        try:
            self.pipe.close()
        except BrokenPipeError:
            pass


class Terminal:
    """A program on a terminal of 80 columns, as `screen` shows it."""

    COLUMNS, LINES = 80, 24

    def __init__(self, command, lines=LINES):
        import pyte

        self.screen = pyte.Screen(self.COLUMNS, lines)
        stream = pyte.ByteStream(self.screen)
        self.lock = threading.Lock()
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, self.COLUMNS, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")} | {"TERM": "xterm-256color"}
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True)
        os.close(theirs)

        def read():
            try:
                while data := os.read(ours, 65536):
                    with self.lock:
                        stream.feed(data)
            except OSError:
                # What a terminal says when nobody writes to it any more.
                pass

        threading.Thread(target=read, daemon=True).start()

    def text(self):
        with self.lock:
            return "\n".join(self.screen.display)

    def until(self, what, is_so):
        end = time.monotonic() + PATIENCE_S
        while not is_so(self.text()):
            if time.monotonic() > end:
                raise AssertionError(f"{what}: not in {PATIENCE_S} s; the terminal shows:\n{self.text()}")
            time.sleep(0.05)

    def page(self, theme):
        """The screen as a web page."""
        dark = theme == "dark"
        colors = {"default": "#d7dde5" if dark else "#1b2330", "black": "#000000" if not dark else "#5a6675", "red": "#ff7b72" if dark else "#b3261e",
                  "green": "#5fd39a" if dark else "#1b7f4b", "brown": "#ffc766" if dark else "#8a5a00", "blue": "#7fb0ff" if dark else "#1f5fbf",
                  "magenta": "#d8a0ff" if dark else "#8e24aa", "cyan": "#6fd6e5" if dark else "#00707f", "white": "#e7ecf3" if dark else "#5a6675"}
        plain = "#12161c" if dark else "#ffffff"

        def paint(name, otherwise):
            name = name.removeprefix("bright")
            return colors.get(name) or (f"#{name}" if re.fullmatch(r"[0-9a-f]{6}", name) else otherwise)

        def span(cell):
            front, back = paint(cell.fg, colors["default"]), plain if cell.bg == "default" else paint(cell.bg, plain)
            if cell.reverse:
                front, back = back, front
            weight = ";font-weight:bold" if cell.bold else ""
            return f'<span style="color:{front};background:{back}{weight}">{html.escape(cell.data)}</span>'

        with self.lock:
            last = max((row for row in range(self.screen.lines) if self.screen.display[row].strip()), default=0)
            lines = ["".join(span(self.screen.buffer[row][column]) for column in range(self.COLUMNS)) for row in range(last + 1)]
        style = f"body{{margin:12px;background:{plain}}}pre{{font:15px/1.25 'DejaVu Sans Mono',monospace;margin:0;display:inline-block}}"
        return f"<!doctype html><meta charset=utf-8><style>{style}</style><pre>" + "\n".join(lines) + "</pre>"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(PATIENCE_S)


class Browser:
    """Chromium, which tells what it asked for and what it complained about."""

    def __init__(self):
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        self.profile = tempfile.mkdtemp(prefix="pollux-tune-browser-")
        for argument in ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars",
                         "--disable-background-networking", "--disable-component-update", "--no-first-run", "--force-color-profile=srgb",
                         f"--user-data-dir={self.profile}", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]:
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        self.driver.set_page_load_timeout(PATIENCE_S)
        self.driver.set_script_timeout(PATIENCE_S)
        self.size(WIDE)

    def quit(self):
        self.driver.quit()
        shutil.rmtree(self.profile, ignore_errors=True)

    def size(self, size):
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size[0] < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def colors(self, theme):
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def until(self, what, script, *arguments):
        end = time.monotonic() + PATIENCE_S
        while True:
            value = self.run(f"return {script}", *arguments)
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"{what}: not in {PATIENCE_S} s; the page shows: {self.text()[:600]}")
            # The page changes by itself: how often it is looked at does not matter.
            time.sleep(0.05)

    def text(self):
        return self.run("return document.getElementById('main')?.innerText ?? document.body.innerText")

    def login(self, page):
        self.driver.get(page.address)
        self.until("the page comes up", "document.getElementById('main')?.dataset.ready !== undefined")
        assert "token" not in self.driver.current_url, self.driver.current_url

    def go(self, hash_):
        """Shows a view, and says how long that took, in seconds."""
        if self.run("return location.hash === arguments[0]", hash_):
            return 0
        self.run("delete document.getElementById('main').dataset.ready; window.begun = performance.now(); location.hash = arguments[0]", hash_)
        self.until(f"{hash_} is shown", "document.getElementById('main').dataset.ready !== undefined")
        return self.run("return performance.now() - window.begun") / 1000

    def click(self, text, within="body"):
        script = "[...document.querySelector(arguments[1]).querySelectorAll('button, a')].find((one) => one.innerText.trim() === arguments[0] && one.offsetParent)"
        self.until(f"there is {text!r}", script, text, within)
        self.run(f"({script}).click()", text, within)

    def charts(self):
        """All charts that are shown: their labels, and whether something is drawn there."""
        # What is below the window is drawn when somebody looks.
        script = """
            const seen = (one) => { one.scrollIntoView({ block: "center" }); return new Promise((done) => setTimeout(() => requestAnimationFrame(done))); };
            const drawn = (one) => [...one.querySelectorAll("canvas")].some((canvas) =>
              canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((value, place) => place % 4 === 3 && value > 0));
            const all = [];
            for (const one of [...document.querySelectorAll(".chart")].filter((one) => one.offsetParent)) {
              await seen(one);
              all.push([one.getAttribute("aria-label"), drawn(one)]);
            }
            return all;"""
        return self.run(f"return (async () => {{ {script} }})()")

    def check(self, page=None, file=None):
        """Nothing was complained about, and nothing was asked of others."""
        complaints = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        # Chromium asks for the icon of a page that was refused when it likes, and is refused that, too.
        complaints = [message for message in complaints if not re.search(r"/favicon\.ico - .* status of 403", message)]
        assert not complaints, complaints
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                assert url.startswith(("http://127.0.0.1:", "data:", "about:", "chrome:")) or (file and url.split("#")[0] == file), url
                assert not (file and url.startswith("http")), url
                assert page is None or not url.startswith("http") or url.startswith(page.base), url
