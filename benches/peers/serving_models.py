"""Writes the models that `lazybatch-measure serve-peers` serves, and repositories of them.

    python3 serving_models.py FOLDER [--hidden N] [--width N]

FOLDER/lazybatch is for `lazybatch serve`. FOLDER/triton-0 and FOLDER/triton-2000 are for Triton with
its dynamic batcher at these delays in microseconds, FOLDER/triton-iterative with iterative sequences,
for the models that have steps. All hold the same ONNX files, whose weights are seeded.

lstm     [batch, len, 16] through an LSTM, four scores a step
decoder  [batch, len, 16] through a GRU, then steps of a GRU that looks at all of its states, until
         the stop token or 24 of them; what it looks by is computed behind the encoder, once
encoder  [batch, len, width] through two layers of self-attention and feed-forward
"""

import argparse
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F32, I64 = TensorProto.FLOAT, TensorProto.INT64
FEATURES, TOKENS, STEPS, HEADS = 16, 32, 24, 4
MODEL = Path(__file__).resolve().parent / "triton_model.py"

MANIFEST = f"""name = "decoder"

[encoder]
file = "encoder.onnx"

[decoder]
file = "step.onnx"
token = "token"
start = 1
stop = 2
max_steps = {STEPS}
choose = "logits"
feed = {{ h = "next_h" }}
first = {{ h = "state" }}
read = {{ memory = "memory", keys = "keys" }}
"""

CONFIG = """backend: "python"
max_batch_size: 16
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ -1, {features} ] }} ]
output [ {{ name: "{output}" data_type: {kind} dims: {dims} }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
{scheduler}
parameters {{ key: "mode" value {{ string_value: "{mode}" }} }}
"""
OUTPUTS = {"lstm": ("y", "TYPE_FP32", "[ -1, 4 ]"), "decoder": ("tokens", "TYPE_INT64", "[ -1 ]"),
           "encoder": ("y", "TYPE_FP32", "[ -1, {width} ]")}


class Graph:
    """Nodes and constants under fresh names, weights drawn from a seed."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.nodes, self.constants = [], []

    def const(self, value):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, *dims):
        fan_in = dims[-1] if len(dims) == 3 else dims[0]
        value = self.rng.uniform(-1, 1, dims) / np.sqrt(fan_in)
        return self.const(value.astype(np.float32))

    def op(self, op, *inputs, outputs=1, to=None, **attrs):
        names = to or [f"n{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attrs))
        return names[0] if len(names) == 1 else names

    def save(self, path, inputs, outputs):
        info = helper.make_tensor_value_info
        graph = helper.make_graph(self.nodes, path.stem, [info(*i) for i in inputs],
                                  [info(*o) for o in outputs], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 8
        onnx.checker.check_model(model)
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, path)


def lstm(folder, hidden):
    """The whole, and one step with its state as inputs and outputs, of the same weights."""
    dims = [(1, 4 * hidden, FEATURES), (1, 4 * hidden, hidden), (1, 8 * hidden), (hidden, 4)]
    for name, is_step in (("model", False), ("step", True)):
        g = Graph(1)
        w, r, b, fc = (g.weight(*d) for d in dims)
        axis = g.const(np.array([1], np.int64))
        x = "x" if is_step else g.op("Transpose", "x", perm=[1, 0, 2])
        if is_step:
            x = g.op("Transpose", x, perm=[1, 0, 2])
            state = ["", "h", "c"]
        else:
            state = []
        y, h, c = g.op("LSTM", x, w, r, b, *state, outputs=3, hidden_size=hidden)
        y = g.op("Transpose", g.op("Squeeze", y, axis), perm=[1, 0, 2])
        g.op("MatMul", y, fc, to=["y"])
        inputs = [("x", F32, ["batch", "len", FEATURES])]
        outputs = [("y", F32, ["batch", "len", 4])]
        if is_step:
            g.op("Identity", h, to=["next_h"])
            g.op("Identity", c, to=["next_c"])
            kept = [1, "batch", hidden]
            inputs += [("h", F32, kept), ("c", F32, kept)]
            outputs += [("next_h", F32, kept), ("next_c", F32, kept)]
        g.save(folder / f"{name}.onnx", inputs, outputs)


def decoder(folder, hidden):
    g = Graph(2)
    x = g.op("Transpose", "x", perm=[1, 0, 2])
    w, r = g.weight(1, 3 * hidden, FEATURES), g.weight(1, 3 * hidden, hidden)
    y, h = g.op("GRU", x, w, r, outputs=2, hidden_size=hidden, linear_before_reset=1)
    y = g.op("Squeeze", y, g.const(np.array([1], np.int64)))
    g.op("Transpose", y, perm=[1, 0, 2], to=["memory"])
    g.op("MatMul", "memory", g.weight(hidden, hidden), to=["keys"])
    g.op("Identity", h, to=["state"])
    seen = [(name, F32, ["batch", "len", hidden]) for name in ("memory", "keys")]
    g.save(folder / "encoder.onnx", [("x", F32, ["batch", "len", FEATURES])],
           [*seen, ("state", F32, [1, "batch", hidden])])
    g = Graph(3)
    x = g.op("Transpose", g.op("Gather", g.weight(TOKENS, hidden), "token"), perm=[1, 0, 2])
    w, r = g.weight(1, 3 * hidden, hidden), g.weight(1, 3 * hidden, hidden)
    _, h = g.op("GRU", x, w, r, "", "", "h", outputs=2, hidden_size=hidden, linear_before_reset=1)
    q = g.op("Transpose", h, perm=[1, 0, 2])
    scores = g.op("MatMul", q, g.op("Transpose", "keys", perm=[0, 2, 1]))
    context = g.op("MatMul", g.op("Softmax", scores, axis=-1), "memory")
    both = g.op("Tanh", g.op("Concat", context, q, axis=2))
    logits = g.op("MatMul", both, g.weight(2 * hidden, TOKENS))
    g.op("Squeeze", logits, g.const(np.array([1], np.int64)), to=["logits"])
    g.op("Identity", h, to=["next_h"])
    g.save(folder / "step.onnx",
           [("token", I64, ["batch", 1]), ("h", F32, [1, "batch", hidden]), *seen],
           [("logits", F32, ["batch", TOKENS]), ("next_h", F32, [1, "batch", hidden])])


def encoder(folder, width):
    g, d = Graph(4), width // HEADS
    split = g.const(np.array([0, 0, HEADS, d], np.int64))
    whole = g.const(np.array([0, 0, width], np.int64))
    dense = lambda x, k, n: g.op("Add", g.op("MatMul", x, g.weight(k, n)), g.weight(n))
    norm = lambda x: g.op("LayerNormalization", x, g.const(np.ones(width, np.float32)),
                          g.const(np.zeros(width, np.float32)), axis=-1, epsilon=1e-5)
    x = "x"
    for _ in range(2):
        q, k, v = (g.op("Transpose", g.op("Reshape", dense(x, width, width), split), perm=perm)
                   for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        scores = g.op("Mul", g.op("MatMul", q, k), g.const(np.float32(d ** -0.5)))
        y = g.op("MatMul", g.op("Softmax", scores, axis=-1), v)
        y = g.op("Reshape", g.op("Transpose", y, perm=[0, 2, 1, 3]), whole)
        x = norm(g.op("Add", dense(y, width, width), x))
        y = dense(g.op("Relu", dense(x, width, 4 * width)), 4 * width, width)
        x = norm(g.op("Add", y, x))
    g.op("Identity", x, to=["y"])
    g.save(folder / "model.onnx", [("x", F32, ["batch", "len", width])],
           [("y", F32, ["batch", "len", width])])


def repositories(root, files, width):
    """The files of every model, in a repository for each way of serving."""
    for model in OUTPUTS:
        own = root / "lazybatch" / model
        shutil.copytree(files / model, own / "1")
        (own / "config.pbtxt").write_text("max_batch_size: 16\n")
        if model == "decoder":
            (own / "1" / "model.toml").write_text(MANIFEST)
    schedulers = {f"triton-{us}": f"dynamic_batching {{ max_queue_delay_microseconds: {us} }}"
                  for us in (0, 2000)}
    schedulers["triton-iterative"] = (
        "sequence_batching { iterative_sequence: true max_sequence_idle_microseconds: 60000000 "
        "oldest { max_candidate_sequences: 64 } }")
    for folder, scheduler in schedulers.items():
        for model, (output, kind, dims) in OUTPUTS.items():
            if folder == "triton-iterative" and model == "encoder":
                continue
            place = root / folder / model
            shutil.copytree(files / model, place / "1")
            shutil.copy(MODEL, place / "1" / "model.py")
            mode = f"{model}-steps" if folder == "triton-iterative" else model
            (place / "config.pbtxt").write_text(f'name: "{model}"\n' + CONFIG.format(
                features=width if model == "encoder" else FEATURES, output=output, kind=kind,
                dims=dims.format(width=width), scheduler=scheduler, mode=mode))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--width", type=int, default=256)
    args = parser.parse_args()
    files = args.folder / "files"
    lstm(files / "lstm", args.hidden)
    decoder(files / "decoder", args.hidden)
    encoder(files / "encoder", args.width)
    repositories(args.folder, files, args.width)


if __name__ == "__main__":
    main()
