"""Checks the serving front end with the clients that its users have.

    python check.py PATH_TO_LAZYBATCH

Starts `lazybatch serve` on free ports with small models, drives it with tritonclient over HTTP and
gRPC, one call at a time and asynchronously, over streams and through shared memory, and with plain
HTTP where a client does not let one be wrong; TLS and tokens on servers of their own. Then, on another
server, the pretrained models of docs/models.md, which `cargo xtask models` fetches: without one its
checks are left out, unless LAZYBATCH_REQUIRE_MODELS is set. What was left out is counted apart from what
passed, and told at the end with why. Ends with status 1 if a check fails.
"""

import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import real_models
import repository

CHECKS, REAL = [], []


class Server:
    """A running server; `http`, `grpc` and `metrics` are its addresses."""

    def __init__(self, binary, folder, *options):
        self.binary, self.folder = binary, folder
        is_cpu = os.environ.get("LAZYBATCH_DEVICE", "cpu") == "cpu"
        if is_cpu and "--threads" not in options:
            options = ("--threads", "1", *options)
        command = [binary, "serve", "--models", str(folder), "--http-port", "0", "--grpc-port", "0",
                   "--metrics-port", "0", "--no-measure", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if line.strip() == "ready":
                return
            name, address = line.split()
            setattr(self, name, address)
        raise SystemExit("the server ended before it was ready")

    def end(self):
        self.process.terminate()
        return self.process.wait(timeout=40)


def check(function):
    """Adds a check to the list."""
    CHECKS.append(function)
    return function


def real(*models):
    """Adds a check to the list of those on the server of the pretrained models, with those it needs."""
    assert models and set(models) <= {*real_models.FETCHED, "stories260K"}, models

    def add(function):
        function.models = models
        REAL.append(function)
        return function
    return add


def name_of(function):
    return function.__name__.replace("_", " ")


def run(checks, server):
    """Makes the checks and ends the server; names of those that failed, and why others were left out
    by name."""
    failed, left_out = [], {}
    try:
        for function in checks:
            name = name_of(function)
            try:
                real_models.needs(*getattr(function, "models", ()))
                function(server)
                print(f"ok      {name}", flush=True)
            except real_models.LeftOut as why:
                left_out[name] = str(why)
                print(f"left out  {name}: {why}", flush=True)
            except Exception:
                failed.append(name)
                print(f"FAILED  {name}", flush=True)
                traceback.print_exc(limit=-3)
    finally:
        if server.process.poll() is None:
            server.end()
    return failed, left_out


def main():
    import http_checks  # noqa: F401  (adds its checks)
    import grpc_checks  # noqa: F401
    import asyncio_checks  # noqa: F401
    import security_checks  # noqa: F401
    import ensemble_checks  # noqa: F401
    import last_checks  # noqa: F401
    import real_checks  # noqa: F401

    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        models = repository.write(Path(folder))
        options = [o for m in models for o in ("--load-model", m)]
        with tempfile.TemporaryDirectory() as traces:
            server = Server(sys.argv[1], folder, "--model-control-mode", "explicit", "--trace-dir",
                            traces, *options)
            server.traces = Path(traces)
            failed, left_out = run(CHECKS, server)
    num = len(CHECKS) + len(REAL)
    with tempfile.TemporaryDirectory() as folder:
        try:
            real_models.write(Path(folder))
        except FileNotFoundError as why:
            failed += [name_of(function) for function in REAL]
            print(f"FAILED  the pretrained models: {why}")
        else:
            own_failed, own_left_out = run(REAL, Server(sys.argv[1], folder))
            failed += own_failed
            left_out.update(own_left_out)
    took = time.monotonic() - start
    passed = num - len(failed) - len(left_out)
    print(f"{num} checks: {passed} passed, {len(failed)} failed, {len(left_out)} left out, {took:.1f} s")
    for why in sorted(set(left_out.values())):
        names = [name for name, own in left_out.items() if own == why]
        print(f"left out {len(names)}: {why}: {', '.join(names)}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    sys.modules["check"] = sys.modules["__main__"]
    main()
