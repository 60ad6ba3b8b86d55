//! The log: what committed is read, in order, once; what did not commit is never read.
//!
//! # Layout
//! - `commit`: what is seen, and what never is
//! - `pages`: pages and windows
//! - `side_by_side`: late commits and long transactions, writers and readers at once
//! - `start`: where subscriptions start
//! - `schema`: migrations, and the processes that come to a log

mod commit;
mod pages;
mod schema;
mod side_by_side;
mod start;

pub use commit::*;
pub use pages::*;
pub use schema::*;
pub use side_by_side::*;
pub use start::*;

use super::rig::numbered;
use relevo_core::NewEvent;

fn some_events(n: usize) -> Vec<NewEvent> {
    (0..n).map(|n| numbered(&format!("key-{}", n % 7), n)).collect()
}
