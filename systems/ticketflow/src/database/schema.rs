//! The tables: `Tickets` and `Outbox` as documented, and what the workers keep.

use super::Database;

/// What tells that an event was processed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ProcessedKey {
    /// Consumer and event.
    #[default]
    ConsumerAndEvent,
    /// The event alone, as the document has it: of two consumers only the first would ever do its work. Kept as a
    /// mutant, so that the tests show that they would notice.
    EventAlone,
}

const TABLES: &str = r#"
CREATE TABLE IF NOT EXISTS "Tickets" (
    "Id" {uuid} PRIMARY KEY, "Title" text NOT NULL, "Description" text NOT NULL, "Requester" text NOT NULL,
    "Assignee" text, "Priority" text NOT NULL, "Status" text NOT NULL, "Version" bigint NOT NULL,
    "CreatedAt" {time} NOT NULL, "UpdatedAt" {time} NOT NULL);
CREATE INDEX IF NOT EXISTS "Tickets_newest" ON "Tickets" ("CreatedAt" DESC, "Id" DESC);
{outbox};
CREATE INDEX IF NOT EXISTS "Outbox_pending" ON "Outbox" ("OccurredAt") WHERE "DispatchedAt" IS NULL;
CREATE INDEX IF NOT EXISTS "Outbox_dispatched" ON "Outbox" ("DispatchedAt");
CREATE TABLE IF NOT EXISTS "ProcessedEvents" (
    "Consumer" text NOT NULL, "EventId" {uuid} NOT NULL, "ProcessedAt" {time} NOT NULL, PRIMARY KEY ({processed}));
CREATE INDEX IF NOT EXISTS "ProcessedEvents_age" ON "ProcessedEvents" ("ProcessedAt");
CREATE TABLE IF NOT EXISTS "TicketMetrics" (
    "Metric" text NOT NULL, "Label" text NOT NULL, "Value" bigint NOT NULL, PRIMARY KEY ("Metric", "Label"));
CREATE TABLE IF NOT EXISTS "TicketActivity" (
    "Position" {number}, "TicketId" {uuid} NOT NULL, "Version" bigint NOT NULL, "EventId" {uuid} NOT NULL,
    "Type" text NOT NULL, "OccurredAt" {time} NOT NULL, "SeenAt" {time} NOT NULL);
CREATE INDEX IF NOT EXISTS "TicketActivity_ticket" ON "TicketActivity" ("TicketId", "Version");
CREATE TABLE IF NOT EXISTS "Heartbeats" (
    "Worker" text PRIMARY KEY, "BeatAt" {time} NOT NULL, "LastMessageAt" {time});
CREATE TABLE IF NOT EXISTS "DlqPublished" (
    "Letter" bigint PRIMARY KEY, "Queue" text NOT NULL, "PublishedAt" {time} NOT NULL);
"#;

const OUTBOX: &str = r#"CREATE TABLE IF NOT EXISTS "Outbox" (
    "Id" {uuid} NOT NULL, "Type" text NOT NULL, "PayloadJson" text NOT NULL, "CorrelationId" text NOT NULL,
    "OccurredAt" {time} NOT NULL, "DispatchedAt" {time}, PRIMARY KEY "#;

/// Partitions are made a month ahead by the retention's sweep; the default one takes what no other does.
const PARTITIONED: &str = r#"("Id", "OccurredAt")) PARTITION BY RANGE ("OccurredAt");
CREATE TABLE IF NOT EXISTS "Outbox_default" PARTITION OF "Outbox" DEFAULT"#;

pub(super) fn statements(database: &Database, key: ProcessedKey, partitioned: bool) -> String {
    let postgres = matches!(database, Database::Postgres(_));
    let (uuid, time, number) = match postgres {
        true => ("uuid", "timestamptz", "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"),
        false => ("text", "text", "integer PRIMARY KEY AUTOINCREMENT"),
    };
    let processed = match key {
        ProcessedKey::ConsumerAndEvent => r#""Consumer", "EventId""#,
        ProcessedKey::EventAlone => r#""EventId""#,
    };
    let end = if partitioned && postgres { PARTITIONED } else { r#"("Id"))"# };
    TABLES
        .replace("{outbox}", &format!("{OUTBOX}{end}"))
        .replace("{uuid}", uuid)
        .replace("{time}", time)
        .replace("{number}", number)
        .replace("{processed}", processed)
}
