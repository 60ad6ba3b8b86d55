//! Relevo's stores. Learn one, read all: the same file names in each.
//!
//! - `migrate`: numbered schema changes
//! - `publish`: events into the caller's transaction
//! - `log`: pages of the log in commit order
//! - `lanes`: leases and cursors
//! - `record`: one lane transaction
//! - `operate`: what people look at and do
//! - `doctor`: what commonly goes wrong
//! - `effects`: transactions for direct handlers, one driver each

pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;
