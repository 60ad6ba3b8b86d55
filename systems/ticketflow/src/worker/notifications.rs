use super::mail::{self, MailFailure};
use super::{Crew, processed};
use crate::database::Driver;
use crate::ticket::TicketEvent;
use crate::topology::NOTIFICATIONS;
use relevo::{Answer, Effect, ErrorClass, Event, Failure, Handler, Settled};
use std::time::Duration;

/// Writes an e-mail for each event.
///
/// SMTP knows no transactions: a crash between the server's OK and the commit that notes it sends the mail again. It
/// has the same `Message-ID`, which is made of the event's id, so whoever keeps mailboxes can tell.
pub struct Notifications {
    crew: Crew,
}

impl Notifications {
    pub(super) fn new(crew: Crew) -> Self {
        Self { crew }
    }
}

impl<D: Driver> Handler<D> for Notifications {
    async fn handle(&self, event: &Event, effect: &mut Effect<'_, D>) -> Answer {
        let Crew { mailer, clock, pulse, .. } = &self.crew;
        pulse.beat(clock.now());
        let told: TicketEvent = event.json()?;
        let known = processed::is_known(&self.crew, NOTIFICATIONS, event.id).await;
        if known.map_err(failed)? {
            return Ok(Settled::Done);
        }
        mailer.send(&mail::compose(event, &told)).await.map_err(refused)?;
        let mut session = D::session(effect.tx().await?);
        let noted = processed::first_time(&mut session, NOTIFICATIONS, event.id, clock.now());
        noted.await.map_err(failed)?;
        Ok(Settled::Done)
    }

    /// The mail is sent before the transaction begins: none is open while a server is waited for.
    fn slow(&self) -> bool {
        true
    }

    /// Longer than the mail client may be given: it gives up first, and knows what becomes of its connection.
    fn limit(&self) -> Duration {
        Duration::from_secs(60)
    }
}

fn refused(failure: MailFailure) -> Failure {
    let class = if failure.for_good { ErrorClass::Permanent } else { ErrorClass::Transient };
    Failure::Error(class, failure.error.into())
}

pub(super) fn failed(error: anyhow::Error) -> Failure {
    Failure::Error(ErrorClass::Transient, error.into())
}
