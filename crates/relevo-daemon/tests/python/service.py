"""An existing service: its own rows, and the events about them, in its own transactions. DATABASE FIRST LAST"""

import sys

import psycopg
from psycopg.types.json import Jsonb

database, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

with psycopg.connect(database) as connection:
    connection.execute("CREATE TABLE IF NOT EXISTS orders (number int PRIMARY KEY)")
    connection.commit()
    for number in range(first, last + 1):
        order = {"number": number, "customer": f"customer-{number % 5}"}
        with connection.transaction():
            connection.execute("INSERT INTO orders VALUES (%s)", (number,))
            connection.execute(
                "SELECT relevo.publish('order.placed', %s, %s)", (order["customer"], Jsonb(order))
            )
            # The customer changes his mind: neither the order nor its event ever was.
            if number % 10 == 7:
                raise psycopg.Rollback()
