"""declare|publish|read URL STREAM [FIRST LAST]: numbers into a stream and out again."""

import asyncio
import os
import ssl
import sys

import nats
from nats.js.api import StreamConfig

verb, url, stream, *numbers = sys.argv[1:]


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


async def main():
    connection = await nats.connect(url.split(","), allow_reconnect=False, **options())
    jetstream = connection.jetstream(timeout=30)
    if verb == "declare":
        replicas = int(os.environ.get("REPLICAS", "1"))
        await jetstream.add_stream(StreamConfig(name=stream, subjects=[stream], num_replicas=replicas))
    elif verb == "publish":
        for number in range(int(numbers[0]), int(numbers[1]) + 1):
            await jetstream.publish(stream, str(number).encode())
    elif verb == "read":
        subscription = await jetstream.subscribe(stream, ordered_consumer=True)
        while True:
            message = await subscription.next_msg(timeout=30)
            print(message.data.decode())
            if message.data.decode() == numbers[1]:
                break
    await connection.close()


asyncio.run(main())
