//! The server's own statistics: `INFO commandstats` and `INFO stats`.

use redis::Connection;

/// What the server has counted since the last reset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Commands that clients sent.
    pub(crate) sent: u64,
    /// Commands that scripts ran.
    pub(crate) scripted: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
}

/// Resets the statistics.
pub(crate) fn begin(observer: &mut Connection) -> Result<(), String> {
    redis::cmd("CONFIG")
        .arg("RESETSTAT")
        .exec(observer)
        .map_err(|why| format!("the server does not reset: {why}"))
}

/// Reads the statistics, for a subject that sends these commands.
pub(crate) fn counted(observer: &mut Connection, sends: &[&str]) -> Result<Counted, String> {
    Ok(read(&info(observer, "everything")?, sends))
}

/// A section of `INFO`.
pub(crate) fn info(observer: &mut Connection, section: &str) -> Result<String, String> {
    redis::cmd("INFO")
        .arg(section)
        .query(observer)
        .map_err(|why| format!("the server says nothing of itself: {why}"))
}

/// A line of `INFO`.
pub(crate) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Returns how often scripts were called.
pub(crate) fn script_calls(info: &str) -> u64 {
    let scripts = ["eval", "evalsha", "fcall"];
    commands(info).filter(|(name, _)| scripts.contains(name)).map(|(_, calls)| calls).sum()
}

/// Commands of this bench, and commands that clients send for themselves.
const NOT_THEIRS: [&str; 4] = ["info", "config|resetstat", "slowlog|get", "slowlog|reset"];

fn read(info: &str, sends: &[&str]) -> Counted {
    let number = |name: &str| field(info, name).and_then(|value| value.parse().ok()).unwrap_or(0);
    let mut counted = Counted {
        bytes_in: number("total_net_input_bytes"),
        bytes_out: number("total_net_output_bytes"),
        ..Counted::default()
    };
    for (name, calls) in commands(info).filter(|(name, _)| !NOT_THEIRS.contains(name)) {
        // Commands about a connection are never part of a script.
        let connections = ["auth", "ping", "hello", "select"].contains(&name) || name.starts_with("client|");
        if connections || name.starts_with("script|") || sends.contains(&name) {
            counted.sent += calls;
        } else {
            counted.scripted += calls;
        }
    }
    counted
}

/// Returns the name and the number of calls of each command.
fn commands(info: &str) -> impl Iterator<Item = (&str, u64)> {
    info.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name, rest.split(',').next()?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Stats\r\ntotal_net_input_bytes:292\r\ntotal_net_output_bytes:462\r\n# Commandstats\r\n\
        cmdstat_evalsha:calls=200,usec=77,usec_per_call=38.50,rejected_calls=0,failed_calls=0\r\n\
        cmdstat_config|resetstat:calls=1,usec=38,usec_per_call=38.00,rejected_calls=0,failed_calls=0\r\n\
        cmdstat_client|setinfo:calls=2,usec=6,usec_per_call=6.00,rejected_calls=0,failed_calls=0\r\n\
        cmdstat_get:calls=300,usec=2,usec_per_call=1.00,rejected_calls=0,failed_calls=0\r\n\
        cmdstat_set:calls=100,usec=9,usec_per_call=4.50,rejected_calls=0,failed_calls=0\r\n";

    #[test]
    fn what_clients_send_is_apart_from_what_scripts_run() {
        let ours = read(INFO, &["evalsha"]);
        assert_eq!(ours, Counted { sent: 202, scripted: 400, bytes_in: 292, bytes_out: 462 });
        let theirs = read(INFO, &["evalsha", "set"]);
        assert_eq!((theirs.sent, theirs.scripted), (302, 300));
    }

    #[test]
    fn fields_and_script_calls_are_read() {
        assert_eq!(field(INFO, "total_net_input_bytes"), Some("292"));
        assert_eq!(field(INFO, "total_net"), None);
        assert_eq!(script_calls(INFO), 200);
    }
}
