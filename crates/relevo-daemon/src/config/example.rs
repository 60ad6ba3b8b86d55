//! The configuration written out: every key with its default, commented.

use super::duration::written;
use super::{HANDLER_LIMIT, LISTEN};
use relevo_core::limits::{LANES, Limits};
use relevo_core::outbox::Retention;
use relevo_core::relay::RelayConfig;

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

# Where events go; the scheme picks the adapter.
# [broker.hook]
# url = "http://127.0.0.1:8080/events"

# Which events go there. Topic filters: * is one word, # is the rest.
# [subscription.notify]
# store = "main"
# topics = ["order.*"]
# to = "hook"

# When a failed event is tried again; after the last step it becomes a dead letter. With this, [subscription.notify]
# says retry = "ladder".
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
    [service_and_stores(), subscription(), RETRIES.to_owned(), limits(), retention_and_http()]
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

# A place where events go: http://... (one POST per event, CloudEvents in binary mode), amqp://USER@HOST/VHOST or
# amqps://... (RabbitMQ), or stdout: (a line of JSON each).
[broker.hook]
url = "http://127.0.0.1:8080/events"
# url_file = "path/to/secret"
# Requests are signed with each of these (Standard Webhooks), or with each line of a file:
# secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]
# secrets_file = "path/to/secrets"

# RabbitMQ: events are published with their topic as the routing key, and confirmed.
[broker.rabbit]
url = "amqp://guest@127.0.0.1:5672/%2F"
# exchange = "amq.topic"
# Most messages, and most bytes, that wait for their confirm; one that takes longer than this is unknown.
# window = 1000
# window_bytes = 16777216
# confirm_timeout = "30s"
# With amqps://, authorities beside the system's, and what to show to the broker:
# ca_file = "path/to/ca.pem"
# client_cert = "path/to/client.pem"
# client_key = "path/to/client.key"

"##
    )
}

fn subscription() -> String {
    let relay = RelayConfig::default();
    format!(
        r##"# A reader of the log with cursors of its own. store and to may be left out where there is only one.
[subscription.notify]
store = "main"
to = "hook"
# Which topics: * is one word, # is the rest.
# topics = ["#"]
# The name of a [retry.NAME]; without it exponential, as below.
# retry = "exponential"
# Where it begins when it is new: "beginning", "now", or a time such as 2026-01-31T08:00:00Z. Known already, it goes on.
# start = "beginning"
# What a dead letter does to its key: later events "continue", or "hold" until it is replayed or archived.
# after_dead = "continue"
# Most events of one batch, and most batches at once.
# batch = {batch}
# concurrency = {concurrency}
# How long one attempt may take.
# handler_limit = "{limit}"
# More keys waiting after failures than this stop their lane, loudly.
# max_parked_keys = {parked}
# So many dead letters of one key in a row hold the key for a person.
# max_deaths_in_a_row = {deaths}
# Fixed in this version.
# lanes = {LANES}

"##,
        batch = relay.batch,
        concurrency = relay.concurrency,
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
# How long one attempt may take, where a subscription says nothing else.
# handler_limit = "{limit}"
# Most events a lane holds in memory; most rows and payload bytes of one page.
# lane_queue = {queue}
# page_rows = {rows}
# page_bytes = {bytes}

"##,
        payload = limits.payload_bytes,
        headers = limits.headers_bytes,
        name = limits.name_bytes,
        lease = written(relay.lease),
        poll_min = written(relay.poll.0),
        poll_max = written(relay.poll.1),
        limit = written(HANDLER_LIMIT),
        queue = relay.lane_queue,
        rows = relay.page_rows,
        bytes = relay.page_bytes,
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
# What was seen already; at least as long as any replay can reach.
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
