"""Single layers: each function builds a row's model from its tensors `t`, and returns the session
with what brings its output into our order."""

import numpy as np

from graph import Graph, fastest, same


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


def feed_forward_plain(row, t):
    """Two products, between them the approximation of gelu by tanh, as exporters write it out."""
    g = Graph()
    x = g.dense(g.feed("x", t["input.x"]), t, "up")
    number = lambda v: g.weight(np.array(v))
    cube = g.node("Mul", [g.node("Mul", [x, x]), x])
    inner = g.node("Add", [x, g.node("Mul", [cube, number(0.044715)])])
    tanh = g.node("Tanh", [g.node("Mul", [inner, number((2 / np.pi) ** 0.5)])])
    y = g.node("Mul", [x, g.node("Add", [tanh, number(1.0)])])
    y = g.dense(g.node("Mul", [y, number(0.5)]), t, "down")
    return g.session([y], row["threads"])


def feed_forward_fused(row, t):
    """The same with the runtime's own operator for bias and gelu."""
    g = Graph()
    x = g.node("MatMul", [g.feed("x", t["input.x"]), g.weight(t["up.weight"])])
    y = g.node("FastGelu", [x, g.weight(t["up.bias"])], domain="com.microsoft")
    return g.session([g.dense(y, t, "down")], row["threads"])


def feed_forward(row, t):
    return fastest([feed_forward_plain(row, t), feed_forward_fused(row, t)]), same
