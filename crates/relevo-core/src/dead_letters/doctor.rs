//! What `doctor` and `status` say of a subscription, the same on every store.

use super::{MemberStatus, SubscriptionStatus};
use crate::clock::age;
use crate::outbox::MemberNote;
use serde::Serialize;

/// A finding of `doctor`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// How bad.
    pub level: Level,
    /// What was looked at.
    pub check: String,
    /// What was found, and what to do.
    pub text: String,
}

impl Finding {
    /// A finding.
    pub fn new(level: Level, check: impl Into<String>, text: impl Into<String>) -> Self {
        Self { level, check: check.into(), text: text.into() }
    }
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Warning,
    /// Must be mended.
    Problem,
}

/// A count and what is counted.
fn counted(n: i64, one: &str, many: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {many}") }
}

impl SubscriptionStatus {
    /// What is wrong with it, and what to do; one line that all is well if nothing is.
    pub fn findings(&self) -> Vec<Finding> {
        let found =
            |(level, text)| Finding::new(level, format!("subscription {}", self.name), text);
        let troubles = self.troubles();
        if troubles.is_empty() {
            let text = format!("{} to go", counted(self.backlog, "event", "events"));
            return vec![found((Level::Ok, text))];
        }
        troubles.into_iter().map(found).collect()
    }

    /// What needs somebody's attention, in sentences that say what to do.
    pub fn troubles(&self) -> Vec<(Level, String)> {
        let alive = || self.members.iter().filter(|member| member.is_alive());
        let mut troubles = Vec::new();
        troubles.extend(self.standstill());
        troubles.extend(alive().filter_map(|member| self.down(member)));
        troubles.extend(alive().flat_map(stopped));
        troubles.extend(self.parked());
        troubles.extend(self.dead());
        troubles
    }

    /// `1 event waits`, or what else does.
    pub fn what_waits(&self) -> String {
        match self.backlog {
            0 => counted(self.parked_events, "parked event waits", "parked events wait"),
            backlog => counted(backlog, "event waits", "events wait"),
        }
    }

    fn standstill(&self) -> Option<(Level, String)> {
        let name = &self.name;
        if let Some(by) = &self.paused {
            let text = format!(
                "paused by {by}; the log is kept for it: `relevo subscriptions resume {name}` lets it go on"
            );
            return Some((Level::Warning, text));
        }
        let (silent, waiting) = (age(self.forgotten_for_s?), self.what_waits());
        let text = format!(
            "nobody has worked on it for {silent} while {waiting}, and the log is kept for it: start its daemon, or end \
             it with `relevo subscriptions remove {name}`"
        );
        Some((Level::Problem, text))
    }

    fn down(&self, member: &MemberStatus) -> Option<(Level, String)> {
        let it = MemberNote::read(&member.note).breaker_after(member.silent_s)?;
        let text = format!(
            "the destination {} has been down for {}, says {}: {}; nothing is lost, it is probed at least every 30 s and \
             delivery goes on by itself once it answers: start it, or correct its url",
            self.destination,
            age(it.open_s),
            member.member,
            it.reason
        );
        Some((Level::Problem, text))
    }

    fn parked(&self) -> Option<(Level, String)> {
        let keys = counted(self.parked_keys, "key waits", "keys wait");
        let events = counted(self.parked_events, "event", "events");
        let text = format!("{keys} after a failure, with {events}");
        (self.parked_keys > 0).then_some((Level::Warning, text))
    }

    fn dead(&self) -> Option<(Level, String)> {
        let letters = counted(self.dead_letters, "dead letter waits", "dead letters wait");
        let text = format!(
            "{letters} for a person: `relevo dead-letters list --subscription {}`",
            self.name
        );
        (self.dead_letters > 0).then_some((Level::Warning, text))
    }
}

/// Lanes that do not go on without a person.
fn stopped(member: &MemberStatus) -> impl Iterator<Item = (Level, String)> {
    let note = MemberNote::read(&member.note);
    let sentence =
        |(lane, why): (u16, String)| (Level::Problem, format!("lane {lane} stopped: {why}"));
    note.stopped.into_iter().map(sentence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(status: &SubscriptionStatus) -> Vec<(Level, String)> {
        status.findings().into_iter().map(|finding| (finding.level, finding.text)).collect()
    }

    #[test]
    fn a_destination_that_is_down_is_a_problem_with_its_reason_and_since_when() {
        let mut status = SubscriptionStatus::named("s");
        (status.backlog, status.destination) = (1, "shop (http://shop)".into());
        assert_eq!(told(&status), [(Level::Ok, "1 event to go".to_owned())]);
        let note = json!({ "breaker": { "reason": "Connection refused", "open_s": 70.0 } });
        status.members.push(MemberStatus::new("host-1", 64, 5.0, note.clone()));
        let [(Level::Problem, text)] = &told(&status)[..] else { panic!("{:?}", told(&status)) };
        for part in
            ["host-1", "Connection refused", "1m 15s", "shop (http://shop)", "nothing is lost"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        // Whoever said so ended long ago: nobody knows any more.
        status.members = vec![MemberStatus::new("host-1", 64, 100.0, note)];
        assert_eq!(told(&status), [(Level::Ok, "1 event to go".to_owned())]);
    }

    #[test]
    fn a_lane_that_stopped_is_a_problem() {
        let mut status = SubscriptionStatus::named("s");
        let note = json!({ "breaker": null, "stopped": { "3": "R0025 too many parked keys" } });
        status.members.push(MemberStatus::new("host-1", 64, 0.1, note));
        assert_eq!(
            told(&status),
            [(Level::Problem, "lane 3 stopped: R0025 too many parked keys".to_owned())]
        );
    }

    #[test]
    fn everything_that_waits_is_named_with_what_to_do() {
        let mut status = SubscriptionStatus::named("s");
        (status.parked_keys, status.parked_events, status.dead_letters) = (1, 2, 3);
        status.forgotten_for_s = Some(700.0);
        let told = told(&status);
        let texts: Vec<&str> = told.iter().map(|(_, text)| text.as_str()).collect();
        assert!(texts[0].contains("11m 40s while 2 parked events wait"), "{texts:?}");
        assert!(texts[0].contains("subscriptions remove s"), "{texts:?}");
        assert_eq!(texts[1], "1 key waits after a failure, with 2 events");
        assert!(texts[2].starts_with("3 dead letters wait"), "{texts:?}");
    }
}
