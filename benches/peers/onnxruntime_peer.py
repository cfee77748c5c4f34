"""ONNX Runtime's side of `lazybatch-measure peers`: builds the models of rows and times them.

One JSON object per line on stdin, one per line on stdout, in order:

    {"build": {"row": NAME, "threads": N, "file": PATH, "tensors": [...], sizes}}  -> {"id": I}
    {"run": I, "calls": N}                                   -> {"ns": [N numbers]}
    {"output": I, "path": PATH}   writes f32, little-endian  -> {"dims": [...]}
    {"drop": I}                                              -> {}

or {"error": TEXT}. The first line is {"peer": NAME}. `file` holds the f32 tensors of the row one
after another; `tensors` lists {"name", "dims", "offset"}, the offset in elements. Inputs are
`input.NAME`, batch first.

Everything that helps the runtime is on: all graph optimizations, constant weights that it may
pack, inputs and outputs bound once to tensors that exist, and of several forms of the same model
the one that is fastest here.
"""

import json
import sys
import time

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

OPSETS = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
TRIALS = 5


class Graph:
    """A graph under construction."""

    def __init__(self):
        self.nodes, self.weights, self.feeds, self.count = [], [], {}, 0

    def weight(self, array, dtype=np.float32):
        name = f"w{len(self.weights)}"
        array = np.ascontiguousarray(array, dtype=dtype)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def feed(self, name, array):
        self.feeds[name] = np.ascontiguousarray(array, dtype=np.float32)
        return name

    def node(self, op, inputs, outputs=1, domain="", **attributes):
        """Adds a node; returns the name of its result, or of all of them."""
        names = []
        for _ in range(outputs):
            names.append(f"v{self.count}")
            self.count += 1
        self.nodes.append(helper.make_node(op, inputs, names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def reshape(self, x, dims):
        return self.node("Reshape", [x, self.weight(np.array(dims), np.int64)])

    def dense(self, x, t, name):
        y = self.node("MatMul", [x, self.weight(t[f"{name}.weight"])])
        return self.node("Add", [y, self.weight(t[f"{name}.bias"])])

    def norm(self, x, t, name, eps):
        w = [self.weight(t[f"{name}.{part}"]) for part in ("gamma", "beta")]
        return self.node("LayerNormalization", [x, *w], axis=-1, epsilon=eps)

    def session(self, outputs, threads):
        floats = TensorProto.FLOAT
        inputs = [helper.make_tensor_value_info(n, floats, a.shape) for n, a in self.feeds.items()]
        results = [helper.make_tensor_value_info(n, floats, None) for n in outputs]
        graph = helper.make_graph(self.nodes, "row", inputs, results, self.weights)
        model = helper.make_model(graph, opset_imports=OPSETS, ir_version=10)
        return Session(model.SerializeToString(), self.feeds, outputs, threads)


class Session:
    """A model with its inputs and outputs bound."""

    def __init__(self, model, feeds, outputs, threads):
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        options.log_severity_level = 3
        self.session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.binding = self.session.io_binding()
        self.inputs = {n: ort.OrtValue.ortvalue_from_numpy(a) for n, a in feeds.items()}
        for name, value in self.inputs.items():
            self.binding.bind_ortvalue_input(name, value)
        self.results = {}
        for name, array in zip(outputs, self.session.run(outputs, feeds)):
            self.results[name] = ort.OrtValue.ortvalue_from_numpy(array)
            self.binding.bind_ortvalue_output(name, self.results[name])
        self.first = outputs[0]

    def run(self, calls):
        run, binding, clock = self.session.run_with_iobinding, self.binding, time.perf_counter_ns
        ns = []
        for _ in range(calls):
            start = clock()
            run(binding)
            ns.append(clock() - start)
        return ns

    def output(self):
        self.run(1)
        return self.results[self.first].numpy()


def fastest(sessions):
    """Of sessions that compute the same, the one with the smallest median."""
    for session in sessions:
        session.run(1)
    return min(sessions, key=lambda s: sorted(s.run(TRIALS))[TRIALS // 2])


def same(y):
    return y


def nothing(row, t):
    g = Graph()
    return g.session([g.node("Identity", [g.feed("x", np.zeros(1))])], row["threads"]), same


def gemm(row, t):
    g = Graph()
    y = g.node("MatMul", [g.feed("x", t["input.x"]), g.weight(t["weight"])])
    return g.session([y], row["threads"]), same


def gates(w, order):
    """The gates of `w [k, g * h]` (or `[g * h]`) in another order, transposed to `[g * h, k]`."""
    parts = np.split(w, len(order), axis=-1)
    return np.concatenate([parts[i] for i in order], axis=-1).T


def recurrent(op, name, order, bias, t, row, **attributes):
    """A recurrent layer over whole sequences, in one node."""
    g = Graph()
    x = g.feed("x", t["input.x"].transpose(1, 0, 2))
    w = [gates(t[f"{name}.{part}"], order)[None] for part in ("w_ih", "w_hh")]
    b = np.concatenate([gates(b, order) for b in bias])[None]
    hidden = w[1].shape[2]
    names = [x, g.weight(w[0]), g.weight(w[1]), g.weight(b)]
    y = g.node(op, names, hidden_size=hidden, **attributes)
    return g.session([y], row["threads"]), lambda y: y[:, 0].transpose(1, 0, 2)


def lstm(row, t):
    bias = t["lstm.bias"]
    return recurrent("LSTM", "lstm", [0, 3, 1, 2], [bias, np.zeros_like(bias)], t, row)


def gru(row, t):
    bias = [t["gru.b_ih"], t["gru.b_hh"]]
    return recurrent("GRU", "gru", [1, 0, 2], bias, t, row, linear_before_reset=1)


def encoder_plain(row, t):
    """An encoder layer in standard operators."""
    g = Graph()
    x = g.feed("x", t["input.x"])
    b, s, d = t["input.x"].shape
    heads, dim = row["heads"], d // row["heads"]
    split = lambda y, order: g.node("Transpose", [g.reshape(y, [b, s, heads, dim])], perm=order)
    q, k, v = (g.dense(x, t, f"attn.{part}") for part in "qkv")
    scores = g.node("MatMul", [split(q, [0, 2, 1, 3]), split(k, [0, 2, 3, 1])])
    scores = g.node("Mul", [scores, g.weight(np.array(dim**-0.5))])
    y = g.node("MatMul", [g.node("Softmax", [scores], axis=-1), split(v, [0, 2, 1, 3])])
    y = g.reshape(g.node("Transpose", [y], perm=[0, 2, 1, 3]), [b, s, d])
    x = g.norm(g.node("Add", [g.dense(y, t, "attn.o"), x]), t, "attn_norm", row["eps"])
    h = g.node("Gelu", [g.dense(x, t, "ffn.up")])
    y = g.norm(g.node("Add", [g.dense(h, t, "ffn.down"), x]), t, "ffn_norm", row["eps"])
    return g.session([y], row["threads"])


def encoder_fused(row, t):
    """An encoder layer in the runtime's own fused operators."""
    g = Graph()
    own = "com.microsoft"
    x = g.feed("x", t["input.x"])
    both = [
        np.concatenate([t[f"attn.{p}.{part}"] for p in "qkv"], axis=-1)
        for part in ("weight", "bias")
    ]
    y = g.node("Attention", [x, *map(g.weight, both)], domain=own, num_heads=row["heads"])

    def behind(y, x, name, norm):
        y = g.node("MatMul", [y, g.weight(t[f"{name}.weight"])])
        w = [g.weight(t[n]) for n in (f"{norm}.gamma", f"{norm}.beta", f"{name}.bias")]
        return g.node("SkipLayerNormalization", [y, x, *w], domain=own, epsilon=row["eps"])

    x = behind(y, x, "attn.o", "attn_norm")
    h = g.node("MatMul", [x, g.weight(t["ffn.up.weight"])])
    h = g.node("BiasGelu", [h, g.weight(t["ffn.up.bias"])], domain=own)
    return g.session([behind(h, x, "ffn.down", "ffn_norm")], row["threads"])


def encoder(row, t):
    return fastest([encoder_plain(row, t), encoder_fused(row, t)]), same


def decoder(row, t):
    """A step of a decoder layer. Past keys and values come in the layout that suits best."""
    g = Graph()
    b, s, d = t["input.cache_k"].shape
    heads, dim = row["heads"], d // row["heads"]
    past = lambda name: t[f"input.{name}"].reshape(b, s, heads, dim).transpose(0, 2, 1, 3)
    own_k, own_v, keys, values = (
        g.feed(n, past(n)) for n in ("cache_k", "cache_v", "cross_k", "cross_v")
    )
    x = g.feed("x", t["input.x"][:, 0])

    def attend(q, k, v):
        k = g.node("Transpose", [k], perm=[0, 1, 3, 2])
        scores = g.node("MatMul", [g.reshape(q, [b, heads, 1, dim]), k])
        scores = g.node("Mul", [scores, g.weight(np.array(dim**-0.5))])
        y = g.node("MatMul", [g.node("Softmax", [scores], axis=-1), v])
        return g.reshape(y, [b, d])

    def add_norm(y, x, name):
        return g.norm(g.node("Add", [y, x]), t, name, row["eps"])

    q, k, v = (g.dense(x, t, f"self.{part}") for part in "qkv")
    k, v = (g.reshape(y, [b, heads, 1, dim]) for y in (k, v))
    k = g.node("Concat", [own_k, k], axis=2)
    v = g.node("Concat", [own_v, v], axis=2)
    x = add_norm(g.dense(attend(q, k, v), t, "self.o"), x, "self_norm")
    y = attend(g.dense(x, t, "cross.q"), keys, values)
    x = add_norm(g.dense(y, t, "cross.o"), x, "cross_norm")
    h = g.node("Relu", [g.dense(x, t, "ffn.up")])
    y = add_norm(g.dense(h, t, "ffn.down"), x, "ffn_norm")
    return g.session([y], row["threads"]), same


def conv_norm(g, t, x, name, kernel, stride, pads, eps, group=1):
    w = g.weight(t[f"{name}.weight"])
    shape = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": pads, "group": group}
    y = g.node("Conv", [x, w], **shape)
    bn = [g.weight(t[f"{name}.bn.{part}"]) for part in ("gamma", "beta", "mean", "var")]
    return g.node("BatchNormalization", [y, *bn], epsilon=eps)


def resnet50(row, t):
    g = Graph()

    def conv(x, name, kernel, stride, pad, act=True, skip=None):
        y = conv_norm(g, t, x, name, kernel, stride, [pad] * 4, 1e-5)
        if skip is not None:
            y = g.node("Add", [y, skip])
        return g.node("Relu", [y]) if act else y

    x = conv(g.feed("x", t["input.image"]), "stem", 7, 2, 3)
    x = g.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            at = f"stage{stage}.{block}."
            stride = 2 if block == 0 and stage > 0 else 1
            skip = conv(x, at + "skip", 1, stride, 0, act=False) if block == 0 else x
            x = conv(x, at + "reduce", 1, 1, 0)
            x = conv(x, at + "conv", 3, stride, 1)
            x = conv(x, at + "expand", 1, 1, 0, skip=skip)
    x = g.node("Flatten", [g.node("GlobalAveragePool", [x])])
    return g.session([g.dense(x, t, "fc")], row["threads"]), same


def mobilenet_v1(row, t):
    g = Graph()

    def conv(x, name, kernel, stride, group=1):
        pads = [0] * 4 if kernel == 1 else [1] * 4 if stride == 1 else [0, 0, 1, 1]
        y = conv_norm(g, t, x, name, kernel, stride, pads, 1e-3, group)
        return g.node("Clip", [y, *(g.weight(np.array(bound)) for bound in (0, 6))])

    x = conv(g.feed("x", t["input.image"]), "stem", 3, 2)
    for i, stride in enumerate([1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1]):
        x = conv(x, f"depth{i}", 3, stride, group=t[f"depth{i}.weight"].shape[0])
        x = conv(x, f"point{i}", 1, 1)
    x = g.node("Flatten", [g.node("GlobalAveragePool", [x])])
    return g.session([g.dense(x, t, "fc")], row["threads"]), same


ROWS = {
    f.__name__.replace("_", "-"): f
    for f in (nothing, gemm, lstm, gru, encoder, decoder, resnet50, mobilenet_v1)
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


def answer(message, built):
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
