//! The target `session`: bytes are what one client sends to a server in memory, and its commands are executed.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use siltstone::clock::SystemClock;
use siltstone::fs::MemFs;
use tokio::runtime::{Builder, Runtime};

use super::requests;
use crate::connection::Rehearsal;
use crate::expiry::Expiring;
use crate::front::Front;
use crate::node::{Node, NodeOptions};
use crate::options::{Limits, Options};
use crate::place::Place;
use crate::request::Next;
use crate::route::link::check_replies;
use crate::shared::Shared;

/// More bytes of one input are not sent.
const BYTES_MAX: usize = 8 << 10;
/// Values of these lengths stream, so that short inputs reach that way.
const LONG_BYTES: u64 = 24;
/// The bits of the first byte.
const IS_SHARD: u8 = 1;
const PREDICTS: u8 = 2;
const HAS_READER: u8 = 4;
/// Arguments after which replies depend on chance or time, or on the clients before: the two servers may answer differently.
const UNDETERMINED: [&[u8]; 8] =
    [b"EX", b"EXAT", b"INFO", b"PX", b"PXAT", b"SCAN", b"SCID.LAG", b"SCID.SCAN"];

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a process of tests can make a runtime")
});

/// A server without a port; its partition `due` has expiry, and `large` large values. Writes of more than `inline_bytes` go
/// to a thread that may wait.
fn server(fs: &MemFs, kind: u8, is_primary: bool, inline_bytes: usize) -> Arc<Shared> {
    let options = Options {
        limits: Limits { inline_bytes, ..Limits::default() },
        predict: kind & PREDICTS != 0,
        // Long enough to catch up in memory.
        wait: Duration::from_millis(20),
        ..Options::default()
    };
    let of_node = NodeOptions {
        address: Some("127.0.0.1:6379".to_owned()),
        expiring: Expiring { names: ["due".to_owned()].into(), ..Expiring::default() },
        large: vec!["large".to_owned()],
        shard: (kind & IS_SHARD != 0).then(|| "a".to_owned()),
        background_rate: 0,
    };
    let place = Place::folder_on("/db", Arc::new(fs.clone()), Arc::new(SystemClock::new()));
    let node = Node::open(place, is_primary, of_node).expect("a database in memory opens");
    let front = Front::new(options.limits, None);
    Arc::new(Shared::new(options, front, node, ([127, 0, 0, 1], 6379).into()))
}

/// The replies of `server` to bytes that come in pieces of this length.
fn replies(server: &Arc<Shared>, bytes: &[u8], piece: usize) -> Bytes {
    let rehearsal = Rehearsal { piece, long_bytes: LONG_BYTES };
    let replies = RUNTIME.block_on(rehearsal.run(server.clone(), bytes));
    assert_eq!(check_replies(&replies), 0, "bytes after the last reply: {replies:?}");
    replies
}

fn is_undetermined(word: &Bytes) -> bool {
    UNDETERMINED.iter().any(|other| word.eq_ignore_ascii_case(other))
}

/// Returns whether each server answers the same.
fn is_determined(bytes: &[u8]) -> bool {
    let requests = requests(bytes, bytes.len().max(1));
    let mut words = requests.iter().filter_map(|next| match next {
        Next::Request(words) => Some(words),
        _ => None,
    });
    !words.any(|words| words.iter().any(is_undetermined))
}

/// Executes what a client sends, on a primary and then on a reader of the same database. Each byte of the answer is in a reply,
/// and no command panics. Another primary gets the bytes in pieces, and each of its writes runs on a thread that may wait: the
/// answer is the same, so no write is executed twice.
pub fn session(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let bytes = &bytes[..bytes.len().min(BYTES_MAX)];
    let fs = MemFs::new();
    let inline_bytes = Limits::default().inline_bytes;
    let primary = server(&fs, *kind, true, inline_bytes);
    let whole = replies(&primary, bytes, bytes.len().max(1));
    if kind & HAS_READER != 0 {
        let reader = server(&fs, *kind, false, inline_bytes);
        replies(&reader, bytes, bytes.len().max(1));
        // The client may have promoted it.
        let _ = reader.node.close();
    }
    let _ = primary.node.close();
    if is_determined(bytes) {
        let second = server(&MemFs::new(), *kind, true, 0);
        assert_eq!(whole, replies(&second, bytes, 7), "pieces and threads decide nothing");
        let _ = second.node.close();
    }
}
