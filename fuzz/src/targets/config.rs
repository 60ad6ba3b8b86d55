use crate::{Input, expect};
use relevo_core::ErrorClass;
use relevo_core::clock::Rng;
use relevo_core::retry::{LONGEST_DELAY, RetryPolicy, Verdict};
use relevo_daemon::config::Config;

/// A file and some variables: taken as something that can be worked with, or refused line by line.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let text = input.text();
    let variables: Vec<_> =
        input.pairs().into_iter().map(|(name, value)| (format!("RELEVO__{name}"), value)).collect();
    // A device would be read for ever, and that is not what is tried here.
    let all = format!("{text}{variables:?}");
    if all.to_ascii_lowercase().contains("_file") {
        return;
    }
    let read = || Config::read("relevo.toml", &text, variables.clone().into_iter());
    let config = match read() {
        Ok(config) => config,
        Err(error) => {
            assert_eq!(read().err().map(|again| again.to_string()), Some(error.to_string()));
            return expect::lines(&error.to_string());
        }
    };
    for (name, subscription) in &config.subscriptions {
        assert!(subscription.relay.check().is_ok(), "{name} was let through");
        assert!(config.stores.contains_key(&subscription.store));
        assert!(config.brokers.contains_key(&subscription.to));
        retries(&subscription.relay.retry);
    }
    config.warnings.iter().for_each(|warning| expect::one_line(warning));
}

/// Every policy that is let through waits for a bounded time, and ends.
fn retries(policy: &RetryPolicy) {
    let mut rng = Rng::seeded(1);
    for class in ErrorClass::ALL {
        for attempts in [1, 2, 3, 7, 1000, u32::MAX - 1] {
            if let Verdict::RetryIn(delay) = policy.verdict(attempts, class, &mut rng) {
                assert!(delay <= LONGEST_DELAY.mul_f64(1.21), "{policy:?}: {delay:?}");
            }
        }
        assert_eq!(policy.verdict(u32::MAX, class, &mut rng), Verdict::Dead);
    }
}
