"""declare|publish|read URL STREAM [FIRST LAST]: numbers into a stream and out again."""

import asyncio
import os
import ssl
import sys
import time

import nats
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeout
from nats.js.api import StreamConfig
from nats.js.errors import NoStreamResponseError, ServiceUnavailableError

verb, url, stream, *numbers = sys.argv[1:]
# A cluster elects a leader within seconds; on a busy machine they are many.
LIMIT_S = 100
NO_LEADER = (NoRespondersError, NoStreamResponseError, ServiceUnavailableError, NatsTimeout)


def options():
    """What the environment says about certificates and credentials."""
    chosen = {}
    if "CA" in os.environ:
        chosen["tls"] = ssl.create_default_context(cafile=os.environ["CA"])
        if "CERTIFICATE" in os.environ:
            chosen["tls"].load_cert_chain(os.environ["CERTIFICATE"], os.environ["KEY"])
    if "CREDENTIALS" in os.environ:
        chosen["user_credentials"] = os.environ["CREDENTIALS"]
    if "SEED" in os.environ:
        chosen["nkeys_seed_str"] = os.environ["SEED"]
    return chosen


async def until_there_is_a_leader(ask):
    """A stream whose leader has just died answers nothing until there is another."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            return await ask()
        except NO_LEADER:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.3)


async def publish(jetstream, number):
    # What was stored although nobody said so is not stored twice.
    same = {"Nats-Msg-Id": f"{stream}-{number}"}
    try:
        await jetstream.publish(stream, str(number).encode(), headers=same)
    except NoStreamResponseError:
        # No leader is worth waiting for. No stream is not, and this says so.
        await jetstream.stream_info(stream)
        raise


async def read(jetstream, last):
    subscription = await jetstream.subscribe(stream, ordered_consumer=True)
    read = []
    while not read or read[-1] != last:
        message = await subscription.next_msg(timeout=15)
        read.append(message.data.decode())
    return read


async def main():
    # A server that is not there is not waited for.
    once = {"allow_reconnect": False, "max_reconnect_attempts": 1, "connect_timeout": 60}
    connection = await nats.connect(url.split(","), **once, **options())
    jetstream = connection.jetstream(timeout=10)
    if verb == "declare":
        replicas = int(os.environ.get("REPLICAS", "1"))
        wanted = StreamConfig(name=stream, subjects=[stream], num_replicas=replicas)
        await until_there_is_a_leader(lambda: jetstream.add_stream(wanted))
    elif verb == "publish":
        for number in range(int(numbers[0]), int(numbers[1]) + 1):
            await until_there_is_a_leader(lambda number=number: publish(jetstream, number))
    elif verb == "read":
        print("\n".join(await until_there_is_a_leader(lambda: read(jetstream, numbers[1]))))
    await connection.close()


asyncio.run(main())
