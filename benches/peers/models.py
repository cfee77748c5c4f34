"""Whole models: each function builds a row's model from its tensors `t`, and returns the session
with what brings its output into our order."""

from pathlib import Path

import numpy as np

from graph import Graph, Session, fastest, same

OWN = "com.microsoft"
# Expansion, channels, repeats and first stride of MobileNetV2's blocks.
BLOCKS = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
          (6, 160, 3, 2), (6, 320, 1, 1)]


def conv_norm(g, t, x, name, norm, kernel, stride, pads, eps, group=1):
    """A convolution and the batch norm whose four tensors are `norm`."""
    w = g.weight(t[f"{name}.weight"])
    shape = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": pads, "group": group}
    y = g.node("Conv", [x, w], **shape)
    return g.node("BatchNormalization", [y, *(g.weight(t[n]) for n in norm)], epsilon=eps)


def zoo_norm(name):
    return [f"{name}.bn.{part}" for part in ("gamma", "beta", "mean", "var")]


def relu6(g, x):
    return g.node("Clip", [x, *(g.weight(np.array(bound)) for bound in (0, 6))])


def resnet50(row, t):
    g = Graph()

    def conv(x, name, kernel, stride, pad, act=True, skip=None):
        y = conv_norm(g, t, x, name, zoo_norm(name), kernel, stride, [pad] * 4, 1e-5)
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
        return relu6(g, conv_norm(g, t, x, name, zoo_norm(name), kernel, stride, pads, 1e-3, group))

    x = conv(g.feed("x", t["input.image"]), "stem", 3, 2)
    for i, stride in enumerate([1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1]):
        x = conv(x, f"depth{i}", 3, stride, group=t[f"depth{i}.weight"].shape[0])
        x = conv(x, f"point{i}", 1, 1)
    x = g.node("Flatten", [g.node("GlobalAveragePool", [x])])
    return g.session([g.dense(x, t, "fc")], row["threads"]), same


def mobilenet_v2(row, t):
    """Names and paddings of torchvision's."""
    g = Graph()

    def conv(x, name, norm, stride=1, group=1, act=True):
        kernel = t[f"{name}.weight"].shape[-1]
        parts = [f"{norm}.{part}" for part in ("weight", "bias", "running_mean", "running_var")]
        y = conv_norm(g, t, x, name, parts, kernel, stride, [kernel // 2] * 4, 1e-5, group)
        return relu6(g, y) if act else y

    x, before, at = conv(g.feed("x", t["input.image"]), "features.0.0", "features.0.1", 2), 32, 1
    for expand, channels, repeats, first in BLOCKS:
        for i in range(repeats):
            name, stride, wide = f"features.{at}.conv", first if i == 0 else 1, before * expand
            y, part = x, 0
            if expand > 1:
                y, part = conv(y, f"{name}.0.0", f"{name}.0.1"), 1
            y = conv(y, f"{name}.{part}.0", f"{name}.{part}.1", stride, wide)
            y = conv(y, f"{name}.{part + 1}", f"{name}.{part + 2}", act=False)
            x = g.node("Add", [y, x]) if stride == 1 and before == channels else y
            before, at = channels, at + 1
    x = conv(x, f"features.{at}.0", f"features.{at}.1")
    x = g.node("Flatten", [g.node("GlobalAveragePool", [x])])
    return g.session([g.dense(x, t, "classifier.1")], row["threads"]), same


def embedded(g, t, row, mask):
    """Ids to rows: three tables and a norm, in the runtime's own operator where `mask` is a name,
    which it then counts to lengths."""
    ids = t["input.ids"]
    kinds = t.get("input.types", np.zeros_like(ids))
    tables = [t[name] for name in ("tokens.table", "positions", "segments.table")]
    # A single row stands for all ids.
    tables[2] = np.atleast_2d(tables[2])
    norm = [g.weight(t[f"embed.norm.{part}"]) for part in ("gamma", "beta")]
    if mask is not None:
        feeds = [g.feed("ids", ids, np.int32), g.feed("types", kinds, np.int32)]
        names = [*feeds, *map(g.weight, tables), *norm, mask]
        return g.node(
            "EmbedLayerNormalization", names, outputs=2, domain=OWN, epsilon=row["eps"]
        )
    words, places, kind = map(g.weight, (tables[0], tables[1][: ids.shape[1]], tables[2]))
    x = g.node("Gather", [words, g.feed("ids", ids, np.int64)])
    x = g.node("Add", [x, g.node("Gather", [kind, g.feed("types", kinds, np.int64)])])
    x = g.node("Add", [x, places])
    return g.node("LayerNormalization", [x, *norm], axis=-1, epsilon=row["eps"]), None


def bert_plain(row, t, mask):
    """A BERT in standard operators. `mask [b, s]` is 1 where there is a token, or nothing."""
    g = Graph()
    b, s = t["input.ids"].shape
    d = t["tokens.table"].shape[1]
    heads, dim = row["heads"], d // row["heads"]
    split = lambda y, order: g.node("Transpose", [g.reshape(y, [b, s, heads, dim])], perm=order)
    x, _ = embedded(g, t, row, None)
    hidden = None
    if mask is not None:
        rows = g.feed("mask", mask)
        none = g.node("Sub", [g.reshape(rows, [b, 1, 1, s]), g.weight(np.array(1))])
        hidden = g.node("Mul", [none, g.weight(np.array(1e4))])
    for i in range(row["layers"]):
        at = f"layer{i}."
        q, k, v = (g.dense(x, t, f"{at}attn.{part}") for part in "qkv")
        scores = g.node("MatMul", [split(q, [0, 2, 1, 3]), split(k, [0, 2, 3, 1])])
        scores = g.node("Mul", [scores, g.weight(np.array(dim**-0.5))])
        if hidden is not None:
            scores = g.node("Add", [scores, hidden])
        y = g.node("MatMul", [g.node("Softmax", [scores], axis=-1), split(v, [0, 2, 1, 3])])
        y = g.reshape(g.node("Transpose", [y], perm=[0, 2, 1, 3]), [b, s, d])
        y = g.node("Add", [g.dense(y, t, f"{at}attn.o"), x])
        x = g.norm(y, t, f"{at}attn.norm", row["eps"])
        y = g.dense(g.node("Gelu", [g.dense(x, t, f"{at}ffn.up")]), t, f"{at}ffn.down")
        x = g.norm(g.node("Add", [y, x]), t, f"{at}ffn.norm", row["eps"])
    return g, x


def bert_fused(row, t, mask):
    """The same in the runtime's own operators, as its converter of transformers writes them."""
    g = Graph()
    ones = np.ones(t["input.ids"].shape) if mask is None else mask
    x, lens = embedded(g, t, row, g.feed("tokens", ones, np.int32))

    def behind(y, x, name, norm):
        y = g.node("MatMul", [y, g.weight(t[f"{name}.weight"])])
        w = [g.weight(t[n]) for n in (f"{norm}.gamma", f"{norm}.beta", f"{name}.bias")]
        return g.node("SkipLayerNormalization", [y, x, *w], domain=OWN, epsilon=row["eps"])

    for i in range(row["layers"]):
        at = f"layer{i}."
        qkv = [
            np.concatenate([t[f"{at}attn.{p}.{part}"] for p in "qkv"], axis=-1)
            for part in ("weight", "bias")
        ]
        seen = [] if mask is None else [lens]
        y = [x, *map(g.weight, qkv), *seen]
        y = g.node("Attention", y, domain=OWN, num_heads=row["heads"])
        x = behind(y, x, f"{at}attn.o", f"{at}attn.norm")
        h = g.node("MatMul", [x, g.weight(t[f"{at}ffn.up.weight"])])
        h = g.node("BiasGelu", [h, g.weight(t[f"{at}ffn.up.bias"])], domain=OWN)
        x = behind(h, x, f"{at}ffn.down", f"{at}ffn.norm")
    if mask is not None:
        g.feed("mask", mask)
    return g, x


def pooled(row, t, build, mask):
    """BERT's tanh layer on the first row, or the mean of the rows at length 1 where the model has
    no such layer."""
    g, x = build(row, t, mask)
    if "pooler.weight" in t:
        first = g.node("Gather", [x, g.weight(np.array([0]), np.int64)], axis=1)
        first = g.node("Flatten", [first])
        return g.session([g.node("Tanh", [g.dense(first, t, "pooler")])], row["threads"])
    axis = g.weight(np.array([1]), np.int64)
    if mask is None:
        y = g.node("ReduceMean", [x, axis], keepdims=0)
    else:
        x = g.node("Mul", [x, g.reshape("mask", [*mask.shape, 1])])
        y = g.node("ReduceSum", [x, axis], keepdims=0)
        y = g.node("Div", [y, g.weight(mask.sum(1, keepdims=True))])
    return g.session([g.node("LpNormalization", [y], axis=-1, p=2)], row["threads"])


def bert(row, t, mask=None):
    return fastest([pooled(row, t, build, mask) for build in (bert_plain, bert_fused)]), same


def mixed(row, t):
    """Sentences padded to the longest of them."""
    places = np.arange(t["input.ids"].shape[1])
    return bert(row, t, (places < t["input.len"][:, None]).astype(np.float32))


def silero_vad(row, t):
    """The published file. Our states are a request's, its are a batch's."""
    feeds = {
        "input": t["input.input"],
        "state": np.ascontiguousarray(t["input.state"].transpose(1, 0, 2)),
        "sr": np.array(16000, dtype=np.int64),
    }
    model = Path(row["onnx"]).read_bytes()
    return Session(model, feeds, ["output", "stateN"], row["threads"]), same
