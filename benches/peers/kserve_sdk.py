"""KServe's own clients against `lazybatch serve`.

    python3 kserve_sdk.py --install [ENVIRONMENT]
    ENVIRONMENT/bin/python kserve_sdk.py LAZYBATCH

The first makes the environment, `.kserve` if absent (450 MB), of the packages in
kserve-requirements.txt. The second serves small models and drives them by the `InferenceRESTClient` and
the `InferenceGRPCClient` of KServe's Python package: health, readiness of models, inference in JSON, in
bytes and in typed contents, parameters, errors. Ends with status 1 if a check fails.
"""

import asyncio
import sys
import traceback

import serving


def request(binary, **more):
    """A request to add two rows of 16, and the sums."""
    import numpy as np
    from kserve import InferInput, InferRequest

    a, b = np.arange(32, dtype=np.float32).reshape(2, 16), np.full((2, 16), 3, np.float32)
    inputs = [InferInput(name, [2, 16], "FP32") for name in ("INPUT0", "INPUT1")]
    for one, value in zip(inputs, (a, b)):
        one.set_data_from_numpy(value, binary_data=binary)
    return InferRequest("add", inputs, **more), a + b


def is_sum(response, want):
    import numpy as np

    got = next(o for o in response.outputs if o.name == "OUTPUT0").as_numpy()
    assert got.shape == want.shape and np.array_equal(got, want), got


async def fails(call, part):
    try:
        await call
    except Exception as error:
        assert part in str(error), f"expected {part!r} in {error!r}"
        return
    raise AssertionError("expected an error, got an answer")


async def rest_health(rest, _, url):
    assert await rest.is_server_live(url) and await rest.is_server_ready(url)
    assert await rest.is_model_ready(url, "add") and not await rest.is_model_ready(url, "nobody")


async def rest_infer_in_json(rest, _, url):
    made, want = request(False, request_id="j1")
    response = await rest.infer(url, made, model_name="add")
    is_sum(response, want)
    assert response.id == "j1" and response.model_name == "add", response


async def rest_infer_in_bytes(rest, _, url):
    made, want = request(True)
    is_sum(await rest.infer(url, made, model_name="add"), want)


async def rest_parameters(rest, _, url):
    made, want = request(False, parameters={"priority": 1, "timeout": 5_000_000})
    is_sum(await rest.infer(url, made, model_name="add"), want)


async def rest_errors(rest, _, url):
    made, _ = request(False)
    await fails(rest.infer(url, made, model_name="nobody"), "404")
    made.inputs = made.inputs[:1]
    await fails(rest.infer(url, made, model_name="add"), "400")


async def rest_many_at_once(rest, _, url):
    made = [request(i % 2 == 0) for i in range(50)]
    responses = await asyncio.gather(*(rest.infer(url, one, model_name="add") for one, _ in made))
    for response, (_, want) in zip(responses, made):
        is_sum(response, want)


async def grpc_health(_, grpc, url):
    assert await grpc.is_server_live() and await grpc.is_server_ready()
    assert await grpc.is_model_ready("add")
    assert not await grpc.is_model_ready("nobody")


async def grpc_infer_in_bytes(_, grpc, url):
    made, want = request(True, request_id="g1")
    response = await grpc.infer(made)
    is_sum(response, want)
    assert response.id == "g1" and response.model_name == "add", response


async def grpc_infer_in_typed_contents(_, grpc, url):
    made, want = request(False)
    is_sum(await grpc.infer(made), want)


async def grpc_errors(_, grpc, url):
    made, _ = request(True)
    made.model_name = "nobody"
    await fails(grpc.infer(made), "nobody")


async def grpc_many_at_once(_, grpc, url):
    made = [request(True) for _ in range(50)]
    responses = await asyncio.gather(*(grpc.infer(one) for one, _ in made))
    for response, (_, want) in zip(responses, made):
        is_sum(response, want)


CHECKS = (rest_health, rest_infer_in_json, rest_infer_in_bytes, rest_parameters, rest_errors,
          rest_many_at_once, grpc_health, grpc_infer_in_bytes, grpc_infer_in_typed_contents,
          grpc_errors, grpc_many_at_once)


async def check(addresses):
    import logging

    from kserve import InferenceGRPCClient, InferenceRESTClient, RESTConfig

    # It logs errors that it raises, too.
    logging.getLogger("kserve").setLevel(logging.CRITICAL)
    rest = InferenceRESTClient(RESTConfig(protocol="v2"))
    grpc = InferenceGRPCClient(addresses["grpc"])
    failed = 0
    for function in CHECKS:
        name = function.__name__.replace("_", " ")
        try:
            await asyncio.wait_for(function(rest, grpc, f"http://{addresses['http']}"), 60)
            print(f"ok      {name}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED  {name}", flush=True)
            traceback.print_exc(limit=-3)
    await rest.close()
    await grpc.close()
    print(f"{len(CHECKS)} checks, {failed} failed")
    return failed


def main():
    if sys.argv[1:2] == ["--install"]:
        environment = sys.argv[2] if len(sys.argv) > 2 else ".kserve"
        return serving.install(environment, "kserve-requirements.txt")
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    with serving.lazybatch(sys.argv[1], "add", "--no-measure") as addresses:
        failed = asyncio.run(check(addresses))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
