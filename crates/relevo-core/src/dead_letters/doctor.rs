//! What `doctor` says of a subscription, the same on every store.

use super::operate::{Finding, Level, SubscriptionStatus};

/// A count and what is counted.
fn counted(n: i64, one: &str, many: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {many}") }
}

impl SubscriptionStatus {
    /// What is wrong with it, and what to do; one line that all is well if nothing is.
    pub fn findings(&self) -> Vec<Finding> {
        let name = &self.name;
        let mut found = Vec::new();
        let mut say = |level, text: String| {
            found.push(Finding::new(level, format!("subscription {name}"), text));
        };
        if let Some(by) = &self.paused {
            let text = format!(
                "is paused ({by}); it keeps the log from going: `relevo subscriptions resume {name}`"
            );
            say(Level::Warning, text);
        } else if let Some(silent) = self.forgotten_for_s {
            let waiting = counted(self.backlog, "event waits", "events wait");
            say(
                Level::Problem,
                format!(
                    "nobody has worked it for {silent:.0} s while {waiting}: run it, or end it with `relevo subscriptions remove {name}`"
                ),
            );
        }
        for (member, note) in self.open_breakers() {
            say(
                Level::Problem,
                format!("{member} finds the destination down and probes it: {note}"),
            );
        }
        if self.parked_keys > 0 {
            let keys = counted(self.parked_keys, "key waits", "keys wait");
            let events = counted(self.parked_events, "event", "events");
            say(Level::Warning, format!("{keys} after a failure, with {events}"));
        }
        if self.dead_letters > 0 {
            let letters = counted(self.dead_letters, "dead letter waits", "dead letters wait");
            let text =
                format!("{letters} for a person: `relevo dead-letters list --subscription {name}`");
            say(Level::Warning, text);
        }
        if found.is_empty() {
            let text = format!("{} to go", counted(self.backlog, "event", "events"));
            found.push(Finding::new(Level::Ok, format!("subscription {name}"), text));
        }
        found
    }

    /// Who finds the destination down, and why.
    fn open_breakers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.members.iter().filter_map(|member| {
            let note = member.note["breaker"].as_str().filter(|note| note.starts_with("open"))?;
            Some((member.member.as_str(), note))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::MemberStatus;
    use super::*;

    fn told(status: &SubscriptionStatus) -> Vec<(Level, String)> {
        status.findings().into_iter().map(|finding| (finding.level, finding.text)).collect()
    }

    #[test]
    fn a_destination_that_is_down_is_a_problem_with_its_reason() {
        let mut status = SubscriptionStatus::named("s");
        status.backlog = 1;
        assert_eq!(told(&status), [(Level::Ok, "1 event to go".to_owned())]);
        let note = serde_json::json!({ "breaker": "open: Connection refused" });
        status.members.push(MemberStatus::new("host-1", 64, 0.1, note));
        let [(Level::Problem, text)] = &told(&status)[..] else { panic!("{:?}", told(&status)) };
        assert!(text.contains("host-1") && text.contains("Connection refused"), "{text}");
    }

    #[test]
    fn everything_that_waits_is_named_with_what_to_do() {
        let mut status = SubscriptionStatus::named("s");
        (status.parked_keys, status.parked_events, status.dead_letters) = (1, 2, 3);
        status.forgotten_for_s = Some(700.0);
        let told = told(&status);
        let texts: Vec<&str> = told.iter().map(|(_, text)| text.as_str()).collect();
        assert!(texts[0].contains("subscriptions remove s"), "{texts:?}");
        assert_eq!(texts[1], "1 key waits after a failure, with 2 events");
        assert!(texts[2].starts_with("3 dead letters wait"), "{texts:?}");
    }
}
