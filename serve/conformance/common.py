"""What the checks of several clients have in common."""

import http.client
import json
import time

import numpy as np

A = np.arange(32, dtype=np.float32).reshape(2, 16)
B = np.full((2, 16), 3, np.float32)


def inputs(module, named, **binary):
    """Inputs of a client's module from arrays by name."""
    from tritonclient.utils import np_to_triton_dtype

    made = []
    for name, array in named.items():
        one = module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        one.set_data_from_numpy(array, **binary)
        made.append(one)
    return made


def pair(module, a=A, b=B, **binary):
    return inputs(module, {"INPUT0": a, "INPUT1": b}, **binary)


def files_of_add():
    """The model file of `add` as a call to load brings it."""
    from repository import HERE

    return {"file:1/model.onnx": (HERE / "models" / "add.onnx").read_bytes()}


def same(got, want):
    assert got is not None, "no such output"
    assert list(got.shape) == list(want.shape), (got.shape, want.shape)
    assert np.allclose(got.astype(np.float64), want.astype(np.float64), atol=1e-4), (got, want)


def metrics(server):
    """Figures of `/metrics` by name with labels, as text."""
    connection = http.client.HTTPConnection(server.metrics, timeout=20)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert answer.status == 200, answer.status
        lines = answer.read().decode().splitlines()
    finally:
        connection.close()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def until(holds, what, seconds=20):
    """Looks again and again until it holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.002)


def trace_file(server, name):
    """Traces of a file, which may be written in a moment: head, times by name, tensors."""
    file, until = server.traces / name, time.monotonic() + 20
    traces = {}
    while True:
        try:
            members = json.loads(file.read_text())
            break
        except (FileNotFoundError, json.JSONDecodeError):
            assert time.monotonic() < until, f"no whole {name}"
            time.sleep(0.02)
    for member in members:
        trace = traces.setdefault(member["id"], {"times": {}, "tensors": []})
        if "timestamps" in member:
            trace["times"].update({t["name"]: t["ns"] for t in member["timestamps"]})
        elif "activity" in member:
            trace["tensors"].append(member)
        else:
            trace["head"] = member
    return list(traces.values())


def ordered(trace, *names):
    """Checks that a trace has these times, in that order."""
    times = [trace["times"][name] for name in names]
    assert times == sorted(times), trace["times"]


def fails(call, *, status=None, part=""):
    """Runs `call`, which has to fail so."""
    from tritonclient.utils import InferenceServerException

    try:
        call()
    except InferenceServerException as error:
        text = str(error)
        assert part in text, f"expected {part!r} in {text!r}"
        if status is not None:
            assert str(status) in str(error.status()), f"expected {status}, got {error.status()}"
        return text
    raise AssertionError("expected an error, got an answer")
