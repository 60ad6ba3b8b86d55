//! Deliberate mistakes, asked for by the environment, so that a test can see the demo end badly: each must be found by the
//! verdict.

use relevo_core::{Error, Kind, Result};

const SABOTAGE: &str = "RELEVO_DEMO_SABOTAGE";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// The shop's worker forgets an order.
    Lose,
    /// It packs one twice.
    Twice,
    /// It packs one too late.
    Reorder,
    /// TicketFlow keeps `ProcessedEvents` by the event's id alone: of two consumers the second skips everything.
    EventAlone,
}

impl How {
    pub(super) fn from_environment() -> Result<Option<Self>> {
        match std::env::var(SABOTAGE).ok().as_deref() {
            None | Some("") => Ok(None),
            Some("lose") => Ok(Some(Self::Lose)),
            Some("twice") => Ok(Some(Self::Twice)),
            Some("reorder") => Ok(Some(Self::Reorder)),
            Some("event-alone") => Ok(Some(Self::EventAlone)),
            Some(other) => Err(Error::new(
                Kind::InvalidArgument,
                format!("{SABOTAGE}={other:?} is not lose, twice, reorder or event-alone"),
            )),
        }
    }
}

/// Is TicketFlow to lose effects?
pub(super) fn loses_effects() -> Result<bool> {
    Ok(How::from_environment()? == Some(How::EventAlone))
}
