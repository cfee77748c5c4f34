"""MLPerf's load generator against `lazybatch serve`.

    python3 loadgen.py --install [ENVIRONMENT]
    ENVIRONMENT/bin/python loadgen.py LAZYBATCH FOLDER [--seconds S] [--rate R] [--bound MS]

The first makes the environment, `.loadgen` if absent, of the packages in loadgen-requirements.txt:
LoadGen itself (`mlcommons-loadgen`) and `tritonclient`. The second serves the LSTM of the conformance
checks and has LoadGen drive it, over HTTP and over gRPC, in performance mode: SingleStream, one query
behind another, and Server, Poisson arrivals at R a second of which 99 % have to be answered within MS.
FOLDER/loadgen gets LoadGen's logs, FOLDER/serve-loadgen.jsonl a line for each run. Every answer is held against the first one
to the same sample. Ends with status 1 if an answer is wrong or missing, or LoadGen calls a run invalid.
"""

import argparse
import asyncio
import json
import os
import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import serving

SAMPLES = 64
"""Sequences in the library, of 1 to 40 steps."""


class Sut:
    """The system under test: a client for asyncio on a thread of its own."""

    def __init__(self, protocol, address):
        import tritonclient.grpc.aio as over_grpc
        import tritonclient.http.aio as over_http

        self.triton = {"http": over_http, "grpc": over_grpc}[protocol]
        self.address = address
        self.first, self.counts, self.wrong = {}, Counter(), []
        self.samples = {}
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.client = self.wait(self.connect())

    def wait(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    async def connect(self):
        return self.triton.InferenceServerClient(self.address)

    def load(self, indices):
        import numpy as np

        for index in indices:
            rng = np.random.default_rng(index)
            x = rng.normal(size=(1, int(rng.integers(1, 41)), 16)).astype(np.float32)
            one = self.triton.InferInput("x", list(x.shape), "FP32")
            one.set_data_from_numpy(x)
            self.samples[index] = [one]

    def unload(self, indices):
        for index in indices:
            del self.samples[index]

    def issue(self, queries):
        for query in queries:
            self.counts["issued"] += 1
            asyncio.run_coroutine_threadsafe(self.one(query.id, query.index), self.loop)

    async def one(self, number, index):
        import mlperf_loadgen as lg

        try:
            result = await self.client.infer("lstm", self.samples[index])
            scores = result.as_numpy("scores").tobytes()
            self.counts["answered"] += 1
            if self.first.setdefault(index, scores) != scores:
                self.wrong.append(f"sample {index}: other bits than the first time")
        except Exception as error:  # LoadGen waits for every query.
            self.wrong.append(f"sample {index}: {error}")
        lg.QuerySamplesComplete([lg.QuerySampleResponse(number, 0, 0)])

    def end(self):
        self.wait(self.client.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


def settings(scenario, args):
    import mlperf_loadgen as lg

    made = lg.TestSettings()
    made.scenario = getattr(lg.TestScenario, scenario)
    made.mode = lg.TestMode.PerformanceOnly
    made.min_duration_ms = int(args.seconds * 1000)
    # Fewer queries do not tell the percentiles that LoadGen judges by.
    made.min_query_count = 100 if scenario == "SingleStream" else 1000
    # LoadGen makes its queries ahead: as many as answers of this latency would take.
    made.single_stream_expected_latency_ns = 100_000
    made.server_target_qps = args.rate
    made.server_target_latency_ns = int(args.bound * 1e6)
    made.server_target_latency_percentile = 0.99
    return made


def measure(protocol, address, scenario, args):
    """One run of LoadGen: its summary and what the client counted."""
    import mlperf_loadgen as lg

    sut = Sut(protocol, address)
    logs = lg.LogSettings()
    logs.enable_trace = False
    logs.log_output.outdir = str(args.folder / "loadgen")
    logs.log_output.prefix = f"{protocol}-{scenario}-"
    under_test = lg.ConstructSUT(sut.issue, lambda: None)
    library = lg.ConstructQSL(SAMPLES, SAMPLES, sut.load, sut.unload)
    try:
        lg.StartTestWithLogSettings(under_test, library, settings(scenario, args), logs)
    finally:
        lg.DestroyQSL(library)
        lg.DestroySUT(under_test)
        sut.end()
    prefix = args.folder / "loadgen" / logs.log_output.prefix
    summary = Path(f"{prefix}summary.txt").read_text()
    print(summary, flush=True)
    # Logs of what was not asked for: they are empty.
    for name in ("accuracy.json", "trace.json"):
        Path(f"{prefix}{name}").unlink(missing_ok=True)
    figure = lambda pattern: next((float(found) for found in re.findall(
        rf"^{pattern}\s*:\s*([0-9.]+)$", summary, re.MULTILINE)), None)
    ms = lambda name: (figure(rf"{name} latency \(ns\)") or 0) / 1e6
    wrong = list(sut.wrong[:5])
    if sut.counts["answered"] != sut.counts["issued"]:
        wrong.append(f"{sut.counts['issued']} queries, {sut.counts['answered']} answers")
    if "Result is : VALID" not in summary:
        wrong.append("LoadGen calls the run invalid")
    return {"bench": "serve-loadgen", "date": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()),
            "machine": serving.machine(), "load_average": os.getloadavg()[0],
            "commit": serving.commit(), "protocol": protocol, "scenario": scenario,
            "seconds": args.seconds,
            "rate": args.rate if scenario == "Server" else None, "queries": sut.counts["issued"],
            "mean_ms": ms("Mean"), **{f"p{p}_ms": ms(rf"{p}\.00 percentile") for p in (50, 90, 99)},
            "wrong": wrong}


def main():
    if sys.argv[1:2] == ["--install"]:
        environment = sys.argv[2] if len(sys.argv) > 2 else ".loadgen"
        return serving.install(environment, "loadgen-requirements.txt")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lazybatch")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--bound", type=float, default=100.0)
    args = parser.parse_args()
    (args.folder / "loadgen").mkdir(parents=True, exist_ok=True)
    wrong = []
    with serving.lazybatch(args.lazybatch, "lstm") as addresses:
        for protocol in ("http", "grpc"):
            for scenario in ("SingleStream", "Server"):
                figures = measure(protocol, addresses[protocol], scenario, args)
                line = json.dumps(figures)
                with (args.folder / "serve-loadgen.jsonl").open("a") as file:
                    file.write(line + "\n")
                print(line, flush=True)
                wrong += figures["wrong"]
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
