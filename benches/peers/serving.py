"""What the scripts of this folder that drive a server have in common."""

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODELS = HERE.parent.parent / "serve" / "conformance" / "models"


def install(environment, requirements):
    """Makes a virtual environment of the packages in a file of this folder."""
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    pip = [str(Path(environment) / "bin/python"), "-m", "pip", "install", "--quiet", "-r"]
    subprocess.run([*pip, HERE / requirements], check=True)


def machine():
    """The processor, as lines of results name it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {"cpu": names[0] if names else "unknown", "cores": os.cpu_count()}


def commit():
    """That of the sources that these scripts are of."""
    asked = subprocess.run(["git", "-C", HERE, "rev-parse", "--short=12", "HEAD"],
                           capture_output=True, text=True)
    return asked.stdout.strip() or "unknown"


@contextlib.contextmanager
def lazybatch(binary, model, *options):
    """Serves one of the conformance checks' models on free ports of loopback, on one thread: its
    addresses by protocol. Ends with status 1 if the server does not end with 0."""
    with tempfile.TemporaryDirectory() as models:
        version = Path(models) / model / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").write_bytes((MODELS / f"{model}.onnx").read_bytes())
        command = [binary, "serve", "--models", models, "--http-port", "0", "--grpc-port", "0",
                   "--metrics-port", "0", "--threads", "1", *options]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            addresses = {}
            for line in server.stdout:
                if line.strip() == "ready":
                    break
                name, address = line.split()
                addresses[name] = address
            else:
                raise SystemExit("the server ended before it was ready")
            yield addresses
        finally:
            server.terminate()
            status = server.wait(timeout=40)
    if status:
        raise SystemExit(f"the server ended with status {status}")
