//! Whether the server would make a stream, found out while the one that has to go for it is still there.

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::Config;
use relevo_core::event::EventId;

const STAYS: &str = "it is not done, not even by force, and the stream stays";

/// An empty stream like the new one is made under a name of its own, and deleted again: what the server's and the account's
/// limits forbid, it forbids there. Only subjects cannot be tried so, as no two streams may have the same: these the old
/// stream is given last, and keeps its own if the server refuses. Nothing of it makes a message go.
///
/// Both are there for a moment, so an account that has as many streams as it may is refused as well.
pub(super) async fn rehearse(context: &Context, old: &Config, new: &Config) -> Result<(), String> {
    let probe = probe(old, new);
    let name = probe.name.clone();
    let made = context.create_stream(probe).await;
    // Also after an error: without an answer it may be there.
    let gone = context.delete_stream(&name).await;
    made.map(drop).map_err(|cause| {
        format!("the server makes no such stream beside it, so {STAYS}: {cause}")
    })?;
    gone.map(drop).map_err(|cause| {
        format!("stream {name}, made to try it, cannot be deleted, so {STAYS}: {cause}")
    })?;
    if old.subjects == new.subjects {
        return Ok(());
    }
    let changed = Config { subjects: new.subjects.clone(), ..old.clone() };
    let changed = context.update_stream(changed).await;
    changed
        .map(drop)
        .map_err(|cause| format!("the server refuses its subjects, so {STAYS}: {cause}"))
}

fn probe(old: &Config, new: &Config) -> Config {
    let name = format!("relevo-probe-{}", EventId::fresh());
    let beside = |subject: &String| format!("{name}.{subject}");
    Config {
        subjects: new.subjects.iter().map(beside).collect(),
        description: Some(format!(
            "empty, to see whether {} can be made; may be deleted",
            new.name
        )),
        max_bytes: reserved_anew(old, new),
        // It must not bring in what others have, nor send anything on.
        mirror: None,
        sources: None,
        republish: None,
        subject_transform: None,
        name,
        ..new.clone()
    }
}

/// A limit of bytes is reserved where the stream is kept. What the old one has reserved there is free when it goes: to ask
/// for it a second time would be too much on a server that is more than half full.
fn reserved_anew(old: &Config, new: &Config) -> i64 {
    let given_back = old.storage == new.storage
        && new.num_replicas <= old.num_replicas
        && (1..=old.max_bytes).contains(&new.max_bytes);
    if given_back { 1 } else { new.max_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_nats::jetstream::stream::{RetentionPolicy, Source, StorageType};

    fn orders() -> Config {
        Config {
            name: "ORDERS".into(),
            subjects: vec!["order.>".into(), "bill.paid".into()],
            max_bytes: 1000,
            num_replicas: 1,
            ..Config::default()
        }
    }

    #[test]
    fn what_is_tried_is_the_new_stream_under_a_name_and_subjects_of_its_own() {
        let (storage, retention) = (StorageType::Memory, RetentionPolicy::WorkQueue);
        let sources = Some(vec![Source::default()]);
        let new = Config { storage, retention, max_messages: 7, sources, ..orders() };
        let probe = probe(&orders(), &new);
        assert_eq!((probe.storage, probe.retention, probe.max_messages), (storage, retention, 7));
        assert_eq!((probe.max_bytes, probe.sources), (1000, None));
        assert!(probe.name.starts_with("relevo-probe-"), "{}", probe.name);
        assert_eq!(probe.subjects, ["order.>", "bill.paid"].map(|s| format!("{}.{s}", probe.name)));
    }

    #[test]
    fn bytes_that_the_old_stream_gives_back_are_not_asked_for_twice() {
        let of = |max_bytes| Config { max_bytes, ..orders() };
        for (new, asked) in [(of(999), 1), (of(1000), 1), (of(1001), 1001), (of(-1), -1)] {
            assert_eq!(reserved_anew(&orders(), &new), asked);
        }
        let elsewhere = Config { storage: StorageType::Memory, ..orders() };
        assert_eq!(reserved_anew(&orders(), &elsewhere), 1000);
        assert_eq!(reserved_anew(&orders(), &Config { num_replicas: 3, ..orders() }), 1000);
        assert_eq!(reserved_anew(&of(-1), &orders()), 1000, "the old one has reserved nothing");
    }
}
