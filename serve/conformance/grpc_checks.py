"""Checks over gRPC."""

import queue
import threading

import numpy as np
import tritonclient.grpc as triton
from check import check
from common import A, B, fails, files_of_add, inputs, ordered, pair, same, trace_file


def client(server):
    return triton.InferenceServerClient(server.grpc)


def spelling(server, model):
    """An input for a speller model."""
    name = client(server).get_model_metadata(model).inputs[0]
    dtype = {"INT32": np.int32, "INT64": np.int64}[name.datatype]
    return inputs(triton, {name.name: np.array([[4, 5, 6, 7]], dtype)})


class Stream:
    """A stream of a client of its own."""

    def __init__(self, server, **more):
        self.client, self.answers = client(server), queue.Queue()
        self.client.start_stream(lambda result, error: self.answers.put((result, error)), **more)

    def send(self, model, made, **more):
        self.client.async_stream_infer(model, made, **more)

    def next(self):
        result, error = self.answers.get(timeout=20)
        if error is not None:
            raise error
        return result

    def end(self, **more):
        self.client.stop_stream(**more)

    def rest(self):
        """Says that nothing more is sent, and waits for the server to end the stream; the answers
        that came."""
        # The client waits for that without a limit of its own.
        ending = threading.Thread(target=self.end, daemon=True)
        ending.start()
        ending.join(20)
        assert not ending.is_alive(), "the stream does not end"
        answers = []
        while not self.answers.empty():
            answers.append(self.next())
        return answers


@check
def grpc_health(server):
    c = client(server)
    assert c.is_server_live() and c.is_server_ready()
    assert c.is_model_ready("add") and not c.is_model_ready("nobody")


@check
def grpc_health_protocol(server):
    import grpc

    with grpc.insecure_channel(server.grpc) as channel:
        ask = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert ask(b"") == b"\x08\x01", "SERVING"
        name = b"inference.GRPCInferenceService"
        assert ask(b"\x0a" + bytes([len(name)]) + name) == b"\x08\x01"


@check
def grpc_metadata(server):
    c = client(server)
    assert c.get_server_metadata().name == "lazybatch"
    metadata = c.get_model_metadata("twice")
    assert list(metadata.versions) == ["1", "3"] and list(metadata.inputs[0].shape) == [-1, 16]


@check
def grpc_config(server):
    config = client(server).get_model_config("accumulate").config
    assert config.sequence_batching.state[0].input_name == "STATE"
    assert config.sequence_batching.oldest.max_candidate_sequences == 64


@check
def grpc_statistics(server):
    stats = client(server).get_inference_statistics("add").model_stats[0]
    assert stats.name == "add" and stats.inference_stats.success.count > 0


@check
def grpc_infer(server):
    result = client(server).infer("add", pair(triton), request_id="g-1")
    same(result.as_numpy("OUTPUT0"), A + B)
    same(result.as_numpy("OUTPUT1"), A - B)
    assert result.get_response().id == "g-1"


@check
def grpc_infer_one_output(server):
    outputs = [triton.InferRequestedOutput("OUTPUT1")]
    result = client(server).infer("add", pair(triton), outputs=outputs)
    assert result.as_numpy("OUTPUT0") is None
    same(result.as_numpy("OUTPUT1"), A - B)


@check
def grpc_infer_typed_contents(server):
    from tritonclient.grpc import service_pb2, service_pb2_grpc
    import grpc

    request = service_pb2.ModelInferRequest(model_name="add_int")
    for name in ("INPUT0", "INPUT1"):
        one = request.inputs.add(name=name, datatype="INT64", shape=[1, 16])
        one.contents.int64_contents.extend(range(16))
    with grpc.insecure_channel(server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answer = stub.ModelInfer(request)
        got = np.frombuffer(answer.raw_output_contents[0], np.int64)
        assert list(got) == list(range(0, 32, 2))
        request.inputs[0].contents.int64_contents.append(3)
        try:
            stub.ModelInfer(request)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
        else:
            raise AssertionError("17 elements of 16")


@check
def grpc_infer_half_precision(server):
    a, b = A.astype(np.float16), B.astype(np.float16)
    same(client(server).infer("half", pair(triton, a, b)).as_numpy("OUTPUT0"), a + b)


@check
def grpc_infer_compressed(server):
    result = client(server).infer("add", pair(triton), compression_algorithm="gzip")
    same(result.as_numpy("OUTPUT0"), A + B)


@check
def grpc_infer_asynchronous(server):
    c, answers = client(server), queue.Queue()
    for i in range(12):
        c.async_infer("add", pair(triton, A + i, B), lambda result, error: answers.put((result, error)),
                      request_id=str(i))
    for _ in range(12):
        result, error = answers.get(timeout=20)
        assert error is None, error
        same(result.as_numpy("OUTPUT0"), A + int(result.get_response().id) + B)


@check
def grpc_infer_cancelled(server):
    c, answers = client(server), queue.Queue()
    x = inputs(triton, {"x": np.ones((16, 200, 16), np.float32)})
    running = c.async_infer("lstm", x, lambda result, error: answers.put((result, error)))
    running.cancel()
    result, error = answers.get(timeout=20)
    assert error is None or "ancel" in str(error), error
    assert c.infer("lstm", x).as_numpy("scores").shape == (16, 200, 4), "others are served"


@check
def grpc_overload_is_refused(server):
    """As over HTTP: one runs, one waits, the others are told that there is no room."""
    x = np.random.default_rng(5).normal(size=(1, 4096, 16)).astype(np.float32)
    c, given, ended = client(server), inputs(triton, {"x": x}), queue.Queue()
    want = c.infer("busy", given).as_numpy("scores")
    for _ in range(16):
        c.async_infer("busy", given, lambda result, error: ended.put((result, error)))
    answered = 0
    for result, error in [ended.get(timeout=20) for _ in range(16)]:
        if error is None:
            assert result.as_numpy("scores").tobytes() == want.tobytes(), "bit for bit as alone"
            answered += 1
        else:
            assert "UNAVAILABLE" in str(error.status()), error.status()
            assert "Exceeds maximum queue size: the queue of 1 requests is full" in str(error), error
    assert 2 <= answered < 16, answered
    c.unload_model("busy")


@check
def grpc_classification(server):
    outputs = [triton.InferRequestedOutput("OUTPUT0", class_count=3)]
    classes = client(server).infer("add", pair(triton), outputs=outputs).as_numpy("OUTPUT0")
    assert classes.shape == (2, 3) and classes[1][0].decode().endswith(":15:label15")


@check
def grpc_errors(server):
    c = client(server)
    fails(lambda: c.infer("nobody", pair(triton)), status="NOT_FOUND", part="'nobody'")
    fails(lambda: c.infer("add", pair(triton)[:1]), status="INVALID_ARGUMENT", part="INPUT1")
    fails(lambda: c.infer("add", pair(triton, A[:, :3], B)), status="INVALID_ARGUMENT", part="shape")
    decoupled = spelling(server, "speller_steps")
    fails(lambda: c.infer("speller_steps", decoupled), status="UNIMPLEMENTED", part="decoupled")


@check
def grpc_sequence(server):
    c = client(server)

    def step(value, **place):
        one = inputs(triton, {"INPUT": np.array([[value]], np.float32)})
        result = c.infer("accumulate", one, sequence_id=5001, **place)
        return float(result.as_numpy("TOTAL")[0, 0])

    assert [step(4, sequence_start=True), step(5), step(6, sequence_end=True)] == [4, 9, 15]


@check
def grpc_priority_and_class(server):
    x = inputs(triton, {"x": np.ones((1, 4, 16), np.float32)})
    c = client(server)
    c.infer("lstm", x, priority=2, timeout=5_000_000, parameters={"sla_class": "gold"})
    fails(lambda: c.infer("lstm", x, parameters={"sla_class": "tin"}), status="INVALID_ARGUMENT")


@check
def grpc_stream_of_single_answers(server):
    stream = Stream(server)
    for i in range(8):
        stream.send("add", pair(triton, A + i, B), request_id=str(i))
    seen = set()
    for _ in range(8):
        result = stream.next()
        response = result.get_response()
        seen.add(response.id)
        assert response.parameters["triton_final_response"].bool_param
        same(result.as_numpy("OUTPUT0"), A + int(response.id) + B)
    assert len(seen) == 8
    stream.end()


@check
def grpc_stream_of_decoder_steps(server):
    whole = client(server).infer("speller", spelling(server, "speller"))
    name = whole.get_response().outputs[0].name
    whole = whole.as_numpy(name)[0]
    stream = Stream(server)
    stream.send("speller_steps", spelling(server, "speller_steps"), enable_empty_final_response=True)
    tokens = []
    while True:
        result = stream.next()
        if result.get_response().parameters["triton_final_response"].bool_param:
            assert not result.get_response().outputs
            break
        row = result.as_numpy(name)
        assert row.shape == (1, 1), "a step at a time"
        tokens.append(int(row[0, 0]))
    assert tokens == [int(t) for t in whole], (tokens, whole)
    stream.end()


@check
def grpc_stream_without_final_answer(server):
    """Who does not ask for it gets the steps and nothing behind them."""
    whole = client(server).infer("speller", spelling(server, "speller"))
    name = whole.get_response().outputs[0].name
    stream = Stream(server)
    stream.send("speller_steps", spelling(server, "speller_steps"), request_id="steps")
    answers = stream.rest()
    tokens = []
    for answer in answers:
        response = answer.get_response()
        assert response.id == "steps", response
        assert not response.parameters["triton_final_response"].bool_param, response
        assert [output.name for output in response.outputs] == [name], response
        tokens.append(int(answer.as_numpy(name)[0, 0]))
    assert tokens == whole.as_numpy(name)[0].tolist(), (tokens, whole.as_numpy(name))


@check
def grpc_stream_sequence_in_order(server):
    stream = Stream(server)
    values = [1, 2, 3, 4, 5]
    for i, value in enumerate(values):
        one = inputs(triton, {"INPUT": np.array([[value]], np.float32)})
        stream.send("accumulate", one, request_id=str(i), sequence_id=77, sequence_start=i == 0,
                    sequence_end=i == len(values) - 1)
    answers = [stream.next() for _ in values]
    totals = [(a.get_response().id, float(a.as_numpy("TOTAL")[0, 0])) for a in answers]
    assert totals == [("0", 1), ("1", 3), ("2", 6), ("3", 10), ("4", 15)], totals
    stream.end()


@check
def grpc_stream_goes_on_behind_an_error(server):
    stream = Stream(server)
    stream.send("nobody", pair(triton))
    fails(stream.next, part="'nobody'")
    stream.send("add", pair(triton))
    same(stream.next().as_numpy("OUTPUT0"), A + B)
    stream.end()


@check
def grpc_stream_ends_with_the_status_of_an_error(server):
    stream = Stream(server, headers={"triton_grpc_error": "true"})
    stream.send("add", pair(triton))
    same(stream.next().as_numpy("OUTPUT0"), A + B)
    stream.send("nobody", pair(triton))
    fails(stream.next, status="NOT_FOUND", part="'nobody'")
    stream.end()


@check
def grpc_stream_counts_responses_by_their_place(server):
    stats = lambda: client(server).get_inference_statistics("speller_steps").model_stats[0]
    counts = lambda: {at: (one.success.count, one.empty_response.count)
                      for at, one in stats().response_stats.items()}
    before = counts()
    stream = Stream(server)
    stream.send("speller_steps", spelling(server, "speller_steps"))
    num = len(stream.rest())
    after = {at: tuple(np.subtract(now, before.get(at, (0, 0)))) for at, now in counts().items()}
    made = {at: now for at, now in after.items() if any(now)}
    assert made == {**{str(at): (1, 0) for at in range(num)}, str(num): (0, 1)}, made
    assert stats().response_stats["0"].compute_infer.ns > 0


@check
def grpc_stream_left_by_its_client(server):
    stream = Stream(server)
    for _ in range(8):
        stream.send("speller_steps", spelling(server, "speller_steps"))
    stream.end(cancel_requests=True)
    same(client(server).infer("add", pair(triton)).as_numpy("OUTPUT0"), A + B)


@check
def grpc_trace_and_log_settings(server):
    c = client(server)
    assert list(c.get_trace_settings().settings["trace_level"].value) == ["OFF"]
    fails(lambda: c.update_trace_settings(settings={"trace_mode": "opentelemetry"}),
          status="UNIMPLEMENTED")
    fails(lambda: c.update_trace_settings(settings={"trace_file": "/tmp/x"}),
          status="INVALID_ARGUMENT", part="trace_file")
    fails(lambda: c.get_trace_settings("nobody"), status="NOT_FOUND")
    assert c.get_log_settings().settings["log_info"].bool_param
    c.update_log_settings({"log_warning": True})


@check
def grpc_traces_of_a_model(server):
    c = client(server)
    on = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": "2",
          "trace_file": "grpc.json"}
    now = c.update_trace_settings("add", on).settings
    assert list(now["trace_count"].value) == ["2"] and list(now["trace_mode"].value) == ["triton"]
    assert list(c.get_trace_settings().settings["trace_level"].value) == ["OFF"]
    for request in ("a", "b", "c"):
        c.infer("add", pair(triton), request_id=request)
    assert list(c.get_trace_settings("add").settings["trace_count"].value) == ["0"]
    traces = trace_file(server, "grpc.json.0")
    assert [t["head"]["request_id"] for t in traces] == ["a", "b"], traces
    for trace in traces:
        ordered(trace, "GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "REQUEST_START", "QUEUE_START",
                "COMPUTE_START", "COMPUTE_END", "REQUEST_END", "GRPC_SEND_START", "GRPC_SEND_END")
    c.update_trace_settings("add", {key: None for key in on})


@check
def grpc_system_shared_memory(server):
    import tritonclient.utils.shared_memory as shm

    c, size = client(server), A.nbytes
    handle = shm.create_shared_memory_region("g", "/lazybatch_grpc", size * 3)
    try:
        shm.set_shared_memory_region(handle, [A, B])
        c.register_system_shared_memory("g", "/lazybatch_grpc", size * 3)
        assert c.get_system_shared_memory_status().regions["g"].byte_size == size * 3
        made = [triton.InferInput(n, [2, 16], "FP32") for n in ("INPUT0", "INPUT1")]
        made[0].set_shared_memory("g", size)
        made[1].set_shared_memory("g", size, offset=size)
        outputs = [triton.InferRequestedOutput(n) for n in ("OUTPUT0", "OUTPUT1")]
        outputs[0].set_shared_memory("g", size, offset=2 * size)
        result = c.infer("add", made, outputs=outputs)
        same(shm.get_contents_as_numpy(handle, np.float32, [2, 16], offset=2 * size), A + B)
        same(result.as_numpy("OUTPUT1"), A - B)
        c.unregister_system_shared_memory()
        assert not c.get_system_shared_memory_status().regions
    finally:
        shm.destroy_shared_memory_region(handle)


@check
def grpc_cuda_shared_memory_is_not_there(server):
    c = client(server)
    assert not c.get_cuda_shared_memory_status().regions
    fails(lambda: c.get_cuda_shared_memory_status("r"), status="NOT_FOUND")
    fails(lambda: c.register_cuda_shared_memory("r", b"AAAA", 0, 4), status="UNIMPLEMENTED")
    c.unregister_cuda_shared_memory("r")
    c.unregister_cuda_shared_memory()


@check
def grpc_repository(server):
    c = client(server)
    c.load_model("spare")
    assert c.is_model_ready("spare")
    states = {m.name: m.state for m in c.get_model_repository_index().models}
    assert states["spare"] == "READY", states
    c.unload_model("spare")
    assert not c.is_model_ready("spare")
    fails(lambda: c.load_model("broken"), status="INVALID_ARGUMENT", part="broken/config.pbtxt:2:20")
    c.unload_model("nobody")  # It is not served, as is wanted.
    c.load_model("add_brought", config='{"max_batch_size": 4}', files=files_of_add())
    same(c.infer("add_brought", pair(triton)).as_numpy("OUTPUT0"), A + B)
    c.unload_model("add_brought")


@check
def grpc_stream_of_several_samples(server):
    x = np.random.default_rng(3).normal(size=(3, 5, 16)).astype(np.float32)
    stream = Stream(server)
    stream.send("lstm", inputs(triton, {"x": x}))
    want = client(server).infer("lstm", inputs(triton, {"x": x})).as_numpy("scores")
    same(stream.next().as_numpy("scores"), want)
    stream.end()
