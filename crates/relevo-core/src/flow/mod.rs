//! What keeps many owners, a slow destination and a quiet log in order: leases, breaker, pacing.

mod breaker;
mod lease;
mod pace;

pub use breaker::{Breaker, BreakerState};
pub use lease::Leases;
pub use pace::Pace;
