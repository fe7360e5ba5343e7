"""The same payloads for everyone: small orders, close to a given size as JSON."""

from __future__ import annotations

import json
import random
import string
from typing import Any

Payload = dict[str, Any]

_LETTERS = string.ascii_letters + string.digits


def make_payloads(count: int, size: int, seed: int) -> list[Payload]:
    """Payloads whose JSON, written without spaces, has exactly `size` bytes."""
    source = random.Random(seed)
    return [_payload(source, size) for _ in range(count)]


def _payload(source: random.Random, size: int) -> Payload:
    payload: Payload = {
        "type": "item-added",
        "product": f"product-{source.randrange(10_000):05}",
        "quantity": source.randrange(1, 10),
        "price": source.randrange(1_000, 10_000),
        "currency": "EUR",
        "note": "",
    }
    missing = size - len(json.dumps(payload, separators=(",", ":")))
    if missing < 0:
        raise ValueError(f"a payload needs at least {size - missing} bytes")
    payload["note"] = "".join(source.choices(_LETTERS, k=missing))
    return payload
