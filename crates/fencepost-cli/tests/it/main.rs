//! Real processes of the real binary, on a database of their own. Nothing here sleeps to make sure: every wait is for
//! a condition.

mod containers;
mod counting;
mod exit_codes;
mod group;
mod job_control;
mod keys;
mod listing;
mod losing;
mod modes;
mod passing;
mod pipelines;
mod reference;
mod sandbox;
mod secrets;
mod sessions;
mod signals;
mod terminal;
mod waiting;
