"""An existing Python service: publishes inside its own transactions. Called with the database's URL."""

import json
import sys

import psycopg
from psycopg.types.json import Jsonb

with psycopg.connect(sys.argv[1]) as connection:
    connection.execute("CREATE TABLE ticket (id text PRIMARY KEY)")
    connection.commit()
    ids = {}

    # Committed together with the service's own row.
    with connection.transaction():
        connection.execute("INSERT INTO ticket VALUES ('t-1')")
        row = connection.execute(
            "SELECT relevo.publish('ticket.created', 't-1', %s, %s)",
            (Jsonb({"title": "año ñandú 🦀"}), Jsonb({"tenant": "acme", "correlation-id": "c-1"})),
        ).fetchone()
        ids["committed"] = str(row[0])

    # Rolled back together with it.
    with connection.transaction():
        connection.execute("INSERT INTO ticket VALUES ('t-2')")
        row = connection.execute(
            "SELECT relevo.publish('ticket.created', 't-2', '{}'::jsonb)"
        ).fetchone()
        ids["rolled_back"] = str(row[0])
        raise psycopg.Rollback()

    # A savepoint that is rolled back takes its event with it; what is around it stays.
    with connection.transaction():
        row = connection.execute(
            "SELECT relevo.publish('ticket.outer', 't-1', '1'::jsonb)"
        ).fetchone()
        ids["outer"] = str(row[0])
        with connection.transaction():
            connection.execute("SELECT relevo.publish('ticket.inner', 't-1', '2'::jsonb)")
            raise psycopg.Rollback()

    # Bytes that are no text, and a plain INSERT.
    with connection.transaction():
        row = connection.execute(
            "SELECT relevo.publish_bytes('scan.stored', NULL, %s, 'image/png', '{}'::jsonb)",
            (bytes(range(256)),),
        ).fetchone()
        ids["bytes"] = str(row[0])
        row = connection.execute(
            "INSERT INTO relevo.outbox (topic, key, payload) VALUES ('plain.insert', 'k', %s) RETURNING id",
            (b"plain",),
        ).fetchone()
        ids["plain"] = str(row[0])

    # Limits are enforced by the functions, and the transaction can go on from a savepoint.
    refused = {}
    with connection.transaction():
        for name, arguments in {
            "payload": ("a.b", "k", json.dumps("x" * (1 << 20))),
            "topic": ("a..b", "k", "{}"),
            "key": ("a.b", "k" * 256, "{}"),
        }.items():
            try:
                with connection.transaction():
                    connection.execute("SELECT relevo.publish(%s, %s, %s::text::jsonb)", arguments)
                refused[name] = None
            except psycopg.Error as error:
                refused[name] = error.diag.message_primary

    # The inbox as a function: the first time is the first committed time.
    first = []
    for ending in ("roll back", "commit", "commit"):
        with connection.transaction():
            row = connection.execute("SELECT relevo.first_time('billing', 'tickets', 'm-1')").fetchone()
            first.append(row[0])
            if ending == "roll back":
                raise psycopg.Rollback()

    print(json.dumps({"ids": ids, "refused": refused, "first_time": first}))
