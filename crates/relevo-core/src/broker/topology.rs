//! What must be there at a broker before events can travel: exchanges, queues, streams, topics.
//!
//! An adapter has a struct of its own for what is wanted (read from `[topology.BROKER]`), compares it with what the
//! broker has, and tells the difference as [`Step`]s. The words are the same for all: RabbitMQ's exchanges, queues
//! and bindings, NATS' streams and consumers, Kafka's topics are each a *thing* with a name.
//!
//! | | RabbitMQ | NATS JetStream | Kafka |
//! |---|---|---|---|
//! | create | declare | create the stream | create the topic |
//! | change | bindings only | update what the server lets update | settings; more partitions |
//! | destroy | delete and declare anew: messages are lost | delete the stream | fewer partitions: delete |

use crate::error::{Error, Kind, Result};
use async_trait::async_trait;
use serde::Serialize;
use std::fmt;

/// What would be done to one thing at the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Act {
    /// It is as wanted.
    Ok,
    /// It is not there and will be.
    Create,
    /// The broker does not tell whether it is there; applying makes sure, and changes nothing if it was.
    Ensure,
    /// It differs and can be changed as it is: nothing that is stored is lost.
    Change,
    /// It differs and cannot be changed: it would be deleted and made anew, with the loss of what it stores. Done
    /// only by force.
    Replace,
    /// It is there, is not wanted, and would be deleted. Done only by force.
    Delete,
}

impl Act {
    /// Nothing stored gets lost by it.
    pub fn is_safe(self) -> bool {
        !matches!(self, Self::Replace | Self::Delete)
    }

    /// As it is printed.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Create => "create",
            Self::Ensure => "ensure",
            Self::Change => "change",
            Self::Replace => "replace",
            Self::Delete => "delete",
        }
    }
}

/// One thing at the broker, and what to do with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Step {
    /// What would be done.
    pub act: Act,
    /// What it is (`queue`, `stream`, `topic`).
    pub what: &'static str,
    /// Its name.
    pub name: String,
    /// How it is to be, or how what is there differs.
    pub text: String,
}

impl Step {
    /// A step.
    pub fn new(
        act: Act,
        what: &'static str,
        name: impl Into<String>,
        text: impl Into<String>,
    ) -> Self {
        Self { act, what, name: name.into(), text: text.into() }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.act.as_str(), self.what, self.name)?;
        if self.text.is_empty() { Ok(()) } else { write!(f, ": {}", self.text) }
    }
}

/// The difference between what is wanted and what is there, in the order in which it is applied.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// One for each thing that is wanted or found.
    pub steps: Vec<Step>,
}

impl Plan {
    /// A plan of steps.
    pub fn new(steps: Vec<Step>) -> Self {
        Self { steps }
    }

    /// Everything that can be seen is as wanted.
    pub fn is_done(&self) -> bool {
        self.steps.iter().all(|step| matches!(step.act, Act::Ok | Act::Ensure))
    }

    /// An error that names every step that would lose something, unless it was asked for by `force`.
    pub fn allow(&self, force: bool) -> Result<()> {
        let lossy: Vec<String> =
            self.steps.iter().filter(|step| !step.act.is_safe()).map(Step::to_string).collect();
        if force || lossy.is_empty() {
            return Ok(());
        }
        // What it would do is the title of the code already.
        Err(Error::new(Kind::LosesMessages, format!("nothing was done: {}", lossy.join("; "))))
    }
}

/// Is told each step once it is done.
pub type Told<'t> = &'t mut (dyn FnMut(&Step) + Send);

/// Brings a broker to what the configuration wants.
#[async_trait]
pub trait Topology: Send + Sync {
    /// The adapter's name.
    fn name(&self) -> &'static str;

    /// Compares, and changes nothing.
    async fn plan(&self) -> Result<Plan>;

    /// Does what [`Topology::plan`] says, tells each step once it is done, and returns what was done. Applying twice
    /// does nothing the second time. Without `force`, a plan with a step that loses something is refused as a whole.
    async fn apply_telling(&self, force: bool, done: Told<'_>) -> Result<Plan>;

    /// The same, in silence.
    async fn apply(&self, force: bool) -> Result<Plan> {
        self.apply_telling(force, &mut |_| ()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_that_would_lose_messages_needs_force() {
        let safe = Plan::new(vec![
            Step::new(Act::Ok, "queue", "a", ""),
            Step::new(Act::Create, "queue", "b", "quorum"),
        ]);
        assert!(safe.allow(false).is_ok() && !safe.is_done());
        for act in [Act::Replace, Act::Delete] {
            let lossy = Plan::new(vec![Step::new(act, "queue", "jobs", "is classic")]);
            let refused = lossy.allow(false).unwrap_err();
            assert!(refused.to_string().contains("queue jobs: is classic"), "{refused}");
            assert_eq!(refused.to_string().matches("lose messages").count(), 1, "{refused}");
            assert!(lossy.allow(true).is_ok());
        }
    }

    #[test]
    fn a_plan_is_done_when_nothing_that_can_be_seen_is_to_be_made_changed_or_deleted() {
        let done = |acts: &[Act]| {
            let step = |act: &Act| Step::new(*act, "queue", "q", "");
            Plan::new(acts.iter().map(step).collect()).is_done()
        };
        assert!(done(&[]) && done(&[Act::Ok, Act::Ensure]));
        for act in [Act::Create, Act::Change, Act::Replace, Act::Delete] {
            assert!(!done(&[Act::Ok, act]), "{act:?}");
        }
    }

    #[test]
    fn an_act_is_printed_by_the_word_by_which_it_is_written() {
        for act in [Act::Ok, Act::Create, Act::Ensure, Act::Change, Act::Replace, Act::Delete] {
            assert_eq!(serde_json::to_value(act).unwrap(), act.as_str());
            let step = Step::new(act, "queue", "q", "");
            assert_eq!(step.to_string(), format!("{} queue q", act.as_str()));
        }
    }

    #[tokio::test]
    async fn what_is_applied_in_silence_is_what_is_applied() {
        struct Queue;

        #[async_trait]
        impl Topology for Queue {
            fn name(&self) -> &'static str {
                "test"
            }

            async fn plan(&self) -> Result<Plan> {
                Ok(Plan::default())
            }

            async fn apply_telling(&self, force: bool, done: Told<'_>) -> Result<Plan> {
                let act = if force { Act::Replace } else { Act::Create };
                let step = Step::new(act, "queue", "q", "");
                done(&step);
                Ok(Plan::new(vec![step]))
            }
        }

        for (force, act) in [(true, Act::Replace), (false, Act::Create)] {
            let applied = Queue.apply(force).await.unwrap();
            assert_eq!(applied.steps.iter().map(|step| step.act).collect::<Vec<_>>(), [act]);
        }
    }
}
