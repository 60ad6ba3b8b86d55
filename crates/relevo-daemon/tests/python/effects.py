"""What every consumer does with a message: an effect that is done once, whatever comes twice."""

import json
import os

import psycopg


class Effects:
    """Rows in the consumer's own table, each in one transaction with the inbox's answer."""

    def __init__(self, database, wanted):
        self.connection = psycopg.connect(database)
        self.wanted = int(wanted)
        self.crash_at = int(os.environ.get("CRASH_AT", "0"))
        self.done = 0
        self.connection.execute(
            """CREATE TABLE IF NOT EXISTS effects (place bigserial PRIMARY KEY, id text NOT NULL,
               customer text NOT NULL, number int NOT NULL)"""
        )
        self.connection.commit()

    def take(self, source, event_id, payload):
        """Takes effect the first time. The caller acknowledges afterwards, not before."""
        order = json.loads(payload)
        with self.connection.transaction():
            first = self.connection.execute(
                "SELECT relevo.first_time('billing', %s, %s)", (source, event_id)
            ).fetchone()[0]
            if first:
                self.connection.execute(
                    "INSERT INTO effects (id, customer, number) VALUES (%s, %s, %s)",
                    (event_id, order["customer"], order["number"]),
                )
        self.done += first
        if first and self.done == self.crash_at:
            # After the commit and before the acknowledgement: it will come again.
            os._exit(9)

    def enough(self):
        """Every effect is there. What still comes has been seen."""
        counted = self.connection.execute("SELECT count(*) FROM effects").fetchone()[0]
        self.connection.commit()
        return counted >= self.wanted
