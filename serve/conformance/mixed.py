"""A mixed load on the serving front end: sequences with state, streams of a decoder, plain requests of
mixed lengths, and clients that leave. Every request is accounted for.

    python mixed.py PATH_TO_LAZYBATCH [--minutes M | --requests N] [--rate R] [--seed N]
                    [--models pretrained|small] [--block SECONDS] [--threads N]
                    [--most-drift PERCENT] [--out FILE]

Serves the pretrained models of docs/models.md where they are there (`cargo xtask models`, and
stories260K), else small ones. Arrivals are Poisson at R a second, for M minutes or until N were sent.
Answers are checked. At the end what clients counted is compared with what the server counted: every
request succeeded, failed or was cancelled, and nothing is left behind. Every minute prints latencies and
the server's memory, and the end how both have changed. A line of JSON is appended to FILE. Ends with
status 1 if anything is wrong, also if memory or p99 grows beyond noise by more than --most-drift percent
a minute.
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
from common import inputs, metrics
from mixed_models import Pretrained, Small

SEQUENCES = 16
"""Sequences at once: below the configuration's bound."""
IDLE = 20.0
"""Seconds after which a sequence is given up: before the server forgets it."""
MAX_WAITING = 512
"""Requests at once, above which one is not sent and not counted: the machine is too slow."""
REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
"""Why requests failed, as the server's metrics name it."""
MIN_BLOCKS = 5
"""Whole blocks below which how they change cannot be told from noise."""


class Load:
    def __init__(self, server, models, seed):
        self.client = triton.InferenceServerClient(server.grpc)
        self.server = server
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
        """What the server counted, once nothing is left in it or ten seconds have passed: by its
        statistics, and by the reasons and gauges of its metrics."""
        for _ in range(100):
            told = metrics(self.server)
            figure = lambda name, *more: sum(
                int(float(value)) for key, value in told.items()
                if key.split("{")[0] == name and all(part in key for part in more)
                and any(f'model="{model}"' in key for model in self.models.served))
            pending = figure("lazybatch_requests_open")
            calls = int(float(told["lazybatch_calls_in_flight"]))
            if pending == calls == 0:
                break
            await asyncio.sleep(0.1)
        stats = await self.client.get_inference_statistics(as_json=True)
        mine = [m for m in stats["model_stats"] if m["name"] in self.models.served]
        count = lambda what: sum(int(m["inference_stats"][what].get("count", 0)) for m in mine)
        reasons = {r: figure("nv_inference_request_failure", f'reason="{r}"') for r in REASONS}
        return {"success": count("success"), "fail": count("fail"), "reasons": reasons,
                "pending": pending, "calls": calls}


def unaccounted(counts, server):
    """What does not fit between the counts of the clients and those of the server, as texts."""
    count = lambda what: counts.get(what, 0)
    wrong = []
    known = count("answered") + count("cancelled") + count("failed")
    if known != count("sent"):
        wrong.append(f"clients: {count('sent')} were sent, {known} ended")
    if server["pending"] or server["calls"]:
        wrong.append(f"server: {server['pending']} requests and {server['calls']} calls are left in it")
    cancelled = server["reasons"]["CANCELED"]
    ended = server["success"] + server["fail"]
    # A client that leaves at once may do so before its request has reached the server.
    unseen = count("sent") - ended
    if not 0 <= unseen <= count("cancelled"):
        wrong.append(f"{count('sent')} were sent, of which at most {count('cancelled')} never came; the "
                     f"server counted {ended}: {server}")
    # Clients that left a stream have counted it as answered, whatever it became.
    sure = count("answered") - count("left streams")
    if not sure <= server["success"] <= count("answered") + count("cancelled"):
        wrong.append(f"clients have {sure} whole answers for certain, the server counted {server}")
    if cancelled > count("cancelled") + count("left streams"):
        wrong.append(f"the server cancelled {cancelled}, and clients left {count('cancelled')} requests "
                     f"and {count('left streams')} streams")
    # Who left counts as failed, as with Triton.
    if server["fail"] != sum(server["reasons"].values()):
        wrong.append(f"failures are not the sum of their reasons: {server}")
    if server["fail"] - cancelled != count("failed"):
        wrong.append(f"{count('failed')} failed, the server counted {server}")
    return wrong


def drift(blocks, every):
    """How memory and p99 change from block to block, by least squares over all but the first one and
    a last one that was cut short: in percent of their mean a minute, with the standard error. `None`
    of fewer than `MIN_BLOCKS`."""
    whole = [b for b in blocks[1:] if b["seconds"] > 0.9 * every]
    if len(whole) < MIN_BLOCKS:
        return None

    def slope(values):
        minutes = np.arange(len(values)) * every / 60
        a, b = np.polyfit(minutes, values, 1)
        left = np.sum((values - (a * minutes + b)) ** 2) / (len(values) - 2)
        error = np.sqrt(left / np.sum((minutes - minutes.mean()) ** 2))
        return [round(float(part / np.mean(values) * 100), 3) for part in (a, error)]

    figures = {"blocks": len(whole)}
    series = {"rss": [b["rss_bytes"] for b in whole]}
    for kind in ("plain", "sequence", "stream"):
        if all(kind in b for b in whole):
            series[f"{kind}_p99"] = [b[kind]["p99_ms"] for b in whole]
    for name, values in series.items():
        figures[f"{name}_percent_a_minute"], figures[f"{name}_error"] = slope(values)
    return figures


def grows(figures, most):
    """What of `drift` is above `most` percent a minute by more than two standard errors, as texts."""
    wrong = []
    for name, error in figures.items():
        if name.endswith("_error"):
            what = name.removesuffix("_error")
            got = figures[f"{what}_percent_a_minute"]
            if got - 2 * error > most:
                wrong.append(f"{what}: expected to grow by at most {most} % a minute, got {got} ± {error}")
    return wrong


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
    load.wrong += unaccounted(counts, ended)
    changes = drift(blocks, args.block)
    if changes is None:
        print(f"drift is not judged: it takes {MIN_BLOCKS} whole blocks of {args.block} s behind the first")
    else:
        load.wrong += grows(changes, args.most_drift)
    await load.client.close()
    return {"bench": "serve-mixed", "date": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()),
            "machine": machine(), "load_average": os.getloadavg()[0], "models": models.served,
            "rate": args.rate, "seed": args.seed, "threads": args.threads,
            "device": os.environ.get("LAZYBATCH_DEVICE", "cpu"), "counts": counts, "server": ended,
            "rss_bytes_before": first, "block_seconds": args.block, "minutes": blocks,
            "drift": changes, "num_wrong": len(load.wrong),
            # The last ones are about the whole run.
            "wrong": load.wrong[:5] + load.wrong[5:][-10:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--rate", type=float, default=40.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--models", choices=("pretrained", "small"))
    parser.add_argument("--block", type=float, default=60.0)
    parser.add_argument("--threads", type=int, help="of the CPU device; 1 if absent")
    parser.add_argument("--most-drift", type=float, default=1.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = {"pretrained": Pretrained, "small": Small}.get(args.models)
        if models is None:
            without = Pretrained.without()
            models = Small if without else Pretrained
            if without:
                print(f"small models instead of the pretrained ones: {without}")
        models.write(Path(folder))
        options = [o for m in models.served for o in ("--load-model", m)]
        if args.threads is not None:
            options += ["--threads", str(args.threads)]
        server = Server(args.server, folder, "--model-control-mode", "explicit", *options)
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
