//! How a topic differs from what is wanted, and whether changing it loses something.

use relevo_core::broker::Act;
use std::collections::BTreeMap;

/// A topic as the brokers have it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) partitions: usize,
    pub(super) replicas: usize,
    /// Every setting that counts, wherever it comes from.
    pub(super) settings: BTreeMap<String, String>,
    /// The settings that were made for this topic.
    pub(super) own: BTreeMap<String, String>,
    /// How many it has at most: of those that were compacted away nobody tells.
    pub(super) messages: i64,
}

/// A topic as it is wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) name: String,
    pub(super) partitions: usize,
    pub(super) replicas: usize,
    pub(super) settings: BTreeMap<String, String>,
}

/// What was found to be different.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Differences {
    texts: Vec<String>,
    loses: bool,
    /// It cannot be changed: it must be made anew.
    pub(super) anew: bool,
    pub(super) more_partitions: bool,
    pub(super) settings: bool,
}

impl Differences {
    /// What to do, and why.
    pub(super) fn verdict(&self) -> (Act, String) {
        let act = match (self.texts.is_empty(), self.loses || self.anew) {
            (true, _) => Act::Ok,
            (false, true) => Act::Replace,
            (false, false) => Act::Change,
        };
        (act, self.texts.join(", "))
    }
}

pub(super) fn topic(found: &Found, wanted: &Wanted) -> Differences {
    let mut different = Differences::default();
    let (has, wants) = (found.partitions, wanted.partitions);
    if has < wants {
        different.more_partitions = true;
        let but = "keys move to other partitions from then on";
        different.texts.push(format!("partitions are {has}, wanted {wants}: {but}"));
    }
    if has > wants {
        different.anew = true;
        different
            .texts
            .push(format!("partitions are {has}, wanted {wants}: fewer need a new topic"));
    }
    if found.replicas != wanted.replicas {
        different.anew = true;
        let (has, wants) = (found.replicas, wanted.replicas);
        let instead = "Kafka's own kafka-reassign-partitions changes it without loss";
        different.texts.push(format!("replicas are {has}, wanted {wants}: {instead}"));
    }
    if different.anew && found.messages > 0 {
        different.texts.push(format!("up to {} messages would go", found.messages));
    }
    for (name, value) in &wanted.settings {
        setting(&mut different, found, name, value);
    }
    different
}

fn setting(different: &mut Differences, found: &Found, name: &str, wanted: &str) {
    let has = found.settings.get(name).map(String::as_str);
    if has.is_some_and(|has| same(name, has, wanted)) {
        return;
    }
    different.settings = true;
    let text = format!("{name} is {}, wanted {wanted}", has.unwrap_or("not set"));
    let loses = found.messages > 0 && may_lose(name, has, wanted);
    different.loses |= loses;
    different.texts.push(if loses { format!("{text}: messages may go") } else { text });
}

/// Lists have no order.
fn same(name: &str, one: &str, other: &str) -> bool {
    let sorted = |list: &str| {
        let mut words: Vec<String> = list.split(',').map(|word| word.trim().to_owned()).collect();
        words.sort();
        words
    };
    one == other || (name == "cleanup.policy" && sorted(one) == sorted(other))
}

/// Messages that are there now may go because of it.
fn may_lose(name: &str, has: Option<&str>, wanted: &str) -> bool {
    // Less than nothing means without end.
    let limit = |text: &str| text.parse::<i64>().ok().map(|n| if n < 0 { i64::MAX } else { n });
    match name {
        "retention.ms" | "retention.bytes" => {
            let (has, wanted) = (has.and_then(limit), limit(wanted));
            wanted < Some(has.unwrap_or(i64::MAX))
        }
        "cleanup.policy" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(of: &[(&str, &str)]) -> BTreeMap<String, String> {
        of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn verdict(is_empty: bool, partitions: usize, replicas: usize, own: &[(&str, &str)]) -> Act {
        let has = settings(&[("retention.ms", "1000"), ("cleanup.policy", "delete,compact")]);
        let messages = if is_empty { 0 } else { 7 };
        let found =
            Found { partitions: 3, replicas: 1, settings: has, own: settings(&[]), messages };
        let wanted = Wanted { name: "t".into(), partitions, replicas, settings: settings(own) };
        topic(&found, &wanted).verdict().0
    }

    #[test]
    fn what_would_lose_messages_needs_force() {
        assert_eq!(verdict(false, 3, 1, &[("retention.ms", "1000")]), Act::Ok);
        assert_eq!(verdict(false, 3, 1, &[("cleanup.policy", "compact,delete")]), Act::Ok);
        assert_eq!(verdict(false, 6, 1, &[]), Act::Change);
        assert_eq!(verdict(false, 3, 1, &[("retention.ms", "2000")]), Act::Change);
        assert_eq!(verdict(false, 3, 1, &[("retention.ms", "-1")]), Act::Change);
        assert_eq!(verdict(false, 3, 1, &[("retention.ms", "500")]), Act::Replace);
        assert_eq!(verdict(true, 3, 1, &[("retention.ms", "500")]), Act::Change);
        assert_eq!(verdict(false, 3, 1, &[("retention.bytes", "500")]), Act::Replace);
        assert_eq!(verdict(false, 3, 1, &[("cleanup.policy", "delete")]), Act::Replace);
        assert_eq!(verdict(false, 3, 1, &[("segment.ms", "500")]), Act::Change);
        assert_eq!(verdict(true, 2, 1, &[]), Act::Replace);
        assert_eq!(verdict(true, 3, 2, &[]), Act::Replace);
    }
}
