"""declare|publish|read URL QUEUE [FIRST LAST]: numbers into a durable quorum queue and out again."""

import os
import ssl
import sys
import time

import pika

verb, url, queue, *numbers = sys.argv[1:]
parameters = pika.URLParameters(url)
if "CA" in os.environ:
    trust = ssl.create_default_context(cafile=os.environ["CA"])
    if "CERTIFICATE" in os.environ:
        trust.load_cert_chain(os.environ["CERTIFICATE"], os.environ["KEY"])
    parameters.ssl_options = pika.SSLOptions(trust, parameters.host)
if "EXTERNAL" in os.environ:
    parameters.credentials = pika.credentials.ExternalCredentials()


def publish(channel, body, properties):
    """A queue whose leader has just died refuses until there is another."""
    for _ in range(200):
        try:
            return channel.basic_publish("", queue, body, properties, mandatory=True)
        except pika.exceptions.NackError:
            time.sleep(0.3)
    sys.exit("refused for a minute")


connection = pika.BlockingConnection(parameters)
channel = connection.channel()
if verb == "declare":
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
elif verb == "publish":
    channel.confirm_delivery()
    durable = pika.BasicProperties(delivery_mode=2)
    for number in range(int(numbers[0]), int(numbers[1]) + 1):
        publish(channel, str(number).encode(), durable)
elif verb == "read":
    # Quorum queues deliver to consumers before they answer gets: an empty one ends the wait.
    for method, _, body in channel.consume(queue, inactivity_timeout=5):
        if method is None:
            break
        print(body.decode())
        channel.basic_ack(method.delivery_tag)
        if body.decode() == numbers[1]:
            break
    channel.cancel()
connection.close()
