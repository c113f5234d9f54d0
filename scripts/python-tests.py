#!/usr/bin/env python3
"""Builds the wheel, installs it into a fresh virtual environment, and runs python/tests there.

Usage: scripts/with-libtorch.sh scripts/python-tests.py [arguments of pytest]

What the tests need besides (PyTorch, 5 GB on disk) is installed once, into the cache folder. The fresh environment sees it, and is removed
at the end. Safe to interrupt and to run twice, also at the same time.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# Nothing is to be left behind in the checkout.
sys.dont_write_bytecode = True
import cache

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "python" / "tests" / "requirements.txt"
OLDEST = (3, 10)


def fail(message):
    sys.exit(f"python-tests: {message}")


def say(message):
    print(f"python-tests: {message}", file=sys.stderr, flush=True)


def run(what, *command, **options):
    done = subprocess.run([str(part) for part in command], **options)
    if done.returncode != 0:
        fail(f"{what}, see above")
    return done


def packages(folder):
    """A virtual environment with all that tests need but the package itself; gives its Python."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    target = folder / f"python-{version}"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()
    done = target / "done"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{target.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists() or done.read_text() != wanted:
            say(f"installing PyTorch and others into {target}, once (a download of about 3 GB)")
            shutil.rmtree(target, ignore_errors=True)
            run("no virtual environment could be made (Debian and Ubuntu: apt install python3-venv)", sys.executable, "-m", "venv", target)
            pip = [target / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            run("pip could not install them", *pip, "--requirement", REQUIREMENTS, stdout=sys.stderr)
            done.write_text(wanted)
    return target / "bin" / "python"


def build_wheel(python, into):
    """As tests are built, and where."""
    say("building the wheel")
    command = [python, "-m", "pip", "wheel", ROOT, "--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command += ["--config-settings", "profile=dev", "--wheel-dir", into]
    environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    run("the wheel could not be built", *command, env=environment, stdout=sys.stderr)
    return next(into.glob("*.whl"))


def fresh_environment(python, wheel, folder):
    """With nothing but the wheel, and a view of the packages that are installed already; gives its Python."""
    run("no virtual environment could be made", python, "-m", "venv", "--without-pip", folder)
    fresh = folder / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    seen = run("Python does not run", python, "-c", where, stdout=subprocess.PIPE, text=True).stdout.strip()
    own = run("Python does not run", fresh, "-c", where, stdout=subprocess.PIPE, text=True).stdout.strip()
    (Path(own) / "packages.pth").write_text(seen + "\n")
    pip = [python, "-m", "pip", "--python", fresh, "install", "--quiet", "--disable-pip-version-check"]
    run("the wheel could not be installed", *pip, "--no-deps", "--no-index", "--force-reinstall", wheel)
    return fresh


def main():
    if sys.version_info < OLDEST:
        fail(f"this is Python {sys.version.split()[0]}, the package needs {'.'.join(map(str, OLDEST))} or later")
    python = packages(cache.folder())
    with tempfile.TemporaryDirectory(prefix="pollux-tune-python-") as scratch:
        scratch = Path(scratch)
        wheel = build_wheel(python, scratch / "wheels")
        fresh = fresh_environment(python, wheel, scratch / "venv")
        environment = {**os.environ, "PATH": f"{fresh.parent}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}
        # Whoever reads this may not be a terminal.
        sys.stderr.flush()
        tests = subprocess.run([fresh, "-m", "pytest", *(sys.argv[1:] or ["python/tests"])], cwd=ROOT, env=environment)
    sys.exit(tests.returncode)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        fail("interrupted; run it again to go on")
    except OSError as error:
        fail(error)
