"""declare|publish|read BOOTSTRAP TOPIC [FIRST LAST]: numbers into a topic and out again.

brokers BOOTSTRAP TOPIC: where clients are sent.
"""

import json
import os
import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

verb, bootstrap, topic, *numbers = sys.argv[1:]
common = {"bootstrap.servers": bootstrap, **json.loads(os.environ.get("SETTINGS", "{}"))}
# A partition elects a leader within seconds; on a busy machine they are many.
LIMIT_S = 100

if verb == "declare":
    replicas = int(os.environ.get("REPLICAS", "1"))
    # The answer needs its client to be alive.
    admin = AdminClient(common)
    made = admin.create_topics([NewTopic(topic, 1, replicas)], request_timeout=LIMIT_S)
    made[topic].result(LIMIT_S)
elif verb == "brokers":
    for broker in AdminClient(common).list_topics(topic, LIMIT_S).brokers.values():
        print(f"{broker.host}:{broker.port}")
elif verb == "publish":
    failures = []
    producer = Producer({**common, "acks": "all", "enable.idempotence": True})
    for number in range(int(numbers[0]), int(numbers[1]) + 1):
        producer.produce(topic, str(number), on_delivery=lambda error, _: error and failures.append(error))
    if producer.flush(LIMIT_S) or failures:
        sys.exit(f"not all were stored: {failures}")
elif verb == "read":
    consumer = Consumer({**common, "group.id": topic, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    deadline = time.monotonic() + LIMIT_S
    while True:
        message = consumer.poll(1)
        if message is None or message.error():
            # A partition whose leader has just died has none for a while, and the client says so.
            if time.monotonic() > deadline:
                sys.exit(f"no more messages: {message and message.error()}")
            continue
        print(message.value().decode())
        if message.value().decode() == numbers[1]:
            break
    consumer.close()
