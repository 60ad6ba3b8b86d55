"""declare|publish|read URL QUEUE [FIRST LAST]: numbers into a durable quorum queue and out again."""

import os
import ssl
import sys
import time

import pika
from pika.exceptions import AMQPError, ConnectionClosed, NackError

verb, url, queue, *numbers = sys.argv[1:]
# A queue elects a leader within seconds; on a busy machine they are many.
LIMIT_S = 100
INTERNAL_ERROR = 541
DURABLE = pika.BasicProperties(delivery_mode=2)


def connect():
    parameters = pika.URLParameters(url)
    if "CA" in os.environ:
        trust = ssl.create_default_context(cafile=os.environ["CA"])
        if "CERTIFICATE" in os.environ:
            trust.load_cert_chain(os.environ["CERTIFICATE"], os.environ["KEY"])
        parameters.ssl_options = pika.SSLOptions(trust, parameters.host)
    if "EXTERNAL" in os.environ:
        parameters.credentials = pika.credentials.ExternalCredentials()
    return pika.BlockingConnection(parameters)


def is_for_a_while(error):
    """A node or a queue that has just lost its leader refuses, or hangs up, until there is another."""
    if isinstance(error, NackError):
        return True
    return isinstance(error, ConnectionClosed) and error.reply_code == INTERNAL_ERROR


def until_there_is_a_leader(work):
    """Works on a channel until all is done; `work` goes on where it was."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        connection = connect()
        try:
            work(connection.channel())
            return connection.close()
        except AMQPError as error:
            if not is_for_a_while(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.3)


def declare(channel):
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})


left = list(range(int(numbers[0]), int(numbers[1]) + 1)) if numbers else []


def publish(channel):
    channel.confirm_delivery()
    while left:
        channel.basic_publish("", queue, str(left[0]).encode(), DURABLE, mandatory=True)
        left.pop(0)


def read(channel):
    for method, _, body in channel.consume(queue, inactivity_timeout=LIMIT_S):
        if method is None:
            sys.exit(f"nothing more came for {LIMIT_S} s")
        print(body.decode(), flush=True)
        channel.basic_ack(method.delivery_tag)
        if body.decode() == numbers[1]:
            return channel.cancel()
    sys.exit("the queue was taken away")


until_there_is_a_leader({"declare": declare, "publish": publish, "read": read}[verb])
