"""Checks of the pretrained models: what is served is what others compute from the same files.

Tolerances are those of the tests of the engine; where answers of this server are compared with each
other, it is bit for bit.
"""

import asyncio
import json
import time

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.grpc.aio as aio_grpc
import tritonclient.http as over_http
import tritonclient.http.aio as aio_http
import real_models
from check import real
from common import fails, inputs
from grpc_checks import Stream
from http_checks import post, raw

AT_ONCE = 32
"""Requests at once where many are sent."""


def near(got, want, tolerance, what):
    """Whether all differ by no more than that part of the largest."""
    assert got.shape == want.shape, (what, got.shape, want.shape)
    off = np.abs(got - want).max() / np.abs(want).max()
    assert off < tolerance, f"{what}: {off} of the largest off"


async def all_of(calls):
    """Answers of many calls, `AT_ONCE` at a time, in their order."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(call):
        async with room:
            return await call

    return await asyncio.gather(*map(one, calls))


def asynchronous(*models):
    """A check from a coroutine with a client over gRPC, with the models that it needs."""
    def add(function):
        async def connected(server):
            async with aio_grpc.InferenceServerClient(server.grpc) as c:
                await function(server, c)

        def run(server):
            asyncio.run(asyncio.wait_for(connected(server), 300))
        run.__name__ = function.__name__
        return real(*models)(run)
    return add


class Ids:
    """Ids of sequences, each only once."""
    last = 0

    @classmethod
    def new(cls):
        cls.last += 1
        return cls.last


def listen(module, client, chunks):
    """Probabilities of the chunks of one sequence, one call after another."""
    number, heard = Ids.new(), []
    for i, chunk in enumerate(chunks):
        result = client.infer("silero-vad", inputs(module, {"input": chunk}), sequence_id=number,
                              sequence_start=i == 0, sequence_end=i + 1 == len(chunks))
        heard.append(result.as_numpy("output")[0, 0])
    return np.array(heard)


ALONE = {}
"""Probabilities of each recording, when nothing else ran."""


def alone(server):
    if not ALONE:
        c = over_http.InferenceServerClient(server.http)
        ALONE.update((name, listen(over_http, c, chunks))
                     for name, chunks, _ in real_models.recordings())
    return ALONE


def is_alone(name, heard):
    assert np.array(heard).tobytes() == ALONE[name].tobytes(), f"{name}: bit for bit as alone"


@real("silero-vad")
def silero_vad_hears_over_http_what_the_reference_hears(server):
    for name, _, want in real_models.recordings():
        heard = alone(server)[name]
        near(heard, want, 1e-4, name)
        assert (heard > 0.9).any() == name.startswith("speech"), name


@real("silero-vad")
def silero_vad_hears_the_same_over_grpc(server):
    alone(server)
    c = over_grpc.InferenceServerClient(server.grpc)
    for name, chunks, _ in real_models.recordings():
        is_alone(name, listen(over_grpc, c, chunks))


@real("silero-vad")
def silero_vad_keeps_two_interleaved_sequences_apart(server):
    alone(server)
    c = over_http.InferenceServerClient(server.http)
    cases = list(real_models.recordings())[:2]
    assert cases[0][0] != cases[1][0]
    ids, heard = [Ids.new() for _ in cases], [[], []]
    for at in range(max(len(chunks) for _, chunks, _ in cases)):
        for which, (_, chunks, _) in enumerate(cases):
            if at < len(chunks):
                result = c.infer("silero-vad", inputs(over_http, {"input": chunks[at]}),
                                 sequence_id=ids[which], sequence_start=at == 0,
                                 sequence_end=at + 1 == len(chunks))
                heard[which].append(result.as_numpy("output")[0, 0])
    for (name, _, _), probabilities in zip(cases, heard):
        is_alone(name, probabilities)


@real("silero-vad")
def silero_vad_over_one_stream_with_all_chunks_sent_ahead(server):
    """Chunks of all recordings in turn, none waits for the answer to the one before."""
    alone(server)
    stream, heard = Stream(server), {}
    cases = [(Ids.new(), name, chunks) for name, chunks, _ in real_models.recordings()]
    for at in range(max(len(chunks) for _, _, chunks in cases)):
        for number, name, chunks in cases:
            if at < len(chunks):
                stream.send("silero-vad", inputs(over_grpc, {"input": chunks[at]}),
                            request_id=f"{name}/{at}", sequence_id=number,
                            sequence_start=at == 0, sequence_end=at + 1 == len(chunks))
    for _ in range(sum(len(chunks) for _, _, chunks in cases)):
        result = stream.next()
        heard[result.get_response().id] = result.as_numpy("output")[0, 0]
    stream.end()
    for _, name, chunks in cases:
        is_alone(name, [heard[f"{name}/{at}"] for at in range(len(chunks))])


@real("silero-vad")
def silero_vad_forgets_a_sequence_that_is_idle(server):
    """`silero-vad-idle` keeps one sequence, and for a fifth of a second."""
    c = over_http.InferenceServerClient(server.http)
    _, chunks, _ = next(real_models.recordings())

    def step(number, at, **place):
        given = inputs(over_http, {"input": chunks[at]})
        result = c.infer("silero-vad-idle", given, sequence_id=number, **place)
        return result.as_numpy("output")[0, 0]

    left = Ids.new()
    first = step(left, 0, sequence_start=True)
    assert first == alone(server)[next(iter(ALONE))][0]
    time.sleep(3 * real_models.IDLE)
    fails(lambda: step(left, 1), status=400, part="start")
    # There is room again, and what begins anew knows nothing of what was.
    other = Ids.new()
    assert step(other, 0, sequence_start=True) == first
    step(other, 1, sequence_end=True)
    assert step(left, 0, sequence_start=True) == first


@real("minilm-l6")
def minilm_embeds_text_as_the_reference_does(server):
    c = over_http.InferenceServerClient(server.http)
    cases = real_models.sentences()
    for text, _, want in cases[:20]:
        given = inputs(over_http, {"text_input": np.array([[text.encode()]], np.object_)})
        got = c.infer("minilm-l6", given).as_numpy("embedding")[0]
        assert np.abs(got - want).max() < 1e-5, text


@real("minilm-l6")
def minilm_embeds_many_texts_of_one_request(server):
    """Texts of all lengths in one request, over both protocols, and the ids of each alone."""
    cases = real_models.sentences()
    texts = np.array([[text.encode()] for text, _, _ in cases[:16]], np.object_)
    together = []
    for module, address in ((over_http, server.http), (over_grpc, server.grpc)):
        c = module.InferenceServerClient(address)
        made = inputs(module, {"text_input": texts})
        together.append(c.infer("minilm-l6", made).as_numpy("embedding"))
    assert together[0].tobytes() == together[1].tobytes()
    c = over_grpc.InferenceServerClient(server.grpc)
    for (text, ids, want), got in zip(cases, together[0]):
        assert np.abs(got - want).max() < 1e-5, text
        one = c.infer("minilm-l6", inputs(over_grpc, {"input_ids": np.array([ids], np.int32)}))
        assert one.as_numpy("embedding")[0].tobytes() == got.tobytes(), f"{text}: bit for bit"


@asynchronous("minilm-l6")
async def minilm_embeds_a_hundred_texts_at_once(server, c):
    cases = real_models.sentences()
    assert len(cases) == 100
    one = lambda text: c.infer("minilm-l6", inputs(
        aio_grpc, {"text_input": np.array([[text.encode()]], np.object_)}))
    results = await all_of(one(text) for text, _, _ in cases)
    got = [result.as_numpy("embedding")[0] for result in results]
    for (text, _, want), embedding in zip(cases, got):
        assert np.abs(embedding - want).max() < 1e-5, text
    # What Sentence Transformers documents of its first three sentences.
    for a, b, cosine in ((0, 1, 0.6660), (0, 2, 0.1046), (1, 2, 0.1411)):
        assert abs(float(got[a] @ got[b]) - cosine) < 1e-4, (a, b)


@real("mobilenet-v2")
def mobilenet_classifies_with_labels(server):
    cases = real_models.pictures()
    for module, address in ((over_http, server.http), (over_grpc, server.grpc)):
        c = module.InferenceServerClient(address)
        for image, number, _, logits in cases:
            outputs = [module.InferRequestedOutput("logits", class_count=5)]
            given = inputs(module, {"image": image})
            classes = c.infer("mobilenet-v2", given, outputs=outputs).as_numpy("logits")[0]
            value, place, label = classes[0].decode().split(":")
            assert int(place) == number, (classes, number)
            assert label == ("Egyptian cat" if number == 285 else f"class {number}"), label
            assert abs(float(value) - logits.max()) < 1e-4 * np.abs(logits).max()
            best = [int(c.decode().split(":")[1]) for c in classes]
            assert best == list(np.argsort(-logits, kind="stable")[:5]), best
    assert 285 in [number for _, number, _, _ in cases], "the cat is among them"


@real("mobilenet-v2")
def mobilenet_gives_the_logits_of_the_reference(server):
    """All pictures in one request, and each alone with the same bits."""
    cases = real_models.pictures()
    c = over_http.InferenceServerClient(server.http, network_timeout=120)
    infer = lambda image: c.infer("mobilenet-v2", inputs(over_http, {"image": image})).as_numpy(
        "logits")
    together = infer(np.concatenate([image for image, *_ in cases]))
    for (image, number, probability, want), got in zip(cases, together):
        near(got, want, 1e-4, f"class {number}")
        odds = np.exp(got.astype(np.float64) - got.max())
        assert abs(odds.max() / odds.sum() - probability) < 1e-3, number
        assert infer(image)[0].tobytes() == got.tobytes(), f"class {number}: bit for bit"


@real("minilm-l6", "mobilenet-v2")
def models_as_published_answer_as_those_with_manifests(server):
    """Weights with their publisher's files beside them, and weights alone, bit for bit."""
    c = over_grpc.InferenceServerClient(server.grpc)
    texts = np.array([[text.encode()] for text, *_ in real_models.sentences()[:8]], np.object_)
    image = real_models.pictures()[0][0]
    for model, given, output in (("minilm-l6", {"text_input": texts}, "embedding"),
                                 ("mobilenet-v2", {"image": image}, "logits")):
        published = model.replace("-l6", "") + "-published"
        got, want = (c.infer(name, inputs(over_grpc, given)).as_numpy(output)
                     for name in (published, model))
        assert got.tobytes() == want.tobytes(), published


@asynchronous("g2p_en")
async def g2p_en_spells_a_thousand_words_as_the_package_does(server, c):
    words = list(real_models.spellings())
    assert len(words) == 1000
    results = await all_of(
        c.infer("g2p_en", inputs(aio_grpc, {"source": ids})) for _, ids, _ in words)
    for (word, _, want), result in zip(words, results):
        got = real_models.phonemes(result.as_numpy("tokens")[0])
        assert got == want, (word, got, want)


@real("g2p_en")
def g2p_en_over_http(server):
    c = over_http.InferenceServerClient(server.http)
    for word, ids, want in list(real_models.spellings())[::50]:
        result = c.infer("g2p_en", inputs(over_http, {"source": ids}))
        assert real_models.phonemes(result.as_numpy("tokens")[0]) == want, word


@real("stories260K")
def stories_generate_tells_the_golden_story(server):
    ids, story = real_models.story()
    assert len(ids) == 257
    status, body = post(server, "/v2/models/stories260K/generate", {"text_input": ""})
    assert (status, body["text_output"]) == (200, story), body
    # A text that the story begins with goes on as the story does.
    start = story[1:story.index(". ")]
    request = {"text_input": start, "parameters": {"max_tokens": 40}}
    status, body = post(server, "/v2/models/stories260K/generate", request)
    rest = body["text_output"]
    assert status == 200 and len(rest) > 40 and story.startswith(f" {start}{rest}"), body


@real("stories260K")
def stories_generate_stream_tells_it_piece_by_piece(server):
    _, story = real_models.story()
    status, headers, body = raw(server, "POST", "/v2/models/stories260K/generate_stream",
                                json.dumps({"text_input": ""}))
    assert status == 200 and headers["content-type"].startswith("text/event-stream"), headers
    lines = [line for line in body.decode().splitlines() if line]
    pieces = [json.loads(line.removeprefix("data: "))["text_output"] for line in lines]
    assert "".join(pieces) == story
    assert len(pieces) > 200, "a piece at a time"


@real("stories260K")
def stories_infer_gives_the_golden_ids(server):
    ids, story = real_models.story()
    for module, address in ((over_http, server.http), (over_grpc, server.grpc)):
        c = module.InferenceServerClient(address)
        result = c.infer("stories260K", inputs(module, {"prompt": np.array([ids[:1]], np.int32)}))
        assert result.as_numpy("tokens")[0].tolist() == ids[1:]
        assert result.as_numpy("text_output")[0, 0].decode() == story


@real("stories260K")
def stories_come_token_by_token_over_a_decoupled_stream(server):
    """Three stories on one stream: two from the start, and one from the middle of it."""
    ids, _ = real_models.story()
    starts = {"a": 1, "b": 60, "c": 1}
    stream, tokens, ended = Stream(server), {name: [] for name in starts}, set()
    for name, start in starts.items():
        stream.send("stories260K_steps", inputs(
            over_grpc, {"prompt": np.array([ids[:start]], np.int32)}), request_id=name,
            parameters={"max_tokens": 257 - start}, enable_empty_final_response=True)
    while len(ended) < len(starts):
        result = stream.next()
        response = result.get_response()
        if response.parameters["triton_final_response"].bool_param:
            ended.add(response.id)
        else:
            row = result.as_numpy("tokens")
            assert row.shape == (1, 1), "a token at a time"
            tokens[response.id].append(int(row[0, 0]))
    stream.end()
    for name, start in starts.items():
        assert tokens[name] == ids[start:], name


@asynchronous(*real_models.FETCHED)
async def all_real_models_at_once(server, c):
    """What every model answers does not depend on what the others do meanwhile."""
    alone(server)

    async def hear(name, chunks):
        number, heard = Ids.new(), []
        for i, chunk in enumerate(chunks):
            result = await c.infer("silero-vad", inputs(aio_grpc, {"input": chunk}),
                                   sequence_id=number, sequence_start=i == 0,
                                   sequence_end=i + 1 == len(chunks))
            heard.append(result.as_numpy("output")[0, 0])
        is_alone(name, heard)

    async def embed(text, want):
        given = inputs(aio_grpc, {"text_input": np.array([[text.encode()]], np.object_)})
        got = (await c.infer("minilm-l6", given)).as_numpy("embedding")[0]
        assert np.abs(got - want).max() < 1e-5, text

    async def spell(word, ids, want):
        result = await c.infer("g2p_en", inputs(aio_grpc, {"source": ids}))
        assert real_models.phonemes(result.as_numpy("tokens")[0]) == want, word

    async def classify(image, number):
        result = await c.infer("mobilenet-v2", inputs(aio_grpc, {"image": image}))
        assert result.as_numpy("logits")[0].argmax() == number

    async def tell(start):
        ids, _ = real_models.story()
        given = inputs(aio_grpc, {"prompt": np.array([ids[:start]], np.int32)})
        call = c.infer("stories260K", given, parameters={"max_tokens": 257 - start})
        assert (await call).as_numpy("tokens")[0].tolist() == ids[start:], start

    calls = [hear(name, chunks) for name, chunks, _ in real_models.recordings()]
    calls += [embed(text, want) for text, _, want in real_models.sentences()[:24]]
    calls += [spell(*word) for word in list(real_models.spellings())[::20]]
    calls += [classify(image, number) for image, number, *_ in real_models.pictures()]
    if real_models.has_stories():
        calls += [tell(start) for start in (1, 1, 2, 17, 40, 75, 128)]
    await asyncio.gather(*calls)
    # All others were checked; that they were is not the whole of what the name says.
    real_models.needs("stories260K")


@asynchronous("g2p_en")
async def real_models_over_asynchronous_http(server, _):
    async with aio_http.InferenceServerClient(server.http) as c:
        words = list(real_models.spellings())[::40]
        results = await all_of(
            c.infer("g2p_en", inputs(aio_http, {"source": ids})) for _, ids, _ in words)
        for (word, _, want), result in zip(words, results):
            assert real_models.phonemes(result.as_numpy("tokens")[0]) == want, word
