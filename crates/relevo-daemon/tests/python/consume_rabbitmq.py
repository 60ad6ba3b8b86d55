"""declare ADDRESS QUEUE | consume ADDRESS QUEUE DATABASE COUNT: a queue's messages, by pika, into effects."""

import sys

import pika
from effects import Effects

verb, address, queue, *rest = sys.argv[1:]
connection = pika.BlockingConnection(pika.URLParameters(address))
channel = connection.channel()


def declare():
    channel.exchange_declare("shop", "topic", durable=True)
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
    channel.queue_bind(queue, "shop", "order.#")


def consume(database, count):
    effects = Effects(database, count)
    channel.basic_qos(prefetch_count=20)
    for method, properties, body in channel.consume(queue, inactivity_timeout=1):
        if method is None:
            if effects.enough():
                return channel.cancel()
            continue
        attributes = properties.headers
        effects.take(attributes["cloudEvents_source"], attributes["cloudEvents_id"], body)
        channel.basic_ack(method.delivery_tag)
    sys.exit("the queue was taken away")


{"declare": declare, "consume": consume}[verb](*rest)
connection.close()
