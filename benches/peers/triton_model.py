"""A model of Triton's Python backend that runs ONNX files by ONNX Runtime.

Its configuration's parameter `mode` says how: `lstm`, `decoder` and `encoder` run a batch that the
dynamic batcher made, all of one shape, from its start to its end; `lstm-steps` and `decoder-steps` run
one step of each request of the batch and hand it back to be scheduled again, as iterative sequences
do, until it is done.
"""

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as pb_utils

START, STOP, STEPS = 1, 2, 24


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        folder = Path(args["model_repository"]) / args["model_version"]
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.sessions = {path.stem: ort.InferenceSession(path, options) for path in folder.glob("*.onnx")}
        mode = config["parameters"]["mode"]["string_value"]
        self.run = getattr(self, mode.replace("-", "_"))
        self.output = config["output"][0]["name"]
        # By correlation id: what a request that is not done has so far.
        self.open = {}

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]
        return self.run(requests, inputs)

    def response(self, value):
        return pb_utils.InferenceResponse([pb_utils.Tensor(self.output, value)])

    def split(self, requests, inputs, results):
        """Responses, of results whose rows are those of all inputs together."""
        at = 0
        responses = []
        for x in inputs:
            responses.append(self.response(results[at:at + len(x)]))
            at += len(x)
        return responses

    def encoder(self, requests, inputs):
        y = self.sessions["model"].run(["y"], {"x": np.concatenate(inputs)})[0]
        return self.split(requests, inputs, y)

    lstm = encoder

    def encode(self, x):
        """What steps look at, and the state of the first."""
        memory, keys, h = self.sessions["encoder"].run(["memory", "keys", "state"], {"x": x})
        return [memory, keys], h

    def step(self, token, h, seen):
        memory, keys = seen
        logits, h = self.sessions["step"].run(
            ["logits", "next_h"], {"token": token, "h": h, "memory": memory, "keys": keys})
        return logits.argmax(axis=1).astype(np.int64), h

    def decoder(self, requests, inputs):
        seen, h = self.encode(np.concatenate(inputs))
        num = len(seen[0])
        token, tokens, live = np.full(num, START, np.int64), [], np.ones(num, bool)
        while live.any() and len(tokens) < STEPS:
            token, h = self.step(token[:, None], h, seen)
            tokens.append(np.where(live, token, STOP))
            live &= token != STOP
        return self.split(requests, inputs, np.stack(tokens, axis=1))

    def again(self, request, state):
        self.open[request.correlation_id()] = state
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)

    def lstm_steps(self, requests, inputs):
        session = self.sessions["step"]
        hidden = session.get_inputs()[1].shape[2]
        zero = np.zeros((1, 1, hidden), np.float32)
        states = [self.open.pop(r.correlation_id(), None) or ([], zero, zero) for r in requests]
        x = np.concatenate([x[:, len(s[0]):len(s[0]) + 1] for x, s in zip(inputs, states)])
        h, c = (np.concatenate([s[i] for s in states], axis=1) for i in (1, 2))
        y, h, c = session.run(["y", "next_h", "next_c"], {"x": x, "h": h, "c": c})
        responses = []
        for i, (request, given, (rows, _, _)) in enumerate(zip(requests, inputs, states)):
            rows.append(y[i:i + 1])
            if len(rows) == given.shape[1]:
                responses.append(self.response(np.concatenate(rows, axis=1)))
            else:
                self.again(request, (rows, h[:, i:i + 1], c[:, i:i + 1]))
                responses.append(None)
        return responses

    def decoder_steps(self, requests, inputs):
        states = []
        for request, x in zip(requests, inputs):
            state = self.open.pop(request.correlation_id(), None)
            if state is None:
                seen, h = self.encode(x)
                state = ([START], h, seen)
            states.append(state)
        responses = [None] * len(requests)
        # Only those of the same length stack.
        for length in {s[2][0].shape[1] for s in states}:
            group = [i for i, s in enumerate(states) if s[2][0].shape[1] == length]
            token = np.array([[states[i][0][-1]] for i in group], np.int64)
            h = np.concatenate([states[i][1] for i in group], axis=1)
            seen = [np.concatenate(part) for part in zip(*(states[i][2] for i in group))]
            token, h = self.step(token, h, seen)
            for at, i in enumerate(group):
                tokens = states[i][0] + [int(token[at])]
                if token[at] == STOP or len(tokens) > STEPS:
                    responses[i] = self.response(np.array([tokens[1:]], np.int64))
                else:
                    self.again(requests[i], (tokens, h[:, at:at + 1], states[i][2]))
        return responses
