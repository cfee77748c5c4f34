"""Writes the small models that the checks of the protocol serve.

    python3 generate.py        # needs onnx and numpy; writes models/*.onnx beside this file
"""

import os

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "models")
F32, I32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL


def save(name, nodes, inputs, outputs, constants=()):
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, name, [info(*i) for i in inputs], [info(*o) for o in outputs],
        [numpy_helper.from_array(value, n) for n, value in constants],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    onnx.save(model, os.path.join(HERE, f"{name}.onnx"))


def add():
    """OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1, 16 numbers a sample."""
    node = helper.make_node
    save(
        "add",
        [node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]), node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"])],
        [("INPUT0", F32, ["batch", 16]), ("INPUT1", F32, ["batch", 16])],
        [("OUTPUT0", F32, ["batch", 16]), ("OUTPUT1", F32, ["batch", 16])],
    )


def add_int():
    """The same of whole numbers."""
    node = helper.make_node
    save(
        "add_int",
        [node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]), node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"])],
        [("INPUT0", I64, ["batch", 16]), ("INPUT1", I64, ["batch", 16])],
        [("OUTPUT0", I64, ["batch", 16]), ("OUTPUT1", I64, ["batch", 16])],
    )


def accumulate():
    """TOTAL = INPUT + state; the state of the next request of a sequence is the total."""
    node = helper.make_node
    save(
        "accumulate",
        [node("Add", ["INPUT", "STATE"], ["TOTAL"]), node("Add", ["INPUT", "STATE"], ["STATE_NEXT"])],
        [("INPUT", F32, ["batch", 1]), ("STATE", F32, ["batch", 1])],
        [("TOTAL", F32, ["batch", 1]), ("STATE_NEXT", F32, ["batch", 1])],
    )


def cell():
    """Sixteen features a step through an LSTM of 32, four scores a step."""
    rng = np.random.default_rng(7)
    weight = lambda *dims: (rng.uniform(-1, 1, dims) / np.sqrt(dims[-1])).astype(np.float32)
    node = helper.make_node
    save(
        "lstm",
        [
            node("Transpose", ["x"], ["steps"], perm=[1, 0, 2]),
            node("LSTM", ["steps", "w", "r", "b"], ["states", "", ""], hidden_size=32),
            node("Squeeze", ["states", "axis"], ["rows"]),
            node("Transpose", ["rows"], ["samples"], perm=[1, 0, 2]),
            node("MatMul", ["samples", "fc"], ["products"]),
            node("Add", ["products", "bias"], ["scores"]),
        ],
        [("x", F32, ["batch", "len", 16])],
        [("scores", F32, ["batch", "len", 4])],
        [
            ("w", weight(1, 128, 16)), ("r", weight(1, 128, 32)), ("b", weight(1, 256)),
            ("axis", np.array([1], np.int64)), ("fc", weight(32, 4)), ("bias", weight(4)),
        ],
    )


def pool():
    """Four features a step through a GRU of 8, and 16 features of the mean over all steps."""
    rng = np.random.default_rng(8)
    weight = lambda *dims: (rng.uniform(-1, 1, dims) / np.sqrt(dims[-1])).astype(np.float32)
    node = helper.make_node
    save(
        "pool",
        [
            node("Transpose", ["rows"], ["steps"], perm=[1, 0, 2]),
            node("GRU", ["steps", "w", "r", "b"], ["states", ""], hidden_size=8,
                 linear_before_reset=1),
            node("Squeeze", ["states", "axis"], ["squeezed"]),
            node("Transpose", ["squeezed"], ["samples"], perm=[1, 0, 2]),
            node("ReduceMean", ["samples"], ["mean"], axes=[1], keepdims=0),
            node("MatMul", ["mean", "fc"], ["products"]),
            node("Tanh", ["products"], ["features"]),
        ],
        [("rows", F32, ["batch", "len", 4])],
        [("features", F32, ["batch", 16])],
        [
            ("w", weight(1, 24, 4)), ("r", weight(1, 24, 8)), ("b", weight(1, 48)),
            ("axis", np.array([1], np.int64)), ("fc", weight(8, 16)),
        ],
    )


if __name__ == "__main__":
    os.makedirs(HERE, exist_ok=True)
    for write in (add, add_int, accumulate, cell, pool):
        write()
