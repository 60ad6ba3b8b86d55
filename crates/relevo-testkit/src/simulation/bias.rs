//! What chance alone seldom brings about: some seeds are drawn so that it happens often.

use super::options::{Act, Draw, MS, Options, RewindTo, To, Trouble, subscription};
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
}

impl Bias {
    pub(super) fn draw(r: &mut Draw<'_>) -> Self {
        match r.between(0, 15) {
            0 | 1 => Self::LostTicks,
            2 => Self::MovedWithParked,
            3 => Self::AskedWhileDown,
            _ => Self::None,
        }
    }

    pub(super) fn apply(self, options: &mut Options, r: &mut Draw<'_>) {
        match self {
            Self::None => {}
            Self::LostTicks => lost_ticks(options, r),
            Self::MovedWithParked => moved_with_parked(options, r),
            Self::AskedWhileDown => asked_while_down(options, r),
        }
    }
}

/// Little that commits synchronously, as that flushes everything before it: one or two writers, a broker.
fn lost_ticks(options: &mut Options, r: &mut Draw<'_>) {
    options.processes = r.pick(&[2, 3]);
    options.writers = r.between(1, 2) as usize;
    options.subscriptions = vec![subscription(r, "queue", To::Broker, options.lease)];
    options.consumer = None;
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
