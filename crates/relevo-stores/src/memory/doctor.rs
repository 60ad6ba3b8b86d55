//! What commonly goes wrong, as far as it can in memory.

use super::db::Db;
use relevo_core::dead_letters::{Finding, Level};

impl Db {
    /// Looks at what can go wrong.
    pub fn doctor(&self) -> Vec<Finding> {
        let mut findings = vec![Finding::new(
            Level::Warning,
            "durability",
            "this store ends with the process: for tests only",
        )];
        let subscriptions = self.subscriptions.iter();
        findings.extend(subscriptions.flat_map(|(name, row)| self.status_of(name, row).findings()));
        findings
    }
}
