//! Tests that the backends on a database server share. A backend calls them with its bench, or with a server of its own in the
//! configuration that the test needs, and with the statements of its dialect.

#![allow(clippy::missing_panics_doc, reason = "a test panics if a backend fails it")]

pub mod dead_tickets;
pub mod doctor;
pub mod errors;
pub mod outages;
pub mod requests;
pub mod sweeping;
pub mod transactions;
