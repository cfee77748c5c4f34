"""ONNX Runtime's side of `lazybatch-measure serve-in-process`: two ways to batch, without a server.

One JSON object per line on stdin, one per line on stdout, in order:

    {"open": {"folder": PATH, "model": lstm | decoder | encoder, "mode": padded | steps,
              "pool": PATH, "features": N, "lens": [...], "max_batch": N, "threads": N}}  -> {}
    {"serve": [SECONDS, ...]}                                        -> {"ms": [...], "in_runtime": X}

or {"error": TEXT}. The first line is {"peer": NAME}. `pool` holds the f32 rows of requests of `lens`
positions one after another. Request i of `serve` is number i modulo their number, arrives that long
behind the start, and is answered that many milliseconds later; X is the share that calls of ONNX
Runtime have of the time in which there was something to do.

padded  whole requests, all that wait up to `max_batch`, padded with zeros to the longest
steps   one step of all requests in flight, up to `max_batch`; those that wait join before a step.
        A decoder's encoder runs for those that join, together, padded.

Padding is not masked: it is the time that counts here, not the answers.
"""

import json
import sys
import time
from collections import deque
from pathlib import Path

import numpy as np
import onnxruntime as ort

START, STOP, STEPS = 1, 2, 24


class Session:
    """An ONNX file, and the seconds that its calls took."""

    def __init__(self, file, options):
        self.session, self.seconds = ort.InferenceSession(file, options), 0.0

    def run(self, outputs, inputs):
        start = time.perf_counter()
        values = self.session.run(outputs, inputs)
        self.seconds += time.perf_counter() - start
        return values


class Model:
    def __init__(self, folder, model, mode, pool, features, lens, max_batch, threads):
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        files = Path(folder).glob("*.onnx")
        self.sessions = {f.stem: Session(f, options) for f in files}
        rows = np.fromfile(pool, dtype="<f4").reshape(-1, features)
        self.pool = np.split(rows, np.cumsum(lens)[:-1])
        self.max_batch = max_batch
        self.loop = {"padded": Padded, "steps": {"lstm": LstmSteps, "decoder": DecoderSteps}.get(model)}[mode]
        self.whole = getattr(self, model)
        # Once for what is made at the first use.
        for size in range(1, max_batch + 1):
            self.serve([0.0] * size)

    def padded(self, items):
        xs = [self.pool[i] for i in items]
        x = np.zeros((len(xs), max(map(len, xs)), xs[0].shape[1]), np.float32)
        for row, own in zip(x, xs):
            row[:len(own)] = own
        return x

    def lstm(self, x):
        self.sessions["model"].run(["y"], {"x": x})

    encoder = lstm

    def encode(self, x):
        """What steps look at, and the state of the first."""
        memory, keys, h = self.sessions["encoder"].run(["memory", "keys", "state"], {"x": x})
        return [memory, keys], h

    def step(self, token, h, seen):
        memory, keys = seen
        logits, h = self.sessions["step"].run(
            ["logits", "next_h"],
            {"token": token[:, None], "h": h, "memory": memory, "keys": keys})
        return logits.argmax(axis=1), h

    def decoder(self, x):
        seen, h = self.encode(x)
        token, live = np.full(len(x), START, np.int64), np.ones(len(x), bool)
        for _ in range(STEPS):
            token, h = self.step(token, h, seen)
            live &= token != STOP
            if not live.any():
                return

    def serve(self, at):
        """Milliseconds from each arrival to its answer, and the share of ONNX Runtime's calls."""
        for session in self.sessions.values():
            session.seconds = 0.0
        slept, start = 0.0, time.perf_counter()
        waiting, ms, come = deque(), [None] * len(at), 0
        loop = self.loop(self)
        while come < len(at) or waiting or loop.flight:
            now = time.perf_counter() - start
            while come < len(at) and at[come] <= now:
                waiting.append(come)
                come += 1
            if not waiting and not loop.flight:
                time.sleep(max(at[come] - now, 0))
                slept += time.perf_counter() - start - now
                continue
            done = loop.turn(waiting)
            now = time.perf_counter() - start
            for request in done:
                ms[request] = 1e3 * (now - at[request])
        busy = time.perf_counter() - start - slept
        return {"ms": ms, "in_runtime": sum(s.seconds for s in self.sessions.values()) / busy}


class Padded:
    """Whole requests."""

    def __init__(self, model):
        self.model, self.flight = model, []

    def turn(self, waiting):
        batch = [waiting.popleft() for _ in range(min(len(waiting), self.model.max_batch))]
        self.model.whole(self.model.padded([i % len(self.model.pool) for i in batch]))
        return batch


class Steps:
    """A step of all requests in flight; `state` has one row, or column, for each."""

    def __init__(self, model):
        self.model, self.flight = model, []

    def turn(self, waiting):
        room = self.model.max_batch - len(self.flight)
        new = [waiting.popleft() for _ in range(min(len(waiting), room))]
        if new:
            self.join([i % len(self.model.pool) for i in new])
            self.flight += new
        live = self.step()
        done = [r for r, keep in zip(self.flight, live) if not keep]
        if done:
            self.flight = [r for r, keep in zip(self.flight, live) if keep]
            self.leave(live)
        return done


class LstmSteps(Steps):
    def __init__(self, model):
        super().__init__(model)
        hidden = model.sessions["step"].session.get_inputs()[1].shape[2]
        self.h = self.c = np.zeros((1, 0, hidden), np.float32)
        self.rows, self.at = [], np.zeros(0, np.int64)

    def join(self, items):
        zeros = np.zeros((1, len(items), self.h.shape[2]), np.float32)
        self.h, self.c = (np.concatenate([s, zeros], axis=1) for s in (self.h, self.c))
        self.rows += [self.model.pool[i] for i in items]
        self.at = np.concatenate([self.at, np.zeros(len(items), np.int64)])

    def step(self):
        x = np.stack([rows[at] for rows, at in zip(self.rows, self.at)])[:, None]
        _, self.h, self.c = self.model.sessions["step"].run(
            ["y", "next_h", "next_c"], {"x": x, "h": self.h, "c": self.c})
        self.at += 1
        return self.at < [len(rows) for rows in self.rows]

    def leave(self, live):
        self.h, self.c, self.at = self.h[:, live], self.c[:, live], self.at[live]
        self.rows = [rows for rows, keep in zip(self.rows, live) if keep]


class DecoderSteps(Steps):
    def __init__(self, model):
        super().__init__(model)
        self.token = self.steps = np.zeros(0, np.int64)
        self.h = self.seen = None

    def join(self, items):
        x = self.model.padded(items)
        seen, h = self.model.encode(x)
        self.token = np.concatenate([self.token, np.full(len(items), START, np.int64)])
        self.steps = np.concatenate([self.steps, np.zeros(len(items), np.int64)])
        if self.h is None or not self.flight:
            self.h, self.seen = h, seen
            return
        self.h = np.concatenate([self.h, h], axis=1)
        longest = max(seen[0].shape[1], self.seen[0].shape[1])
        pad = lambda m: np.pad(m, ((0, 0), (0, longest - m.shape[1]), (0, 0)))
        self.seen = [np.concatenate([pad(old), pad(new)]) for old, new in zip(self.seen, seen)]

    def step(self):
        self.token, self.h = self.model.step(self.token, self.h, self.seen)
        self.steps += 1
        return (self.token != STOP) & (self.steps < STEPS)

    def leave(self, live):
        self.token, self.steps = self.token[live], self.steps[live]
        self.h, self.seen = self.h[:, live], [m[live] for m in self.seen]


def main():
    print(json.dumps({"peer": f"onnxruntime {ort.__version__}"}), flush=True)
    model = None
    for line in sys.stdin:
        try:
            message = json.loads(line)
            if "open" in message:
                model, reply = Model(**message["open"]), {}
            else:
                reply = model.serve(message["serve"])
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
