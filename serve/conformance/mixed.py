"""A mixed load on the serving front end: sequences with state, streams of a decoder, plain requests of
mixed lengths, and clients that leave. Every request is accounted for.

    python mixed.py PATH_TO_LAZYBATCH [--minutes M | --requests N] [--rate R] [--seed N] [--out FILE]

Arrivals are Poisson at R a second, for M minutes or until N were sent. Answers are checked. At the end
what clients counted is compared with what the server did: answered, cancelled, nothing left behind.
Every minute prints latencies and the server's memory. A line of JSON is appended to FILE. Ends with
status 1 if anything is wrong.
"""

import argparse
import asyncio
import collections
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

import repository
from check import Server
from common import inputs

MODELS = ("accumulate", "lstm", "speller_steps")
SEQUENCES = 16
"""Sequences at once: below the configuration's bound."""
IDLE = 20.0
"""Seconds after which a sequence is given up: before the server forgets it."""
MAX_WAITING = 512
"""Requests at once, above which one is not sent and not counted: the machine is too slow."""
BLOCK = 60.0


class Load:
    def __init__(self, server, seed):
        self.client = triton.InferenceServerClient(server.grpc)
        self.pid = server.process.pid
        self.rng = random.Random(seed)
        self.counts = collections.Counter()
        self.wrong = []
        self.latencies = collections.defaultdict(list)
        self.totals, self.next_sequence, self.asking = {}, 1, 0
        self.spelled = {}
        rows = np.random.default_rng(seed)
        self.rows = [rows.normal(size=(1, n, 16)).astype(np.float32) for n in range(1, 41)]
        self.scores = {}

    def memory(self):
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(l for l in status.splitlines() if l.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    def answers(self, kept, key, value):
        """Whether an answer is the one that the same request had before."""
        first = kept.setdefault(key, value)
        if not np.array_equal(first, value):
            self.wrong.append(f"{key}: expected {first}, got {value}")

    async def plain(self):
        x = self.rng.choice(self.rows)
        result = await self.client.infer("lstm", inputs(triton, {"x": x}))
        # Rows do not depend on the batch that they were computed in.
        self.answers(self.scores, x.shape[1], result.as_numpy("scores"))

    async def left(self):
        """A client that leaves somewhere between sending and its answer."""
        call = asyncio.create_task(self.client.infer("lstm", inputs(triton, {"x": self.rows[-1]})))
        await asyncio.sleep(self.rng.random() * 0.004)
        if not call.cancel():
            return
        try:
            await call
        except asyncio.CancelledError:
            self.counts["cancelled"] += 1
            raise

    async def sequence(self):
        """The next request of the sequence that has waited longest, or of a new one."""
        now = time.monotonic()
        for number in [n for n, (_, at) in self.totals.items() if now - at > IDLE]:
            del self.totals[number]
            self.counts["sequences given up"] += 1
        room = len(self.totals) + self.asking < SEQUENCES
        if room and (not self.totals or self.rng.random() < 0.2):
            number, total, start = self.next_sequence, 0.0, True
            self.next_sequence += 1
        elif self.totals:
            number = next(iter(self.totals))
            (total, _), start = self.totals.pop(number), False
        else:
            # All of them are being asked for.
            return await self.plain()
        value, end = float(self.rng.randrange(100)), self.rng.random() < 0.15
        given = inputs(triton, {"INPUT": np.array([[value]], np.float32)})
        self.asking += 1
        try:
            result = await self.client.infer("accumulate", given, sequence_id=number,
                                             sequence_start=start, sequence_end=end)
        finally:
            self.asking -= 1
        got = float(result.as_numpy("TOTAL")[0, 0])
        if got != total + value:
            self.wrong.append(f"sequence {number}: expected {total + value}, got {got}")
        if not end:
            self.totals[number] = got, time.monotonic()

    async def stream(self):
        letters = tuple(self.rng.randrange(3, 12) for _ in range(self.rng.randrange(2, 7)))
        given = inputs(triton, {"letters": np.array([letters], np.int32)})
        leaves = self.rng.random() < 0.1

        async def requests():
            yield {"model_name": "speller_steps", "inputs": given,
                   "enable_empty_final_response": True}

        tokens = []
        answers = self.client.stream_infer(requests())
        async for result, error in answers:
            if error is not None:
                raise error
            if result.get_response().parameters["triton_final_response"].bool_param:
                break
            tokens.append(int(result.as_numpy("tokens")[0, 0]))
            if leaves:
                answers.cancel()
                self.counts["left streams"] += 1
                return
        self.answers(self.spelled, letters, tokens)

    async def one(self, kind):
        start = time.monotonic()
        self.counts["sent"] += 1
        try:
            await getattr(self, kind)()
            self.counts["answered"] += 1
            self.latencies[kind].append((time.monotonic() - start) * 1e3)
        except asyncio.CancelledError:
            pass
        except InferenceServerException as error:
            self.counts["failed"] += 1
            self.wrong.append(f"{kind}: {error}")

    def block(self, since):
        """Figures of the last minute."""
        figures = {"seconds": round(time.monotonic() - since, 1), "rss_bytes": self.memory()}
        for kind, values in self.latencies.items():
            if values:
                p50, p99 = np.percentile(values, [50, 99])
                figures[kind] = {"num": len(values), "p50_ms": round(p50, 3), "p99_ms": round(p99, 3)}
        self.latencies.clear()
        print(json.dumps(figures), flush=True)
        return figures

    async def run(self, rate, until):
        kinds = ["plain"] * 4 + ["sequence"] * 4 + ["stream"] * 3 + ["left"]
        open_calls, blocks = set(), []
        start = since = time.monotonic()
        due = start
        while not until(time.monotonic() - start, self.counts["sent"]):
            due += self.rng.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if time.monotonic() - since >= BLOCK:
                blocks.append(self.block(since))
                since = time.monotonic()
            if len(open_calls) >= MAX_WAITING:
                self.counts["not sent"] += 1
                continue
            call = asyncio.create_task(self.one(self.rng.choice(kinds)))
            open_calls.add(call)
            call.add_done_callback(open_calls.discard)
        await asyncio.gather(*open_calls)
        blocks.append(self.block(since))
        return blocks

    async def accounts(self):
        """What the server counted, once nothing is left in it."""
        for _ in range(100):
            stats = await self.client.get_inference_statistics(as_json=True)
            mine = [m for m in stats["model_stats"] if m["name"] in MODELS]
            count = lambda what: sum(
                int(m["inference_stats"][what].get("count", 0)) for m in mine)
            ended = {"success": count("success"), "fail": count("fail")}
            # A request whose client left is neither.
            if ended["success"] >= self.counts["answered"]:
                break
            await asyncio.sleep(0.1)
        return ended


def machine():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [l.split(":", 1)[1].strip() for l in lines if l.startswith("model name")]
    return {"cpu": names[0] if names else "unknown", "cores": os.cpu_count()}


async def drive(server, args):
    load = Load(server, args.seed)
    if args.requests:
        until = lambda seconds, sent: sent >= args.requests
    else:
        until = lambda seconds, sent: seconds >= args.minutes * 60
    first = load.memory()
    blocks = await load.run(args.rate, until)
    ended, counts = await load.accounts(), dict(load.counts)
    known = sum(counts.get(k, 0) for k in ("answered", "cancelled", "failed"))
    if known != counts["sent"]:
        load.wrong.append(f"{counts['sent']} were sent, {known} ended")
    answered = counts["answered"]
    # Of those whose client left some were answered before the server knew.
    most = answered + counts.get("cancelled", 0)
    least = answered - counts.get("left streams", 0)
    if not least <= ended["success"] <= most or ended["fail"]:
        load.wrong.append(f"the server counted {ended} of {counts}")
    await load.client.close()
    return {"bench": "serve-mixed", "date": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()),
            "machine": machine(), "load_average": os.getloadavg()[0], "models": MODELS,
            "rate": args.rate, "seed": args.seed, "counts": counts, "server": ended, "rss_bytes_before": first, "minutes": blocks,
            "wrong": load.wrong[:10]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--rate", type=float, default=40.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        repository.write(Path(folder))
        # A machine that is busy with other things must not look like a client that idles.
        config = Path(folder) / "accumulate" / "config.pbtxt"
        config.write_text(config.read_text().replace("5000000", "60000000"))
        options = [o for m in MODELS for o in ("--load-model", m)]
        server = Server(args.server, folder, "--model-control-mode", "explicit", *options)
        try:
            figures = asyncio.run(drive(server, args))
        finally:
            status = server.end()
    figures["status"] = status
    if status != 0:
        figures["wrong"].append(f"the server ended with status {status}")
    line = json.dumps(figures)
    if args.out:
        with args.out.open("a") as file:
            file.write(line + "\n")
    print(line)
    sys.exit(1 if figures["wrong"] else 0)


if __name__ == "__main__":
    main()
