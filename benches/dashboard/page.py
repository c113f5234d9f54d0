#!/usr/bin/env python3
"""Measures the live web page in Chromium, against optuna-dashboard on the same 10 000 trials, and with 100 trials that run.

    benches/dashboard/page.py PROGRAM [--trials 10000] [--rounds 3]      # PROGRAM is a built pollux-tune

Both pages are opened by turns, each time by a browser that has seen neither. A page is usable when its optimization history is drawn and
the browser can answer again. Memory is what the processes of its tab keep for themselves (PSS), and the heap of JavaScript; bytes are
those that the server has sent. What runs is emulated: 25 machines of 4 GPUs, a trial on each.
"""

import argparse
import json
import math
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "scripts"))
sys.dont_write_bytecode = True
from browser import PATIENCE_S, Browser, ask_tell, install, serve  # noqa: E402

PEERS = ["optuna==5.0.0", "optuna-dashboard==0.21.0"]
STUDY = """space: {lr: {log: [1e-5, 1]}, layers: {int: [1, 8]}, dropout: {float: [0, 0.5]}, optimizer: [sgd, adam]}
objective: {minimize: loss}
search: {trials: %d, algorithm: random}
"""
RUNNING = """
space: {lr: {log: [5e-3, 5e-1]}, momentum: {float: [0.5, 0.97]}, weight_decay: {log: [1e-6, 1e-2]}}
objective: {maximize: accuracy}
trial: {trainable: cifar10, epochs: 60, initial_batch: 128, max_batch: 512, max_batch_per_gpu: 512}
search: {trials: 100, parallel: 100, seed: 3}
scheduler: {policy: static}
"""
OURS = "document.querySelector('[aria-label^=\"Optimization history: \"] canvas') !== null"
THEIRS = "document.querySelector('#plot-history .scatterlayer .trace') !== null"


def memory(browser):
    """Megabytes of the processes of tabs, and of the heap of JavaScript."""
    heap = browser.run("return performance.memory.usedJSHeapSize") / 1e6
    return sum(pss(process) for process in renderers(browser)), heap


def renderers(browser):
    """The processes of tabs, one of which may be spare, among all that the driver of the browser has started."""
    parents, kinds = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                kinds[int(entry.name)] = (entry / "cmdline").read_bytes()
            except OSError:
                continue
    driver = browser.driver.service.process.pid

    def is_ours(process):
        while process in parents and process != driver:
            process = parents[process]
        return process == driver

    return [process for process, line in kinds.items() if b"--type=renderer" in line and is_ours(process)]


def pss(process):
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1e3


def received(browser, base):
    """Number and megabytes of all answers of a server so far."""
    count = size = 0
    asked = set()
    for entry in browser.driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        method, more = message["method"], message["params"]
        if method == "Network.requestWillBeSent" and more["request"]["url"].startswith(base):
            asked.add(more["requestId"])
        elif method == "Network.loadingFinished" and more["requestId"] in asked:
            count, size = count + 1, size + more["encodedDataLength"]
    return count, size / 1e6


def usable(browser, address, is_drawn):
    """Seconds until a page shows what it has, and the browser is free again."""
    begun = time.monotonic()
    browser.driver.get(address)
    browser.until("it is drawn", is_drawn)
    browser.driver.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => setTimeout(done))")
    return time.monotonic() - begun


class OptunaDashboard:
    """optuna-dashboard on a database."""

    def __init__(self, database):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        program = Path(sys.prefix) / "bin" / "optuna-dashboard"
        self.process = subprocess.Popen([program, f"sqlite:///{database}", "--host", "127.0.0.1", "--port", str(port)],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.base = f"http://127.0.0.1:{port}"
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                studies = json.load(urllib.request.urlopen(f"{self.base}/api/studies", timeout=PATIENCE_S))["study_summaries"]
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)
        self.address = f"{self.base}/dashboard/studies/{studies[0]['study_id']}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def look(make, is_drawn):
    """A server that starts, and a browser that sees its page for the first time."""
    with make() as page:
        browser = Browser()
        try:
            first = usable(browser, page.address, is_drawn)
            count, size = received(browser, page.base)
            kept, heap = memory(browser)
            server = pss(page.process.pid)
            # What browser and server have kept may be used again.
            again = usable(browser, page.base + "/" if "token" in page.address else page.address, is_drawn)
        finally:
            browser.quit()
    return {"usable, first visit (s)": first, "usable, again (s)": again, "tab (MB)": kept, "JavaScript heap (MB)": heap, "answers": count,
            "received (MB)": size, "server (MB)": server}


def large(program, root, trials, rounds):
    random.seed(1)
    folder, database = root / "large", root / "optuna.db"
    loss = lambda params: {"value": abs(math.log10(params["lr"]) + 2.5) + params["dropout"] + 0.05 * random.random()}  # noqa: E731
    ask_tell(program, folder, STUDY % trials, loss, trials)
    subprocess.run([program, "export", folder, "-o", database], check=True, stdout=subprocess.DEVNULL)
    rows = {"pollux-tune": [], "optuna-dashboard": []}
    for _ in range(rounds):
        rows["pollux-tune"].append(look(lambda: serve(program, folder), OURS))
        rows["optuna-dashboard"].append(look(lambda: OptunaDashboard(database), THEIRS))
    print(f"\n{trials} finished trials, medians of {rounds} rounds\n")
    print("| | " + " | ".join(rows) + " |\n|---" + "|---" * len(rows) + "|")
    for name in rows["pollux-tune"][0]:
        cells = [f"{statistics.median(row[name] for row in rows[tool]):.4g}" for tool in rows]
        print(f"| {name} | " + " | ".join(cells) + " |")


WATCH = """
window.tasks = [];
new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((one) => one.duration))).observe({entryTypes: ["longtask"]});
window.frames_ = []; let last = performance.now();
const frame = (now) => { window.frames_.push(now - last); last = now; requestAnimationFrame(frame); };
requestAnimationFrame(frame);
window.updatesBefore = Number(document.getElementById("main").dataset.updates ?? 0);
"""


def running(program, root, seconds):
    """100 trials that train, each on a GPU of its own, and the page that follows them."""
    file = root / "running.yaml"
    file.write_text(RUNNING)
    folder = root / "running"
    run = subprocess.Popen([program, "run", file, "--emulate", "25x4xt4", "--time-scale", "0.25", "--folder", folder, "--quiet"],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not (folder / "journal.sqlite").exists():
            assert run.poll() is None, "the study has ended"
            time.sleep(0.1)
        with serve(program, folder) as page:
            browser = Browser()
            try:
                browser.login(page)
                browser.go("#/running/running")
                browser.until("100 trials train", "[...document.querySelectorAll('main tbody tr')].filter((row) => row.innerText.includes('running')).length === 100")
                received(browser, page.base)
                browser.run(WATCH)
                before = facts(page, browser)
                time.sleep(seconds)
                tasks, frames, updates = browser.run("return [window.tasks, window.frames_, Number(document.getElementById('main').dataset.updates) - window.updatesBefore]")
                count, size = received(browser, page.base)
                new = facts(page, browser) - before
                kept, heap = memory(browser)
                server = pss(page.process.pid)
            finally:
                browser.quit()
    finally:
        run.terminate()
        run.wait()
    slow = sorted(tasks)
    assert count > 0, "nothing was asked"
    print(f"\n100 running trials, {seconds:.0f} s, {new / seconds:.0f} facts per second in the journal\n\n| | |\n|---|---|")
    for name, value in [("updates of the page per second", updates / seconds), ("longest time without a frame (ms)", max(frames)),
                        ("frames per second", len(frames) / seconds), ("the longest task of the browser (ms)", slow[-1] if slow else 0.0),
                        ("tasks of more than 50 ms, share of the time (%)", 100 * sum(slow) / 1e3 / seconds),
                        ("received per update (kB)", 1e3 * size / max(1, updates)), ("tab (MB)", kept), ("JavaScript heap (MB)", heap),
                        ("server (MB)", server)]:
        print(f"| {name} | {value:.3g} |")


def facts(page, browser):
    return browser.run("return fetch('/api/studies').then((answer) => answer.json()).then((all) => all.studies[0].facts)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the trials that run are watched")
    arguments = parser.parse_args()
    install("dashboard-bench", PEERS)
    root = Path(tempfile.mkdtemp(prefix="pollux-tune-"))
    try:
        program = arguments.program.resolve()
        print(f"{os.cpu_count()} cores, a load of {os.getloadavg()[0]:.1f} before")
        large(program, root, arguments.trials, arguments.rounds)
        running(program, root, arguments.seconds)
        print(f"\na load of {os.getloadavg()[0]:.1f} after")
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
