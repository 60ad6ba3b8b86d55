"""An existing Python service: a ticket and its event commit together, or neither does.

    python examples/python/tickets.py postgresql://user@host/db
"""
import sys

import psycopg
from psycopg.types.json import Jsonb


def create_ticket(connection, ticket_id, title):
    with connection.transaction():
        connection.execute("INSERT INTO tickets (id, title) VALUES (%s, %s)", (ticket_id, title))
        row = connection.execute(
            "SELECT relevo.publish('ticket.created', %s, %s)", (ticket_id, Jsonb({"id": ticket_id, "title": title}))
        ).fetchone()
        if not title:
            raise ValueError("a ticket needs a title")  # rolls both back
        return row[0]


with psycopg.connect(sys.argv[1]) as connection:
    connection.execute("CREATE TABLE IF NOT EXISTS tickets (id text PRIMARY KEY, title text)")
    print("published", create_ticket(connection, "t-1", "Printer on fire"))
    try:
        create_ticket(connection, "t-2", "")
    except ValueError as error:
        print("rolled back:", error)
