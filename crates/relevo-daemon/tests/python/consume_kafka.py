"""declare BOOTSTRAP TOPIC | consume BOOTSTRAP TOPIC DATABASE COUNT: a topic's messages, by confluent-kafka, into effects."""

import sys

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic
from effects import Effects

verb, bootstrap, topic, *rest = sys.argv[1:]
LIMIT_S = 100


def declare():
    # The answer needs its client to be alive.
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 3, 1)], request_timeout=LIMIT_S)[topic].result(LIMIT_S)


def consume(database, count):
    effects = Effects(database, count)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "billing",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    while True:
        message = consumer.poll(1)
        if message is None:
            if effects.enough():
                return consumer.close()
            continue
        if message.error():
            # Of the connection, which the client mends by itself; what is missing is noticed by the test.
            print(message.error(), file=sys.stderr)
            continue
        attributes = {name: value.decode() for name, value in message.headers()}
        effects.take(attributes["ce_source"], attributes["ce_id"], message.value())
        consumer.commit(message, asynchronous=False)


{"declare": declare, "consume": consume}[verb](*rest)
