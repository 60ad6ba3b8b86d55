"""A service that has an outbox table of its own and knows nothing of Relevo. DATABASE FIRST LAST"""

import sys

import psycopg
from psycopg.types.json import Jsonb

database, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

with psycopg.connect(database) as connection:
    connection.execute("CREATE TABLE IF NOT EXISTS orders (number int PRIMARY KEY)")
    connection.execute(
        """CREATE TABLE IF NOT EXISTS shop_outboxmessage (id bigserial PRIMARY KEY, routing_key text NOT NULL,
           customer_id text NOT NULL, body jsonb NOT NULL, state text NOT NULL DEFAULT 'new',
           sent_at timestamptz, tries int NOT NULL DEFAULT 0)"""
    )
    connection.commit()
    for number in range(first, last + 1):
        order = {"number": number, "customer": f"customer-{number % 5}"}
        with connection.transaction():
            connection.execute("INSERT INTO orders VALUES (%s)", (number,))
            connection.execute(
                "INSERT INTO shop_outboxmessage (routing_key, customer_id, body) VALUES ('placed', %s, %s)",
                (order["customer"], Jsonb(order)),
            )
            # The customer changes his mind: neither the order nor its message ever was.
            if number % 10 == 7:
                raise psycopg.Rollback()
