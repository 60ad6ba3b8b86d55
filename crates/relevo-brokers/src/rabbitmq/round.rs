//! Messages that travel together over one channel, and what is known of each.

use super::connect::reason;
use lapin::message::BasicReturnMessage;
use lapin::options::BasicPublishOptions;
use lapin::{BasicProperties, Channel, Confirmation, ErrorKind};
use relevo_core::broker::Confirm;
use relevo_core::event::Event;
use std::collections::HashMap;

/// A message that is ready to go.
pub(super) struct Outgoing<'e> {
    pub(super) event: &'e Event,
    pub(super) exchange: &'e str,
    pub(super) properties: BasicProperties,
}

/// What one round over a channel found out.
#[derive(Default)]
pub(super) struct Round {
    /// By the message's place in the round.
    pub(super) confirmed: HashMap<usize, Answer>,
    /// Ids of what the broker sent back, with its words.
    pub(super) returned: HashMap<String, String>,
    /// Never left this process.
    pub(super) unsent: HashMap<usize, String>,
    pub(super) error: Option<lapin::Error>,
    pub(super) gave_up: Option<Confirm>,
}

/// A confirm without the message that came along with it, which may be another's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Ack,
    Nack,
}

pub(super) enum Sent {
    Confirmed(Answer, Option<Box<BasicReturnMessage>>),
    /// The channel was not in confirm mode, which it always is.
    NotConfirmed,
    /// It never left.
    Unsent(lapin::Error),
    Lost(lapin::Error),
}

pub(super) async fn send_one(channel: &Channel, one: &Outgoing<'_>) -> Sent {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let sent = channel.basic_publish(
        one.exchange.into(),
        one.event.topic.as_str().into(),
        options,
        &one.event.payload,
        one.properties.clone(),
    );
    match sent.await {
        Ok(confirm) => match confirm.await {
            Ok(Confirmation::Ack(returned)) => Sent::Confirmed(Answer::Ack, returned.map(Box::new)),
            Ok(Confirmation::Nack(returned)) => {
                Sent::Confirmed(Answer::Nack, returned.map(Box::new))
            }
            Ok(Confirmation::NotRequested) => Sent::NotConfirmed,
            Err(error) => Sent::Lost(error),
        },
        Err(error) => match error.kind() {
            ErrorKind::InvalidChannelState(..) | ErrorKind::InvalidConnectionState(_) => {
                Sent::Unsent(error)
            }
            _ => Sent::Lost(error),
        },
    }
}

impl Round {
    pub(super) fn take(&mut self, at: usize, sent: Sent) {
        match sent {
            Sent::Confirmed(answer, returned) => {
                self.confirmed.insert(at, answer);
                self.returned(returned);
            }
            Sent::NotConfirmed => {}
            Sent::Unsent(error) => {
                self.unsent.insert(at, reason(&error));
                self.error.get_or_insert(error);
            }
            Sent::Lost(error) => {
                // What the broker said last tells more than that the channel is closed.
                if self.error.as_ref().is_none_or(|known| !known.is_amqp_error()) {
                    self.error = Some(error);
                }
            }
        }
    }

    /// The client hands a returned message to whichever confirm comes next, so its id tells whose it is.
    fn returned(&mut self, message: Option<Box<BasicReturnMessage>>) {
        let Some(message) = message else { return };
        let id = message.delivery.properties.message_id().as_ref().map(ToString::to_string);
        let delivery = &message.delivery;
        let why = format!(
            "{} {}: exchange {:?}, routing key {:?}",
            message.reply_code,
            message.reply_text,
            delivery.exchange.as_str(),
            delivery.routing_key.as_str()
        );
        self.returned.insert(id.unwrap_or_default(), why);
    }

    pub(super) fn is_complete(&self, count: usize) -> bool {
        self.confirmed.len() == count
    }

    pub(super) fn has_refusal(&self) -> bool {
        self.confirmed.values().any(|answer| *answer == Answer::Nack)
    }
}
