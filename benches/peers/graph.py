"""Models for ONNX Runtime: graphs under construction, and sessions with everything bound.

Everything that helps the runtime is on: all graph optimizations, constant weights that it may
pack, inputs and outputs bound once to tensors that exist, and of several forms of the same model
the one that is fastest here.
"""

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

    def feed(self, name, array, dtype=np.float32):
        self.feeds[name] = np.ascontiguousarray(array, dtype=dtype)
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
        info = helper.make_tensor_value_info
        kind = helper.np_dtype_to_tensor_dtype
        inputs = [info(n, kind(a.dtype), a.shape) for n, a in self.feeds.items()]
        results = [info(n, TensorProto.FLOAT, None) for n in outputs]
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
