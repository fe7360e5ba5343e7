"""uvicorn as it comes, with httptools and uvloop, and a fixed answer: what a request costs before it means anything.

`python bench/bare_server.py` prints its address as JSON, and serves until it is ended.
"""

from __future__ import annotations

import json
import socket
from typing import Any

import uvicorn

BODY = b"x" * 200
HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode())]


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Read the body, if there is one, and answer."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body", False):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})


def main() -> None:
    bound = socket.create_server(("127.0.0.1", 0))
    print(json.dumps({"url": f"http://127.0.0.1:{bound.getsockname()[1]}"}), flush=True)
    config = uvicorn.Config(answer, http="httptools", loop="uvloop", lifespan="off", log_config=None, access_log=False)
    uvicorn.Server(config).run(sockets=[bound])


if __name__ == "__main__":
    main()
