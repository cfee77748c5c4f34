"""Writes the small models that the tests of the importer read, with seeded weights.

    python3 generate.py        # needs onnx and numpy; writes models/*.onnx beside this file

The graphs follow what exporters write: shapes computed by Shape, Gather and Concat, attention by
Reshape, Transpose and MatMul, layer normalisation and Gelu in parts.
"""

import os

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "models")
F32, I64 = TensorProto.FLOAT, TensorProto.INT64


class Graph:
    """Collects nodes and constants under fresh names."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.nodes, self.inits, self.count = [], [], 0

    def name(self, what):
        self.count += 1
        return f"{what}_{self.count}"

    def const(self, value, what="const"):
        name = self.name(what)
        self.inits.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, *dims, what="weight"):
        scale = 1.0 / np.sqrt(dims[0] if len(dims) < 3 else np.prod(dims[1:]))
        value = self.rng.uniform(-1, 1, dims) * scale
        return self.const(value.astype(np.float32), what)

    def op(self, op, *inputs, outputs=1, **attrs):
        names = [self.name(op.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=self.name(op), **attrs))
        return names[0] if outputs == 1 else names

    def rename(self, value, name):
        self.nodes.append(helper.make_node("Identity", [value], [name], name=self.name("Identity")))

    def save(self, file, inputs, outputs, opset=17):
        info = lambda n, t, d: helper.make_tensor_value_info(n, t, d)
        graph = helper.make_graph(
            self.nodes,
            file,
            [info(*i) for i in inputs],
            [info(*o) for o in outputs],
            self.inits,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
        model.ir_version = 8
        onnx.checker.check_model(model)
        path = os.path.join(HERE, f"{file}.onnx")
        onnx.save(model, path)
        print(file, os.path.getsize(path))


def mlp():
    g = Graph(1)
    x = g.op("Gemm", "x", g.weight(16, 12), g.weight(16), transB=1)
    x = g.op("Relu", x)
    x = g.op("MatMul", x, g.weight(16, 8))
    x = g.op("Add", g.weight(8), x)
    x = g.op("Elu", x, alpha=0.5)
    x = g.op("Gemm", x, g.weight(8, 4), g.weight(4), alpha=0.5, beta=2.0)
    g.rename(g.op("Softmax", x, axis=-1), "y")
    g.save("mlp", [("x", F32, ["batch", 12])], [("y", F32, ["batch", 4])])


def conv_bn(g, x, m, c, k, stride=1, groups=1, relu="Relu"):
    pad = k // 2
    x = g.op("Conv", x, g.weight(m, c // groups, k, k), kernel_shape=[k, k],
             strides=[stride] * 2, pads=[pad] * 4, group=groups)
    stats = [g.const((g.rng.uniform(0.5, 1.5, m) * s).astype(np.float32)) for s in (1, 0.1, 0.1, 1)]
    x = g.op("BatchNormalization", x, *stats, epsilon=1e-5)
    if relu == "Relu":
        return g.op("Relu", x)
    if relu == "Relu6":
        return g.op("Clip", x, g.const(np.float32(0)), g.const(np.float32(6)))
    return x


def cnn():
    g = Graph(2)
    x = conv_bn(g, "image", 8, 3, 3)
    x = g.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    y = conv_bn(g, x, 8, 8, 3, groups=8, relu="Relu6")
    y = conv_bn(g, y, 8, 8, 1, relu="")
    x = g.op("Relu", g.op("Add", y, x))
    x = g.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = g.op("GlobalAveragePool", x)
    shape = g.op("Shape", x)
    batch = g.op("Gather", shape, g.const(np.int64(0)), axis=0)
    batch = g.op("Unsqueeze", batch, g.const(np.array([0], np.int64)))
    shape = g.op("Concat", batch, g.const(np.array([-1], np.int64)), axis=0)
    x = g.op("Reshape", x, shape)
    g.rename(g.op("Gemm", x, g.weight(5, 8), g.weight(5), transB=1), "logits")
    g.save("cnn", [("image", F32, ["N", 3, 12, 12])], [("logits", F32, ["N", 5])])


def layer_norm(g, x, d):
    mean = g.op("ReduceMean", x, axes=[-1], keepdims=1)
    centred = g.op("Sub", x, mean)
    var = g.op("ReduceMean", g.op("Pow", centred, g.const(np.float32(2))), axes=[-1], keepdims=1)
    std = g.op("Sqrt", g.op("Add", var, g.const(np.float32(1e-5))))
    x = g.op("Mul", g.op("Div", centred, std), g.const(g.rng.uniform(0.5, 1.5, d).astype(np.float32)))
    return g.op("Add", x, g.weight(d))


def gelu(g, x):
    e = g.op("Erf", g.op("Div", x, g.const(np.float32(np.sqrt(2)))))
    e = g.op("Add", e, g.const(np.float32(1)))
    return g.op("Mul", g.op("Mul", x, e), g.const(np.float32(0.5)))


def dense(g, x, k, n):
    return g.op("Add", g.op("MatMul", x, g.weight(k, n)), g.weight(n))


def heads(g, x, shape, h, d, perm):
    """Splits heads by a shape that is computed from that of x."""
    parts = []
    for axis in (0, 1):
        size = g.op("Gather", shape, g.const(np.int64(axis)), axis=0)
        parts.append(g.op("Unsqueeze", size, g.const(np.array([0], np.int64))))
    to = g.op("Concat", *parts, g.const(np.array([h], np.int64)), g.const(np.array([d], np.int64)),
              axis=0)
    return g.op("Transpose", g.op("Reshape", x, to), perm=perm)


def self_attention(g, x, mask, width, h):
    d = width // h
    shape = g.op("Shape", x)
    q = heads(g, dense(g, x, width, width), shape, h, d, [0, 2, 1, 3])
    k = heads(g, dense(g, x, width, width), shape, h, d, [0, 2, 3, 1])
    v = heads(g, dense(g, x, width, width), shape, h, d, [0, 2, 1, 3])
    scores = g.op("Div", g.op("MatMul", q, k), g.const(np.float32(np.sqrt(d))))
    if mask is not None:
        scores = g.op("Add", scores, mask)
    y = g.op("MatMul", g.op("Softmax", scores, axis=-1), v)
    y = g.op("Transpose", y, perm=[0, 2, 1, 3])
    y = g.op("Reshape", y, g.const(np.array([0, 0, width], np.int64)))
    return dense(g, y, width, width)


def bert():
    """Two layers, with an attention mask, position ids cut from a buffer, and a pooler."""
    g = Graph(3)
    width, h, vocab, longest = 16, 2, 30, 40
    shape = g.op("Shape", "input_ids")
    length = g.op("Gather", shape, g.const(np.int64(1)), axis=0)
    end = g.op("Unsqueeze", length, g.const(np.array([0], np.int64)))
    buffer = g.const(np.arange(longest, dtype=np.int64)[None])
    positions = g.op("Slice", buffer, g.const(np.array([0], np.int64)), end,
                     g.const(np.array([1], np.int64)))
    x = g.op("Gather", g.weight(vocab, width), "input_ids")
    x = g.op("Add", x, g.op("Gather", g.weight(2, width), "token_type_ids"))
    x = g.op("Add", x, g.op("Gather", g.weight(longest, width), positions))
    x = layer_norm(g, x, width)
    mask = g.op("Unsqueeze", "attention_mask", g.const(np.array([1, 2], np.int64)))
    mask = g.op("Cast", mask, to=F32)
    mask = g.op("Mul", g.op("Sub", g.const(np.float32(1)), mask), g.const(np.float32(-10000)))
    for _ in range(2):
        y = self_attention(g, x, mask, width, h)
        x = layer_norm(g, g.op("Add", y, x), width)
        y = dense(g, gelu(g, dense(g, x, width, 32)), 32, width)
        x = layer_norm(g, g.op("Add", y, x), width)
    g.rename(x, "last_hidden_state")
    first = g.op("Gather", x, g.const(np.int64(0)), axis=1)
    g.rename(g.op("Tanh", g.op("Gemm", first, g.weight(width, width), g.weight(width), transB=1)),
             "pooled")
    # The mean over positions that the mask keeps, as sentence embeddings take it.
    weights = g.op("Cast", g.op("Unsqueeze", "attention_mask", g.const(np.array([2], np.int64))),
                   to=F32)
    total = g.op("ReduceSum", g.op("Mul", x, weights), g.const(np.array([1], np.int64)), keepdims=0)
    count = g.op("ReduceSum", weights, g.const(np.array([1], np.int64)), keepdims=0)
    g.rename(g.op("Div", total, count), "mean")
    ids = lambda n: (n, I64, ["batch", "sequence"])
    g.save("bert", [ids("input_ids"), ids("attention_mask"), ids("token_type_ids")],
           [("last_hidden_state", F32, ["batch", "sequence", width]), ("pooled", F32, ["batch", width]),
            ("mean", F32, ["batch", width])], opset=14)


def recurrent(g, x, op, inputs, hidden, direction="forward", outputs=2, **attrs):
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    d = 2 if direction == "bidirectional" else 1
    w, r = g.weight(d, gates * hidden, inputs), g.weight(d, gates * hidden, hidden)
    b = g.const((g.rng.uniform(-1, 1, (d, 2 * gates * hidden)) * 0.3).astype(np.float32))
    return g.op(op, x, w, r, b, outputs=outputs, hidden_size=hidden, direction=direction, **attrs)


def join(g, y, width):
    """[len, directions, batch, hidden] to [len, batch, directions * hidden]."""
    y = g.op("Transpose", y, perm=[0, 2, 1, 3])
    return g.op("Reshape", y, g.const(np.array([0, 0, width], np.int64)))


def lstm():
    """Two layers of LSTM over frames, classified by the last state."""
    g = Graph(4)
    x = g.op("Transpose", "frames", perm=[1, 0, 2])
    y, _, _ = recurrent(g, x, "LSTM", 6, 8, outputs=3)
    y = g.op("Squeeze", y, g.const(np.array([1], np.int64)))
    y, h, _ = recurrent(g, y, "LSTM", 8, 8, outputs=3)
    h = g.op("Squeeze", h, g.const(np.array([0], np.int64)))
    g.rename(g.op("Gemm", h, g.weight(3, 8), g.weight(3), transB=1), "class")
    y = g.op("Squeeze", y, g.const(np.array([1], np.int64)))
    g.rename(g.op("Transpose", y, perm=[1, 0, 2]), "states")
    g.save("lstm", [("frames", F32, ["batch", "time", 6])],
           [("class", F32, ["batch", 3]), ("states", F32, ["batch", "time", 8])])


def bilstm():
    """Two bidirectional layers, a first state that the request brings, ids looked up."""
    g = Graph(5)
    x = g.op("Gather", g.weight(20, 6), "ids")
    x = g.op("Transpose", x, perm=[1, 0, 2])
    w, r = g.weight(2, 20, 6), g.weight(2, 20, 5)
    y, h, c = g.op("LSTM", x, w, r, "", "", "h0", "c0", outputs=3, hidden_size=5,
                   direction="bidirectional")
    y = join(g, y, 10)
    y, _, _ = recurrent(g, y, "LSTM", 10, 4, "bidirectional", outputs=3)
    y = join(g, y, 8)
    tags = g.op("Transpose", dense(g, y, 8, 7), perm=[1, 0, 2])
    g.rename(tags, "tags")
    g.rename(h, "h")
    g.rename(c, "c")
    state = lambda n: (n, F32, [2, "batch", 5])
    g.save("bilstm", [("ids", I64, ["batch", "seq"]), state("h0"), state("c0")],
           [("tags", F32, ["batch", "seq", 7]), state("h"), state("c")])


def cells():
    """GRU in both forms, an RNN, backward layers, and a layer over five fixed steps."""
    g = Graph(6)
    a, ha = recurrent(g, "x", "GRU", 4, 5, linear_before_reset=1)
    b, _ = recurrent(g, "x", "GRU", 4, 5, "reverse")
    c, hc = recurrent(g, "x", "RNN", 4, 5, "bidirectional", activations=["Relu", "Relu"])
    sq = lambda v, axis: g.op("Squeeze", v, g.const(np.array([axis], np.int64)))
    both = g.op("Concat", sq(a, 1), sq(b, 1), axis=2)
    g.rename(g.op("Concat", both, join(g, c, 10), axis=2), "all")
    steps = g.op("Transpose", "fixed", perm=[1, 0, 2])
    d, hd = recurrent(g, steps, "GRU", 3, 5, "bidirectional")
    g.rename(g.op("Transpose", join(g, d, 10), perm=[1, 0, 2]), "steps")
    last = g.op("Add", sq(ha, 0), g.op("ReduceSum", g.op("Concat", hc, hd, axis=0),
                                     g.const(np.array([0], np.int64)), keepdims=0))
    g.rename(last, "last")
    g.save("cells", [("x", F32, ["len", "batch", 4]), ("fixed", F32, ["batch", 5, 3])],
           [("all", F32, ["len", "batch", 20]), ("steps", F32, ["batch", 5, 10]),
            ("last", F32, ["batch", 5])])


def causal():
    """A decoder-like block: causal mask by Trilu, positions added as a table, Where."""
    g = Graph(7)
    width, h = 8, 2
    x = g.op("MatMul", "x", g.weight(4, width))
    shape = g.op("Shape", "x")
    length = g.op("Gather", shape, g.const(np.int64(1)), axis=0)
    one = g.op("Unsqueeze", length, g.const(np.array([0], np.int64)))
    square = g.op("Concat", one, one, axis=0)
    ones = g.op("Expand", g.const(np.float32(-1e9)), square)
    mask = g.op("Trilu", ones, g.const(np.int64(1)), upper=1)
    positions = g.op("Range", g.const(np.int64(0)), length, g.const(np.int64(1)))
    table = g.op("Gather", g.weight(64, width), positions)
    x = g.op("Add", x, table)
    x = g.op("Add", self_attention(g, x, mask, width, h), x)
    x = g.op("Mul", x, g.op("Sigmoid", x))
    g.rename(x, "y")
    g.save("causal", [("x", F32, ["batch", "seq", 4])], [("y", F32, ["batch", "seq", width])],
           opset=14)


def odd():
    """Ops without a node of their own: over rows, over positions, of integers; a branch."""
    g = Graph(8)
    x = g.op("Transpose", "x", perm=[0, 2, 1])
    x = g.op("Conv", x, g.weight(6, 4, 3), kernel_shape=[3], pads=[1, 1])
    x = g.op("LeakyRelu", x, alpha=0.1)
    top = g.op("ReduceMax", x, axes=[2], keepdims=0)
    x = g.op("Transpose", x, perm=[0, 2, 1])
    sums = g.op("CumSum", x, g.const(np.int64(1)))
    last = g.op("Gather", sums, g.const(np.int64(-1)), axis=1)
    norm = g.op("LpNormalization", last, axis=1)
    branch = lambda v: helper.make_graph(
        [helper.make_node("Identity", [v], [v + "_b"], name="pass")], "b", [],
        [helper.make_tensor_value_info(v + "_b", F32, None)])
    rank = g.op("Shape", g.op("Shape", "x"))
    three = g.op("Squeeze", g.op("Equal", rank, g.const(np.array([3], np.int64))))
    g.nodes.append(helper.make_node("If", [three], ["picked"], name="pick",
                                    then_branch=branch(norm), else_branch=branch(top)))
    # A branch by a constant, with a branch by a rank in it that reads what the outer one computes.
    inner = lambda op, v, to: helper.make_graph(
        [helper.make_node(op, [v], [to], name=op)], "inner", [],
        [helper.make_tensor_value_info(to, F32, None)])
    body = [
        helper.make_node("Abs", ["picked"], ["size"], name="Abs"),
        helper.make_node("Shape", ["size"], ["size_shape"], name="Shape"),
        helper.make_node("Size", ["size_shape"], ["size_rank"], name="Size"),
        helper.make_node("Equal", ["size_rank", g.const(np.int64(2))], ["is_flat"], name="Equal"),
        helper.make_node("If", ["is_flat"], ["inner_result"], name="inner",
                         then_branch=inner("Sqrt", "size", "root"),
                         else_branch=inner("Exp", "size", "power")),
    ]
    then = helper.make_graph(body, "outer", [],
                             [helper.make_tensor_value_info("inner_result", F32, None)])
    g.nodes.append(helper.make_node("If", [g.const(np.array(True))], ["rooted"], name="outer",
                                    then_branch=then, else_branch=branch(top)))
    g.rename(g.op("Concat", "rooted", top, axis=1), "summary")
    _, best = g.op("TopK", sums, g.const(np.array([2], np.int64)), axis=2, outputs=2)
    g.rename(best, "best")
    g.save("odd", [("x", F32, ["batch", "time", 4])],
           [("summary", F32, ["batch", 12]), ("best", I64, ["batch", "time", 2])])


def speller():
    """A GRU encoder and the step of a GRU decoder with dot-product attention over its states."""
    g = Graph(9)
    x = g.op("Gather", g.weight(12, 6), "letters")
    x = g.op("Transpose", x, perm=[1, 0, 2])
    y, h = recurrent(g, x, "GRU", 6, 8, linear_before_reset=1)
    y = g.op("Squeeze", y, g.const(np.array([1], np.int64)))
    g.rename(g.op("Transpose", y, perm=[1, 0, 2]), "memory")
    g.rename(h, "state")
    g.save("speller-encoder", [("letters", I64, ["batch", "seq"])],
           [("memory", F32, ["batch", "seq", 8]), ("state", F32, [1, "batch", 8])])
    g = Graph(10)
    x = g.op("Gather", g.weight(9, 6), "token")
    x = g.op("Transpose", x, perm=[1, 0, 2])
    w, r = g.weight(1, 24, 6), g.weight(1, 24, 8)
    _, h = g.op("GRU", x, w, r, "", "", "h", outputs=2, hidden_size=8, linear_before_reset=1)
    q = g.op("Transpose", h, perm=[1, 0, 2])
    keys = g.op("MatMul", "memory", g.weight(8, 8))
    scores = g.op("MatMul", q, g.op("Transpose", keys, perm=[0, 2, 1]))
    context = g.op("MatMul", g.op("Softmax", scores, axis=-1), "memory")
    both = g.op("Tanh", g.op("Concat", context, q, axis=2))
    logits = g.op("MatMul", both, g.weight(16, 9))
    g.rename(g.op("Squeeze", logits, g.const(np.array([1], np.int64))), "logits")
    g.rename(h, "next_h")
    g.save("speller-step", [("token", I64, ["batch", 1]), ("h", F32, [1, "batch", 8]),
                            ("memory", F32, ["batch", "seq", 8])],
           [("logits", F32, ["batch", 9]), ("next_h", F32, [1, "batch", 8])])


def reader():
    """A transformer encoder layer, and the step of a decoder layer with caches of keys and values,
    positions by the length of the cache, and cross-attention."""
    g, width, h = Graph(11), 16, 2
    x = g.op("Gather", g.weight(12, width), "source")
    x = layer_norm(g, g.op("Add", self_attention(g, x, None, width, h), x), width)
    g.rename(x, "memory")
    g.save("reader-encoder", [("source", I64, ["batch", "source_length"])],
           [("memory", F32, ["batch", "source_length", width])], opset=14)
    g, d = Graph(12), width // h
    length = g.op("Gather", g.op("Shape", "past_keys"), g.const(np.int64(2)), axis=0)
    at = g.op("Unsqueeze", length, g.const(np.array([0], np.int64)))
    x = g.op("Gather", g.weight(9, width), "token")
    x = g.op("Add", x, g.op("Gather", g.weight(20, width), at))
    split = lambda v, n: g.op("Transpose", g.op("Reshape", v, g.const(
        np.array([0, n, h, d], np.int64))), perm=[0, 2, 1, 3])

    def attend(q, keys, values):
        keys = g.op("Transpose", keys, perm=[0, 1, 3, 2])
        scores = g.op("Mul", g.op("MatMul", q, keys), g.const(np.float32(d ** -0.5)))
        y = g.op("MatMul", g.op("Softmax", scores, axis=-1), values)
        y = g.op("Reshape", g.op("Transpose", y, perm=[0, 2, 1, 3]),
                 g.const(np.array([0, 0, width], np.int64)))
        return dense(g, y, width, width)

    q, k, v = (split(dense(g, x, width, width), 1) for _ in range(3))
    keys = g.op("Concat", "past_keys", k, axis=2)
    values = g.op("Concat", "past_values", v, axis=2)
    x = layer_norm(g, g.op("Add", attend(q, keys, values), x), width)
    q = split(dense(g, x, width, width), 1)
    k, v = (split(dense(g, "memory", width, width), -1) for _ in range(2))
    x = layer_norm(g, g.op("Add", attend(q, k, v), x), width)
    g.rename(g.op("MatMul", x, g.weight(width, 9)), "logits")
    g.rename(keys, "keys")
    g.rename(values, "values")
    cache = lambda n, t: (n, F32, ["batch", h, t, d])
    g.save("reader-step", [("token", I64, ["batch", 1]), cache("past_keys", "past_length"),
                           cache("past_values", "past_length"),
                           ("memory", F32, ["batch", "source_length", width])],
           [("logits", F32, ["batch", 1, 9]), cache("keys", "total"), cache("values", "total")],
           opset=14)


def loop():
    """Three passes of a loop with a carried value, and all of its values stacked."""
    g = Graph(13)
    w = g.weight(5, 5)
    body = helper.make_graph(
        [helper.make_node("MatMul", ["carried", w], ["product"], name="product"),
         helper.make_node("Cast", ["pass"], ["number"], name="number", to=F32),
         helper.make_node("Add", ["product", "number"], ["moved"], name="moved"),
         helper.make_node("Tanh", ["moved"], ["next"], name="next"),
         helper.make_node("Identity", ["next"], ["seen"], name="seen"),
         helper.make_node("Identity", ["go"], ["still"], name="still")],
        "body",
        [helper.make_tensor_value_info("pass", I64, []),
         helper.make_tensor_value_info("go", TensorProto.BOOL, []),
         helper.make_tensor_value_info("carried", F32, None)],
        [helper.make_tensor_value_info("still", TensorProto.BOOL, []),
         helper.make_tensor_value_info("next", F32, None),
         helper.make_tensor_value_info("seen", F32, None)])
    g.nodes.append(helper.make_node("Loop", [g.const(np.int64(3)), "", "x"], ["last", "all"],
                                    name="passes", body=body))
    g.rename(g.op("Relu", "last"), "y")
    g.rename(g.op("Transpose", "all", perm=[1, 0, 2]), "steps")
    g.save("loop", [("x", F32, ["batch", 5])],
           [("y", F32, ["batch", 5]), ("steps", F32, ["batch", 3, 5])])


def scan():
    """Four passes of a scan over an axis of fixed size, backward, with a carried value and all of
    its values put together along the last axis."""
    g = Graph(14)
    w = g.weight(3, 3)
    body = helper.make_graph(
        [helper.make_node("MatMul", ["carried", w], ["product"], name="product"),
         helper.make_node("Add", ["product", "row"], ["moved"], name="moved"),
         helper.make_node("Tanh", ["moved"], ["next"], name="next"),
         helper.make_node("Identity", ["next"], ["seen"], name="seen")],
        "body",
        [helper.make_tensor_value_info("carried", F32, None),
         helper.make_tensor_value_info("row", F32, None)],
        [helper.make_tensor_value_info("next", F32, None),
         helper.make_tensor_value_info("seen", F32, None)])
    start = g.op("Mul", g.op("ReduceMean", "x", axes=[1], keepdims=0), g.const(np.float32(0.5)))
    g.nodes.append(helper.make_node("Scan", [start, "x"], ["last", "all"], name="passes", body=body,
                                    num_scan_inputs=1, scan_input_axes=[1],
                                    scan_input_directions=[1], scan_output_axes=[-1]))
    g.rename(g.op("Relu", "last"), "y")
    g.rename("all", "steps")
    g.save("scan", [("x", F32, ["batch", 4, 3])],
           [("y", F32, ["batch", 3]), ("steps", F32, ["batch", 3, 4])])


if __name__ == "__main__":
    os.makedirs(HERE, exist_ok=True)
    for make in (mlp, cnn, bert, lstm, bilstm, cells, causal, odd, speller, reader,
                 loop, scan):
        make()
