//! The asynchronous handler of every driver.

use super::EffectRow;
use crate::script::{Act, Script};
use relevo_core::event::{Event, NewEvent};
use relevo_core::inbox::{Answer, Effect, Failure, Handler, Settled, TxDriver};
use std::future::Future;
use std::time::Duration;

/// An error of a driver, as handlers see it.
pub(super) type DriverError = Box<dyn std::error::Error + Send + Sync>;

/// What a handler writes with transactions of this driver.
pub(super) trait Effects: TxDriver {
    /// Writes an effect.
    fn write(
        tx: &mut Self::Tx<'_>,
        row: &EffectRow,
    ) -> impl Future<Output = Result<(), DriverError>> + Send;

    /// Publishes in the handler's own transaction.
    fn publish(
        tx: &mut Self::Tx<'_>,
        event: NewEvent,
    ) -> impl Future<Output = Result<(), DriverError>> + Send;

    /// Runs a statement that fails.
    fn fail(tx: &mut Self::Tx<'_>) -> impl Future<Output = Result<(), DriverError>> + Send;
}

/// What a handler writes for an event.
pub(super) fn row(event: &Event) -> EffectRow {
    // Text columns take no NUL.
    let payload = String::from_utf8_lossy(&event.payload).replace('\0', "");
    EffectRow { event: event.id, key: event.order_key(), payload }
}

/// An error that only says something.
#[derive(Debug)]
pub(super) struct Said(pub(super) String);

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Said {}

/// A driver's error as an answer, with the driver's own type behind it.
fn transient(error: DriverError) -> Failure {
    Failure::Error(relevo_core::ErrorClass::Transient, error)
}

/// The handler: writes the effect first, so that a failed attempt that left it would show.
pub struct Scripted(pub Script);

impl<D: Effects> Handler<D> for Scripted {
    async fn handle(&self, event: &Event, effect: &mut Effect<'_, D>) -> Answer {
        let act = self.0.act(event);
        if let Some(gate) = &self.0.gate {
            gate.acquire().await?.forget();
        }
        let tx = effect.tx().await?;
        D::write(tx, &row(event)).await.map_err(transient)?;
        match act {
            Act::Done => Ok(Settled::Done),
            Act::Skip(why) => Ok(Settled::Skip(why.into())),
            Act::RetryAfter(delay, why) => Err(Failure::retry_after(delay, why)),
            Act::ForGood(why) => Err(Failure::for_good(why)),
            Act::Fail(why) => Err(Said(why.into()).into()),
            Act::FailStatement => {
                D::fail(tx).await.map_err(transient)?;
                panic!("a statement that must fail did not")
            }
            Act::Panic => panic!("the handler panics, as the script says"),
            Act::Hang => {
                tokio::time::sleep(Duration::from_secs(3600)).await;
                Ok(Settled::Done)
            }
            Act::Decode => {
                event.json::<u32>()?;
                Ok(Settled::Done)
            }
            Act::Publish(event) => {
                D::publish(tx, event).await.map_err(transient)?;
                Ok(Settled::Done)
            }
            Act::PublishAndFail(event) => {
                D::publish(tx, event).await.map_err(transient)?;
                Err(Said("published, then failed".into()).into())
            }
        }
    }

    fn slow(&self) -> bool {
        self.0.slow
    }

    fn limit(&self) -> Duration {
        self.0.limit
    }
}
