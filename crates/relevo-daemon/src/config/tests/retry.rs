//! Retry policies, and those of a class.

use super::{SHOP, read, read_with, refused};
use relevo_core::ErrorClass;
use relevo_core::retry::RetryPolicy;
use std::time::Duration;

fn policy(retry: &str) -> RetryPolicy {
    let (subscription, _) = SHOP.split_once("[retry.slow]").unwrap();
    let config = read(&format!("{subscription}{retry}")).unwrap_or_else(|error| panic!("{error}"));
    config.subscriptions["notify"].relay.retry.clone()
}

#[test]
fn a_class_may_have_a_policy_of_its_own() {
    let minutes = |n: u64| Duration::from_secs(60 * n);
    let read = policy(
        "[retry.slow]\nkind = \"ladder\"\ndelays = [\"1m\", \"5m\"]\njitter = 0.1\n\
         [retry.slow.permanent]\nkind = \"linear\"\nstep = \"1h\"\nmax = \"5h\"\n\
         [retry.slow.unknown]\nmax_attempts = 7\n[retry.slow.poison]\n",
    );
    let general = RetryPolicy::ladder([minutes(1), minutes(5)]).jitter(0.1);
    let meant = general
        .clone()
        .for_class(ErrorClass::Permanent, RetryPolicy::linear(minutes(60), minutes(300)))
        .for_class(ErrorClass::Unknown, general.clone().max_attempts(7))
        .for_class(ErrorClass::Poison, general);
    assert_eq!(read, meant);
}

#[test]
fn classes_that_list_a_class_with_its_own_policy_agree_with_it() {
    let read =
        policy("[retry.slow]\nclasses = [\"poison\"]\n[retry.slow.poison]\nmax_attempts = 2");
    let meant = RetryPolicy::default()
        .retry_classes([ErrorClass::Poison])
        .for_class(ErrorClass::Poison, RetryPolicy::default().max_attempts(2));
    assert_eq!(read, meant);
}

#[test]
fn what_is_wrong_in_general_is_not_told_again_for_each_class() {
    let message = refused(
        "[retry.x]\nkind = \"liner\"\n[retry.x.unknown]\nmax_attempts = 2\n[retry.y]\nbase = \"1s\"\nstep = \"1s\"\n[retry.y.poison]\n",
    );
    assert_eq!(message.lines().count(), 2, "{message}");
}

#[test]
fn a_variable_reaches_the_policy_of_a_class() {
    let text = format!("{SHOP}[retry.slow.unknown]\n");
    let config = read_with(&text, &[("RELEVO__RETRY__SLOW__UNKNOWN__MAX_ATTEMPTS", "9")]).unwrap();
    let ladder = RetryPolicy::ladder([Duration::from_secs(60), Duration::from_secs(300)]);
    let meant = ladder.clone().for_class(ErrorClass::Unknown, ladder.max_attempts(9));
    assert_eq!(config.subscriptions["notify"].relay.retry, meant);
}
