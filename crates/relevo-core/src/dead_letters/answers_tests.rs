//! What operators are told, and the port's own answers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;
use crate::error::Result;
use crate::event::{Headers, NewEvent};
use crate::outbox::{Retention, Start};
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Mutex;

#[test]
fn a_state_survives_its_word() {
    let words = DeadState::ALL.map(DeadState::as_str);
    assert_eq!(words, ["dead", "requested", "replayed", "archived"]);
    for state in DeadState::ALL {
        assert_eq!(DeadState::parse(state.as_str()), Some(state));
    }
    assert_eq!(DeadState::parse("alive"), None);
}

fn silent_for(seconds: f64) -> MemberStatus {
    MemberStatus::new("m", 1, seconds, serde_json::Value::Null)
}

#[test]
fn a_member_is_at_work_until_it_has_been_silent_for_half_a_minute() {
    assert!(silent_for(29.9).is_alive());
    assert!(!silent_for(30.0).is_alive());
}

#[test]
fn who_holds_the_log_is_told_with_the_reason() {
    let mut status = SubscriptionStatus::named("s");
    let state = |status: &SubscriptionStatus| Holder::of(status, 7, 3, None).state;
    assert_eq!(state(&status), "nobody works it");
    status.members = vec![silent_for(60.0)];
    assert_eq!(state(&status), "nobody works it");
    status.members.push(silent_for(59.9));
    assert_eq!(state(&status), "at work");
    status.paused = Some("ana".into());
    assert_eq!(state(&status), "paused (ana)");
}

#[test]
fn whoever_holds_most_of_the_log_comes_first() {
    let holder = |name, decided| Holder::of(&SubscriptionStatus::named(name), decided, 1, None);
    let holders = vec![holder("c", 9), holder("b", 2), holder("a", 9)];
    let plan = RetentionPlan { droppable_events: 5, holders, ..RetentionPlan::default() }.sorted();
    let names: Vec<_> = plan.holders.iter().map(|holder| holder.subscription.as_str()).collect();
    assert_eq!((names, plan.droppable_events), (vec!["b", "a", "c"], 5));
}

#[test]
fn only_what_waits_for_something_waits_for_a_pause_first() {
    let (error, class) = (String::new(), String::new());
    let dead = |state: &str| Why::Dead {
        dead_letter: 1,
        dead_state: state.into(),
        class: String::new(),
        error: String::new(),
    };
    let event = EventId(uuid::Uuid::nil());
    let waiting = [
        Why::Parked { attempts: 1, due: None, class: class.clone(), error: error.clone() },
        Why::ParkedBehind { event, before: 1, due: None, error: error.clone() },
        Why::Held { dead_letter: 1, event, before: 1, class, error },
        dead("requested"),
    ];
    for why in waiting {
        let paused = Why::Paused { by: "ana".into(), then: Some(Box::new(why.clone())) };
        assert_eq!(why.clone().while_paused(Some("ana")), paused);
        assert_eq!(why.clone().while_paused(None), why);
    }
    for why in [dead("dead"), dead("archived"), Why::Delivered, Why::BeforeStart] {
        assert_eq!(why.clone().while_paused(Some("ana")), why);
    }
}

/// A port that only notes what is done again, and how.
#[derive(Default)]
struct Noted(Mutex<Vec<String>>);

#[async_trait]
impl Operate for Noted {
    async fn migrate(&self) -> Result<Vec<String>> {
        unreachable!()
    }

    async fn status(&self) -> Result<LogStatus> {
        unreachable!()
    }

    async fn why(&self, _: EventId) -> Result<Answer> {
        unreachable!()
    }

    async fn publish_now(&self, _: NewEvent) -> Result<EventId> {
        unreachable!()
    }

    async fn peek(&self, _: i64, _: usize) -> Result<Vec<(i64, Event)>> {
        unreachable!()
    }

    async fn pause(&self, _: &str, _: &str) -> Result<()> {
        unreachable!()
    }

    async fn resume(&self, _: &str) -> Result<()> {
        unreachable!()
    }

    async fn rewind_with(&self, name: &str, to: Start, unproven: Unproven) -> Result<()> {
        self.0.lock().unwrap().push(format!("rewind {name} to {to:?}, {unproven:?}"));
        Ok(())
    }

    async fn remove(&self, _: &str) -> Result<()> {
        unreachable!()
    }

    async fn dead_letters(
        &self,
        _: &DeadFilter,
        _: Option<DeadLetterId>,
        _: usize,
    ) -> Result<Vec<DeadLetter>> {
        unreachable!()
    }

    async fn replay_with(
        &self,
        _: &DeadFilter,
        rate: Option<f64>,
        unproven: Unproven,
    ) -> Result<ReplayProgress> {
        self.0.lock().unwrap().push(format!("replay {rate:?}, {unproven:?}"));
        Ok(ReplayProgress::new(1, 0, 0, 0, 0))
    }

    async fn replay_progress(&self, _: i64) -> Result<ReplayProgress> {
        unreachable!()
    }

    async fn cancel_replay(&self, _: i64) -> Result<ReplayProgress> {
        unreachable!()
    }

    async fn replay_edited(&self, _: DeadLetterId, _: Bytes, _: Headers) -> Result<EventId> {
        unreachable!()
    }

    async fn archive(&self, _: &DeadFilter) -> Result<u64> {
        unreachable!()
    }

    async fn retention(&self, _: &Retention) -> Result<RetentionPlan> {
        unreachable!()
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        unreachable!()
    }
}

#[tokio::test]
async fn what_is_done_again_without_a_word_is_refused_where_the_proof_is_gone() {
    let port = Noted::default();
    port.rewind("s", Start::Beginning).await.unwrap();
    port.replay(&DeadFilter::default(), Some(2.0)).await.unwrap();
    let noted = port.0.lock().unwrap().clone();
    assert_eq!(noted, ["rewind s to Beginning, Refuse", "replay Some(2.0), Refuse"]);
}
