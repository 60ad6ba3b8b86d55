//! What chance alone seldom brings about: some seeds are drawn so that it happens often.

use super::inbox::CONSUMER;
use super::options::{
    Act, ConsumerOptions, Draw, MS, Options, RewindTo, To, Trouble, subscription,
};
use relevo_core::event::TopicFilter;
use relevo_core::inbox::consume::intake::Bounds;
use relevo_core::retry::RetryPolicy;
use std::time::Duration;

/// What a seed looks at closely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bias {
    /// Nothing: everything is left to chance.
    None,
    /// A database that dies again and again with ticks and cursors it had not flushed.
    LostTicks,
    /// Moves to another cluster while keys are parked, and rewinds after it.
    MovedWithParked,
    /// A broker that is down, processes that sleep, and operators who ask for dead letters meanwhile.
    AskedWhileDown,
    /// Consumers that lose their queues to each other while they work on what is in them.
    ConsumersMeet,
}

impl Bias {
    pub(super) fn draw(r: &mut Draw<'_>) -> Self {
        match r.between(0, 15) {
            0 | 1 => Self::LostTicks,
            2 => Self::MovedWithParked,
            3 => Self::AskedWhileDown,
            4 => Self::ConsumersMeet,
            _ => Self::None,
        }
    }

    pub(super) fn apply(self, options: &mut Options, r: &mut Draw<'_>) {
        match self {
            Self::None => {}
            Self::LostTicks => lost_ticks(options, r),
            Self::MovedWithParked => moved_with_parked(options, r),
            Self::AskedWhileDown => asked_while_down(options, r),
            Self::ConsumersMeet => consumers_meet(options, r),
        }
    }
}

/// Little that commits synchronously, as that flushes everything before it: one or two writers, a broker.
fn lost_ticks(options: &mut Options, r: &mut Draw<'_>) {
    options.processes = r.pick(&[2, 3]);
    options.writers = r.between(1, 2) as usize;
    options.subscriptions = vec![subscription(r, "queue", To::Broker, options.lease)];
    options.consumers.clear();
    options.troubles = vec![Trouble::DatabaseCrash, Trouble::Crash, Trouble::Pause];
    options.chaos_every = r.pick(&[300, 700]) * MS;
    options.rates.database_crash = r.pick(&[20, 60]);
}

/// One move or two, late enough for many ids before it; much is refused for now, and waits for its next attempt.
fn moved_with_parked(options: &mut Options, r: &mut Draw<'_>) {
    options.storm = 3_000 * MS;
    options.troubles = vec![Trouble::DatabaseMove];
    options.chaos_every = r.pick(&[900, 1_500]) * MS;
    options.fresh_clusters = true;
    options.rewinds = true;
    options.rewinds_to = vec![RewindTo::Now];
    options.retention = None;
    options.operators = 2;
    options.acts = vec![Act::Rewind, Act::Rewind, Act::Rewind, Act::Replay];
    options.rates.nack = 300;
    let mut queue = subscription(r, "queue", To::Broker, options.lease);
    queue.max_attempts = 4;
    let (step, longest) = (Duration::from_millis(300), Duration::from_secs(1));
    queue.config.retry = RetryPolicy::exponential(step, 2.0, longest).max_attempts(4);
    options.subscriptions = vec![queue];
}

fn asked_while_down(options: &mut Options, r: &mut Draw<'_>) {
    options.subscriptions = vec![subscription(r, "queue", To::Broker, options.lease)];
    options.troubles = vec![Trouble::BrokerDown, Trouble::BrokerDown, Trouble::Pause];
    options.chaos_every = r.pick(&[100, 300]) * MS;
    options.rates.nack = 100;
    options.operators = 2;
    options.acts = vec![Act::Replay, Act::Replay, Act::Replay, Act::Archive, Act::Edit];
}

/// One key's messages trickle in; whoever has a queue loses it in the middle of a batch, and the next one is handed that
/// batch and a little more.
fn consumers_meet(options: &mut Options, r: &mut Draw<'_>) {
    options.processes = r.pick(&[2, 3]);
    options.writers = r.between(3, 5) as usize;
    options.transactions_per_writer = r.between(8, 12);
    options.keys.truncate(2);
    let mut queue = subscription(r, "queue", To::Broker, options.lease);
    queue.filtered = false;
    queue.config.topics = vec![TopicFilter::all()];
    options.subscriptions = vec![queue];
    let mut bounds = Bounds::default();
    (bounds.batch, bounds.queue, bounds.concurrency) = (10, 40, 8);
    let sources = r.pick(&[1, 2, 3]);
    let (name, slow, unsettled) = (CONSUMER, false, 100);
    options.consumers = vec![ConsumerOptions { name, slow, bounds, unsettled, sources }];
    options.troubles = vec![Trouble::LineCut];
    options.chaos_every = r.pick(&[20, 60]) * MS;
}
