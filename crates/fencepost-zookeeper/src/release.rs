//! Giving back: the releases of a flight together.

use std::sync::Arc;

use fencepost_core::backend::Reply;
use fencepost_core::{Error, Grant, Result};
use futures_util::future::join_all;
use zookeeper_client::{self as zk, MultiWriteError};

use crate::heartbeat;
use crate::nodes::{delete_all, portions};
use crate::session::Session;
use crate::shared::Shared;

/// Which grants, and the nodes of each.
type Members = Vec<(usize, Vec<String>)>;

/// Gives all of these back; answers come in their order.
pub(crate) async fn release(shared: &Arc<Shared>, grants: &[&Grant]) -> Vec<Result<Reply>> {
    let mut groups: Vec<(Arc<Session>, Members)> = Vec::new();
    let mut replies: Vec<(usize, Result<Reply>)> = Vec::new();
    for (at, grant) in grants.iter().enumerate() {
        if let Err(error) = learn(shared, grant).await {
            replies.push((at, Err(error)));
            continue;
        }
        match find(shared, grant) {
            None => replies.push((at, Ok(Reply::NotHeld))),
            Some((session, nodes)) => match groups.iter_mut().find(|(there, _)| Arc::ptr_eq(there, &session))
            {
                Some((_, members)) => members.push((at, nodes)),
                None => groups.push((session, vec![(at, nodes)])),
            },
        }
    }
    let groups = groups.iter().map(async |(session, members)| {
        let mut answers = Vec::with_capacity(members.len());
        for members in portions(members, |(_, nodes)| nodes) {
            let nodes: Vec<&[String]> = members.iter().map(|(_, nodes)| nodes.as_slice()).collect();
            let given_back = give_back(shared, session, &nodes).await;
            answers.extend(members.iter().map(|(at, _)| *at).zip(given_back));
        }
        answers
    });
    for (at, given_back) in join_all(groups).await.into_iter().flatten() {
        let owner = grants[at].attempt.owner;
        let reply = given_back.map(|was_there| {
            shared.forget(&mut shared.book(), owner);
            if was_there { Reply::Released } else { Reply::NotHeld }
        });
        replies.push((at, reply));
    }
    replies.sort_by_key(|(at, _)| *at);
    replies.into_iter().map(|(_, reply)| reply).collect()
}

/// Makes sure that we know of a grant that came to its turn before anybody told it.
pub(crate) async fn learn(shared: &Arc<Shared>, grant: &Grant) -> Result<()> {
    let is_doubtful =
        shared.book().places.get(grant.attempt.owner).is_some_and(|place| place.entry.award.is_none());
    if is_doubtful {
        heartbeat::check(shared, &grant.attempt).await?;
    }
    Ok(())
}

/// The nodes of a grant. From now on nobody keeps them, and its own watch says nothing.
fn find(shared: &Shared, grant: &Grant) -> Option<(Arc<Session>, Vec<String>)> {
    let now = shared.clock.now();
    let mut book = shared.book();
    let owner = grant.attempt.owner;
    let entry = &mut book.places.get_mut(owner)?.entry;
    if entry.award.is_none_or(|award| award.token != grant.award.token) {
        return None;
    }
    if entry.session.is_over() {
        shared.forget(&mut book, owner);
        return None;
    }
    // If this does not arrive it is sent again; if it never does, whoever looks after the session removes them.
    entry.unwanted.get_or_insert(now + grant.award.ttl);
    Some((entry.session.clone(), entry.nodes.clone()))
}

/// Deletes the nodes of each, and says whether they were there.
async fn give_back(shared: &Shared, session: &Session, nodes: &[&[String]]) -> Vec<Result<bool>> {
    if let Err(away) = session.connected(&shared.setup, &shared.clock).await {
        return nodes.iter().map(|_| Err(away.duplicate())).collect();
    }
    let failed = |error: &zk::Error| -> Error { shared.setup.failed(error) };
    let request = session.send();
    let deleted = delete_together(session, nodes).await;
    if deleted.is_ok() {
        session.prove(request);
    }
    match deleted {
        Ok(()) => nodes.iter().map(|_| Ok(true)).collect(),
        Err(MultiWriteError::RequestFailed { source }) => {
            nodes.iter().map(|_| Err(failed(&source))).collect()
        }
        // One of them is not there: each goes alone.
        Err(MultiWriteError::OperationFailed { .. }) => {
            let alone: Vec<_> = nodes.iter().map(|nodes| delete_together(session, &[*nodes])).collect();
            let alone =
                join_all(alone).await.into_iter().zip(nodes).map(async |(deleted, nodes)| match deleted {
                    Ok(()) => Ok(true),
                    Err(MultiWriteError::OperationFailed { source: zk::Error::NoNode, .. }) => {
                        delete_all(session, nodes).await.map(|()| false).map_err(|error| failed(&error))
                    }
                    Err(error) => Err(failed(&error.into())),
                });
            join_all(alone).await
        }
    }
}

/// Deletes all of these nodes, or none.
fn delete_together<'a>(
    session: &'a Session,
    nodes: &[&[String]],
) -> impl Future<Output = Result<(), MultiWriteError>> + use<'a> {
    let mut writer = session.client.new_multi_writer();
    let mut built = Ok(());
    for node in nodes.iter().copied().flatten().filter(|node| !node.is_empty()) {
        built = built.and_then(|()| writer.add_delete(node, None));
    }
    let sent = built.map(|()| writer.commit());
    async move {
        sent.map_err(|source| MultiWriteError::RequestFailed { source })?.await?;
        Ok(())
    }
}
