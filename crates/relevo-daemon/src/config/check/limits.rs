//! `[limits]`, `[retention]` and `[http]`

use super::Check;
use crate::config::LISTEN;
use crate::config::duration::written;
use crate::config::file::{LimitsTable, RetentionTable};
use crate::config::problem::Problem;
use relevo_core::limits::Limits;
use relevo_core::outbox::Retention;
use relevo_core::relay::RelayConfig;
use std::net::SocketAddr;
use std::time::Duration;

impl Check {
    /// The tables themselves hold these bounds, so a file can lower but not raise them.
    pub(super) fn limits(&mut self, table: &LimitsTable) -> Limits {
        let mut limits = Limits::default();
        let fields = [
            ("payload_bytes", table.payload_bytes, &mut limits.payload_bytes),
            ("headers_bytes", table.headers_bytes, &mut limits.headers_bytes),
            ("name_bytes", table.name_bytes, &mut limits.name_bytes),
        ];
        for (key, given, field) in fields {
            let Some(given) = given.map(|value| value as usize) else { continue };
            if given == 0 || given > *field {
                let text = format!("1 to {field}: the stores' own tables refuse more");
                self.problems.push(Problem { path: vec!["limits".into(), key.into()], text });
            }
            *field = given;
        }
        limits
    }

    pub(super) fn relay_defaults(&mut self, table: &LimitsTable) -> RelayConfig {
        let mut relay = RelayConfig::default();
        relay.lease = table.lease.map_or(relay.lease, |span| span.0);
        relay.poll.0 = table.poll_min.map_or(relay.poll.0, |span| span.0);
        relay.poll.1 = table.poll_max.map_or(relay.poll.1, |span| span.0);
        relay.record_every = table.record_every.map_or(relay.record_every, |span| span.0);
        relay.lane_queue = table.lane_queue.map_or(relay.lane_queue, |n| n as usize);
        relay.page_rows = table.page_rows.map_or(relay.page_rows, |n| n as usize);
        relay.page_bytes = table.page_bytes.map_or(relay.page_bytes, |n| n as usize);
        relay.queue_bytes = table.queue_bytes.map_or(relay.queue_bytes, |n| n as usize);
        if relay.poll.0 > relay.poll.1 || relay.poll.0.is_zero() {
            self.bad(&["limits", "poll_min"], "poll_min is more than zero and at most poll_max");
        }
        if let Err(error) = relay.check() {
            self.bad(&["limits"], error.message());
            relay = RelayConfig::default();
        }
        relay
    }

    pub(super) fn retention(&mut self, table: &RetentionTable) -> Retention {
        let mut retention = Retention::default();
        retention.events = table.events.map_or(retention.events, |span| span.0);
        retention.dead_letters = table.dead_letters.map_or(retention.dead_letters, |span| span.0);
        match table.inbox.map(|span| span.0) {
            None => retention.inbox = retention.inbox_kept(),
            Some(inbox) if inbox >= retention.inbox_least() => retention.inbox = inbox,
            Some(inbox) => self.bad(&["retention", "inbox"], too_short(inbox, &retention)),
        }
        retention
    }

    pub(super) fn listen(&mut self, listen: Option<String>) -> SocketAddr {
        let fallback = SocketAddr::from(([127, 0, 0, 1], 9464));
        let text = listen.unwrap_or_else(|| LISTEN.into());
        match text.parse::<SocketAddr>() {
            Ok(address) => {
                if !address.ip().is_loopback() {
                    self.warnings.push(format!("http.listen = {text:?}: metrics and health are open to whoever reaches this address"));
                }
                address
            }
            Err(_) => {
                self.bad(
                    &["http", "listen"],
                    format!("{text:?} is not an address and a port, such as {LISTEN:?}"),
                );
                fallback
            }
        }
    }
}

/// Why inbox rows must be kept longer, and for how long.
fn too_short(inbox: Duration, retention: &Retention) -> String {
    let longest = if retention.events > retention.dead_letters { "events" } else { "dead_letters" };
    format!(
        "{} is too short: inbox rows must outlive what a replay can bring again, or its effects would happen twice. A tenth \
         longer than {longest} ({}) is {}; without this key they are kept long enough",
        written(inbox),
        written(retention.replay_reach()),
        written(retention.inbox_least()),
    )
}
