//! The configuration written out: every key with its default, commented.

use super::duration::written;
use super::{DRAIN, HANDLER_LIMIT, LISTEN};
use relevo_core::limits::{LANES, Limits};
use relevo_core::outbox::Retention;
use relevo_core::relay::{CONCURRENCY, RelayConfig};

/// The store that a new configuration starts with: a file beside it, nothing to install.
pub const FIRST_STORE: &str = "sqlite:relevo.db";

/// A file to begin with: one store, and a subscription to be filled in.
pub fn first(store_url: &str) -> String {
    let url = toml::Value::String(store_url.to_owned());
    format!(
        r##"# Relevo's configuration. `relevo config check` reads it, `relevo config example` shows every key with its default.
# A variable overrides any key: RELEVO__STORE__MAIN__URL=... sets url in [store.main].

# The database whose log is worked: sqlite:FILE or postgres://USER@HOST:5432/DATABASE.
# A password is better kept in a file of its own: url_file = "path/to/secret".
[store.main]
url = {url}

# Where events go; the scheme picks the adapter. stdout: prints each as a line of JSON, to begin with.
[broker.out]
url = "stdout:"

# [broker.hook]
# url = "http://127.0.0.1:8080/events"

# Which events go there. Topic filters: * is one word, # is the rest, such as ["order.*", "ticket.#"].
# One that is no longer wanted is ended with `relevo subscriptions remove notify`; until then the log is kept for it.
[subscription.notify]
topics = ["#"]
to = "out"

# When a failed event is tried again; after the last step it becomes a dead letter. The key retry of a subscription
# names it.
# [retry.ladder]
# kind = "ladder"
# delays = ["1m", "5m", "15m"]

# A class of errors (transient, permanent, poison, unknown) may have a policy of its own.
# [retry.ladder.permanent]
# kind = "ladder"
# delays = ["1d"]
"##
    )
}

/// Every key there is, with its default.
pub fn full() -> String {
    [
        service_and_stores(),
        RABBITMQ.to_owned(),
        NATS.to_owned(),
        if cfg!(feature = "kafka") { KAFKA.to_owned() } else { String::new() },
        TOPOLOGIES.to_owned(),
        if cfg!(feature = "kafka") { KAFKA_TOPOLOGY.to_owned() } else { String::new() },
        ADOPT.to_owned(),
        subscription(),
        RETRIES.to_owned(),
        limits(),
        retention_and_http(),
    ]
    .concat()
}

fn service_and_stores() -> String {
    format!(
        r##"# Every key of relevo.toml. A line that begins with "#" shows the default (or, under a NAME, an example).
# A variable overrides any key: RELEVO__SUBSCRIPTION__NOTIFY__BATCH=10. Times have a unit: 250ms 10s 5m 1h30m 7d.

# The label `service` of every metric.
[service]
# name = "relevo"

# A database with Relevo's tables: sqlite:FILE or postgres://USER@HOST:5432/DATABASE. As many as you like, each with a name.
[store.main]
url = "{FIRST_STORE}"
# Instead of url, the file that holds it (a mounted secret):
# url_file = "path/to/secret"

# A place where events go; the scheme picks the adapter: http://... (one POST per event, CloudEvents in binary mode),
# amqp://USER@HOST/VHOST or amqps://... (RabbitMQ), nats://HOST:4222 or tls://... (NATS JetStream), kafka://HOST:9092 or
# kafkas://... (Kafka, where the build has it), or stdout: (a line of JSON each). A URL with a password is better kept in a file, or in the variable RELEVO__BROKER__NAME__URL.
[broker.hook]
url = "http://127.0.0.1:8080/events"
# url_file = "path/to/secret"
# Requests are signed with each of these (Standard Webhooks), or with each line of a file:
# secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]
# secrets_file = "path/to/secrets"

"##
    )
}

const RABBITMQ: &str = r##"# RabbitMQ: events are published with their topic as the routing key, and confirmed.
[broker.rabbit]
url = "amqp://guest@127.0.0.1:5672/%2F"
# exchange = "amq.topic"
# Topics that go to another exchange; the first that matches counts.
# routes = []
# Most messages (at most 100000), and most bytes (at most 1 GiB), that wait for their confirm, of all lanes together; a
# confirm that takes longer than this, at most a minute, is unknown.
# window = 1000
# window_bytes = 16777216
# confirm_timeout = "30s"
# How long connecting may take, over all nodes, and for how long the broker may block a connection before it counts as
# down; each at most a minute.
# connect_timeout = "10s"
# blocked_limit = "5s"
# Larger payloads become dead letters; RabbitMQ closes the channel at its own max_message_size.
# max_message_bytes = 16777216
# Where `relevo topology` asks what bindings there are, by HTTP. Behind amqps:// it asks only if this is given.
# management_port = 15672
# With amqps://, authorities beside the system's, and what to show to the broker:
# ca_file = "path/to/ca.pem"
# client_cert = "path/to/client.pem"
# client_key = "path/to/client.key"

"##;

const NATS: &str = r##"# NATS JetStream: events are published with their topic as the subject, and confirmed. Several servers are parted by
# commas; tls:// encrypts.
[broker.nats]
url = "nats://127.0.0.1:4222"
# The one stream that events must be stored in: a confirm of another is a refusal. Without it, any will do.
# stream = "EVENTS"
# What every subject begins with, before the topic; without it nothing.
# subject_prefix = "shop"
# The JetStream domain, where it is not the server's own.
# domain = "hub"
# window = 1000
# window_bytes = 16777216
# confirm_timeout = "10s"
# How long connecting may take, over all servers of the URL: a silent one has its share of what those before it left.
# connect_timeout = "5s"
# Logging in other than by the URL: the seed of an nkey, or a .creds file with a JWT and its seed.
# nkey_file = "path/to/nkey.seed"
# credentials_file = "path/to/user.creds"
# Authorities instead of the system's, and what to show to the server; each of them makes the connection use TLS.
# ca_file = "path/to/ca.pem"
# client_cert = "path/to/client.pem"
# client_key = "path/to/client.key"

"##;

/// Only where the build has it: what the example shows can be used.
const KAFKA: &str = r##"# Kafka: events go to the topic of their name, and to the partition of their key. Several brokers are parted by commas;
# kafkas:// encrypts, and a user in the URL logs in by SASL.
[broker.kafka]
url = "kafka://127.0.0.1:9092"
# All events go to this topic; or each to its own, behind a prefix.
# topic = "events"
# topic_prefix = "shop."
# "none", "snappy", "lz4" or "zstd".
# compression = "none"
# How long a message waits for others to share a batch with; less than confirm_timeout.
# linger = "0s"
# window = 10000
# window_bytes = 33554432
# confirm_timeout = "30s"
# connect_timeout = "10s"
# Larger messages become dead letters; topics and brokers have limits of their own. From 1000 to 1000000000.
# max_message_bytes = 1000000
# "SCRAM-SHA-512", "SCRAM-SHA-256" or "PLAIN".
# sasl_mechanism = "SCRAM-SHA-512"
# With kafkas://: ca_file, instead of the system's authorities, client_cert and client_key, as above.

"##;

const TOPOLOGIES: &str = r##"# What must be there at a broker: `relevo topology plan | apply | check`. What is not named here is left alone.
# RabbitMQ: exchanges by name ("topic", "direct", "fanout", or "hash", which shares out keys among queues and needs the
# plugin rabbitmq_consistent_hash_exchange) and queues by name ("quorum" or "classic").
[topology.rabbit.exchanges.events]
# kind = "topic"

[topology.rabbit.queues.billing]
# kind = "quorum"
# Which topics of which exchange.
bind = { events = ["order.*", "invoice.#"] }
# One consumer at a time: several processes, or one that connects anew, keep the order.
# single_active_consumer = false
# Most messages, most bytes (more is refused), and how long a message may wait; without them there is no limit.
# max_length = 100000
# max_length_bytes = 1073741824
# message_ttl = "7d"
# An exchange for what is given up, with a queue billing.dead; and queues whose messages come back after a while.
# dead_letters = "dead"
# retry = ["10s", "1m", "10m"]

# NATS: streams by name, and a stream for what consumers give up.
[topology.nats]
# dead_letters = "dead-letters"

[topology.nats.streams.EVENTS]
subjects = ["order.>", "invoice.>"]
# On how many servers; if nothing is said, a new one is on 3 of a cluster or on the single server.
# replicas = 1
# What makes a message go: "limits", "interest" or "work_queue"; and where it is kept: "file" or "memory".
# retention = "limits"
# storage = "file"
# What happens at the limits: "new" messages are refused and wait in the outbox, or "old" ones go. Without a limit
# there is none.
# discard = "new"
# max_messages = 1000000
# max_bytes = 1073741824
# max_message_bytes = 1048576
# max_age = "7d"
# So long a second copy of an event is dropped.
# duplicate_window = "2m"

[topology.nats.streams.EVENTS.consumers.billing]
# filters = ["order.paid"]
# Most unsettled messages of all receivers together, and how long after its receiver died a message goes to another.
# max_ack_pending = 1000
# ack_wait = "30s"

"##;

const KAFKA_TOPOLOGY: &str = r##"# Kafka: topics by name, and a topic for what consumers give up.
[topology.kafka]
# dead_letters = "dead-letters"

[topology.kafka.topics."order.paid"]
# partitions = 1
# On how many brokers: 3, or as many as there are.
# replicas = 1
# What is not given is as the brokers have it. How old messages become ("forever": they stay), how many bytes a
# partition has, and what makes a message go: "delete", "compact" or "both".
# retention = "7d"
# retention_bytes = 1073741824
# cleanup = "delete"
# max_message_bytes = 1048588
# A confirm needs so many replicas that are in step.
# min_in_sync_replicas = 1
# Any other setting, by Kafka's own name.
# config = {}

"##;

const ADOPT: &str = r##"# An outbox table that is there already, relayed in place by the subscription that names it: adopt = "NAME".
# `relevo adopt check TABLE` proposes this for a table; docs/adopt.md explains it.
[adopt.tickets]
store = "main"
table = "messages"
# A table that is known: "ticketflow", "smartedify" or "debezium"; what is written here then differs from it.
# preset = "smartedify"
# Put before the column's topic; or, without such a column, topic = "the.same" for every row.
# topic_prefix = ""
# Where the payload's JSON has the key, instead of a column: key_path = "ticket.id".
# content_type = "application/json"
# A confirmed row is deleted rather than marked.
# delete = false

# Which column is what; an empty name means that there is none. published_at and what follows it are written.
[adopt.tickets.columns]
id = "id"
topic = "topic"
key = "aggregate_id"
# type = "event_type"
payload = "payload"
# headers = "headers"
# correlation_id = "correlation_id"
# tenant = "tenant"
# created_at = "created_at"
# A number drawn from a sequence when a row is inserted: without it PostgreSQL does not tell the order of two writers.
# sequence = "position"
published_at = "published_at"
# attempts = "retry_count"
# next_attempt_at = "next_retry_at"
# error = "last_error"
# error_class = "error_class"
# error_at = "last_error_at"
# updated_at = "updated_at"

# A column of states, in the owner's words.
[adopt.tickets.status]
column = "status"
pending = ["NEW"]
published = "SENT"
# dead = "FAILED"

# Where rows go that failed for good; columns of the same name are copied, these are its own.
[adopt.tickets.dead_letters]
table = "messages_dead"
# columns = { error = "reason", error_at = "died_at" }

[subscription.tickets]
adopt = "tickets"
to = "hook"

"##;

fn subscription() -> String {
    let relay = RelayConfig::default();
    format!(
        r##"# A reader of the log with cursors of its own. store and to may be left out where there is only one.
[subscription.notify]
store = "main"
to = "hook"
# adopt names an [adopt.NAME] whose rows are relayed instead of the log; topics and start are then left out.
# Which topics: * is one word, # is the rest.
# topics = ["#"]
# The name of a [retry.NAME]; without it exponential, as below.
# retry = "exponential"
# Where it begins when it is new: "beginning", "now", or a time such as 2026-01-31T08:00:00Z. Known already, it goes on.
# start = "beginning"
# What a dead letter does to its key: later events "continue", or "hold" until it is replayed or archived.
# after_dead = "continue"
# How many events of a key may be on their way to a broker at once. "key": one, or several where the broker promises
# that a failure fails all later ones; order is kept. "one_by_one": one, whatever it promises. "any": several, and
# an event that fails may arrive after later ones of its key.
# order = "{order}"
# The window of a lane: most events and most payload bytes of one batch. And most batches at once: where this does not
# say, {concurrency}, or as many as fill the broker's window.
# batch = {batch}
# batch_bytes = {batch_bytes}
# concurrency = {concurrency}
# How long an endpoint may take to answer one attempt; for a broker it is its confirm_timeout.
# handler_limit = "{limit}"
# More keys waiting after failures than this stop their lane, loudly.
# max_parked_keys = {parked}
# So many dead letters of one key in a row hold the key for a person.
# max_deaths_in_a_row = {deaths}
# Fixed in this version.
# lanes = {LANES}

"##,
        order = relay.order.as_str(),
        batch = relay.batch,
        batch_bytes = relay.batch_bytes,
        concurrency = CONCURRENCY,
        limit = written(HANDLER_LIMIT),
        parked = relay.max_parked_keys,
        deaths = relay.max_deaths_in_a_row,
    )
}

const RETRIES: &str = r##"# When a failed event is tried again. Classes that are not listed become dead letters at once.
[retry.exponential]
# kind = "exponential"
# base = "1s"
# factor = 2.0
# max = "10m"
# The first attempt counts.
# max_attempts = 12
# Spreads each delay by up to this share, 0 to 0.2.
# jitter = 0.1
# classes = ["transient", "unknown"]

# Fixed steps; max_attempts is one more than there are steps, jitter is 0.
[retry.ladder]
kind = "ladder"
delays = ["1m", "5m", "15m"]

# The same step added each time.
[retry.linear]
kind = "linear"
# step = "1m"
# max = "10m"

# A class of errors may have a policy of its own: transient, permanent, poison or unknown. It is then tried again, listed in
# classes or not. Without a kind it changes only what it names here, the rest is as above; with one it stands alone.
# Attempts are counted for the event, not for each class; the class of the latest failure decides.
[retry.linear.unknown]
max_attempts = 3
[retry.linear.permanent]
kind = "ladder"
delays = ["1d", "1d"]

"##;

fn limits() -> String {
    let (limits, relay) = (Limits::default(), RelayConfig::default());
    format!(
        r##"[limits]
# What may be published; the tables themselves refuse more than these.
# payload_bytes = {payload}
# headers_bytes = {headers}
# Of a topic, and of a key.
# name_bytes = {name}
# How long a silent process keeps its lanes.
# lease = "{lease}"
# The shortest and the longest pause between looks at a quiet log.
# poll_min = "{poll_min}"
# poll_max = "{poll_max}"
# How long an endpoint may take to answer one attempt, where a subscription says nothing else.
# handler_limit = "{limit}"
# How long SIGTERM waits for what is under way.
# drain = "{drain}"
# What a broker confirmed is written down this late, many lanes at once; a crash brings copies of it.
# record_every = "{record_every}"
# Most events a lane holds in memory; most rows and payload bytes of one page; and the payload bytes of a subscription
# in memory at which reading pauses.
# lane_queue = {queue}
# page_rows = {rows}
# page_bytes = {bytes}
# queue_bytes = {queue_bytes}

"##,
        payload = limits.payload_bytes,
        headers = limits.headers_bytes,
        name = limits.name_bytes,
        lease = written(relay.lease),
        poll_min = written(relay.poll.0),
        poll_max = written(relay.poll.1),
        limit = written(HANDLER_LIMIT),
        record_every = written(relay.record_every),
        queue = relay.lane_queue,
        rows = relay.page_rows,
        bytes = relay.page_bytes,
        queue_bytes = relay.queue_bytes,
        drain = written(DRAIN),
    )
}

fn retention_and_http() -> String {
    let retention = Retention::default();
    format!(
        r##"[retention]
# Events, after every subscription is past them.
# events = "{events}"
# Dead letters, after they died.
# dead_letters = "{dead}"
# What was seen already; at least a tenth longer than events and dead letters.
# What is older is not brought again to a broker or an endpoint (R0042).
# inbox = "{inbox}"

# /metrics and /health/*; loopback unless you say otherwise.
[http]
# listen = "{LISTEN}"
"##,
        events = written(retention.events),
        dead = written(retention.dead_letters),
        inbox = written(retention.inbox),
    )
}
