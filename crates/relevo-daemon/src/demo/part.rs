//! The parts of the demo, each of which can be shown alone.

use proof::System;
use relevo_core::{Error, Kind, Result};
use std::path::Path;

/// A part of the demo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Part {
    /// Orders and parcels, on Relevo's own log
    Shop,
    /// Tickets, e-mails and metrics, on a table of its own (systems/ticketflow)
    Ticketflow,
    /// Tenants and a downstream directory, on a table of its own (systems/smartedify)
    Smartedify,
}

/// What a system runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(super) enum Profile {
    /// SQLite, no broker, nothing to install
    #[default]
    Embedded,
    /// The servers that its document names, where the environment says they are
    Real,
}

impl Part {
    pub(super) const ALL: [Self; 3] = [Self::Shop, Self::Ticketflow, Self::Smartedify];

    /// As on the command line and in the JSON object.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Shop => "shop",
            Self::Ticketflow => "ticketflow",
            Self::Smartedify => "smartedify",
        }
    }

    /// As people call it.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Shop => "the shop floor",
            Self::Ticketflow => "TicketFlow",
            Self::Smartedify => "SmartEdify",
        }
    }

    /// What its verdict joins, for people.
    pub(super) fn joined(self) -> &'static str {
        match self {
            Self::Shop => "Counted in the database, orders joined with parcels by id",
            Self::Ticketflow => "TicketFlow: changes of tickets, joined with e-mails and numbers",
            Self::Smartedify => "SmartEdify: changes of tenants, joined with the directory's lines",
        }
    }

    /// What can be broken in it beside the shop's own.
    pub(super) fn breaks(self) -> &'static [proof::Break] {
        match self {
            Self::Shop => &[],
            Self::Ticketflow => ticketflow::demo::BREAKS,
            Self::Smartedify => smartedify::demo::BREAKS,
        }
    }

    /// Orders, or changes, a second where nobody says otherwise.
    pub(super) fn rate(self) -> u32 {
        match self {
            Self::Shop => 100,
            Self::Ticketflow | Self::Smartedify => 20,
        }
    }

    /// Starts a system in a folder of its own below this one; the shop is none.
    pub(super) async fn start(
        self,
        profile: Profile,
        folder: &Path,
        rate: u32,
    ) -> Result<Option<Box<dyn System>>> {
        let folder = folder.join(self.name());
        let started = match (self, profile) {
            (Self::Shop, _) => return Ok(None),
            (Self::Ticketflow, Profile::Embedded) if super::sabotage::loses_effects()? => {
                ticketflow::demo::sabotaged(&folder, rate).await
            }
            (Self::Ticketflow, Profile::Embedded) => {
                ticketflow::demo::embedded(&folder, rate).await
            }
            (Self::Ticketflow, Profile::Real) => ticketflow::demo::real(rate).await,
            (Self::Smartedify, Profile::Embedded) => {
                smartedify::demo::embedded(&folder, rate).await
            }
            (Self::Smartedify, Profile::Real) => smartedify::demo::real(&folder, rate).await,
        };
        started.map(Some).map_err(|error| self.failed(&error))
    }

    /// A system's error as one of ours.
    pub(super) fn failed(self, error: &proof::Error) -> Error {
        match error.downcast_ref::<proof::NotThere>() {
            Some(missing) => Error::new(Kind::Unreachable, format!("{}:\n{missing}", self.title())),
            None => Error::new(Kind::StoreFailed, format!("{}: {error:#}", self.title())),
        }
    }
}
