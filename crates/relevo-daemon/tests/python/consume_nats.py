"""declare ADDRESS STREAM | consume ADDRESS STREAM DATABASE COUNT: a stream's messages, by nats-py, into effects."""

import asyncio
import sys
from urllib.parse import unquote

import nats
from effects import Effects
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

verb, address, stream, *rest = sys.argv[1:]


async def declare(jetstream):
    await jetstream.add_stream(StreamConfig(name=stream, subjects=[f"{stream}.>"]))


async def consume(jetstream, database, count):
    effects = Effects(database, count)
    # One at a time: what comes again after a crash comes before what followed it.
    wanted = ConsumerConfig(
        durable_name="billing", ack_policy=AckPolicy.EXPLICIT, ack_wait=5, max_ack_pending=1
    )
    subscription = await jetstream.pull_subscribe(f"{stream}.>", "billing", stream, wanted)
    while True:
        try:
            (message,) = await subscription.fetch(1, timeout=1)
        except nats.errors.TimeoutError:
            if effects.enough():
                return
            continue
        attributes = message.headers
        effects.take(unquote(attributes["ce-source"]), unquote(attributes["ce-id"]), message.data)
        await message.ack_sync(timeout=30)


async def main():
    connection = await nats.connect(address)
    work = {"declare": declare, "consume": consume}[verb]
    await work(connection.jetstream(timeout=30), *rest)
    await connection.close()


asyncio.run(main())
