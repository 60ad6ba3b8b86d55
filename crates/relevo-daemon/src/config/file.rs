//! The shape of `relevo.toml`. What a value may be is checked in [`super::check`], once everything is read.

use super::duration::Span;
use relevo_core::ErrorClass;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct File {
    pub(super) service: ServiceTable,
    pub(super) store: BTreeMap<String, StoreTable>,
    pub(super) broker: BTreeMap<String, BrokerTable>,
    pub(super) topology: BTreeMap<String, toml::Table>,
    pub(super) adopt: BTreeMap<String, AdoptTable>,
    pub(super) subscription: BTreeMap<String, SubscriptionTable>,
    pub(super) retry: BTreeMap<String, RetryTable>,
    pub(super) limits: LimitsTable,
    pub(super) retention: RetentionTable,
    pub(super) http: HttpTable,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ServiceTable {
    pub(super) name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct StoreTable {
    pub(super) url: Option<String>,
    pub(super) url_file: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct BrokerTable {
    pub(super) url: Option<String>,
    pub(super) url_file: Option<String>,
    pub(super) secrets: Option<Vec<String>>,
    pub(super) secrets_file: Option<String>,
    pub(super) exchange: Option<String>,
    pub(super) routes: Option<Vec<RouteTable>>,
    pub(super) max_message_bytes: Option<u32>,
    pub(super) blocked_limit: Option<Span>,
    pub(super) management_port: Option<u16>,
    pub(super) stream: Option<String>,
    pub(super) subject_prefix: Option<String>,
    pub(super) domain: Option<String>,
    pub(super) nkey_file: Option<String>,
    pub(super) credentials_file: Option<String>,
    pub(super) topic: Option<String>,
    pub(super) topic_prefix: Option<String>,
    pub(super) compression: Option<String>,
    pub(super) linger: Option<Span>,
    pub(super) sasl_mechanism: Option<String>,
    pub(super) window: Option<u32>,
    pub(super) window_bytes: Option<u32>,
    pub(super) confirm_timeout: Option<Span>,
    pub(super) connect_timeout: Option<Span>,
    pub(super) ca_file: Option<String>,
    pub(super) client_cert: Option<String>,
    pub(super) client_key: Option<String>,
}

/// One of a broker's `routes`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RouteTable {
    pub(super) topics: String,
    pub(super) exchange: String,
}

// URLs carry passwords: the tables that hold them say only that they are there.
impl std::fmt::Debug for StoreTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StoreTable(***)")
    }
}
impl std::fmt::Debug for BrokerTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BrokerTable(***)")
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SubscriptionTable {
    pub(super) store: Option<String>,
    pub(super) adopt: Option<String>,
    pub(super) topics: Option<Vec<String>>,
    pub(super) to: Option<String>,
    pub(super) retry: Option<String>,
    pub(super) start: Option<toml::Value>,
    pub(super) after_dead: Option<String>,
    pub(super) order: Option<String>,
    pub(super) batch: Option<u32>,
    pub(super) batch_bytes: Option<u32>,
    pub(super) concurrency: Option<u32>,
    pub(super) lanes: Option<u32>,
    pub(super) handler_limit: Option<Span>,
    pub(super) max_parked_keys: Option<u32>,
    pub(super) max_deaths_in_a_row: Option<u32>,
}

/// `[adopt.NAME]`: an outbox table of somebody else's. Columns are named by role.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AdoptTable {
    pub(super) store: Option<String>,
    pub(super) table: Option<String>,
    pub(super) preset: Option<String>,
    pub(super) columns: BTreeMap<String, String>,
    pub(super) topic: Option<String>,
    pub(super) topic_prefix: Option<String>,
    pub(super) key_path: Option<String>,
    pub(super) content_type: Option<String>,
    pub(super) delete: Option<bool>,
    pub(super) status: Option<StatusTable>,
    pub(super) dead_letters: Option<DeadLettersTable>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct StatusTable {
    pub(super) column: Option<String>,
    pub(super) pending: Vec<String>,
    pub(super) published: Option<String>,
    pub(super) dead: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct DeadLettersTable {
    pub(super) table: Option<String>,
    pub(super) columns: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RetryTable {
    pub(super) kind: Option<String>,
    pub(super) delays: Option<Vec<Span>>,
    pub(super) step: Option<Span>,
    pub(super) base: Option<Span>,
    pub(super) factor: Option<f64>,
    pub(super) max: Option<Span>,
    pub(super) max_attempts: Option<u32>,
    pub(super) jitter: Option<f64>,
    pub(super) classes: Option<Vec<String>>,
    pub(super) transient: Option<AttemptsTable>,
    pub(super) permanent: Option<AttemptsTable>,
    pub(super) poison: Option<AttemptsTable>,
    pub(super) unknown: Option<AttemptsTable>,
}

/// `[retry.NAME.CLASS]`: the keys of `[retry.NAME]` that one class may have for itself. (Flattening it into
/// [`RetryTable`] would make serde forget to refuse unknown keys.)
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AttemptsTable {
    pub(super) kind: Option<String>,
    pub(super) delays: Option<Vec<Span>>,
    pub(super) step: Option<Span>,
    pub(super) base: Option<Span>,
    pub(super) factor: Option<f64>,
    pub(super) max: Option<Span>,
    pub(super) max_attempts: Option<u32>,
    pub(super) jitter: Option<f64>,
}

impl RetryTable {
    /// What holds for every class without a table of its own.
    pub(super) fn general(&self) -> AttemptsTable {
        AttemptsTable {
            kind: self.kind.clone(),
            delays: self.delays.clone(),
            step: self.step,
            base: self.base,
            factor: self.factor,
            max: self.max,
            max_attempts: self.max_attempts,
            jitter: self.jitter,
        }
    }

    /// The tables of single classes.
    pub(super) fn by_class(&self) -> impl Iterator<Item = (ErrorClass, &AttemptsTable)> {
        let table = |class| match class {
            ErrorClass::Transient => &self.transient,
            ErrorClass::Permanent => &self.permanent,
            ErrorClass::Poison => &self.poison,
            ErrorClass::Unknown => &self.unknown,
        };
        ErrorClass::ALL.into_iter().filter_map(move |class| Some((class, table(class).as_ref()?)))
    }
}

impl AttemptsTable {
    /// A class that names no kind changes only what it says: the rest is as in `general`.
    pub(super) fn over(&self, general: &Self) -> Self {
        if self.kind.is_some() {
            return self.clone();
        }
        Self {
            kind: general.kind.clone(),
            delays: self.delays.clone().or_else(|| general.delays.clone()),
            step: self.step.or(general.step),
            base: self.base.or(general.base),
            factor: self.factor.or(general.factor),
            max: self.max.or(general.max),
            max_attempts: self.max_attempts.or(general.max_attempts),
            jitter: self.jitter.or(general.jitter),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct LimitsTable {
    pub(super) payload_bytes: Option<u32>,
    pub(super) headers_bytes: Option<u32>,
    pub(super) name_bytes: Option<u32>,
    pub(super) lease: Option<Span>,
    pub(super) poll_min: Option<Span>,
    pub(super) poll_max: Option<Span>,
    pub(super) handler_limit: Option<Span>,
    pub(super) drain: Option<Span>,
    pub(super) record_every: Option<Span>,
    pub(super) lane_queue: Option<u32>,
    pub(super) page_rows: Option<u32>,
    pub(super) page_bytes: Option<u32>,
    pub(super) queue_bytes: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RetentionTable {
    pub(super) events: Option<Span>,
    pub(super) dead_letters: Option<Span>,
    pub(super) inbox: Option<Span>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct HttpTable {
    pub(super) listen: Option<String>,
}
