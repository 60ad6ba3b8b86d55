//! TicketFlow: a ticket service whose notifications and metrics are never lost, built on Relevo.
//!
//! A change of a ticket and its row in `Outbox` commit together. The dispatcher relays that table in place, the workers'
//! effects happen once per event, and whatever is down meanwhile only makes them later.
//!
//! # Layout
//!
//! - [`ticket`]: what a ticket is; [`tickets`]: its changes, each in one transaction with its event
//! - [`database`]: PostgreSQL or SQLite, behind a port of three types
//! - [`api`]: HTTP; [`telemetry`]: metrics
//! - [`dispatcher`]: the relay of `Outbox`; [`topology`], [`rabbit`]: what is there at RabbitMQ
//! - [`worker`]: e-mails, ticket metrics, heartbeat, dead letters
//! - [`retention`]: what goes, and after how long
//! - [`service`]: the parts put together on PostgreSQL, RabbitMQ and SMTP; [`embedded`]: on nothing but a file;
//!   [`real`]: all of the former in one process
//! - [`traffic`], [`verify`], [`load`]: people at work, and the proof that nothing of it was lost
//! - [`demo`]: a part of `relevo demo`

pub mod api;
pub mod client;
pub mod clock;
pub mod database;
pub mod demo;
pub mod dispatcher;
pub mod embedded;
pub mod load;
pub mod rabbit;
pub mod real;
pub mod retention;
pub mod service;
pub mod telemetry;
pub mod ticket;
pub mod tickets;
pub mod topology;
pub mod traffic;
pub mod verify;
pub mod worker;
