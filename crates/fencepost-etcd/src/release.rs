//! Interprets the responses to releases.

use fencepost_core::Grant;
use fencepost_core::backend::Reply;

use crate::flight::Flight;
use crate::proto::TxnResponse;
use crate::request::nested_response;

impl Flight<'_> {
    /// Interprets the response to a release.
    pub(crate) fn on_release_response(self, grant: &Grant, response: TxnResponse) -> Reply {
        grant.held().iter().for_each(|want| self.client.observe_release(&want.name));
        self.client.forget_grant(grant);
        let was_held = match grant.held().len() {
            1 => response.succeeded,
            _ => response.responses.into_iter().filter_map(nested_response).any(|part| part.succeeded),
        };
        if was_held { Reply::Released } else { Reply::NotHeld }
    }
}
