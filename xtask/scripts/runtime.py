"""Answers of ONNX Runtime, beside those of the references that the scripts write themselves.

The models are built here as ONNX graphs of standard operators, f32, on the packages' own weights;
silero-vad comes as such a file. Needs numpy, onnx and onnxruntime.
"""

import json

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

THREADS = 2


def session(model):
    """A session on the file or the bytes of a model."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class Graph:
    """A graph under construction."""

    def __init__(self):
        self.nodes, self.weights = [], []

    def weight(self, array, dtype=np.float32):
        name = f"w{len(self.weights)}"
        array = np.ascontiguousarray(array, dtype=dtype)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op, *inputs, **attributes):
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def session(self, inputs, output):
        """`inputs` by name: element type and dimensions."""
        infos = [helper.make_tensor_value_info(n, *info) for n, info in inputs.items()]
        result = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "model", infos, [result], self.weights)
        opset = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=8)
        return session(model.SerializeToString())


def bert(w, layers, heads, eps):
    """A BERT encoder with the mean of its rows at length 1; inputs are ids and places [1, len]."""
    g = Graph()

    def linear(x, name):
        y = g.node("MatMul", x, g.weight(w[name + ".weight"].T))
        return g.node("Add", y, g.weight(w[name + ".bias"]))

    def norm(x, name):
        parts = [g.weight(w[f"{name}.{part}"]) for part in ("weight", "bias")]
        return g.node("LayerNormalization", x, *parts, axis=-1, epsilon=eps)

    def split(x, name, perm):
        shape = g.weight(np.array([0, 0, heads, dim]), np.int64)
        return g.node("Transpose", g.node("Reshape", linear(x, name), shape), perm=perm)

    table = lambda name: g.weight(w[f"embeddings.{name}_embeddings.weight"])
    width = w["embeddings.word_embeddings.weight"].shape[1]
    dim = width // heads
    x = g.node("Gather", table("word"), "ids")
    x = g.node("Add", x, g.weight(w["embeddings.token_type_embeddings.weight"][0]))
    x = g.node("Add", x, g.node("Gather", table("position"), "places"))
    x = norm(x, "embeddings.LayerNorm")
    for i in range(layers):
        at = f"encoder.layer.{i}"
        q, v = (split(x, f"{at}.attention.self.{part}", [0, 2, 1, 3]) for part in ("query", "value"))
        k = split(x, f"{at}.attention.self.key", [0, 2, 3, 1])
        scores = g.node("Mul", g.node("MatMul", q, k), g.weight(np.array(dim**-0.5)))
        y = g.node("MatMul", g.node("Softmax", scores, axis=-1), v)
        y = g.node("Transpose", y, perm=[0, 2, 1, 3])
        y = g.node("Reshape", y, g.weight(np.array([0, 0, width]), np.int64))
        x = norm(g.node("Add", x, linear(y, f"{at}.attention.output.dense")),
                 f"{at}.attention.output.LayerNorm")
        y = linear(x, f"{at}.intermediate.dense")
        gate = g.node("Erf", g.node("Mul", y, g.weight(np.array(2**-0.5))))
        gate = g.node("Add", gate, g.weight(np.array(1)))
        y = g.node("Mul", g.node("Mul", y, gate), g.weight(np.array(0.5)))
        x = norm(g.node("Add", x, linear(y, f"{at}.output.dense")), f"{at}.output.LayerNorm")
    y = g.node("LpNormalization", g.node("ReduceMean", x, axes=[1], keepdims=0), axis=-1, p=2)
    ids = (TensorProto.INT64, [1, "len"])
    return g.session({"ids": ids, "places": ids}, y)


def mobilenet(w, blocks, eps):
    """MobileNetV2 under torchvision's names; the input is `image` [1, 3, 224, 224]."""
    g = Graph()

    def unit(x, name, norm, stride=1, groups=1, act=True):
        kernel = w[f"{name}.weight"].shape[-1]
        shape = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "group": groups}
        y = g.node("Conv", x, g.weight(w[f"{name}.weight"]), pads=[kernel // 2] * 4, **shape)
        parts = ("weight", "bias", "running_mean", "running_var")
        parts = [g.weight(w[f"{norm}.{part}"]) for part in parts]
        y = g.node("BatchNormalization", y, *parts, epsilon=eps)
        return g.node("Clip", y, *(g.weight(np.array(n)) for n in (0, 6))) if act else y

    x, before, at = unit("image", "features.0.0", "features.0.1", 2), 32, 1
    for expand, channels, repeats, first in blocks:
        for i in range(repeats):
            name, stride, wide = f"features.{at}.conv", first if i == 0 else 1, before * expand
            y, part = x, 0
            if expand > 1:
                y, part = unit(y, f"{name}.0.0", f"{name}.0.1"), 1
            y = unit(y, f"{name}.{part}.0", f"{name}.{part}.1", stride, wide)
            y = unit(y, f"{name}.{part + 1}", f"{name}.{part + 2}", act=False)
            x = g.node("Add", x, y) if stride == 1 and before == channels else y
            before, at = channels, at + 1
    x = unit(x, f"features.{at}.0", f"features.{at}.1")
    x = g.node("Flatten", g.node("GlobalAveragePool", x))
    y = g.node("Gemm", x, g.weight(w["classifier.1.weight"]), g.weight(w["classifier.1.bias"]),
               transB=1)
    return g.session({"image": (TensorProto.FLOAT, [1, 3, 224, 224])}, y)


def write(folder, model, answers):
    """Writes runtime.json: a list of numbers for each case of golden.json, in its order."""
    rounded = [[float(f"{x:.9g}") for x in np.ravel(answer)] for answer in answers]
    text = ",\n  ".join(json.dumps(answer) for answer in rounded)
    head = {
        "format": "lazybatch-runtime-golden/1",
        "source": f"{model} by ONNX Runtime {onnxruntime.__version__}, f32",
        "answers": [],
    }
    text = json.dumps(head, indent=1).replace('"answers": []', f'"answers": [\n  {text}\n ]')
    (folder / "runtime.json").write_text(text)
    print(f"ONNX Runtime {onnxruntime.__version__}: {len(rounded)} answers")
