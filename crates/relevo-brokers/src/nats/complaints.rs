//! What a server complains about beside its answers: what it does not permit it answers in no other way.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

/// So many forbidden subjects are remembered.
const SUBJECTS_KNOWN: usize = 10_000;

const FORBIDDEN: &str = "permissions violation";

/// What was called forbidden on one connection.
#[derive(Default)]
pub(super) struct Complaints {
    said: Mutex<Said>,
    came: Notify,
}

#[derive(Default)]
struct Said {
    last: Option<(Instant, String)>,
    /// Subjects that nothing may be published to, and when that was said last.
    unpublished: BTreeMap<String, Instant>,
}

impl Complaints {
    pub(super) fn note(&self, text: String) {
        if !text.to_lowercase().contains(FORBIDDEN) {
            return;
        }
        let now = Instant::now();
        let mut said = self.said();
        if let Some(subject) = unpublished(&text) {
            if said.unpublished.len() >= SUBJECTS_KNOWN {
                said.unpublished.clear();
            }
            said.unpublished.insert(subject.to_owned(), now);
        }
        said.last = Some((now, text));
        drop(said);
        self.came.notify_waiters();
    }

    /// The last complaint, if it came after that moment.
    pub(super) fn since(&self, since: Instant) -> Option<String> {
        last(&self.said(), since)
    }

    /// Waits until publishing to one of these subjects is called forbidden, after that moment.
    pub(super) async fn publishing_is_forbidden<'s, S: Iterator<Item = &'s str>>(
        &self,
        subjects: impl Fn() -> S,
        since: Instant,
    ) {
        let forbids = |said: &Said| subjects().any(|subject| said.forbids(subject, since));
        self.until(|said| (!said.unpublished.is_empty() && forbids(said)).then_some(())).await;
    }

    /// Was publishing to this subject called forbidden, after that moment?
    pub(super) fn has_forbidden(&self, subject: &str, since: Instant) -> bool {
        self.said().forbids(subject, since)
    }

    /// Waits until anything is called forbidden, after that moment.
    pub(super) async fn something_is_forbidden(&self, since: Instant) -> String {
        self.until(|said| last(said, since)).await
    }

    async fn until<T>(&self, look: impl Fn(&Said) -> Option<T>) -> T {
        loop {
            let came = self.came.notified();
            tokio::pin!(came);
            came.as_mut().enable();
            if let Some(found) = look(&self.said()) {
                return found;
            }
            came.await;
        }
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Said {
    fn forbids(&self, subject: &str, since: Instant) -> bool {
        self.unpublished.get(subject).is_some_and(|when| *when >= since)
    }
}

fn last(said: &Said, since: Instant) -> Option<String> {
    let (when, text) = said.last.as_ref()?;
    (*when >= since).then(|| text.clone())
}

/// The subject of `Permissions Violation for Publish to "SUBJECT"`.
fn unpublished(text: &str) -> Option<&str> {
    let (what, rest) = text.split_once('"')?;
    let what = what.to_lowercase();
    let subject = rest.rsplit_once('"')?.0;
    what.contains("publish to").then_some(subject)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn only_what_was_said_since_counts_and_only_for_its_subject() {
        let complaints = Complaints::default();
        let before = Instant::now();
        complaints.note(r#"Permissions Violation for Publish to "a.b""#.into());
        let about = |subject: &'static str, since| {
            let told = complaints.publishing_is_forbidden(|| [subject].into_iter(), since);
            let told = told.now_or_never().is_some();
            assert_eq!(told, complaints.has_forbidden(subject, since));
            told
        };
        assert!(about("a.b", before));
        assert!(!about("a.c", before));
        assert!(!about("a.b", Instant::now() + std::time::Duration::from_secs(1)));
        complaints.note(r#"Permissions Violation for Subscription to "_INBOX.x.*""#.into());
        assert!(about("a.b", before), "another complaint does not hide it");
        assert!(!about("_INBOX.x.*", before), "it was not published to");
        let said = complaints.something_is_forbidden(before).now_or_never().unwrap();
        assert!(said.contains("_INBOX"), "{said}");
        complaints.note("Slow Consumer".into());
        assert_eq!(complaints.since(before), Some(said), "that forbids nothing");
    }
}
