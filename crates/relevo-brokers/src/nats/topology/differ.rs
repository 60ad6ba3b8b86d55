//! How a stream or a consumer differs from what is wanted, and whether changing it loses something.

use async_nats::jetstream::consumer::{self, AckPolicy};
use async_nats::jetstream::stream::{Config, Info, RetentionPolicy};
use relevo_core::broker::Act;
use std::fmt::Debug;
use std::time::{Duration, SystemTime};

/// What was found to be different.
#[derive(Debug, Default)]
pub(super) struct Differences {
    texts: Vec<String>,
    loses: bool,
    /// The server refuses to change it: it must be made anew.
    pub(super) anew: bool,
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

    fn compare<T: PartialEq + Debug>(&mut self, name: &str, found: &T, wanted: &T) -> bool {
        let differs = found != wanted;
        if differs {
            self.texts.push(format!("{name} is {found:?}, wanted {wanted:?}"));
        }
        differs
    }

    /// A limit that is lower than what is there makes messages go.
    fn limit(&mut self, name: &str, found: i64, wanted: i64, used: u64) {
        if self.compare(name, &found, &wanted)
            && wanted > 0
            && u64::try_from(wanted).is_ok_and(|wanted| wanted < used)
        {
            self.loses = true;
            self.texts.push(format!("{used} are there, the rest would go"));
        }
    }

    /// The server drops at once what no consumer waits for, and without a consumer that is everything.
    fn only_for_consumers(&mut self, messages: u64) {
        if messages > 0 {
            self.loses = true;
            let text =
                format!("of its {messages} messages those that no consumer waits for would go");
            self.texts.push(text);
        }
    }

    fn anew_if(&mut self, differs: bool) {
        self.anew |= differs;
    }
}

/// A stream against what is wanted of it.
pub(super) fn stream(found: &Info, wanted: &Config) -> Differences {
    let mut different = Differences::default();
    let (config, state) = (&found.config, &found.state);
    different.compare("subjects", &sorted(&config.subjects), &sorted(&wanted.subjects));
    different.compare("replicas", &config.num_replicas, &wanted.num_replicas);
    let retention = different.compare("retention", &config.retention, &wanted.retention);
    let is_queue = |config: &Config| config.retention == RetentionPolicy::WorkQueue;
    different.anew_if(retention && (is_queue(config) || is_queue(wanted)));
    if retention && wanted.retention == RetentionPolicy::Interest {
        different.only_for_consumers(state.messages);
    }
    let storage = different.compare("storage", &config.storage, &wanted.storage);
    different.anew_if(storage);
    different.limit("max_messages", config.max_messages, wanted.max_messages, state.messages);
    different.limit("max_bytes", config.max_bytes, wanted.max_bytes, state.bytes);
    let size = |config: &Config| config.max_message_size;
    different.compare("max_message_bytes", &size(config), &size(wanted));
    let oldest = SystemTime::from(state.first_timestamp);
    age(&mut different, config.max_age, wanted.max_age, (state.messages > 0).then_some(oldest));
    different.compare("discard", &config.discard, &wanted.discard);
    different.compare("duplicate_window", &config.duplicate_window, &wanted.duplicate_window);
    if different.anew && state.messages > 0 {
        different.texts.push(format!("its {} messages would go", state.messages));
    }
    different
}

fn age(different: &mut Differences, found: Duration, wanted: Duration, oldest: Option<SystemTime>) {
    let too_old = |oldest: SystemTime| oldest.elapsed().is_ok_and(|age| age > wanted);
    if different.compare("max_age", &found, &wanted)
        && !wanted.is_zero()
        && oldest.is_some_and(too_old)
    {
        different.loses = true;
        different.texts.push("older messages are there and would go".into());
    }
}

/// A consumer against what is wanted of it.
pub(super) fn consumer(found: &consumer::Config, wanted: &consumer::pull::Config) -> Differences {
    let mut different = Differences::default();
    let pushes = different.compare("pushes", &found.deliver_subject.is_some(), &false);
    let policy = different.compare("ack_policy", &found.ack_policy, &AckPolicy::Explicit);
    different.anew_if(pushes || policy);
    let wants = filters(&wanted.filter_subject, &wanted.filter_subjects);
    different.compare("filters", &filters(&found.filter_subject, &found.filter_subjects), &wants);
    different.compare("max_ack_pending", &found.max_ack_pending, &wanted.max_ack_pending);
    different.compare("ack_wait", &found.ack_wait, &wanted.ack_wait);
    let unlimited = |times: i64| if times <= 0 { -1 } else { times };
    different.compare("max_deliver", &unlimited(found.max_deliver), &-1);
    different
}

fn filters(one: &str, several: &[String]) -> Vec<String> {
    let one = Some(one.to_owned()).filter(|one| !one.is_empty());
    sorted(&one.into_iter().chain(several.iter().cloned()).collect::<Vec<_>>())
}

fn sorted(names: &[String]) -> Vec<String> {
    let mut names = names.to_vec();
    names.sort();
    names
}
