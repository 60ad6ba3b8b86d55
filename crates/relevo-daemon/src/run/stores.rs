//! The stores of the configuration, opened when somebody first needs them and again until that works.

use crate::config::{Config, Secret};
use crate::store::{self, Missing, Opened};
use relevo_core::outbox::adopt::AdoptedTable;
use relevo_core::{Error, Kind, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::OnceCell;

/// Every store by its name. One that cannot be opened does not keep the others from working.
pub(super) struct Stores {
    entries: BTreeMap<String, Entry>,
    /// Adopted tables at work, by subscription.
    adopted: Mutex<BTreeMap<String, Arc<dyn AdoptedTable>>>,
    migrate: bool,
}

struct Entry {
    url: Secret,
    opened: OnceCell<Arc<Opened>>,
}

impl Stores {
    /// The stores that `config` names. `migrate`: bring their schemas up to this version first.
    pub(super) fn of(config: &Config, migrate: bool) -> Self {
        let entry = |url: &Secret| Entry { url: url.clone(), opened: OnceCell::new() };
        let entries = config.stores.iter().map(|(name, url)| (name.clone(), entry(url))).collect();
        Self { entries, adopted: Mutex::default(), migrate }
    }

    /// The store of that name, looked over once it is open; a failure is forgotten and tried again by the next who asks.
    pub(super) async fn get(&self, name: &str) -> Result<Arc<Opened>> {
        let missing = || Error::new(Kind::InvalidConfig, format!("there is no [store.{name}]"));
        let entry = self.entries.get(name).ok_or_else(missing)?;
        entry.opened.get_or_try_init(|| self.open(name, &entry.url)).await.cloned()
    }

    /// The store of that name, if it is open.
    pub(super) fn if_open(&self, name: &str) -> Option<Arc<Opened>> {
        self.entries.get(name)?.opened.get().cloned()
    }

    /// Remembers the table that a subscription relays.
    pub(super) fn keep_adopted(&self, subscription: &str, table: Arc<dyn AdoptedTable>) {
        let mut adopted = self.adopted.lock().unwrap_or_else(PoisonError::into_inner);
        adopted.insert(subscription.to_owned(), table);
    }

    /// The table that a subscription relays, once it is at work.
    pub(super) fn adopted(&self, subscription: &str) -> Option<Arc<dyn AdoptedTable>> {
        self.adopted.lock().unwrap_or_else(PoisonError::into_inner).get(subscription).cloned()
    }

    async fn open(&self, name: &str, url: &Secret) -> Result<Arc<Opened>> {
        // Without a schema to put into it, a file made here would only hide a mistyped name.
        let missing = if self.migrate { Missing::Create } else { Missing::Refuse };
        let opened = store::open(url, missing).await?;
        if self.migrate {
            for applied in opened.operate.migrate().await? {
                eprintln!("store {name}: applied {applied}");
            }
        }
        let probe = opened.store.probe().await?;
        eprintln!("store {name}: {}, schema {}; {}", probe.server, probe.schema, probe.waking);
        for note in &probe.notes {
            eprintln!("store {name}: {note}");
        }
        Ok(Arc::new(opened))
    }
}
