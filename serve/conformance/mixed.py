"""A mixed load on the serving front end: sequences with state, streams of a decoder, plain requests of
mixed lengths, and clients that leave. Every request is accounted for.

    python mixed.py PATH_TO_LAZYBATCH [--minutes M | --requests N] [--rate R] [--seed N]
                    [--models pretrained|small] [--block SECONDS] [--threads N] [--out FILE]

Serves the pretrained models of docs/models.md where they are there (`cargo xtask models`, and
stories260K), else small ones. Arrivals are Poisson at R a second, for M minutes or until N were sent.
Answers are checked. At the end what clients counted is compared with what the server did: answered,
cancelled, nothing left behind. Every minute prints latencies and the server's memory, and the end how
both have changed. A line of JSON is appended to FILE. Ends with status 1 if anything is wrong.
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

from check import Server
from common import inputs
from mixed_models import Pretrained, Small

SEQUENCES = 16
"""Sequences at once: below the configuration's bound."""
IDLE = 20.0
"""Seconds after which a sequence is given up: before the server forgets it."""
MAX_WAITING = 512
"""Requests at once, above which one is not sent and not counted: the machine is too slow."""


class Load:
    def __init__(self, server, models, seed):
        self.client = triton.InferenceServerClient(server.grpc)
        self.pid = server.process.pid
        self.rng = random.Random(seed)
        self.models = models(self.rng, seed)
        self.counts = collections.Counter()
        self.wrong = []
        self.latencies = collections.defaultdict(list)
        self.states, self.next_sequence, self.asking = {}, 1, 0

    def memory(self):
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(l for l in status.splitlines() if l.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    def is_right(self, problem):
        if problem is not None:
            self.wrong.append(problem)

    async def plain(self):
        model, given, check = self.models.plain()
        self.is_right(check(await self.client.infer(model, inputs(triton, given))))

    async def left(self):
        """A client that leaves somewhere between sending and its answer."""
        model, given, check = self.models.plain()
        call = asyncio.create_task(self.client.infer(model, inputs(triton, given)))
        await asyncio.sleep(self.rng.random() * self.models.patience)
        if not call.cancel():
            self.is_right(check(call.result()))
            return
        try:
            await call
        except asyncio.CancelledError:
            self.counts["cancelled"] += 1
            raise

    async def sequence(self):
        """The next request of the sequence that has waited longest, or of a new one."""
        now = time.monotonic()
        for number in [n for n, (_, at) in self.states.items() if now - at > IDLE]:
            del self.states[number]
            self.counts["sequences given up"] += 1
        room = len(self.states) + self.asking < SEQUENCES
        if room and (not self.states or self.rng.random() < 0.2):
            number, state, start = self.next_sequence, self.models.sequence(), True
            self.next_sequence += 1
        elif self.states:
            number = next(iter(self.states))
            (state, _), start = self.states.pop(number), False
        else:
            # All of them are being asked for.
            return await self.plain()
        given, is_last, check, state = self.models.step(state)
        self.asking += 1
        try:
            result = await self.client.infer(
                self.models.sequence_model, inputs(triton, given), sequence_id=number,
                sequence_start=start, sequence_end=is_last)
        finally:
            self.asking -= 1
        self.is_right(check(result))
        if is_last:
            self.counts["sequences ended"] += 1
        elif self.rng.random() < 0.01:
            # Its client is gone; the server forgets it when it was idle for long enough.
            self.counts["sequences left"] += 1
        else:
            self.states[number] = state, time.monotonic()

    async def stream(self):
        model, given, parameters, output, check = self.models.stream()
        given = inputs(triton, given)
        leaves = self.rng.random() < 0.1

        async def requests():
            yield {"model_name": model, "inputs": given, "parameters": parameters,
                   "enable_empty_final_response": True}

        tokens = []
        answers = self.client.stream_infer(requests())
        async for result, error in answers:
            if error is not None:
                raise error
            if result.get_response().parameters["triton_final_response"].bool_param:
                break
            tokens.append(int(result.as_numpy(output)[0, 0]))
            if leaves and self.rng.random() < 0.3:
                answers.cancel()
                self.is_right(check(tokens, False))
                self.counts["left streams"] += 1
                return
        self.is_right(check(tokens, True))

    async def one(self, kind):
        start = time.monotonic()
        self.counts["sent"] += 1
        try:
            await getattr(self, kind)()
            self.counts["answered"] += 1
            if kind != "left":
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

    async def run(self, rate, until, every):
        kinds = ["plain"] * 4 + ["sequence"] * 4 + ["stream"] * 3 + ["left"]
        open_calls, blocks = set(), []
        start = since = time.monotonic()
        due = start
        while not until(time.monotonic() - start, self.counts["sent"]):
            due += self.rng.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if time.monotonic() - since >= every:
                blocks.append(self.block(since))
                since = time.monotonic()
            if len(open_calls) >= MAX_WAITING:
                self.counts["not sent"] += 1
                continue
            call = asyncio.create_task(self.one(self.rng.choice(kinds)))
            open_calls.add(call)
            call.add_done_callback(open_calls.discard)
        # What a task raised beyond the protocol's errors is raised here.
        await asyncio.gather(*open_calls)
        blocks.append(self.block(since))
        return blocks

    async def accounts(self):
        """What the server counted, once nothing is left in it."""
        for _ in range(100):
            stats = await self.client.get_inference_statistics(as_json=True)
            mine = [m for m in stats["model_stats"] if m["name"] in self.models.served]
            count = lambda what: sum(
                int(m["inference_stats"][what].get("count", 0)) for m in mine)
            ended = {"success": count("success"), "fail": count("fail")}
            # A request whose client left is neither.
            if ended["success"] >= self.counts["answered"]:
                break
            await asyncio.sleep(0.1)
        return ended


def drift(blocks, every):
    """How memory and p99 change from block to block, by least squares over all but the first one and
    a last one that was cut short: in percent of their mean a minute. `None` of fewer than three."""
    whole = [b for b in blocks[1:] if b["seconds"] > 0.9 * every]
    if len(whole) < 3:
        return None

    def slope(values):
        minutes = np.arange(len(values)) * every / 60
        return round(float(np.polyfit(minutes, values, 1)[0] / np.mean(values) * 100), 3)

    figures = {"blocks": len(whole), "rss_percent_a_minute": slope([b["rss_bytes"] for b in whole])}
    for kind in ("plain", "sequence", "stream"):
        if all(kind in b for b in whole):
            figures[f"{kind}_p99_percent_a_minute"] = slope([b[kind]["p99_ms"] for b in whole])
    return figures


def machine():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [l.split(":", 1)[1].strip() for l in lines if l.startswith("model name")]
    return {"cpu": names[0] if names else "unknown", "cores": os.cpu_count()}


async def drive(server, models, args):
    load = Load(server, models, args.seed)
    if args.requests:
        until = lambda seconds, sent: sent >= args.requests
    else:
        until = lambda seconds, sent: seconds >= args.minutes * 60
    first = load.memory()
    blocks = await load.run(args.rate, until, args.block)
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
            "machine": machine(), "load_average": os.getloadavg()[0], "models": models.served,
            "rate": args.rate, "seed": args.seed, "threads": args.threads, "counts": counts,
            "server": ended, "rss_bytes_before": first, "block_seconds": args.block,
            "minutes": blocks, "drift": drift(blocks, args.block), "wrong": load.wrong[:10]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--rate", type=float, default=40.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--models", choices=("pretrained", "small"))
    parser.add_argument("--block", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = {"pretrained": Pretrained, "small": Small}.get(args.models)
        if models is None:
            models = Pretrained if Pretrained.are_there() else Small
        models.write(Path(folder))
        options = [o for m in models.served for o in ("--load-model", m)]
        server = Server(args.server, folder, "--model-control-mode", "explicit",
                        "--threads", str(args.threads), *options)
        try:
            figures = asyncio.run(drive(server, models, args))
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
