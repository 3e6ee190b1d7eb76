//! `fencepost doctor`: checks whether locks are safe here, and prints a line for each check.
//!
//! No error ends the diagnosis: a failed check is a finding, and the remaining checks are made.

mod configuration;
mod pace;

use std::fmt::Write;
use std::time::Duration;

use fencepost::clock::Clock;
use fencepost::{Client, Error, ErrorKind, Finding, LockName, Options, Result, Scope, Severity};

use super::printed;
use crate::args::Doctor;
use crate::colors::{self, Palette};
use crate::exit::Exit;
use crate::secrets::without_secrets;
use crate::words::{plain, scope, severity};
use crate::{backend, durations, json, output};

/// How long each request to the backend may take, connecting included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) async fn doctor(args: &Doctor) -> Result<Exit> {
    let findings = diagnose(args.backend.url.as_deref(), args.name.as_ref()).await;
    let findings: Vec<Finding> = findings.into_iter().map(redacted).collect();
    let worst = findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok);
    let written = if args.json {
        output::results(json::line(&json::Diagnosis::new(&findings, worst)) + "\n")
    } else {
        let written = output::results(report(&findings, Palette::stdout()));
        output::remark(summary(&findings));
        written
    };
    let exit = printed(written)?;
    Ok(if worst == Severity::Problem { Exit::Unwell } else { exit })
}

async fn diagnose(flag: Option<&str>, name: Option<&LockName>) -> Vec<Finding> {
    let mut findings = vec![Finding::ok("program", concat!("fencepost ", env!("CARGO_PKG_VERSION")))];
    let chosen = match backend::chosen(flag) {
        Ok(chosen) => chosen,
        Err(error) => {
            findings.push(Finding::failed("configuration", &error));
            return findings;
        }
    };
    findings.push(configuration::check(&chosen));
    match connect(&chosen.url).await {
        Ok(client) => {
            findings.extend(diagnose_connected(&client, name).await);
            // A server that hangs now is among the findings already.
            within("close the connection", client.close()).await.ok();
        }
        Err(error) => {
            findings.extend(not_connected(&error));
            findings.extend(fencepost::preflight(&chosen.url).unwrap_or_default());
        }
    }
    findings
}

async fn connect(url: &str) -> Result<Client> {
    let options = Options::new().only_existing().call_timeout(REQUEST_TIMEOUT);
    within("connect", fencepost::connect_with(url, options)).await?
}

async fn diagnose_connected(client: &Client, name: Option<&LockName>) -> Vec<Finding> {
    let mut findings = vec![
        Finding::ok("reachability", client.info().location.as_str()),
        Finding::ok("access", "granted"),
        check_scope(client),
        pace::measure(client, name).await,
    ];
    findings.extend(client.info().exceptions.iter().map(|text| Finding::ok("not guaranteed", *text)));
    let failed = |error: Error| vec![Finding::failed("answer", &error)];
    findings.extend(client.diagnose().await.unwrap_or_else(failed));
    if let Some(name) = name {
        findings.extend(client.locate(name).await.unwrap_or_else(failed));
    }
    findings
}

/// Returns what a failed connection says about the backend.
fn not_connected(error: &Error) -> Vec<Finding> {
    let found = Finding::ok("reachability", "the server replies");
    match error.kind() {
        ErrorKind::BadConfig | ErrorKind::Unsupported => vec![Finding::failed("URL", error)],
        ErrorKind::Unreachable | ErrorKind::OutcomeUnknown => vec![Finding::failed("reachability", error)],
        ErrorKind::Denied => vec![found, Finding::failed("access", error)],
        ErrorKind::Missing => {
            let missing = Finding::warning("storage", error.full_message());
            vec![match error.hint() {
                Some(hint) => missing.with_advice(hint),
                None => missing,
            }]
        }
        _ => vec![found, Finding::failed("storage", error)],
    }
}

fn check_scope(client: &Client) -> Finding {
    let reach = client.info().scope;
    match backend::must_be_shared() {
        Ok(true) if reach != Scope::Fleet => Finding::failed("scope", &backend::not_shared(client)),
        Ok(_) => Finding::ok("scope", scope(reach)),
        Err(error) => Finding::failed("scope", &error),
    }
}

async fn within<T>(what: &str, work: impl Future<Output = T>) -> Result<T> {
    let clock = Clock::system();
    tokio::select! {
        biased;
        done = work => Ok(done),
        Ok(()) = clock.sleep_until(clock.now() + REQUEST_TIMEOUT) => {
            let text = format!("could not {what}: no reply within {}", durations::show(REQUEST_TIMEOUT));
            Err(Error::new(ErrorKind::Unreachable, text).with_hint(
                "check the host and the port of the URL, and whether a process that uses the backend was stopped",
            ))
        }
    }
}

/// Removes passwords. No error should contain one, but findings quote what servers and libraries say. Advice is written by
/// Fencepost alone, and may show the form of a URL.
fn redacted(mut finding: Finding) -> Finding {
    finding.found = without_secrets(&finding.found);
    finding
}

fn report(findings: &[Finding], palette: Palette) -> String {
    let mut text = String::new();
    for Finding { check, severity: found_severity, found, advice, .. } in findings {
        // Writing to a string cannot fail.
        let verdict = format!("{:<7}", severity(*found_severity));
        let verdict = palette.paint(colors::severity(*found_severity), &verdict);
        let _ = writeln!(text, "{verdict}  {}: {}", plain(check), plain(found));
        if let Some(advice) = advice {
            let _ = writeln!(text, "         {} {}", palette.paint(colors::HINT, "hint:"), plain(advice));
        }
    }
    text
}

fn summary(findings: &[Finding]) -> String {
    let count = |severity: Severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let many = |count: usize, what: &str| match count {
        0 => format!("no {what}s"),
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    };
    format!("{}, {}", many(count(Severity::Problem), "problem"), many(count(Severity::Warning), "warning"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finding_has_a_line_and_its_advice_follows() {
        let findings = [
            Finding::ok("scope", "this host"),
            Finding::warning("eviction policy", "all\u{1b}[2J").with_advice("set it"),
            Finding::problem("access", "refused"),
        ];
        assert_eq!(
            report(&findings, Palette::PLAIN),
            "fine     scope: this host\n\
             warning  eviction policy: all\\u{1b}[2J\n         hint: set it\n\
             problem  access: refused\n"
        );
        assert_eq!(summary(&findings), "1 problem, 1 warning");
        assert_eq!(summary(&[]), "no problems, no warnings");
    }

    #[test]
    fn a_failed_connection_is_classified() {
        let finding_of = |kind| {
            let findings = not_connected(&Error::new(kind, "it failed").with_hint("do this"));
            let last = findings.last().unwrap();
            assert_eq!(last.advice.as_deref(), Some("do this"));
            (findings.len(), last.check.clone(), last.severity)
        };
        for (kind, findings, check, severity) in [
            (ErrorKind::BadConfig, 1, "URL", Severity::Problem),
            (ErrorKind::Unsupported, 1, "URL", Severity::Problem),
            (ErrorKind::Unreachable, 1, "reachability", Severity::Problem),
            (ErrorKind::Denied, 2, "access", Severity::Problem),
            (ErrorKind::Backend, 2, "storage", Severity::Problem),
            (ErrorKind::Missing, 1, "storage", Severity::Warning),
        ] {
            assert_eq!(finding_of(kind), (findings, check.to_owned(), severity), "{kind:?}");
        }
    }

    #[test]
    fn a_password_that_an_error_quotes_is_removed() {
        let shown = redacted(Finding::problem("URL", "bad: redis://u:geheim@h"));
        assert_eq!(shown.found, "bad: redis://***@h");
    }
}
