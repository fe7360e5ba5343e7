"""Events of a shop, one of which had another name and another class before."""

from __future__ import annotations

import msgspec

import everlog


@everlog.event("sent")
class Sent(msgspec.Struct):
    to: str


@everlog.event("shipped", version=2)
class Shipped(msgspec.Struct):
    street: str
    town: str


@everlog.upcast(Shipped, Sent)
def shipped(old: Sent) -> Shipped:
    return Shipped(*old.to.split(", "))
