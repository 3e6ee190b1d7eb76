//! Releases grants, those of one session in one transaction.

use std::sync::Arc;

use fencepost_core::backend::Reply;
use fencepost_core::{Grant, Owner, Result};
use futures_util::future::join_all;
use zookeeper_client::{self as zk, MultiWriteError};

use crate::flight::{Replies, group_by_session};
use crate::nodes::{delete_all, split_by_size};
use crate::session::Session;
use crate::state::ClientState;

/// A grant to release.
struct Member {
    at: usize,
    owner: Owner,
    nodes: Vec<String>,
}

/// Releases these grants.
pub(crate) async fn release(state: &Arc<ClientState>, grants: Vec<(usize, &Grant)>) -> Replies {
    let (mut held, mut replies) = (Vec::new(), Vec::new());
    for (at, grant) in grants {
        match start_release(state, at, grant) {
            Some(member) => held.push(member),
            None => replies.push((at, Ok(Reply::NotHeld))),
        }
    }
    let groups = group_by_session(held).into_iter().map(async |(session, members)| {
        let mut replies = Vec::with_capacity(members.len());
        for members in split_by_size(&members, |member| &member.nodes) {
            let deleted = delete_members(state, &session, members).await;
            replies.extend(members.iter().zip(deleted).map(|(member, deleted)| {
                let reply = deleted.map(|existed| {
                    state.registry().remove(member.owner);
                    if existed { Reply::Released } else { Reply::NotHeld }
                });
                (member.at, reply)
            }));
        }
        replies
    });
    replies.extend(join_all(groups).await.into_iter().flatten());
    replies
}

/// Returns the nodes of a grant and stops its watch from reporting their deletion. If the release fails it is sent
/// again; if it never succeeds, the entry expires.
fn start_release(state: &ClientState, at: usize, grant: &Grant) -> Option<(Arc<Session>, Member)> {
    let mut registry = state.registry();
    let owner = grant.attempt.owner;
    let entry = &mut registry.live_entry(owner, state.clock.now())?.entry;
    let nodes = entry.nodes.as_ref().filter(|nodes| nodes.token == grant.award.token.get())?;
    if entry.session.is_over() {
        registry.remove(owner);
        return None;
    }
    entry.released = true;
    Some((entry.session.clone(), Member { at, owner, nodes: nodes.paths.clone() }))
}

/// Deletes the nodes of each grant, and returns whether they existed.
async fn delete_members(state: &ClientState, session: &Session, members: &[Member]) -> Vec<Result<bool>> {
    if let Err(error) = session.wait_connected(&state.ensemble, &state.clock).await {
        return members.iter().map(|_| Err(error.clone())).collect();
    }
    let request = session.start_request();
    match delete_together(session, members).await {
        Ok(()) => {
            session.on_write_reply(request);
            members.iter().map(|_| Ok(true)).collect()
        }
        Err(MultiWriteError::RequestFailed { source }) => {
            members.iter().map(|_| Err(state.ensemble.failed(&source))).collect()
        }
        // A node is missing: each grant is released separately.
        Err(MultiWriteError::OperationFailed { .. }) => {
            let alone: Vec<_> = members.chunks(1).map(|member| delete_together(session, member)).collect();
            let alone = join_all(alone).await.into_iter().zip(members);
            join_all(alone.map(async |(deleted, member)| match deleted {
                Ok(()) => Ok(true),
                Err(MultiWriteError::OperationFailed { source: zk::Error::NoNode, .. }) => {
                    let deleted = delete_all(session, &member.nodes).await;
                    deleted.map(|()| false).map_err(|error| state.ensemble.failed(&error))
                }
                Err(error) => Err(state.ensemble.failed(&error.into())),
            }))
            .await
        }
    }
}

/// Deletes the nodes of all grants, or none. The request is sent when the future is created.
fn delete_together<'a>(
    session: &'a Session,
    members: &'a [Member],
) -> impl Future<Output = Result<(), MultiWriteError>> + 'a {
    session.transact(|writer| {
        let mut nodes = members.iter().flat_map(|member| &member.nodes).filter(|node| !node.is_empty());
        nodes.try_for_each(|node| writer.add_delete(node, None))
    })
}
