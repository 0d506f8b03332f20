//! The meaning of replies for the attempts of a request.

use bytes::Bytes;

use super::item::Item;
use super::session::Transaction;

/// Returns whether a shard has refused a request because its slots are elsewhere. Nothing was done.
pub(super) fn is_moved(reply: &[u8]) -> bool {
    const WORDS: [&[u8]; 4] = [b"-MOVED ", b"-CLUSTERDOWN ", b"-TRYAGAIN ", b"-CROSSSLOT "];
    WORDS.iter().any(|word| reply.starts_with(word))
}

/// Returns whether a node has refused a request that another node may serve. Nothing was done.
pub(super) fn is_refusal(item: &Item, reply: &[u8]) -> bool {
    if item.is_of_shard && is_moved(reply) {
        return true;
    }
    let words: &[&str] =
        if item.is_change() { &["-READONLY "] } else { &["-NOTYET ", "-UNSUPPORTED ", "-CLOSED "] };
    words.iter().any(|word| reply.starts_with(word.as_bytes()))
}

/// The first request of a batch that is sent again, with those after it.
pub(super) fn first_to_repeat(items: &[(Item, Option<Transaction>)], replies: &[Bytes]) -> usize {
    let refused = replies.iter().zip(items).position(|(reply, (item, before))| {
        // The end of a transaction is for its client to repeat.
        before.is_none() && (item.is_change() || item.is_read()) && is_refusal(item, reply)
    });
    let Some(first) = refused else { return replies.len() };
    let has_effect = items.iter().enumerate().skip(first).any(|(at, (item, _))| {
        let is_refused = replies.get(at).is_some_and(|reply| is_refusal(item, reply));
        !(item.is_read() || item.is_change() && is_refused)
    });
    if has_effect { replies.len() } else { first }
}

/// An error of a node names it, unless the request is to blame.
pub(super) fn named(address: &str, reply: Bytes) -> Bytes {
    const OF_NODES: [&str; 8] = [
        "-READONLY",
        "-NOTYET",
        "-SESSIONLOST",
        "-UNSUPPORTED",
        "-UNKNOWN",
        "-CORRUPTION",
        "-NOSPACE",
        "-CLOSED",
    ];
    match reply.strip_suffix(b"\r\n") {
        Some(text) if OF_NODES.iter().any(|word| text.starts_with(word.as_bytes())) => {
            [text, format!(" (node {address})\r\n").as_bytes()].concat().into()
        }
        _ => reply,
    }
}
