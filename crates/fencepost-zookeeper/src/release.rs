//! Giving back: the releases of a flight together.

use std::sync::Arc;

use fencepost_core::backend::Reply;
use fencepost_core::{Grant, Owner, Result};
use futures_util::future::join_all;
use zookeeper_client::{self as zk, MultiWriteError};

use crate::flight::{Replies, group_by_session};
use crate::nodes::{delete_all, split_by_size};
use crate::session::Session;
use crate::state::ClientState;

/// A grant that is given back.
struct Member {
    at: usize,
    owner: Owner,
    nodes: Vec<String>,
}

/// Gives all of these back.
pub(crate) async fn release(state: &Arc<ClientState>, grants: Vec<(usize, &Grant)>) -> Replies {
    let (mut held, mut replies) = (Vec::new(), Vec::new());
    for (at, grant) in grants {
        match begin(state, at, grant) {
            Some(member) => held.push(member),
            None => replies.push((at, Ok(Reply::NotHeld))),
        }
    }
    let groups = group_by_session(held).into_iter().map(async |(session, members)| {
        let mut replies = Vec::with_capacity(members.len());
        for members in split_by_size(&members, |member| &member.nodes) {
            let deleted = delete_members(state, &session, members).await;
            replies.extend(members.iter().zip(deleted).map(|(member, deleted)| {
                let reply = deleted.map(|was_there| {
                    state.registry().remove(member.owner);
                    if was_there { Reply::Released } else { Reply::NotHeld }
                });
                (member.at, reply)
            }));
        }
        replies
    });
    replies.extend(join_all(groups).await.into_iter().flatten());
    replies
}

/// Returns the nodes of a grant, which its watch does not report from now on. If the release does not arrive it is sent again;
/// if it never does, the entry lapses.
fn begin(state: &ClientState, at: usize, grant: &Grant) -> Option<(Arc<Session>, Member)> {
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

/// Deletes the nodes of each, and returns whether they were there.
async fn delete_members(state: &ClientState, session: &Session, members: &[Member]) -> Vec<Result<bool>> {
    if let Err(error) = session.wait_connected(&state.ensemble, &state.clock).await {
        return members.iter().map(|_| Err(error.clone())).collect();
    }
    let request = session.on_send();
    match delete_together(session, members).await {
        Ok(()) => {
            session.on_write_reply(request);
            members.iter().map(|_| Ok(true)).collect()
        }
        Err(MultiWriteError::RequestFailed { source }) => {
            members.iter().map(|_| Err(state.ensemble.failed(&source))).collect()
        }
        // One of them is not there: each goes alone.
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

/// Deletes the nodes of all of these, or none. The request is sent when the future is made.
fn delete_together<'a>(
    session: &'a Session,
    members: &'a [Member],
) -> impl Future<Output = Result<(), MultiWriteError>> + 'a {
    session.transact(|writer| {
        let mut nodes = members.iter().flat_map(|member| &member.nodes).filter(|node| !node.is_empty());
        nodes.try_for_each(|node| writer.add_delete(node, None))
    })
}
