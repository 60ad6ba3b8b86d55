//! The `relevo` binary as people use it: real processes, a real SQLite file in a folder of its own.

// Helpers unwrap as tests do: a panic says what was expected and where.
#![allow(clippy::unwrap_used)]

mod adopt;
mod bad_input;
mod dead_letters;
mod first_steps;
mod help;
mod horizon;
mod retention;
mod subscriptions;
mod support;
mod topology;
mod trouble;
mod why;
