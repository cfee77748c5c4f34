"""ONNX Runtime's side of `lazybatch-measure peers`: builds the models of rows and times them.

One JSON object per line on stdin, one per line on stdout, in order:

    {"build": {"row": NAME, "threads": N, "file": PATH, "tensors": [...], sizes}}  -> {"id": I}
    {"run": I, "calls": N}                                   -> {"ns": [N numbers]}
    {"output": I, "path": PATH}   writes f32, little-endian  -> {"dims": [...]}
    {"drop": I}                                              -> {}
    {"rest": true}   returns once the runtime's threads sleep  -> {}

or {"error": TEXT}. The first line is {"peer": NAME}. `file` holds the f32 tensors of the row one
after another; `tensors` lists {"name", "dims", "offset"}, the offset in elements. Inputs are
`input.NAME`, batch first. Rows of a published ONNX file have its path as `onnx`.
"""

import json
import sys
import time

import numpy as np
import onnxruntime as ort

import layers
import models

ROWS = {
    "nothing": layers.nothing,
    "gemm": layers.gemm,
    "lstm": layers.lstm,
    "gru": layers.gru,
    "encoder": layers.encoder,
    "decoder": layers.decoder,
    "feed-forward": layers.feed_forward,
    "resnet50": models.resnet50,
    "mobilenet-v1": models.mobilenet_v1,
    "mobilenet-v2": models.mobilenet_v2,
    "bert-base": models.bert,
    "minilm": models.bert,
    "mixed": models.mixed,
    "silero-vad": models.silero_vad,
}


def tensors(row):
    """Tensors by name, read from the row's file."""
    if not row["tensors"]:
        return {}
    data = np.fromfile(row["file"], dtype="<f4")
    found = {}
    for tensor in row["tensors"]:
        num = int(np.prod(tensor["dims"]))
        part = data[tensor["offset"] : tensor["offset"] + num]
        found[tensor["name"]] = part.reshape(tensor["dims"])
    return found


def rest():
    """Threads of the runtime's pool go on looking for work for tens of milliseconds behind a call; at
    most a second is waited for that to end."""
    for _ in range(50):
        before = time.process_time()
        time.sleep(0.02)
        if time.process_time() - before < 0.001:
            break


def answer(message, built):
    if "rest" in message:
        rest()
        return {}
    if "build" in message:
        row = message["build"]
        built.append(ROWS[row["row"]](row, tensors(row)))
        return {"id": len(built) - 1}
    if "run" in message:
        return {"ns": built[message["run"]][0].run(message["calls"])}
    if "output" in message:
        session, order = built[message["output"]]
        y = np.ascontiguousarray(order(session.output()), dtype="<f4")
        y.tofile(message["path"])
        return {"dims": list(y.shape)}
    built[message["drop"]] = None
    return {}


def main():
    built = []
    print(json.dumps({"peer": f"onnxruntime {ort.__version__}"}), flush=True)
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line), built)
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
