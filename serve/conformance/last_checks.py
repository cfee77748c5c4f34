"""Metrics, and the end of the server: it drains."""

import math
import threading
import time

import grpc
import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.http as triton
from check import check
from common import A, B, fails, inputs, metrics, pair, until
from http_checks import raw


@check
def metrics_have_the_names_that_dashboards_use(server):
    figures = metrics(server)
    at = '{model="add",version="1"}'
    for name in ("request_success", "count", "exec_count", "request_duration_us",
                 "queue_duration_us", "compute_input_duration_us", "compute_infer_duration_us",
                 "compute_output_duration_us", "pending_request_count"):
        assert f"nv_inference_{name}{at}" in figures, name
    assert float(figures["nv_inference_count" + at]) >= float(figures["nv_inference_exec_count" + at])
    failures = 'nv_inference_request_failure{model="add",version="1",reason="OTHER"}'
    assert float(figures[failures]) > 0, "the wrong requests above"
    assert float(figures["nv_inference_pending_request_count" + at]) == 0
    assert float(figures["lazybatch_requests_open" + at]) == 0


@check
def metrics_of_our_own(server):
    figures = metrics(server)
    at = '{model="lstm",version="1"}'
    assert float(figures["lazybatch_node_launches_total" + at]) > 0
    assert float(figures["lazybatch_node_samples_total" + at]) > 0
    gold = 'lazybatch_requests_total{model="lstm",version="1",class="gold",outcome="met"}'
    assert float(figures[gold]) > 0, [f for f in figures if "requests_total" in f]


class Call(threading.Thread):
    """A long request by a client of its own: its answer, or why there is none."""

    def __init__(self, server, given):
        super().__init__(daemon=True)
        self.server, self.given, self.answer, self.error = server, given, None, None

    def run(self):
        try:
            client = triton.InferenceServerClient(self.server.http, network_timeout=60)
            self.answer = client.infer("long", self.given).as_numpy("scores")
        except Exception as error:
            self.error = error

    def has_ended(self):
        return self.answer is not None or self.error is not None


def num_in_flight(server):
    return float(metrics(server)["lazybatch_calls_in_flight"])


@check
def sigterm_drains(server):
    """Not ready while it still runs; what runs ends with its answer, sequences that began go on, what else
    comes later is refused, and the status is 0."""
    x = np.random.default_rng(4).normal(size=(16, 4096, 16)).astype(np.float32)
    given = inputs(triton, {"x": x})
    http = triton.InferenceServerClient(server.http, network_timeout=60)
    http.load_model("long")
    start = time.monotonic()
    want = http.infer("long", given).as_numpy("scores")
    took = time.monotonic() - start
    # They have to run for longer than it takes to look at the server that drains.
    calls = [Call(server, given) for _ in range(min(32, max(4, math.ceil(2 / took))))]
    for call in calls:
        call.start()

    def step(value, **place):
        one = inputs(triton, {"INPUT": np.array([[value]], np.float32)})
        return float(http.infer("accumulate", one, sequence_id=77, **place).as_numpy("TOTAL")[0, 0])

    def all_taken():
        # In this order: who ends in between is missed once, not counted twice.
        ended = sum(call.has_ended() for call in calls)
        return ended + num_in_flight(server) >= len(calls)

    until(all_taken, f"{len(calls)} calls are taken")
    assert not all(call.has_ended() for call in calls), "the calls are too short to see it drain"
    assert step(1, sequence_start=True) == 1
    server.process.terminate()
    # If it ended first, nobody would be there to say this.
    until(lambda: raw(server, "GET", "/v2/health/ready")[0] == 503, "not ready")
    client = over_grpc.InferenceServerClient(server.grpc)
    assert client.is_server_live() and not client.is_server_ready()
    with grpc.insecure_channel(server.grpc) as channel:
        ask = channel.unary_unary("/grpc.health.v1.Health/Check")
        until(lambda: ask(b"") == b"\x08\x02", "NOT_SERVING")
    fails(lambda: http.infer("add", pair(triton, A, B)), status=503, part="stopping")
    fails(lambda: client.infer("add", pair(over_grpc, A, B)), status="UNAVAILABLE", part="stopping")
    assert num_in_flight(server) >= 1, "the calls are too short to see it drain"
    assert step(2) == 3 and step(4, sequence_end=True) == 7
    fails(lambda: step(1, sequence_start=True), status=503, part="stopping")
    client.close()
    http.close()
    for call in calls:
        call.join(60)
        assert call.error is None, call.error
        assert call.answer is not None, "a call that was taken has no answer"
        assert call.answer.tobytes() == want.tobytes(), "bit for bit as alone"
    status = server.process.wait(timeout=40)
    assert status == 0, status
    try:
        raw(server, "GET", "/v2/health/live")
    except ConnectionRefusedError:
        return
    raise AssertionError("somebody still listens")
