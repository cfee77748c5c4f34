"""Runs Triton's server as PyPI has it.

    python3 triton.py --install [ENVIRONMENT]
    ENVIRONMENT/bin/python triton.py REPOSITORY

The first makes the environment, `.triton` if absent, of the packages in triton-requirements.txt:
`nvidia-pytriton` carries the server and its Python backend. The second serves a repository on free
ports of loopback and prints `http ADDRESS`, `grpc ADDRESS`, then `ready`; it ends with SIGTERM.
"""

import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from pathlib import Path

import serving


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def backend(server):
    """The folder of backends, with the stub of this Python beside the backend's library."""
    folder = server / "backends" / "python"
    stub = folder / "triton_python_backend_stub"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    own = server / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not own.exists():
        raise SystemExit(f"{own}: the server has no stub for Python {version}")
    if stub.is_symlink() or stub.exists():
        stub.unlink()
    stub.symlink_to(own)
    return folder.parent


def is_ready(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=1) as answer:
            return answer.status == 200
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def serve(repository):
    import pytriton

    server = Path(pytriton.__file__).parent / "tritonserver"
    http, grpc = free_port(), free_port()
    libraries = [sysconfig.get_config_var("LIBDIR"), str(server / "external_libs"),
                 os.environ.get("LD_LIBRARY_PATH", "")]
    env = dict(os.environ, LD_LIBRARY_PATH=":".join(filter(None, libraries)))
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    process = subprocess.Popen(
        [server / "bin" / "tritonserver", "--model-repository", repository,
         "--backend-directory", backend(server), "--http-address", "127.0.0.1", "--http-port",
         str(http), "--grpc-address", "127.0.0.1", "--grpc-port", str(grpc),
         "--allow-metrics", "false", "--disable-auto-complete-config"],
        env=env, stdout=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    while not is_ready(http):
        if process.poll() is not None:
            raise SystemExit(f"the server ended with status {process.returncode}")
        time.sleep(0.1)
    print(f"http 127.0.0.1:{http}\ngrpc 127.0.0.1:{grpc}\nready", flush=True)
    process.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--install"]:
        environment = sys.argv[2] if len(sys.argv) > 2 else ".triton"
        serving.install(environment, "triton-requirements.txt")
    elif len(sys.argv) == 2:
        serve(sys.argv[1])
    else:
        raise SystemExit(__doc__)
