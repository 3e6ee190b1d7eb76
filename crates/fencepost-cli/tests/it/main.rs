//! Runs real processes of the binary, each test on a separate database. No test sleeps for a fixed time: every wait is for
//! a condition.

mod breaking;
mod connecting;
mod containers;
mod counting;
mod doctor;
mod endurance;
mod environment;
mod events;
mod exit_codes;
mod foreign;
mod group;
mod job_control;
mod keys;
mod limits;
mod listing;
mod live_line;
mod losing;
mod modes;
mod nesting;
mod outages;
mod passing;
mod pipelines;
mod reference;
mod sandbox;
mod secrets;
mod servers;
mod sessions;
mod signals;
mod terminal;
mod waiting;
mod warden;
mod watching;
mod workers;
