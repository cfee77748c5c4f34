"""Checks of ensembles: one program, or a chain, that computes what its steps compute one after another."""

import json

import numpy as np
import repository
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from check import check
from common import A, B, fails, inputs, same
from grpc_checks import Stream
from http_checks import raw

OUTPUTS = ("SUM", "REST", "SCORES")


def clients(server):
    return ((over_http, over_http.InferenceServerClient(server.http, concurrency=8)),
            (over_grpc, over_grpc.InferenceServerClient(server.grpc)))


def request(seed, samples, positions):
    rng = np.random.default_rng(seed)
    return {"FRAMES": rng.normal(size=(samples, positions, 16)).astype(np.float32),
            "OFFSET": rng.normal(size=(samples, 16)).astype(np.float32)}


def by_steps(module, client, given):
    """What the steps of the ensemble `scorer` answer, called one after another."""
    scores = client.infer("lstm", inputs(module, {"x": given["FRAMES"]})).as_numpy("scores")
    features = client.infer("pool", inputs(module, {"rows": scores})).as_numpy("features")
    both = {"INPUT0": features, "INPUT1": given["OFFSET"]}
    last = client.infer("add", inputs(module, both))
    return {"SUM": last.as_numpy("OUTPUT0"), "REST": last.as_numpy("OUTPUT1"), "SCORES": scores}


def identical(answer, wanted):
    for name in OUTPUTS:
        got = answer.as_numpy(name)
        assert got.shape == wanted[name].shape, (name, got.shape, wanted[name].shape)
        assert got.tobytes() == wanted[name].tobytes(), name


@check
def ensemble_is_its_steps_bit_for_bit(server):
    for module, client in clients(server):
        for seed, (samples, positions) in enumerate([(1, 1), (2, 5), (8, 12), (1, 40)]):
            given = request(seed, samples, positions)
            answer = client.infer("scorer", inputs(module, given))
            identical(answer, by_steps(module, client, given))


@check
def ensemble_is_its_steps_under_load(server):
    """Requests of many lengths at once, which batch with each other at nodes of all steps."""
    module, client = clients(server)[0]
    given = [request(100 + i, 1 + i % 3, 1 + 7 * i % 23) for i in range(24)]
    wanted = [by_steps(module, client, g) for g in given]
    running = [client.async_infer("scorer", inputs(module, g)) for g in given]
    for one, want in zip(running, wanted):
        identical(one.get_result(), want)


@check
def ensemble_has_its_configuration_and_figures(server):
    for module, client in clients(server):
        plain = {} if module is over_http else {"as_json": True}
        config = client.get_model_config("scorer", **plain)
        config = config.get("config", config)
        steps = config["ensemble_scheduling"]["step"]
        assert [s["model_name"] for s in steps] == ["add", "lstm", "pool"], steps
        assert steps[1]["input_map"] == {"x": "FRAMES"}, steps
        metadata = client.get_model_metadata("scorer", **plain)
        assert metadata["platform"] == "ensemble", metadata
        assert [o["name"] for o in metadata["outputs"]] == list(OUTPUTS), metadata


@check
def ensemble_requests_count_at_the_models_of_its_steps(server):
    for module, client in clients(server):
        plain = {} if module is over_http else {"as_json": True}

        def counts(model):
            stats = client.get_inference_statistics(model, **plain)["model_stats"][0]
            of = lambda what: int(stats["inference_stats"][what].get("count", 0))
            return np.array([int(stats.get("inference_count", 0)), of("success"), of("queue"),
                             of("compute_infer")])

        models = "scorer", "add", "lstm", "pool"
        before = [counts(model) for model in models]
        client.infer("scorer", inputs(module, request(3, 2, 4)))
        more = [(counts(model) - was).tolist() for model, was in zip(models, before)]
        assert more == [[2, 1, 1, 1]] * 4, more


@check
def ensemble_follows_a_step_that_is_loaded(server):
    for module, client in clients(server):
        plain = {} if module is over_http else {"as_json": True}

        def answered():
            stats = client.get_inference_statistics("spared", **plain)["model_stats"][0]
            return int(stats["inference_stats"]["success"].get("count", 0))

        client.load_model("spared")
        given = inputs(module, {"A": A, "B": B})
        for _ in range(2):
            same(client.infer("spared", given).as_numpy("SUM"), A + 2 * B)
        assert answered() == 2
        client.load_model("spare")
        assert answered() == 0, "it was loaded anew"
        same(client.infer("spared", given).as_numpy("SUM"), A + 2 * B)
        client.unload_model("spared")
        client.unload_model("spare")


@check
def ensemble_streams_what_its_decoder_makes(server):
    letters = np.array([[4, 5, 6, 7]], np.int32)
    whole = clients(server)[1][1].infer("speller", inputs(over_grpc, {"letters": letters}))
    stream = Stream(server)
    stream.send("spoken", inputs(over_grpc, {"LETTERS": letters}), enable_empty_final_response=True)
    tokens = []
    while True:
        result = stream.next()
        if result.get_response().parameters["triton_final_response"].bool_param:
            break
        tokens.append(int(result.as_numpy("TOKENS")[0, 0]))
    stream.end()
    assert tokens == whole.as_numpy("tokens")[0].tolist(), tokens


@check
def chain_hands_on_text_as_its_steps_would(server):
    """An ensemble that no single program can express, over both protocols and as `generate`."""
    words = np.array([[b"word1 word2 word3"], [b"word9"]], object)
    drawn = {"temperature": "0.8", "seed": 5}
    for module, client, how in [(*both, how) for both in clients(server) for how in (drawn, {})]:
        ask = lambda model, text: client.infer(
            model, inputs(module, {"text_input": text}), request_id="7", parameters=how)
        said = ask("story", words).as_numpy("text_output")
        again = ask("story", said).as_numpy("text_output")
        answer = ask("chat", words)
        assert answer.as_numpy("SAID").tolist() == said.tolist()
        assert answer.as_numpy("text_output").tolist() == again.tolist()
    for how in ("generate", "generate_stream"):
        body = {"text_input": words[0, 0].decode()}
        status, _, text = raw(server, "POST", f"/v2/models/chat/{how}", json.dumps(body))
        told = json.loads(text.removeprefix(b"data: "))
        assert (status, told["text_output"]) == (200, again[0, 0].decode()), text


@check
def chain_counts_its_requests_and_those_of_its_steps(server):
    words = np.array([[b"word4 word5"]], object)
    for module, client in clients(server):
        plain = {} if module is over_http else {"as_json": True}

        def told(model):
            stats = client.get_inference_statistics(model, **plain)["model_stats"][0]
            times = stats["inference_stats"]
            counts = [int(stats["inference_count"]), int(stats["execution_count"]),
                      int(times["success"]["count"])]
            return np.array(counts), int(times["compute_infer"]["ns"])

        before = told("chat"), told("story")
        client.infer("chat", inputs(module, {"text_input": words}))
        after = told("chat"), told("story")
        assert (after[0][0] - before[0][0]).tolist() == [1, 1, 1], (before, after)
        steps = after[1][0] - before[1][0]
        assert (steps[0], steps[2]) == (2, 2), (before, after)
        took = [after[i][1] - before[i][1] for i in (0, 1)]
        assert took[0] == took[1], "its time is that of its steps"
        fails(lambda: client.infer("chat", inputs(module, {"text_input": words}),
                                   parameters={"temperature": 101}), part="temperature")


@check
def chain_tells_its_steps_of_sequences_where_a_request_stands(server):
    one = np.ones((1, 1), np.float32)
    for number, (module, client) in enumerate(clients(server)):
        given = inputs(module, {"A": one})
        fails(lambda given=given: client.infer("totals", given), part="correlation ID")
        sums = [client.infer("totals", given, sequence_id=6001 + number, sequence_start=i == 0,
                             sequence_end=i == 2).as_numpy("SUM")[0, 0] for i in range(3)]
        assert sums == [1, 2, 3], sums


@check
def ensemble_tells_what_is_wrong_with_a_request(server):
    """What is wrong with a request is told by the ensemble's own names."""
    for module, client in clients(server):
        given = request(0, 1, 3)
        fails(lambda: client.infer("scorer", inputs(module, {"FRAMES": given["FRAMES"]})),
              part="missing required input(s) ['OFFSET']")
        given["FRAMES"] = given["FRAMES"][:, :, :5]
        fails(lambda: client.infer("scorer", inputs(module, given)),
              part="unexpected shape for input 'FRAMES' for model 'scorer'")


@check
def ensembles_that_are_wrong_are_told_by_step(server):
    for module, client in clients(server):
        for name, (_, told) in repository.WRONG.items():
            fails(lambda name=name: client.load_model(name), part=told)
            assert not client.is_model_ready(name)


@check
def ensemble_brings_its_steps_and_takes_them_along(server):
    for module, client in clients(server):
        assert not client.is_model_ready("spare")
        client.load_model("spared")
        assert client.is_model_ready("spare"), "a step is loaded with its ensemble"
        answer = client.infer("spared", inputs(module, {"A": A, "B": B}))
        same(answer.as_numpy("SUM"), A + 2 * B)
        client.unload_model("spared")
        assert client.is_model_ready("spare") and not client.is_model_ready("spared")
        client.load_model("spared")
        client.unload_model("spared", unload_dependents=True)
        assert not client.is_model_ready("spare") and not client.is_model_ready("spared")
