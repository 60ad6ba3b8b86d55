//! Actions and inputs in a line each: what a person needs to follow a failing seed.

use relevo_core::broker::{Incoming, Received, Settle, Tag};
use relevo_core::event::EventId;
use relevo_core::inbox::consume::intake;
use relevo_core::outbox::{Claim, EventRef, LaneChange, LaneState, Page, Position, TickRef};
use relevo_core::relay::{Action, Delivery, Input};
use relevo_core::{Error, Result};

/// An event by its number.
pub(super) fn event(id: EventId) -> String {
    format!("#{}", id.0.as_u64_pair().0)
}

fn tick(tick: TickRef) -> String {
    format!("t{}/{:02}", tick.number, tick.nonce.rem_euclid(100))
}

fn token(token: i64) -> String {
    format!("@{:04}", token.rem_euclid(10_000))
}

fn position(at: Position) -> String {
    match at.to {
        Some(to) => format!("{}..{}>{}", tick(at.from), tick(to), at.seq),
        None => tick(at.from),
    }
}

fn list<T>(items: impl IntoIterator<Item = T>, one: impl Fn(T) -> String) -> String {
    items.into_iter().map(one).collect::<Vec<_>>().join(" ")
}

fn lanes(numbers: &[u16]) -> String {
    match numbers {
        [] => "no lanes".into(),
        [one] => format!("lane {one}"),
        [first, .., last] => format!("{} lanes {first}..{last}", numbers.len()),
    }
}

fn claims(claims: &[Claim]) -> String {
    lanes(&claims.iter().map(|claim| claim.lane).collect::<Vec<_>>())
}

fn refs(name: &str, refs: &[EventRef]) -> String {
    let one = |at: &EventRef| format!("{}({} {})", event(at.id), tick(at.to), at.seq);
    if refs.is_empty() { String::new() } else { format!(" {name} {}", list(refs, one)) }
}

fn change(change: &LaneChange) -> String {
    let mut text = format!("lane {} {}", change.lane.lane, token(change.token));
    text += &format!(" {} -> {}", position(change.before), position(change.after));
    let dead: Vec<EventRef> = change.deaths.iter().map(|death| death.event.clone()).collect();
    let skipped: Vec<EventRef> = change.skips.iter().map(|skip| skip.event.clone()).collect();
    text += &refs("dead", &dead);
    text += &refs("skipped", &skipped);
    text += &refs("settled", &change.settled);
    text += &refs("waiting", &change.waiting);
    for key in &change.parked {
        text += &format!(" park {} (attempts {}, in {:?})", key.key, key.attempts, key.retry_in);
    }
    if !change.unparked.is_empty() {
        text += &format!(" unpark {:?}", change.unparked);
    }
    if !change.replayed.is_empty() {
        text += &format!(" carry out {:?}", change.replayed);
    }
    text + &format!(" delivered {}", change.delivered)
}

fn result<T>(result: &Result<T>, fine: impl Fn(&T) -> String) -> String {
    match result {
        Ok(value) => fine(value),
        Err(error) => failure(error),
    }
}

fn failure(error: &Error) -> String {
    format!("{:?}: {}", error.kind(), error.message())
}

fn state(state: &LaneState) -> String {
    let parked = list(&state.parked, |key| format!("{} (due in {:?})", key.key, key.due_in));
    format!("{} parked [{parked}]", position(state.position))
}

fn page(page: &Page) -> String {
    let rows = list(&page.rows, |row| {
        format!("{}(lane {} seq {})", event(row.event.id), row.lane, row.seq)
    });
    match page.to {
        Some(_) => format!("[{rows}] up to {}", position(page.end)),
        None => "nothing new".into(),
    }
}

/// What a machine wants done.
pub(super) fn action(action: &Action) -> String {
    match action {
        Action::Beat(_) => "beat".into(),
        Action::Take(wanted) => format!("take {}", claims(wanted)),
        Action::Load(lane, under) => format!("load lane {} {}", lane.lane, token(*under)),
        Action::Release(given) => format!("release {}", claims(given)),
        Action::ReadPage { reader, request } => {
            format!(
                "read page ({reader}) of {} from {}",
                lanes(&request.lanes),
                position(request.position)
            )
        }
        Action::ReadParked { lane, key, .. } => format!("read parked {key} of lane {}", lane.lane),
        Action::Deliver(batch) => {
            let events = list(0..batch.len(), |index| event(batch.event(index).id));
            let kind = if batch.is_drain() { "drain" } else { "page" };
            let alone = if batch.is_single() { " alone" } else { "" };
            format!(
                "deliver {kind}{alone} of lane {} {}: {events}",
                batch.lane().lane,
                token(batch.token())
            )
        }
        Action::Record(changes) => format!("record {}", list(changes, change)),
    }
}

fn delivery(delivery: &Delivery) -> String {
    match delivery {
        Delivery::Recorded { change: recorded, rest, down } => {
            format!("recorded {} (rest {}, down {down:?})", change(recorded), rest.len())
        }
        Delivery::Decided { change: decided, rest, down } => {
            format!("decided {} (rest {}, down {down:?})", change(decided), rest.len())
        }
        Delivery::Down { reason, .. } => format!("down: {reason}"),
        Delivery::Aborted { reason, .. } => format!("aborted: {reason}"),
        Delivery::Void(error) => format!("void: {}", failure(error)),
    }
}

/// What a machine is told.
pub(super) fn input(input: &Input) -> String {
    match input {
        Input::Wake => "wake".into(),
        Input::Rung => "rung".into(),
        Input::Stop => "stop".into(),
        Input::Beat { result: answer, .. } => result(answer, |fleet| {
            let members = list(&fleet.members, |(member, beat)| format!("{member}:{beat}"));
            let requests = list(&fleet.requests, |request| request.id.to_string());
            format!("fleet {members}, paused {}, requests [{requests}]", fleet.paused)
        }),
        Input::Taken { claims: asked, result: answer } => {
            let got = |got: &Vec<(u16, LaneState)>| {
                lanes(&got.iter().map(|(lane, _)| *lane).collect::<Vec<_>>())
            };
            format!("asked for {}, got {}", claims(asked), result(answer, got))
        }
        Input::Loaded { lane, result: answer, .. } => {
            let loaded =
                |found: &Option<LaneState>| found.as_ref().map_or("another's".into(), state);
            format!("lane {lane} is {}", result(answer, loaded))
        }
        Input::Released { claims: given, result: answer } => {
            format!("released {}: {}", claims(given), result(answer, |()| "done".into()))
        }
        Input::Page { reader, result: answer } => {
            format!("page ({reader}) {}", result(answer, page))
        }
        Input::Parked { lane, key, result: answer, .. } => {
            let events = |found: &Vec<_>| {
                list(found, |parked: &relevo_core::outbox::ParkedEvent| event(parked.event.id))
            };
            format!("parked {key} of lane {lane}: {}", result(answer, events))
        }
        Input::Delivered { delivery: what, .. } => delivery(what),
        Input::Recorded { changes, result: answer } => {
            format!("{}: {}", list(changes, change), result(answer, |()| "recorded".into()))
        }
    }
}

fn numbers(messages: &[Incoming]) -> String {
    let number = |message: &Incoming| {
        let id = message.header("x-event-id").and_then(|id| id.parse().ok());
        id.map_or_else(|| "?".into(), event)
    };
    list(messages, |message| format!("{}({})", number(message), message.tag.0))
}

fn tags(settled: &[(Tag, Settle)]) -> String {
    list(settled, |(tag, _)| format!("({})", tag.0))
}

/// What a consumer's machine wants done.
pub(super) fn intake_action(action: &intake::Action) -> String {
    match action {
        intake::Action::Work { batch, messages } => format!("work {batch}: {}", numbers(messages)),
        intake::Action::Settle(settled) => format!("settle {}", tags(settled)),
        other => format!("{other:?}"),
    }
}

/// What a consumer's machine is told.
pub(super) fn intake_input(input: &intake::Input) -> String {
    match input {
        intake::Input::Received(Received::Messages { source, messages }) => {
            format!("received of {source}: {}", numbers(messages))
        }
        intake::Input::Worked { batch, result: answer, .. } => {
            format!("worked {batch}: {}", result(answer, |settled| tags(settled)))
        }
        intake::Input::Opened(answer) => result(answer, |()| "connected".into()),
        intake::Input::Lost(error) => failure(error),
        other => format!("{other:?}"),
    }
}
