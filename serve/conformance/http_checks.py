"""Checks over HTTP."""

import http.client
import json

import numpy as np
import tritonclient.http as triton
from check import check
from common import A, B, fails, files_of_add, inputs, ordered, pair, same, trace_file
from tritonclient.utils import InferenceServerException


def client(server):
    return triton.InferenceServerClient(server.http, concurrency=4)


def raw(server, method, path, body=None, headers=None):
    """Status, headers and body of a plain call."""
    connection = http.client.HTTPConnection(server.http, timeout=20)
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read()


def post(server, path, value, **headers):
    status, _, body = raw(server, "POST", path, json.dumps(value), headers)
    return status, json.loads(body or b"{}")


def add_json(a=A, b=B, **more):
    named = {"INPUT0": a, "INPUT1": b}
    return {"inputs": [{"name": n, "datatype": "FP32", "shape": list(v.shape), "data": v.tolist()}
                       for n, v in named.items()], **more}


@check
def http_health(server):
    c = client(server)
    assert c.is_server_live() and c.is_server_ready()
    assert c.is_model_ready("add") and c.is_model_ready("twice", "3")
    assert not c.is_model_ready("nobody")


@check
def http_health_is_told_in_the_body_too(server):
    """Where the clients of KServe look for it."""
    assert json.loads(raw(server, "GET", "/v2/health/live")[2]) == {"live": True}
    assert json.loads(raw(server, "GET", "/v2/health/ready")[2]) == {"ready": True}


@check
def http_server_metadata(server):
    metadata = client(server).get_server_metadata()
    assert metadata["name"] == "lazybatch" and metadata["version"]
    assert {"binary_tensor_data", "sequence", "statistics"} <= set(metadata["extensions"])


@check
def http_model_metadata(server):
    metadata = client(server).get_model_metadata("add")
    assert metadata["versions"] == ["1"] and metadata["platform"] == "onnxruntime_onnx"
    assert metadata["inputs"][0] == {"name": "INPUT0", "datatype": "FP32", "shape": [-1, 16]}


@check
def http_metadata_of_a_model_without_configuration(server):
    metadata = client(server).get_model_metadata("add_int")
    assert [i["datatype"] for i in metadata["inputs"]] == ["INT64", "INT64"]
    assert client(server).get_model_metadata("lstm")["inputs"][0]["shape"] == [-1, -1, 16]


@check
def http_metadata_lists_all_versions(server):
    assert client(server).get_model_metadata("twice")["versions"] == ["1", "3"]


@check
def http_config(server):
    config = client(server).get_model_config("add")
    assert config["max_batch_size"] == 8 and config["input"][0]["data_type"] == "TYPE_FP32"
    assert config["instance_group"][0]["kind"] == "KIND_CPU"


@check
def http_infer_binary(server):
    result = client(server).infer("add", pair(triton))
    same(result.as_numpy("OUTPUT0"), A + B)
    same(result.as_numpy("OUTPUT1"), A - B)


@check
def http_infer_json(server):
    outputs = [triton.InferRequestedOutput("OUTPUT0", binary_data=False)]
    result = client(server).infer("add", pair(triton, binary_data=False), outputs=outputs)
    same(result.as_numpy("OUTPUT0"), A + B)
    assert result.get_output("OUTPUT1") is None, "not asked for"


@check
def http_infer_mixed(server):
    mixed = inputs(triton, {"INPUT0": A}, binary_data=True)
    mixed += inputs(triton, {"INPUT1": B}, binary_data=False)
    outputs = [triton.InferRequestedOutput("OUTPUT0", binary_data=False),
               triton.InferRequestedOutput("OUTPUT1", binary_data=True)]
    result = client(server).infer("add", mixed, outputs=outputs)
    same(result.as_numpy("OUTPUT0"), A + B)
    same(result.as_numpy("OUTPUT1"), A - B)


@check
def http_infer_by_version(server):
    result = client(server).infer("twice", pair(triton), model_version="1")
    assert result.get_response()["model_version"] == "1"
    result = client(server).infer("twice", pair(triton))
    assert result.get_response()["model_version"] == "3", "the latest if none is named"


@check
def http_infer_keeps_the_id(server):
    assert client(server).infer("add", pair(triton), request_id="r-7").get_response()["id"] == "r-7"


@check
def http_infer_whole_numbers(server):
    a, b = A.astype(np.int64), -B.astype(np.int64)
    result = client(server).infer("add_int", pair(triton, a, b))
    assert result.as_numpy("OUTPUT0").dtype == np.int64
    same(result.as_numpy("OUTPUT0"), a + b)


@check
def http_infer_half_precision(server):
    a, b = A.astype(np.float16), B.astype(np.float16)
    result = client(server).infer("half", pair(triton, a, b))
    assert result.as_numpy("OUTPUT0").dtype == np.float16
    same(result.as_numpy("OUTPUT0"), a + b)
    same(result.as_numpy("OUTPUT1"), a - b)


@check
def http_half_precision_has_no_json(server):
    one = {"name": "INPUT0", "datatype": "FP16", "shape": [1, 16], "data": [0.5] * 16}
    status, body = post(server, "/v2/models/half/infer",
                        {"inputs": [one, {**one, "name": "INPUT1"}]})
    assert status == 400 and "FP16" in body["error"], (status, body)


@check
def http_infer_compressed(server):
    for way in ("gzip", "deflate"):
        result = client(server).infer("add", pair(triton), request_compression_algorithm=way,
                                      response_compression_algorithm=way)
        same(result.as_numpy("OUTPUT0"), A + B)


@check
def http_infer_asynchronous(server):
    c = client(server)
    running = [c.async_infer("add", pair(triton, A + i, B)) for i in range(12)]
    for i, one in enumerate(running):
        same(one.get_result().as_numpy("OUTPUT0"), A + i + B)


@check
def http_infer_raw(server):
    x = np.random.default_rng(1).normal(size=(5, 16)).astype(np.float32)
    status, headers, body = raw(server, "POST", "/v2/models/lstm/infer", x.tobytes(),
                                {"Inference-Header-Content-Length": "0"})
    assert status == 200, body
    cut = int({k.lower(): v for k, v in headers.items()}["inference-header-content-length"])
    got = np.frombuffer(body[cut:], np.float32)
    want = client(server).infer("lstm", inputs(triton, {"x": x[None]})).as_numpy("scores")
    same(got.reshape(5, 4), want[0])


@check
def http_classification(server):
    outputs = [triton.InferRequestedOutput("OUTPUT0", class_count=2)]
    classes = client(server).infer("add", pair(triton), outputs=outputs).as_numpy("OUTPUT0")
    assert classes.shape == (2, 2)
    value, place, label = classes[0][0].decode().split(":")
    assert (float(value), place, label) == (18.0, "15", "label15")


@check
def http_batched_sequences_agree_with_single_ones(server):
    x = np.random.default_rng(2).normal(size=(3, 7, 16)).astype(np.float32)
    c = client(server)
    together = c.infer("lstm", inputs(triton, {"x": x})).as_numpy("scores")
    alone = [c.infer("lstm", inputs(triton, {"x": x[i:i + 1]})).as_numpy("scores") for i in range(3)]
    assert together.tobytes() == np.concatenate(alone).tobytes(), "bit for bit"


@check
def http_decoder(server):
    ids = np.array([[4, 5, 6, 7]])
    metadata = client(server).get_model_metadata("speller")
    assert len(metadata["inputs"]) == 1, metadata
    ids = ids.astype({"INT32": np.int32, "INT64": np.int64}[metadata["inputs"][0]["datatype"]])
    result = client(server).infer("speller", inputs(triton, {metadata["inputs"][0]["name"]: ids}))
    tokens = result.as_numpy(metadata["outputs"][0]["name"])
    assert tokens.shape[0] == 1 and 1 <= tokens.shape[1] <= 15, tokens


@check
def http_decoupled_models_are_refused(server):
    name = client(server).get_model_metadata("speller_steps")["inputs"][0]
    dtype = {"INT32": np.int32, "INT64": np.int64}[name["datatype"]]
    ids = inputs(triton, {name["name"]: np.array([[4, 5]], dtype)})
    fails(lambda: client(server).infer("speller_steps", ids), status=501, part="decoupled")


@check
def http_sequence(server):
    c = client(server)

    def step(value, sequence, **place):
        one = inputs(triton, {"INPUT": np.array([[value]], np.float32)})
        return float(c.infer("accumulate", one, sequence_id=sequence, **place).as_numpy("TOTAL")[0, 0])

    assert step(1, 901, sequence_start=True) == 1
    assert step(10, "nine", sequence_start=True) == 10
    assert step(2, 901) == 3
    assert step(20, "nine") == 30
    assert step(3, 901, sequence_end=True) == 6
    assert step(30, "nine", sequence_end=True) == 60
    for gone in 901, "nine":
        fails(lambda gone=gone: step(1, gone), status=400,
              part=f"inference request for sequence {gone} to model 'accumulate' must specify the START "
                   "flag on the first request of the sequence")


@check
def http_sequences_without_state_have_their_order(server):
    c = client(server)

    def step(**place):
        return c.infer("ordered", pair(triton), sequence_id=31, **place).as_numpy("OUTPUT0")

    told = "inference request for sequence 31 to model 'ordered' must specify the START flag"
    fails(step, status=400, part=told)
    for place in ({"sequence_start": True}, {}, {"sequence_end": True}):
        same(step(**place), A + B)
    fails(step, status=400, part=told)
    idle = c.get_model_config("ordered")["sequence_batching"]["max_sequence_idle_microseconds"]
    assert idle == 1000000, idle


@check
def http_sequence_needs_an_id(server):
    one = inputs(triton, {"INPUT": np.ones((1, 1), np.float32)})
    fails(lambda: client(server).infer("accumulate", one), status=400, part="correlation ID")


@check
def http_priority_timeout_and_class(server):
    x = inputs(triton, {"x": np.ones((1, 4, 16), np.float32)})
    c = client(server)
    c.infer("lstm", x, priority=1, timeout=5_000_000)
    c.infer("lstm", x, parameters={"sla_class": "gold", "sla_ms": 250})
    fails(lambda: c.infer("lstm", x, parameters={"sla_class": "lead"}), status=400, part="lead")
    fails(lambda: c.infer("lstm", x, parameters={"sla_ms": -1}), status=400, part="sla_ms")


@check
def http_statistics(server):
    c = client(server)
    before = c.get_inference_statistics("add")["model_stats"][0]
    c.infer("add", pair(triton))
    after = c.get_inference_statistics("add")["model_stats"][0]
    assert after["inference_count"] == before["inference_count"] + 2, "two samples"
    stats = after["inference_stats"]
    assert stats["success"]["count"] == before["inference_stats"]["success"]["count"] + 1
    assert stats["success"]["ns"] > 0 and stats["compute_infer"]["ns"] > 0
    assert 0 < after["execution_count"] <= after["inference_count"] and after["last_inference"] > 0
    sizes = {b["batch_size"]: b["compute_infer"] for b in after["batch_stats"]}
    assert all(b["count"] > 0 and b["ns"] > 0 for b in sizes.values()), sizes
    was = {b["batch_size"]: b["compute_infer"]["count"] for b in before["batch_stats"]}
    more = {size: b["count"] - was.get(size, 0) for size, b in sizes.items()}
    assert {size: num for size, num in more.items() if num} == {2: 1}, (before, after)
    names = [m["name"] for m in c.get_inference_statistics()["model_stats"]]
    assert "lstm" in names and names.count("twice") == 2


@check
def http_unknown_model_and_version(server):
    c = client(server)
    fails(lambda: c.infer("nobody", pair(triton)), status=404, part="unknown model: 'nobody'")
    fails(lambda: c.infer("twice", pair(triton), model_version="2"), status=404, part="version 2")
    fails(lambda: c.get_model_metadata("twice", "x"), status=400, part="version")


@check
def http_wrong_inputs(server):
    c = client(server)
    infer = lambda made: lambda: c.infer("add", made)
    fails(infer(pair(triton)[:1]), status=400, part="missing required input(s) ['INPUT1']")
    extra = pair(triton) + inputs(triton, {"INPUT2": A})
    fails(infer(extra), status=400, part="unexpected inference input 'INPUT2'")
    fails(infer(pair(triton, A[:, :15], B)), status=400, part="unexpected shape for input 'INPUT0'")
    fails(infer(pair(triton, A.astype(np.int32), B)), status=400, part="data-type is 'INT32'")
    many = np.zeros((9, 16), np.float32)
    fails(infer(pair(triton, many, many)), status=400, part="batch-size must be 1 to 8")
    fails(infer(pair(triton, A[:1], B)), status=400, part="samples")
    fails(infer(pair(triton, A[:0], B[:0])), status=400, part="batch-size")


@check
def http_unknown_output(server):
    outputs = [triton.InferRequestedOutput("OUTPUT9")]
    call = lambda: client(server).infer("add", pair(triton), outputs=outputs)
    fails(call, status=400, part="unexpected inference output 'OUTPUT9'")


@check
def http_malformed_bodies(server):
    path = "/v2/models/add/infer"
    for body in ("", "{", "[]", '{"inputs": 3}', '{"inputs": [{"name": "INPUT0"}]}', "[" * 5000):
        status, _, text = raw(server, "POST", path, body)
        assert status == 400 and json.loads(text)["error"], (body[:20], status)
    status, body = post(server, path, add_json(), **{"Inference-Header-Content-Length": "99999"})
    assert status == 400 and "inference-header-content-length" in body["error"], body


@check
def http_wrong_amounts_of_data(server):
    status, body = post(server, "/v2/models/add/infer", {"inputs": [
        {"name": "INPUT0", "datatype": "FP32", "shape": [1, 16], "data": [1.0] * 15}]})
    assert status == 400 and "16 elements" in body["error"], body
    status, body = post(server, "/v2/models/add/infer", {"inputs": [
        {"name": "INPUT0", "datatype": "FP32", "shape": [2**62, 2**62], "data": []}]})
    assert status == 400, body
    status, body = post(server, "/v2/models/add/infer", {"inputs": [
        {"name": "INPUT0", "datatype": "FP32", "shape": [1, 16],
         "parameters": {"binary_data_size": 64}}]})
    assert status == 400 and "64 bytes" in body["error"], body


@check
def http_unknown_path_and_method(server):
    assert raw(server, "GET", "/v3")[0] == 404
    assert raw(server, "GET", "/v2/models/add/infer")[0] == 405


@check
def http_too_large_a_body_is_refused(server):
    status, _, body = raw(server, "POST", "/v2/models/add/infer", b" " * 65_000_000)
    assert status in (400, 413), status


@check
def http_generate(server):
    status, body = post(server, "/v2/models/story/generate", {"text_input": "word1 word2 word3"})
    assert status == 200 and body["model_name"] == "story", body
    assert body["text_output"].startswith("word"), body
    short = {"text_input": "word1 word2 word3", "parameters": {"max_tokens": 2}}
    status, cut = post(server, "/v2/models/story/generate", short)
    assert len(cut["text_output"].split()) <= 2 and body["text_output"].startswith(cut["text_output"])


@check
def http_generate_stream(server):
    request = {"text_input": "word1 word2 word3", "id": "s1"}
    status, headers, body = raw(server, "POST", "/v2/models/story/generate_stream",
                                json.dumps(request))
    assert status == 200 and headers["content-type"].startswith("text/event-stream"), headers
    lines = [line for line in body.decode().splitlines() if line]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert len(events) > 1 and all(e["id"] == "s1" for e in events), events
    whole = post(server, "/v2/models/story/generate", request)[1]["text_output"]
    assert "".join(e["text_output"] for e in events) == whole


@check
def http_generate_samples(server):
    def told(status, **parameters):
        request = {"text_input": "word1 word2 word3", "parameters": parameters}
        got, body = post(server, "/v2/models/story/generate", request)
        assert got == status, body
        return body["text_output"] if status == 200 else body["error"]
    likeliest = told(200)
    assert told(200, temperature=0, seed=3) == likeliest
    assert told(200, temperature=1.5, top_k=1) == likeliest
    drawn = [told(200, temperature=1.5, top_k=20, seed=seed) for seed in range(4)]
    assert len(set(drawn)) > 1, drawn
    assert [told(200, temperature=1.5, top_k=20, seed=seed) for seed in range(4)] == drawn
    assert "0 to 100" in told(400, temperature=101)
    assert "0 to 1024" in told(400, top_k=1025)


@check
def http_generate_needs_a_text_model(server):
    status, body = post(server, "/v2/models/add/generate", {"text_input": "a"})
    assert status == 400 and "text" in body["error"]
    status, body = post(server, "/v2/models/story/generate", {"text": "a"})
    assert status == 400 and "text_input" in body["error"]


@check
def http_infer_with_text(server):
    text = np.array([[b"word1 word2 word3"]], np.object_)
    result = client(server).infer("story", inputs(triton, {"text_input": text}))
    want = post(server, "/v2/models/story/generate", {"text_input": "word1 word2 word3"})[1]
    assert result.as_numpy("text_output")[0, 0].decode() == want["text_output"]


@check
def http_trace_and_log_settings(server):
    c = client(server)
    assert c.get_trace_settings()["trace_level"] == ["OFF"]
    c.update_trace_settings(settings={"trace_level": ["OFF"]})
    fails(lambda: c.update_trace_settings(settings={"trace_mode": "opentelemetry"}), status=501)
    fails(lambda: c.update_trace_settings(settings={"trace_rate": "0"}), status=400, part="trace_rate")
    fails(lambda: c.update_trace_settings(settings={"trace_file": "../x"}), status=400)
    fails(lambda: c.get_trace_settings("nobody"), status=404)
    assert c.update_log_settings({"log_verbose_level": 1})["log_verbose_level"] == 1
    assert c.update_log_settings({"log_verbose_level": 0})["log_verbose_level"] == 0
    assert c.get_log_settings()["log_info"] is True
    assert c.update_log_settings({"log_info": False})["log_info"] is False
    assert c.update_log_settings({"log_info": True})["log_info"] is True
    fails(lambda: c.update_log_settings({"log_colour": 1}), status=400, part="log_colour")
    fails(lambda: c.update_log_settings({"log_file": "x"}), status=501)


@check
def http_traces_of_all_models(server):
    c = client(server)
    on = {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "1", "log_frequency": "1",
          "trace_file": "http.json"}
    assert c.update_trace_settings(settings=on)["trace_level"] == ["TIMESTAMPS", "TENSORS"]
    c.infer("add", pair(triton), request_id="mine")
    assert c.update_trace_settings(settings={key: None for key in on})["trace_level"] == ["OFF"]
    c.infer("add", pair(triton))
    (trace,) = trace_file(server, "http.json.0")
    assert trace["head"]["model_name"] == "add" and trace["head"]["request_id"] == "mine", trace
    ordered(trace, "HTTP_RECV_START", "HTTP_RECV_END", "REQUEST_START", "QUEUE_START",
            "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END",
            "REQUEST_END", "HTTP_SEND_START", "HTTP_SEND_END")
    told = {(t["activity"], t["tensor"]["name"]): t["tensor"] for t in trace["tensors"]}
    first = told["TENSOR_QUEUE_INPUT", "INPUT0"]
    assert first["shape"] == "2,16" and first["dtype"] == "FP32", first
    output = np.array(told["TENSOR_BACKEND_OUTPUT", "OUTPUT0"]["data"].split(","), np.float32)
    same(output.reshape(2, 16), A + B)


@check
def http_cuda_shared_memory_is_not_there(server):
    c = client(server)
    assert c.get_cuda_shared_memory_status() == []
    fails(lambda: c.get_cuda_shared_memory_status("r"), status=404)
    fails(lambda: c.register_cuda_shared_memory("r", b"AAAA", 0, 4), status=501)
    c.unregister_cuda_shared_memory("r")
    c.unregister_cuda_shared_memory()


@check
def http_system_shared_memory(server):
    import tritonclient.utils.shared_memory as shm

    c, size = client(server), A.nbytes
    handle = shm.create_shared_memory_region("in", "/lazybatch_http", size * 4)
    try:
        shm.set_shared_memory_region(handle, [A, B])
        c.register_system_shared_memory("in", "/lazybatch_http", size * 4)
        assert c.get_system_shared_memory_status()[0]["byte_size"] == size * 4
        fails(lambda: c.register_system_shared_memory("in", "/lazybatch_http", 8), status=400)
        made = [triton.InferInput(n, [2, 16], "FP32") for n in ("INPUT0", "INPUT1")]
        made[0].set_shared_memory("in", size)
        made[1].set_shared_memory("in", size, offset=size)
        outputs = [triton.InferRequestedOutput("OUTPUT0")]
        outputs[0].set_shared_memory("in", size, offset=2 * size)
        result = c.infer("add", made, outputs=outputs)
        assert "parameters" not in result.get_output("OUTPUT0"), result.get_output("OUTPUT0")
        same(shm.get_contents_as_numpy(handle, np.float32, [2, 16], offset=2 * size), A + B)
        outputs[0].set_shared_memory("in", 8, offset=0)
        fails(lambda: c.infer("add", made, outputs=outputs), status=400, part="at least")
        made[1].set_shared_memory("in", size, offset=4 * size)
        fails(lambda: c.infer("add", made), status=400, part="Invalid offset")
        c.unregister_system_shared_memory("in")
        assert c.get_system_shared_memory_status() == []
        fails(lambda: c.infer("add", made), status=404, part="Unable to find")
    finally:
        shm.destroy_shared_memory_region(handle)


@check
def http_shared_memory_of_no_object(server):
    c = client(server)
    fails(lambda: c.register_system_shared_memory("x", "/lazybatch_none", 8), status=400)
    fails(lambda: c.register_system_shared_memory("x", "../passwd", 8), status=400)


@check
def http_repository(server):
    c = client(server)
    index = {(m["name"], m.get("version")): m.get("state") for m in c.get_model_repository_index()}
    assert index["twice", "3"] == "READY" and index["spare", None] is None, index
    c.load_model("spare")
    same(c.infer("spare", pair(triton)).as_numpy("OUTPUT0"), A + B)
    c.load_model("spare", config='{"max_batch_size": 1}')
    fails(lambda: c.infer("spare", pair(triton)), status=400, part="batch-size")
    c.unload_model("spare")
    assert not c.is_model_ready("spare")
    fails(lambda: c.infer("spare", pair(triton)), status=503, part="no available versions")


@check
def http_answers_of_the_cache_count_in_the_queue(server):
    c = client(server)
    for _ in range(3):
        same(c.infer("cached", pair(triton)).as_numpy("OUTPUT0"), A + B)
    stats = c.get_inference_statistics("cached")["model_stats"][0]["inference_stats"]
    counts = {what: stats[what]["count"] for what in ("success", "queue", "cache_hit", "compute_infer")}
    assert counts == {"success": 3, "queue": 3, "cache_hit": 2, "compute_infer": 1}, counts


@check
def http_overload_is_refused_and_leaves_the_others_alone(server):
    """Sixteen calls at once, where one runs and one waits: 503 says why, and who is taken is answered."""
    x = np.random.default_rng(5).normal(size=(1, 4096, 16)).astype(np.float32)
    c = triton.InferenceServerClient(server.http, concurrency=16, network_timeout=60)
    c.load_model("busy")
    given = inputs(triton, {"x": x})
    want = c.infer("busy", given).as_numpy("scores")
    before = c.get_inference_statistics("busy")["model_stats"][0]["inference_stats"]
    calls = [c.async_infer("busy", given) for _ in range(16)]
    same(client(server).infer("add", pair(triton)).as_numpy("OUTPUT0"), A + B)
    answered = 0
    for call in calls:
        try:
            got = call.get_result().as_numpy("scores")
        except InferenceServerException as error:
            assert "503" in str(error.status()), error.status()
            assert "Exceeds maximum queue size: the queue of 1 requests is full" in str(error), error
        else:
            assert got.tobytes() == want.tobytes(), "bit for bit as alone"
            answered += 1
    assert 2 <= answered < 16, answered
    after = c.get_inference_statistics("busy")["model_stats"][0]["inference_stats"]
    more = {what: after[what]["count"] - before[what]["count"] for what in ("success", "fail")}
    assert more == {"success": answered, "fail": 16 - answered}, more
    c.close()


@check
def http_a_model_is_loaded_from_files_of_the_call(server):
    c = client(server)
    c.load_model("add_brought", config='{"max_batch_size": 4}', files=files_of_add())
    same(c.infer("add_brought", pair(triton)).as_numpy("OUTPUT0"), A + B)
    fails(lambda: c.load_model("add_brought", files=files_of_add()), status=400, part="'config'")
    c.unload_model("add_brought")
    assert not c.is_model_ready("add_brought")
    fails(lambda: c.load_model("add_brought"), status=400, part="no folder of that name")


@check
def http_broken_configuration_is_told_by_line(server):
    c = client(server)
    text = fails(lambda: c.load_model("broken"), status=400, part="broken/config.pbtxt:2:20")
    assert "colour" in text
    fails(lambda: c.load_model("../add"), part="")
    fails(lambda: c.load_model("nobody"), status=400, part="failed to load 'nobody'")
