"""Checks with the clients for asyncio."""

import asyncio

import numpy as np
import tritonclient.grpc.aio as over_grpc
import tritonclient.http.aio as over_http
from check import check
from common import A, B, pair, same
from tritonclient.utils import InferenceServerException


def asynchronous(function):
    """A check from a coroutine."""
    def run(server):
        asyncio.run(asyncio.wait_for(function(server), 30))
    run.__name__ = function.__name__
    return check(run)


@asynchronous
async def aio_http_infer(server):
    async with over_http.InferenceServerClient(server.http) as c:
        assert await c.is_server_ready()
        calls = [c.infer("add", pair(over_http, A + i, B)) for i in range(10)]
        for i, result in enumerate(await asyncio.gather(*calls)):
            same(result.as_numpy("OUTPUT0"), A + i + B)


@asynchronous
async def aio_http_infer_compressed(server):
    async with over_http.InferenceServerClient(server.http) as c:
        packed = {"response_compression_algorithm": "gzip"}
        same((await c.infer("add", pair(over_http), **packed)).as_numpy("OUTPUT0"), A + B)
        try:
            await c.infer("add", pair(over_http)[:1], **packed)
        except InferenceServerException as error:
            assert "missing required input" in str(error), error
        else:
            raise AssertionError("expected an error, got an answer")


@asynchronous
async def aio_http_metadata(server):
    async with over_http.InferenceServerClient(server.http) as c:
        assert (await c.get_model_metadata("add"))["name"] == "add"
        assert (await c.get_model_config("add"))["max_batch_size"] == 8


@asynchronous
async def aio_http_client_that_leaves(server):
    async with over_http.InferenceServerClient(server.http) as c:
        one = over_http.InferInput("x", [16, 200, 16], "FP32")
        one.set_data_from_numpy(np.ones((16, 200, 16), np.float32))
        call = asyncio.create_task(c.infer("lstm", [one]))
        await asyncio.sleep(0.02)
        call.cancel()
        same((await c.infer("add", pair(over_http))).as_numpy("OUTPUT0"), A + B)


@asynchronous
async def aio_grpc_infer(server):
    async with over_grpc.InferenceServerClient(server.grpc) as c:
        assert await c.is_server_live() and await c.is_model_ready("add")
        calls = [c.infer("add", pair(over_grpc, A + i, B)) for i in range(10)]
        for i, result in enumerate(await asyncio.gather(*calls)):
            same(result.as_numpy("OUTPUT0"), A + i + B)


@asynchronous
async def aio_grpc_stream(server):
    async with over_grpc.InferenceServerClient(server.grpc) as c:
        async def requests():
            for i in range(5):
                yield {"model_name": "add", "inputs": pair(over_grpc, A + i, B), "request_id": str(i)}

        seen = 0
        async for result, error in c.stream_infer(requests()):
            assert error is None, error
            same(result.as_numpy("OUTPUT0"), A + int(result.get_response().id) + B)
            seen += 1
        assert seen == 5
