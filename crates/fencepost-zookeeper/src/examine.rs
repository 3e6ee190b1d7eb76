//! Looks at the servers themselves, for people: how long leases can be, whose clock, who may do what; and where a lock is.

use std::sync::Arc;

use fencepost_core::{Finding, LockName, Result};
use zookeeper_client::{self as zk, Permission};

use crate::queue::Queue;
use crate::session::Session;
use crate::shared::Shared;

/// A wall clock that differs by more than this is worth a word: it is what people are shown.
const SKEW: i64 = 5_000;

/// Everything that is checked.
pub(crate) async fn examine(shared: &Arc<Shared>) -> Vec<Finding> {
    let session = match shared.looking().await {
        Ok(session) => session,
        Err(error) => return vec![Finding::failed("answer", &error)],
    };
    let mut findings = vec![Finding::fine("answer", format!("{} answers", shared.setup.location))];
    findings.push(Finding::or_why_not("servers", servers(shared, &session).await));
    findings.push(leases(shared));
    findings.push(clock(&session));
    findings.push(Finding::or_why_not("access", access(shared, &session).await));
    findings
}

/// How many servers there are.
async fn servers(shared: &Shared, session: &Session) -> Result<Finding> {
    let config = match session.client.get_config().await {
        Ok((config, _)) => String::from_utf8_lossy(&config).into_owned(),
        Err(zk::Error::NoNode) => String::new(),
        Err(error) => return Err(shared.setup.failed(&error)),
    };
    let count = config.lines().filter(|line| line.starts_with("server.")).count();
    Ok(match count {
        0 | 1 => Finding::fine("servers", "one server; locks can be taken while it runs"),
        2 => Finding::warning("servers", "two servers, of which none may fail")
            .with_advice("run three: any one of them may fail then"),
        count => Finding::fine("servers", format!("{count} servers, of which {} may fail", (count - 1) / 2)),
    })
}

fn leases(shared: &Shared) -> Finding {
    let range = shared.setup.range;
    let (shortest, longest) = (range.shortest_ttl(), range.longest_ttl());
    Finding::fine("leases", format!("a ttl of {shortest:?} to {longest:?}, as the servers allow"))
}

fn clock(session: &Session) -> Finding {
    let found = format!("the servers' clock is {} ms ahead of ours", session.ahead);
    if session.ahead.abs() < SKEW {
        return Finding::fine("clock", found);
    }
    Finding::warning("clock", found)
        .with_advice("leases do not depend on it, but ages and the ends of kept cells do: run NTP everywhere")
}

/// Who may do what with the locks.
async fn access(shared: &Shared, session: &Session) -> Result<Finding> {
    let chroot = shared.setup.paths.locks();
    let (acls, _) = session.client.get_acl(chroot).await.map_err(|error| shared.setup.failed(&error))?;
    let is_open = acls.iter().any(|acl| {
        acl.scheme() == "world"
            && (acl.permission().has(Permission::CREATE) || acl.permission().has(Permission::DELETE))
    });
    if !is_open {
        return Ok(Finding::fine("access", format!("{chroot} is not open to everybody")));
    }
    Ok(Finding::warning(
        "access",
        format!("everybody who reaches the servers may take and break locks in {chroot}"),
    )
    .with_advice("`fencepost rights` prints how it is closed; then put USER:PASSWORD@ into the URL"))
}

/// Where a lock is, and who stands there.
pub(crate) async fn whereabouts(shared: &Arc<Shared>, name: &LockName) -> Vec<Finding> {
    let session = match shared.looking().await {
        Ok(session) => session,
        Err(error) => return vec![Finding::failed("answer", &error)],
    };
    vec![
        Finding::or_why_not("lock's node", line(shared, &session, name).await),
        Finding::or_why_not("cell's node", cell(shared, &session, name).await),
    ]
}

async fn line(shared: &Shared, session: &Session, name: &LockName) -> Result<Finding> {
    let node = shared.line(name);
    let children = match session.client.list_children(&node).await {
        Ok(children) => children,
        Err(zk::Error::NoNode) => {
            return Ok(Finding::fine("lock's node", format!("{node} (nothing there now)")));
        }
        Err(error) => return Err(shared.setup.failed(&error)),
    };
    let contenders = Queue::of(&children).nodes().len();
    let others = children.len() - contenders;
    if others == 0 {
        return Ok(Finding::fine("lock's node", format!("{node} ({contenders} contenders)")));
    }
    let found = format!("{node} ({contenders} contenders, and {others} nodes that are none)");
    Ok(Finding::warning("lock's node", found)
        .with_advice("nobody waits for those; if they are locks of another recipe, use another name"))
}

async fn cell(shared: &Shared, session: &Session, name: &LockName) -> Result<Finding> {
    let node = shared.setup.paths.cell(name);
    let stat = session.client.check_stat(&node).await.map_err(|error| shared.setup.failed(&error))?;
    let what =
        stat.map_or_else(|| "nothing there now".to_owned(), |stat| format!("{} bytes", stat.data_length));
    Ok(Finding::fine("cell's node", format!("{node} ({what})")))
}
