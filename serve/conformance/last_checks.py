"""Metrics, and the end of the server: it drains."""

import http.client
import threading

import numpy as np
import tritonclient.http as triton
from check import check
from common import inputs


def metrics(server):
    connection = http.client.HTTPConnection(server.metrics, timeout=20)
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    assert answer.status == 200
    lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return dict(line.rsplit(" ", 1) for line in lines)


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


@check
def metrics_of_our_own(server):
    figures = metrics(server)
    at = '{model="lstm",version="1"}'
    assert float(figures["lazybatch_node_launches_total" + at]) > 0
    assert float(figures["lazybatch_node_samples_total" + at]) > 0
    gold = 'lazybatch_requests_total{model="lstm",version="1",class="gold",outcome="met"}'
    assert float(figures[gold]) > 0, [f for f in figures if "requests_total" in f]


@check
def sigterm_drains(server):
    """What runs ends with its answer, what comes later is refused, and the status is 0."""
    x = inputs(triton, {"x": np.ones((16, 400, 16), np.float32)})
    answers = []

    def ask():
        client = triton.InferenceServerClient(server.http, network_timeout=60)
        answers.append(client.infer("lstm", x).as_numpy("scores").shape)

    running = [threading.Thread(target=ask) for _ in range(4)]
    for thread in running:
        thread.start()
    while float(metrics(server)["lazybatch_calls_in_flight"]) < 1 and not answers:
        pass
    before = float(metrics(server)["lazybatch_calls_in_flight"])
    status = server.end()
    for thread in running:
        thread.join(60)
    assert status == 0, status
    assert len(answers) >= min(before, 1), (answers, before)
