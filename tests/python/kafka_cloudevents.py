"""The other side of a Kafka topic, by confluent-kafka and the CloudEvents SDK.

    read BOOTSTRAP TOPIC COUNT       prints COUNT events as JSON, one per line, with their partitions
    write BOOTSTRAP TOPIC            stores one CloudEvent in binary mode, as the SDK writes it
    partitions BOOTSTRAP TOPIC KEY...   stores a message per key as Java's partitioner does; prints key and partition
"""

import json
import sys
import time
from datetime import datetime, timezone

from cloudevents.core.bindings.kafka import KafkaMessage, from_binary, to_binary
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

LIMIT = 60


def read(bootstrap, topic, count):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "python", "enable.auto.commit": False})
    partitions = consumer.list_topics(topic, LIMIT).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    deadline = time.monotonic() + LIMIT
    while count > 0:
        message = consumer.poll(1)
        if message is None:
            assert time.monotonic() < deadline, f"{count} messages never came"
            continue
        assert message.error() is None, message.error()
        print(json.dumps(described(message)))
        count -= 1
    consumer.close()


def described(message):
    headers = dict(message.headers())
    event = from_binary(KafkaMessage(headers, message.key(), message.value()), JSONFormat())
    attributes = {name: str(value) for name, value in event.get_attributes().items()}
    return {
        "attributes": attributes,
        "time": event.get_time().astimezone(timezone.utc).isoformat(),
        "data": event.get_data(),
        "key": message.key().decode() if message.key() else None,
        "partition": message.partition(),
        "headers": {name: value.decode() for name, value in headers.items()},
    }


def write(bootstrap, topic):
    attributes = {
        "id": "py-1",
        "source": "/python",
        "type": "ticket.closed",
        "specversion": "1.0",
        "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
        "datacontenttype": "application/json",
        "subject": "ticket 7",
        "partitionkey": "t-7",
    }
    message = to_binary(CloudEvent(attributes, {"title": "año ñandú 🦀"}), JSONFormat())
    produce(bootstrap, topic, [(message.key, message.value, list(message.headers.items()))])


def partitions(bootstrap, topic, keys):
    for key, partition in produce(bootstrap, topic, [(key, b"", []) for key in keys]):
        print(json.dumps([key, partition]))


def produce(bootstrap, topic, messages):
    stored = []

    def report(error, message):
        assert error is None, error
        stored.append((message.key().decode(), message.partition()))

    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "acks": "all"})
    for key, value, headers in messages:
        producer.produce(topic, key=key, value=value, headers=headers, on_delivery=report)
    assert producer.flush(LIMIT) == 0
    return stored


if __name__ == "__main__":
    command, bootstrap, topic, *rest = sys.argv[1:]
    if command == "read":
        read(bootstrap, topic, int(rest[0]))
    elif command == "write":
        write(bootstrap, topic)
    else:
        partitions(bootstrap, topic, rest)
