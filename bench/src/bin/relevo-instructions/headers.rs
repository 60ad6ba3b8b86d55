//! An event's attributes as headers, for each protocol.

use chrono::DateTime;
use relevo_core::broker::cloudevents::{Binding, write};
use relevo_core::event::{Event, EventId, NewEvent};
use std::hint::black_box;
use uuid::Uuid;

/// An event as applications have them: a key, a correlation, a trace and one header of their own.
pub(crate) fn event(number: u64) -> Event {
    let new = NewEvent::bytes("ticket.created", vec![b'x'; 256])
        .id(EventId(Uuid::from_u128(
            0x0190_0000_0000_7000_8000_0000_0000_0000 + u128::from(number),
        )))
        .key(format!("ticket-{number}"))
        .content_type("application/json")
        .correlation_id("0190c2f5-7a54-7c1e-9e1b-5f2c1d7f0a11")
        .header("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
        .header("region", "eu-south-2");
    Event::stored(new, DateTime::from_timestamp(1_767_323_045, 678_000_000).unwrap_or_default())
}

fn encoded(times: u64, binding: &Binding) -> u64 {
    let event = event(7);
    let each = (0..times).map(|_| write(black_box(&event), "shop", binding).len() as u64);
    each.sum()
}

pub(crate) fn amqp(times: u64) -> u64 {
    encoded(times, &Binding::AMQP)
}

pub(crate) fn kafka(times: u64) -> u64 {
    encoded(times, &Binding::KAFKA)
}

pub(crate) fn nats(times: u64) -> u64 {
    encoded(times, &Binding::NATS)
}
