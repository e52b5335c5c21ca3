"""What KServe's clients get from a server: `python kserve_clients.py ADDRESSES` prints it as JSON.

A process of its own: KServe's client and tritonclient.grpc both register the package `inference` in protobuf's common
pool, and cannot be imported together. Ours are imported here beside KServe's, and beside tritonclient's in the tests.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import grpc
import httpx
import numpy
import tritonclient.http  # beside KServe's, in one process
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig

from holdfast.serve.protocol import grpc_messages


def _request(model: str) -> InferRequest:
    given = (
        ("numbers", "FP32", numpy.arange(8, dtype=numpy.float32).reshape(2, 4)),
        ("halves", "FP16", numpy.ones((2, 2), numpy.float16)),
        ("texts", "BYTES", numpy.array([b"a", b"bc"], dtype=object)),
    )
    inputs = []
    for name, datatype, array in given:
        made = InferInput(name, list(array.shape), datatype)
        made.set_data_from_numpy(array, binary_data=True)
        inputs.append(made)
    return InferRequest(model, inputs, request_id="k1")


def _told(response: Any) -> dict[str, Any]:
    outputs = {output.name: numpy.asarray(output.as_numpy()) for output in response.outputs}
    return {
        "model": response.model_name, "version": response.model_version, "id": response.id,
        "doubled": outputs["doubled"].tolist(), "halved": outputs["halved"].tolist(),
        "upper": [text.decode() if isinstance(text, bytes) else text for text in outputs["upper"].tolist()],
    }  # fmt: skip


async def _rest(url: str) -> dict[str, Any]:
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        told = {
            "live": await client.is_server_live(url), "ready": await client.is_server_ready(url),
            "model": await client.is_model_ready(url, "echo"), "other": await client.is_model_ready(url, "other"),
            "answer": _told(await client.infer(url, _request("echo"), "echo")),
        }  # fmt: skip
        plain = {"inputs": [
            {"name": "numbers", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]},
            {"name": "halves", "shape": [1, 2], "datatype": "FP16", "data": [1, 2]},
            {"name": "texts", "shape": [1], "datatype": "BYTES", "data": ["x"]},
        ]}  # fmt: skip
        told["json"] = _told(await client.infer(url, plain, "echo"))
        try:
            await client.infer(url, {"inputs": []}, "echo")
        except httpx.HTTPStatusError as error:
            told["error"] = [error.response.status_code, str(error)]
        return told


async def _grpc(address: str) -> dict[str, Any]:
    async with InferenceGRPCClient(address) as client:
        told = {
            "live": await client.is_server_live(), "ready": await client.is_server_ready(),
            "model": await client.is_model_ready("echo"), "answer": _told(await client.infer(_request("echo"))),
        }  # fmt: skip
        try:
            await client.infer(_request("other"))
        except grpc.RpcError as error:
            told["error"] = [error.code().name, error.details()]
        return told


async def main(addresses: dict[str, str]) -> None:
    told = {"rest": await _rest(addresses["http"]), "grpc": await _grpc(addresses["grpc"])}
    triton = tritonclient.http.InferenceServerClient(addresses["http"].removeprefix("http://"))
    told["together"] = bool(triton.is_server_live() and grpc_messages.METHODS)
    triton.close()
    print(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
