//! The pages of a server: `/metrics`, `/healthz` and `/readyz`.

use crate::http::{Answer, Pages};
use crate::metrics;
use crate::node::Role;
use crate::shared::Shared;

impl Pages for Shared {
    fn answer(&self, path: &str) -> Option<Answer> {
        match path {
            "/metrics" => Some(Answer::text("200 OK", metrics::text(self))),
            "/healthz" => Some(Answer::text("200 OK", "ok\n")),
            "/readyz" => Some(Answer::readiness(unready(self))),
            _ => None,
        }
    }
}

/// The reason why requests should go elsewhere.
fn unready(shared: &Shared) -> Option<&'static str> {
    if shared.front.is_draining() {
        return Some("the server ends");
    }
    match &*shared.node.role() {
        Role::Primary(primary) if primary.db.is_fenced() => {
            Some("another primary has taken the database over")
        }
        Role::Primary(_) | Role::Reader(_) => None,
    }
}
