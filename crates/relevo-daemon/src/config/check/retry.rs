//! `[retry.NAME]` and `[retry.NAME.CLASS]`

use super::Check;
use crate::config::file::{AttemptsTable, RetryTable};
use crate::config::suggest::did_you_mean;
use relevo_core::ErrorClass;
use relevo_core::error::quoted;
use relevo_core::retry::RetryPolicy;
use std::collections::BTreeMap;
use std::time::Duration;

const KINDS: [&str; 3] = ["ladder", "linear", "exponential"];

impl Check {
    pub(super) fn retries(
        &mut self,
        tables: BTreeMap<String, RetryTable>,
    ) -> BTreeMap<String, RetryPolicy> {
        let mut policies = BTreeMap::new();
        for (name, table) in tables {
            self.name("retry", &name);
            if let Some(policy) = self.retry(&name, &table) {
                policies.insert(name, policy);
            }
        }
        policies
    }

    fn retry(&mut self, name: &str, table: &RetryTable) -> Option<RetryPolicy> {
        let general = table.general();
        let mut policy = self.attempts(&["retry", name], &general, &general);
        if let Some(classes) = &table.classes {
            let classes = self.classes(name, classes);
            policy = policy.map(|policy| policy.retry_classes(classes));
        }
        for (class, own) in table.by_class() {
            let path = ["retry", name, class.as_str()];
            self.is_retried(&path, table);
            let of_class = self.attempts(&path, own, &own.over(&general));
            policy = policy.zip(of_class).map(|(policy, own)| policy.for_class(class, own));
        }
        policy
    }

    /// A policy from `whole`; what is wrong in it is told where it is `given`.
    fn attempts(
        &mut self,
        path: &[&str],
        given: &AttemptsTable,
        whole: &AttemptsTable,
    ) -> Option<RetryPolicy> {
        let kind = whole.kind.as_deref().unwrap_or("exponential");
        if !KINDS.contains(&kind) {
            self.unknown_kind(path, given);
            return None;
        }
        let before = self.problems.len();
        self.keys_of_kind(path, given, kind);
        if kind == "ladder" && whole.delays.as_ref().is_none_or(Vec::is_empty) {
            self.bad(
                &at(path, "delays"),
                "a ladder needs its steps, such as delays = [\"1m\", \"5m\", \"15m\"]",
            );
        }
        if given.max_attempts == Some(0) {
            self.bad(&at(path, "max_attempts"), "the first attempt counts: at least 1");
        }
        let policy = policy(kind, whole);
        if let (Err(error), true) = (policy.check(), self.problems.len() == before) {
            self.bad(path, error.message());
        }
        Some(policy)
    }

    fn unknown_kind(&mut self, path: &[&str], given: &AttemptsTable) {
        let Some(kind) = &given.kind else { return };
        let near = did_you_mean(kind, KINDS);
        self.bad(
            &at(path, "kind"),
            format!("{} is not ladder, linear or exponential{near}", quoted(kind)),
        );
    }

    /// A key that another kind of policy would use is a misunderstanding.
    fn keys_of_kind(&mut self, path: &[&str], given: &AttemptsTable, kind: &str) {
        let keys = [
            ("delays", given.delays.is_some(), "ladder"),
            ("step", given.step.is_some(), "linear"),
            ("base", given.base.is_some(), "exponential"),
            ("factor", given.factor.is_some(), "exponential"),
            ("max", given.max.is_some() && kind == "ladder", "linear or exponential"),
        ];
        for (key, is_given, of) in keys {
            if is_given && !of.contains(kind) {
                self.bad(
                    &at(path, key),
                    format!("{key} belongs to kind = {of:?}, this policy is {kind:?}"),
                );
            }
        }
    }

    /// `classes` that leave out a class with a table of its own contradict it.
    fn is_retried(&mut self, path: &[&str; 3], table: &RetryTable) {
        let [_, name, class] = path;
        if table.classes.as_ref().is_some_and(|all| !all.iter().any(|listed| listed == class)) {
            let text = format!(
                "retry.{name}.classes leaves {class} out, so it would never be tried again; add it there, or remove this table"
            );
            self.bad(path, text);
        }
    }

    fn classes(&mut self, name: &str, words: &[String]) -> Vec<ErrorClass> {
        let mut known = Vec::new();
        for word in words {
            match ErrorClass::parse(word) {
                Some(class) => known.push(class),
                None => {
                    let all = ErrorClass::ALL.map(ErrorClass::as_str);
                    let near = did_you_mean(word, all);
                    let text = format!("{} is not one of {}{near}", quoted(word), all.join(", "));
                    self.bad(&["retry", name, "classes"], text);
                }
            }
        }
        known
    }
}

fn at<'a>(path: &[&'a str], key: &'a str) -> Vec<&'a str> {
    path.iter().copied().chain([key]).collect()
}

/// The policy that a table describes, with the defaults of its kind.
fn policy(kind: &str, table: &AttemptsTable) -> RetryPolicy {
    let max = table.max.map_or(Duration::from_secs(600), |span| span.0);
    let mut policy = match kind {
        "ladder" => RetryPolicy::ladder(table.delays.iter().flatten().map(|span| span.0)),
        "linear" => {
            RetryPolicy::linear(table.step.map_or(Duration::from_secs(60), |span| span.0), max)
        }
        _ => {
            let base = table.base.map_or(Duration::from_secs(1), |span| span.0);
            RetryPolicy::exponential(base, table.factor.unwrap_or(2.0), max)
        }
    };
    if let Some(attempts) = table.max_attempts {
        policy = policy.max_attempts(attempts);
    }
    if let Some(jitter) = table.jitter {
        policy = policy.jitter(jitter);
    }
    policy
}
