"""The least there is: one uvicorn process, a bare ASGI function and the model, without batching. What others add to.

    python -m benchmarks.peers.asgi --port P --model NAME

It answers the protocol's JSON and binary tensors, whatever its path is; httptools, uvloop and orjson are used.
"""

from __future__ import annotations

from typing import Any

import numpy
import orjson
import torch
import uvicorn

from benchmarks.peers.serving import INPUTS, network, options

Scope = dict[str, Any]


def main() -> None:
    told = options()
    torch.set_num_threads(1)
    model, item = network(told.model), INPUTS[told.model]

    async def app(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        length = next((int(value) for name, value in scope["headers"] if name.startswith(b"inference-header")), 0)
        if length:
            x = torch.from_numpy(numpy.frombuffer(body, "<f4", offset=length).copy())
        else:
            x = torch.tensor(orjson.loads(body)["inputs"][0]["data"])
        with torch.inference_mode():
            y = model(x.reshape(-1, *item)).numpy()
        tensor = {"name": "y", "datatype": "FP32", "shape": y.shape}
        headers = [(b"content-type", b"application/json")]
        if length:
            tensor["parameters"] = {"binary_data_size": y.nbytes}
            head = orjson.dumps({"model_name": told.model, "outputs": [tensor]})
            headers = [(b"inference-header-content-length", b"%d" % len(head))]
            answer = head + y.tobytes()
        else:
            answer = orjson.dumps({"model_name": told.model, "outputs": [{**tensor, "data": y.reshape(-1).tolist()}]})
        headers.append((b"content-length", b"%d" % len(answer)))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    uvicorn.run(
        app, host="127.0.0.1", port=told.port, log_level="error", access_log=False, loop="uvloop", http="httptools",
        lifespan="off",
    )  # fmt: skip


if __name__ == "__main__":
    main()
