"""Runs `lazybatch serve` as the files of this folder say, without systemd and without a daemon for images.

    python3 serve/deploy/check.py LAZYBATCH

Needs root, util-linux, iproute2 and openssl; for the unit systemd-analyze and libseccomp, too. Each of two
servers gets a network, processes and mounts of its own (`unshare`):

image  the last stage of the Containerfile: a root of the program, the libraries that its base has, the
       example configuration, certificates, tokens and a model; mounted read-only, as the image's user,
       who can gain no privileges. ENTRYPOINT and CMD are run as they stand. The stage that builds is not
       run: LAZYBATCH is in its place.
unit   ExecStart of the unit, with its UMask and LimitNOFILE, no capabilities, no new privileges, all files
       read-only, and its filters of system calls, address families and memory that is written and executed.

Both are then asked over TLS: health, a call without a token (401) and with one, metrics; and are to end with
status 0 behind SIGTERM. Ends with status 1, and says what is wrong, if they do not.
"""

import ctypes
import json
import os
import re
import resource
import shlex
import shutil
import signal
import ssl
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODEL = HERE.parent / "conformance" / "models" / "add.onnx"
CONFIG, SECRETS = Path("etc/lazybatch"), ("tls.crt", "tls.key", "tokens")
# Of gcr.io/distroless/cc-debian12: glibc and libgcc.
BASE = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "linux-vdso.so.1"}
NOBODY = 65532


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def expect(is_so, what):
    if not is_so:
        raise SystemExit(f"FAILED  {what}")
    print(f"ok      {what}", flush=True)


def furnish(root):
    """What whoever installs it puts there: configuration, secrets and a model."""
    etc = root / CONFIG
    etc.mkdir(parents=True)
    shutil.copy(HERE / "lazybatch.toml", etc)
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
        "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2",
        "-keyout", str(etc / "tls.key"), "-out", str(etc / "tls.crt"))
    (etc / "tokens").write_text("check:a-token-to-check-with\n")
    for name in SECRETS:
        os.chown(etc / name, NOBODY, NOBODY)
        (etc / name).chmod(0o400)
    version = root / "srv/lazybatch/models/add/1"
    version.mkdir(parents=True)
    shutil.copy(MODEL, version / "model.onnx")


def ask(path, token=None, body=None, port=8000, authority=None):
    """Status and body."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"https://localhost:{port}/{path}", body, headers)
    trusted = ssl.create_default_context(cafile=authority)
    try:
        with urllib.request.urlopen(request, timeout=20, context=trusted) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def use(server, authority, filters):
    """What clients find, by how many filters of system calls it is confined at least, and how it ends."""
    ready, status = time.monotonic() + 60, None
    while status != 200:
        if server.poll() is not None or time.monotonic() > ready:
            expect(False, f"ready within 60 s (status {server.poll()})")
        try:
            status = ask("v2/health/ready", authority=authority)[0]
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    expect(status == 200, "ready over TLS, without a token")
    rows = {"shape": [1, 16], "datatype": "FP32", "data": [1.5] * 16}
    body = json.dumps({"inputs": [{"name": n, **rows} for n in ("INPUT0", "INPUT1")]}).encode()
    call = lambda token: ask("v2/models/add/infer", token, body, authority=authority)
    expect(call(None)[0] == 401, "a call without a token is refused")
    status, answer = call("a-token-to-check-with")
    sums = status == 200 and json.loads(answer)["outputs"][0]["data"]
    expect(sums == [3.0] * 16, "a call with one is answered")
    status, text = ask("metrics", "a-token-to-check-with", port=8002, authority=authority)
    expect(status == 200 and b"nv_inference_count" in text, "metrics")
    told = dict(line.split(":\t", 1) for line in
                Path(f"/proc/{server.pid}/status").read_text().splitlines())
    expect(told["Uid"].split() == [str(NOBODY)] * 4, "another user than root")
    expect(int(told["CapPrm"], 16) == int(told["CapEff"], 16) == 0, "no capabilities")
    expect(told["NoNewPrivs"] == "1", "no new privileges")
    if filters:
        expect(int(told["Seccomp_filters"]) >= filters, "filters of system calls are loaded")
    root = next(line for line in Path(f"/proc/{server.pid}/mountinfo").read_text().splitlines()
                if line.split()[4] == "/")
    expect("ro" in root.split()[5].split(","), "a root that is read-only")
    server.send_signal(signal.SIGTERM)
    status = server.wait(timeout=45)
    expect(status == 0, f"SIGTERM ends it with status 0 (got {status})")


def image(binary, place):
    text = (HERE / "Containerfile").read_text().replace("\\\n", " ")
    steps = [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]
    known = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
    expect({name for name, _ in steps} <= known, "instructions of the Containerfile are known")
    last = max(i for i, (name, _) in enumerate(steps) if name == "FROM")
    stage = steps[last + 1:]
    expect(not any(name == "RUN" for name, _ in stage), "the last stage needs no shell")
    value = lambda name: next(rest for own, rest in stage if own == name)
    root = place / "root"
    furnish(root)
    for copied in (rest.split() for name, rest in stage if name == "COPY"):
        expect(copied[0] == "--from=build" and copied[1].endswith("/release/lazybatch"),
               "what is copied is the program that was built")
        target = root / copied[2].lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(binary, target)
    needed = re.findall(r"^\s*(\S+)(?: => (\S+))?", run("ldd", binary), re.MULTILINE)
    libraries = {Path(name).name: path or name for name, path in needed}
    expect(set(libraries) <= BASE, f"libraries are the base's: {', '.join(sorted(libraries))}")
    for name, path in libraries.items():
        if path.startswith("/"):
            (root / Path(path).parent.relative_to("/")).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, root / path.lstrip("/"))
    user = value("USER").split(":")
    expect(user == [str(NOBODY)] * 2, "the image's user is not root")
    for folder in ("proc", "tmp"):
        (root / folder).mkdir()
    run("mount", "--bind", str(root), str(root))
    run("mount", "-t", "proc", "proc", str(root / "proc"))
    run("mount", "-o", "remount,bind,ro", str(root))
    words = json.loads(value("ENTRYPOINT")) + json.loads(value("CMD"))
    confined = ["setpriv", "--no-new-privs", "chroot", f"--userspec={':'.join(user)}", "--groups=",
                str(root)]
    server = subprocess.Popen(confined + words, env={"PATH": os.environ["PATH"]})
    use(server, root / CONFIG / "tls.crt", 0)


def syscalls(groups):
    """Names in the unit's filter: lists that allow, then lists that take away."""
    def names(word):
        if not word.startswith("@"):
            return {word}
        lines = run("systemd-analyze", "syscall-filter", word).splitlines()[1:]
        words = (line.strip() for line in lines)
        return set().union(*(names(w) for w in words if w and not w.startswith("#")))
    allowed = set()
    for group in groups:
        of = set().union(*(names(word) for word in group.lstrip("~").split()))
        allowed = allowed - of if group.startswith("~") else allowed | of
    return allowed


def filters(setting):
    """Loads the unit's filters into this process, for good."""
    lib = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    lib.seccomp_init.restype = ctypes.c_void_p
    allow, errno, masked, equal = 0x7FFF0000, lambda number: 0x00050000 | number, 7, 4

    def rules(default, made):
        filter = ctypes.c_void_p(lib.seccomp_init(default))
        for action, name, arguments in made:
            number = lib.seccomp_syscall_resolve_name(name.encode())
            if number < 0:
                continue
            packed = b"".join(struct.pack("IiQQ", *argument) for argument in arguments)
            if lib.seccomp_rule_add_array(filter, action, number, len(arguments), packed):
                raise OSError(f"no rule for {name}")
        if lib.seccomp_load(filter):
            raise OSError("the filter is not loaded")

    lib.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p]
    lib.seccomp_load.argtypes = [ctypes.c_void_p]
    allowed = syscalls(setting("SystemCallFilter"))
    families = {"AF_INET": 2, "AF_INET6": 10}
    of = {families[name] for name in setting("RestrictAddressFamilies")[0].split()}
    refused = [(errno(97), "socket", [(0, equal, family, 0)]) for family in range(46)
               if family not in of]
    if setting("MemoryDenyWriteExecute") == ["yes"]:
        write_execute, execute = 6, 4
        refused.append((errno(1), "mmap", [(2, masked, write_execute, write_execute)]))
        refused.append((errno(1), "mprotect", [(2, masked, execute, execute)]))

    def load():
        rules(allow, refused)
        rules(errno(1), [(allow, name, []) for name in sorted(allowed)])
    return load, len(allowed)


def unit(binary, place):
    text = (HERE / "lazybatch.service").read_text().replace("\\\n", " ")
    setting = lambda name: re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)
    furnish(place)
    etc = place / CONFIG
    toml = etc / "lazybatch.toml"
    # Where the unit finds them; files of this check lie elsewhere.
    toml.write_text(toml.read_text().replace('"/srv', f'"{place}/srv').replace('"/etc', f'"{place}/etc'))
    words = shlex.split(setting("ExecStart")[0])
    expect(words[0] == "/usr/bin/lazybatch", "ExecStart is the program")
    words = [str(binary)] + [word.replace("/etc/lazybatch", str(etc))
                             .replace("${CREDENTIALS_DIRECTORY}", str(etc)) for word in words[1:]]
    load, num = filters(setting)
    umask = int(setting("UMask")[0], 8)
    run("mount", "-o", "remount,bind,ro", "/")

    # As many files as may be had here.
    files = min(int(setting("LimitNOFILE")[0]), resource.getrlimit(resource.RLIMIT_NOFILE)[1])

    def confine():
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        os.umask(umask)
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        no_new_privileges = 38
        ctypes.CDLL(None).prctl(no_new_privileges, 1, 0, 0, 0)
        load()

    server = subprocess.Popen(words, preexec_fn=confine, env={"PATH": "/usr/bin:/bin"})
    print(f"        {num} system calls are allowed", flush=True)
    use(server, etc / "tls.crt", 2)


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--inside":
        run("ip", "link", "set", "lo", "up")
        kind, binary = sys.argv[2], Path(sys.argv[3])
        place = Path(tempfile.mkdtemp(prefix="lazybatch-check-"))
        place.chmod(0o755)
        # What is written there lies in memory, and goes with the mounts of this process.
        run("mount", "-t", "tmpfs", "tmpfs", str(place))
        return {"image": image, "unit": unit}[kind](binary, place)
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    if os.geteuid() != 0:
        raise SystemExit("expected to be run as root: namespaces and another user need it")
    binary = Path(sys.argv[1]).resolve()
    for kind in ("image", "unit"):
        print(f"{kind}:", flush=True)
        done = subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child",
                               "--mount-proc", "--propagation", "private", sys.executable, __file__,
                               "--inside", kind, binary])
        if done.returncode:
            raise SystemExit(f"{kind}: status {done.returncode}")


if __name__ == "__main__":
    main()
