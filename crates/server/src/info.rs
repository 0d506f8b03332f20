//! `INFO`, `CONFIG GET` and `COMMAND`: what tools ask for when they connect.

use std::fmt::Write;

use bytes::Bytes;

use crate::commands::{COMMANDS, Kind, Spec, find};
use crate::failure::{Failure, Patience};
use crate::health;
use crate::level::Token;
use crate::node::Role;
use crate::options::Acknowledge;
use crate::predict::Predictor;
use crate::reply::Reply;
use crate::session::Session;
use crate::shared::Shared;

/// `INFO`.
pub(crate) fn info(
    shared: &Shared,
    session: &Session,
    patience: Patience,
) -> Result<Reply, Failure> {
    // A look at all partitions may wait.
    let health = match shared.known_health() {
        Some(health) => health,
        None if patience == Patience::MustNotWait => return Err(Failure::MayWait),
        None => shared.health(),
    };
    let health = session.user.as_ref().map(|user| health::line(&health, user));
    let mut out = String::new();
    let is_primary = shared.node.is_primary();
    let role = if is_primary { "master" } else { "slave" };
    let lines = [
        ("# Server\r\nsiltstone_version", env!("CARGO_PKG_VERSION").to_owned()),
        ("tcp_port", shared.address.port().to_string()),
        ("# Clients\r\nconnected_clients", shared.front.client_count().to_string()),
        ("maxclients", shared.options.limits.clients.to_string()),
        // Clients wait for the end of a load: a server of this kind answers only after it.
        ("# Persistence\r\nloading", "0".to_owned()),
        ("# Stats\r\ntotal_commands_processed", shared.metrics.command_count().to_string()),
        ("# Replication\r\nrole", role.to_owned()),
        ("scid_token", Token(shared.node.latest()).to_string()),
        ("scid_health", health.unwrap_or_default()),
        ("scid_run", run(shared)),
        ("scid_bucket", u8::from(!shared.node.serves_strong()).to_string()),
    ];
    for (name, value) in lines {
        let _ = write!(out, "{name}:{value}\r\n");
    }
    if let Some(counts) = shared.predictor.as_ref().map(Predictor::counts) {
        for (name, levels) in
            [("predictions", counts.predictions), ("corrections", counts.corrections)]
        {
            let levels =
                levels.iter().zip(1..).map(|(count, level)| format!("level{level}={count}"));
            let levels: Vec<String> = levels.collect();
            let _ = write!(out, "scid_{name}:{}\r\n", levels.join(","));
        }
    }
    Ok(Reply::Text(out))
}

/// The identity of the run of the primary, as far as it is known.
fn run(shared: &Shared) -> String {
    match &*shared.node.role() {
        Role::Primary(primary) => primary.run.clone(),
        Role::Reader(_) => {
            let known = shared.node.known_primary.load();
            known.as_ref().and_then(|known| known.run.clone()).unwrap_or_default()
        }
    }
}

/// `CONFIG GET pattern...`. The other forms are refused: options are those of the start.
pub(crate) fn config(shared: &Shared, arguments: &[Bytes]) -> Result<Reply, Failure> {
    if !arguments[0].eq_ignore_ascii_case(b"GET") {
        let name = String::from_utf8_lossy(&arguments[0]).into_owned();
        return Err(Failure::error(format!(
            "CONFIG {name} is not supported: options are set at the start"
        )));
    }
    let limits = &shared.options.limits;
    let is_sync = shared.options.acknowledge == Acknowledge::Sync;
    let known = [
        ("save", String::new()),
        ("appendonly", "yes".to_owned()),
        ("appendfsync", if is_sync { "always" } else { "everysec" }.to_owned()),
        ("databases", "1".to_owned()),
        ("maxclients", limits.clients.to_string()),
        ("maxmemory", "0".to_owned()),
        ("proto-max-bulk-len", limits.argument_bytes.to_string()),
        // No client is ended for answers that wait: it gets no further ones. `--write-timeout` and `--write-rate` end it.
        ("client-output-buffer-limit", "normal 0 0 0 slave 0 0 0 pubsub 0 0 0".to_owned()),
        ("timeout", limits.idle.map_or(0, |idle| idle.as_secs()).to_string()),
    ];
    let mut pairs = Vec::new();
    for (name, value) in known {
        let mut patterns = arguments[1..].iter();
        if patterns.any(|pattern| pattern == "*" || pattern.eq_ignore_ascii_case(name.as_bytes())) {
            pairs.push((Reply::text(name), Reply::Text(value)));
        }
    }
    Ok(Reply::Map(pairs))
}

/// `COMMAND [COUNT | DOCS | INFO name... | LIST]`.
pub(crate) fn command(arguments: &[Bytes]) -> Result<Reply, Failure> {
    let Some(form) = arguments.first() else {
        return Ok(Reply::Array(COMMANDS.iter().map(described).collect()));
    };
    match &form.to_ascii_uppercase()[..] {
        b"COUNT" => Ok(Reply::count(COMMANDS.len())),
        // redis-cli shows help for what it finds here, and works without it.
        b"DOCS" => Ok(Reply::Map(Vec::new())),
        b"LIST" => Ok(Reply::Array(COMMANDS.iter().map(|spec| Reply::text(spec.name)).collect())),
        b"INFO" => {
            let found = arguments[1..].iter().map(|name| find(name));
            let described =
                found.map(|at| at.map_or(Reply::NilArray, |at| described(&COMMANDS[at])));
            Ok(Reply::Array(described.collect()))
        }
        form => {
            let form = String::from_utf8_lossy(form).into_owned();
            Err(Failure::error(format!("COMMAND {form} is not supported")))
        }
    }
}

fn described(spec: &Spec) -> Reply {
    let flag = match spec.kind {
        Kind::Read | Kind::ReadMany => "readonly",
        Kind::Change => "write",
        Kind::Connection | Kind::Node => "fast",
    };
    let mut parts = vec![
        Reply::Text(spec.name.to_ascii_lowercase()),
        Reply::Integer(spec.arity),
        Reply::Array(vec![Reply::Simple(flag)]),
    ];
    parts.extend(spec.keys.map(Reply::Integer));
    Reply::Array(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execute::execute;
    use crate::front::Front;
    use crate::node::{Node, NodeOptions};
    use crate::options::Options;
    use crate::place::Place;

    #[test]
    fn a_look_at_the_health_waits_elsewhere_once() {
        let folder = tempfile::tempdir().unwrap();
        let node = Node::open(Place::folder(folder.path()), true, NodeOptions::default()).unwrap();
        let options = Options::default();
        let front = Front::new(options.limits, None);
        let shared = Shared::new(options, front, node, "127.0.0.1:0".parse().unwrap());
        let mut session = Session::new(1, &shared);
        let info = [Bytes::from("INFO")];
        let outcome = execute(&shared, &mut session, &info, Patience::MustNotWait).1;
        assert!(matches!(outcome, Err(Failure::MayWait)), "{outcome:?}");
        assert!(execute(&shared, &mut session, &info, Patience::MayWait).1.is_ok());
        assert!(execute(&shared, &mut session, &info, Patience::MustNotWait).1.is_ok());
        shared.node.close().unwrap();
    }
}
