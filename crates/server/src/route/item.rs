//! [`Item`]: a request on its way, and what the router reads in it.
//!
//! Only the name, the level and the cursor of a walk are read. Everything else is the node's.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use siltstone::Commit;
use siltstone::secondary::Level;

use super::choice::{Need, Policy};
use super::link::{encode, text_of};
use crate::commands::{COMMANDS, Kind, Spec, Verb, find};
use crate::failure::Failure;
use crate::level::{Asked, Wanted};
use crate::predict::{KeyHash, Lesson, Prediction, Predictor};
use crate::scid;

/// A cursor of a walk has the place of its node in its lowest bits.
const NODES_MAX: u64 = 1 << 10;

/// A request on its way.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) request: Vec<Bytes>,
    pub(crate) spec: Option<&'static Spec>,
    /// The policy and the level that the request names.
    pub(crate) policy: Option<Policy>,
    pub(crate) asked: Asked,
    /// The predictor has seen it, and what it learns from it once a node has served it: the router does not know whether its
    /// client may read.
    pub(crate) is_considered: bool,
    pub(crate) lesson: Option<Lesson>,
    /// The node of the cursor of a walk.
    pub(crate) walk: Option<usize>,
    /// The node to which it was sent, and which has not answered: its outcome is unknown.
    pub(crate) lost_at: Option<String>,
    /// Nodes that have refused it, and the last refusal.
    pub(crate) avoid: Vec<usize>,
    pub(crate) refused: Option<Bytes>,
    /// It is read from one node, also if it is long.
    pub(crate) is_one_node: bool,
    /// It goes to one of several shards.
    pub(crate) is_of_shard: bool,
    /// The refusal of a shard that does not own its slots.
    pub(crate) moved: Option<Bytes>,
    /// The end of the attempts.
    pub(crate) until: Option<Duration>,
}

impl Item {
    /// As [`Item::new`], for a client of shards, whose cursors name no node.
    pub(crate) fn whole(request: Vec<Bytes>) -> Item {
        let cursor = request.get(1).cloned();
        let mut item = Item::new(request);
        item.is_of_shard = true;
        if item.walk.take().is_some() {
            item.request[1] = cursor.unwrap_or_default();
        }
        item
    }

    pub(crate) fn new(request: Vec<Bytes>) -> Item {
        let spec = find(&request[0]).map(|at| &COMMANDS[at]);
        let mut item = Item {
            request,
            spec,
            policy: None,
            asked: Asked::default(),
            is_considered: false,
            lesson: None,
            walk: None,
            lost_at: None,
            avoid: Vec::new(),
            refused: None,
            is_one_node: false,
            is_of_shard: false,
            moved: None,
            until: None,
        };
        match item.verb() {
            Some(Verb::ScidGet) => item.read_options(),
            Some(Verb::Scan) => item.read_cursor(),
            _ => {}
        }
        item
    }

    /// Its bytes on the way, about.
    pub(crate) fn len(&self) -> usize {
        self.request.iter().map(|argument| argument.len() + 16).sum()
    }

    /// Returns whether a node knows the command, and takes so many arguments.
    pub(crate) fn has_right_count(&self) -> bool {
        self.spec.is_some_and(|spec| spec.takes(self.request.len()))
    }

    pub(crate) fn verb(&self) -> Option<Verb> {
        self.spec.map(|spec| spec.verb)
    }

    /// Returns whether it changes data, outside of a transaction.
    pub(crate) fn is_change(&self) -> bool {
        self.spec.is_some_and(|spec| spec.kind == Kind::Change)
    }

    /// Returns whether the router answers it, and no node knows it.
    pub(crate) fn is_of_router(&self) -> bool {
        let own = [&b"SCID.NODES"[..], b"SCID.ROUTE"];
        own.iter().any(|name| self.request[0].eq_ignore_ascii_case(name))
    }

    /// Returns whether it is about the session or the router, and has no place in a transaction.
    pub(crate) fn is_about_session(&self) -> bool {
        let is_own = self.spec.is_some_and(|it| it.kind == Kind::Connection && !it.is_queued());
        self.is_of_router() || is_own && !self.is_of_transaction()
    }

    /// Returns whether it is `MULTI`, or one that belongs to it.
    pub(crate) fn is_of_transaction(&self) -> bool {
        use Verb::{Discard, Exec, Multi, Unwatch, Watch};
        matches!(self.verb(), Some(Multi | Exec | Discard | Watch | Unwatch))
    }

    /// Returns whether it reads data.
    pub(crate) fn is_read(&self) -> bool {
        self.spec.is_some_and(|spec| matches!(spec.kind, Kind::Read | Kind::ReadMany))
    }

    /// `ROUTE policy` is of the router, and the node does not see it.
    fn read_options(&mut self) {
        let options = self.request.iter().skip(2).position(|it| it.eq_ignore_ascii_case(b"ROUTE"));
        if let Some(at) = options.map(|at| at + 2) {
            let policy = self.request.get(at + 1).and_then(|it| std::str::from_utf8(it).ok());
            self.policy = policy.and_then(Policy::parse);
            // A policy that does not exist is refused by the node, as an option that it does not know.
            if self.policy.is_some() {
                self.request.drain(at..at + 2);
            }
        }
        // The node reports what is wrong.
        let options = self.request.get(2..).unwrap_or_default();
        self.asked = scid::asked(options).map(|(asked, _)| asked).unwrap_or_default();
    }

    /// Gives it a level that was predicted. The node takes this level if it knows none: that of a partition is known to
    /// nodes alone.
    fn predict(&mut self, level: u8) {
        self.request[0] = Bytes::from_static(b"SCID.GET");
        self.request.extend([Bytes::from_static(b"PREDICTED"), level.to_string().into()]);
        self.spec = find(&self.request[0]).map(|at| &COMMANDS[at]);
        self.asked.predicted = Some(level);
    }

    /// Predicts the level of a read that has none, or notes that it corrects the `last` prediction of its client.
    pub(crate) fn consider(
        &mut self,
        predictor: &Predictor,
        last: &mut Option<Prediction>,
        level: Option<Wanted>,
        partition: &str,
    ) {
        let is_read = matches!(self.verb(), Some(Verb::Get | Verb::ScidGet));
        if self.is_considered
            || !is_read
            || !self.has_right_count()
            || self.asked.predicted.is_some()
        {
            return;
        }
        self.is_considered = true;
        let key = KeyHash::new(partition, &self.request[1]);
        self.lesson = predictor.foresee(last, &self.asked, level, key);
        if let Some(Lesson::Read(_, Some(level))) = self.lesson {
            self.predict(level);
        }
    }

    /// The place of the option `TOKEN` of a `SCID.GET`.
    fn token_at(&self) -> Option<usize> {
        let mut options = self.request.iter().skip(2);
        let at = options.position(|it| it.eq_ignore_ascii_case(b"TOKEN"));
        at.filter(|_| self.verb() == Some(Verb::ScidGet)).map(|at| at + 2)
    }

    /// Returns whether [`Item::take_token`] has one to take.
    pub(crate) fn has_token(&self) -> bool {
        self.token_at().is_some_and(|at| at + 1 < self.request.len())
    }

    /// Takes the token of a `SCID.GET` out, for the session. The read is at level 3 then.
    pub(crate) fn take_token(&mut self) -> Option<Bytes> {
        let at = self.token_at()?;
        let token = self.request.get(at + 1).cloned()?;
        self.request.drain(at..at + 2);
        if !self.request.iter().skip(2).any(|it| it.eq_ignore_ascii_case(b"LEVEL")) {
            self.request.extend([Bytes::from_static(b"LEVEL"), Bytes::from_static(b"3")]);
        }
        self.read_options();
        Some(token)
    }

    fn read_cursor(&mut self) {
        let cursor = self.request.get(1).and_then(|it| std::str::from_utf8(it).ok());
        let Some(cursor) = cursor.and_then(|it| it.parse::<u64>().ok()).filter(|it| *it > 0) else {
            return;
        };
        self.walk = Some((cursor % NODES_MAX) as usize);
        self.request[1] = (cursor / NODES_MAX).to_string().into();
    }

    /// The need of a read; `level` and `token` are those of the session.
    pub(crate) fn need(
        &self,
        level: Option<Wanted>,
        token: Option<Commit>,
    ) -> Result<Need, Failure> {
        let (level, _) = self.asked.level(level, token)?;
        Ok(match level {
            Level::Session(token) => Need::Session(token),
            Level::Prefix => Need::Prefix,
            Level::Strong | Level::Bounded { .. } => Need::Strong,
            _ => Need::Weak,
        })
    }

    /// Returns whether it may depend on the token of the session. `level` is that of the session; without one it is that of
    /// the partition, which the node alone knows.
    pub(crate) fn is_of_session(&self, level: Option<Wanted>) -> bool {
        let is_open = self.asked.is_open(level) || self.asked.is_third(level);
        self.is_read() && self.asked.token.is_none() && is_open
    }

    /// Returns whether its client has asked for level 3.
    pub(crate) fn is_third(&self, level: Option<Wanted>) -> bool {
        self.asked.is_third(level)
    }

    /// The reply for the client: a cursor gets the place of its node.
    pub(crate) fn reply(&self, node: usize, reply: Bytes) -> Bytes {
        if self.verb() != Some(Verb::Scan) || !reply.starts_with(b"*2\r\n$") {
            return reply;
        }
        let cursor = text_of(&reply[4..]);
        let number = std::str::from_utf8(cursor).ok().and_then(|it| it.parse::<u64>().ok());
        let Some(number) = number.filter(|number| *number > 0) else { return reply };
        let Some(placed) = number.checked_mul(NODES_MAX) else { return reply };
        let mut header = BytesMut::new();
        let cursor_end = 4 + format!("${}\r\n{number}\r\n", cursor.len()).len();
        encode(&[(placed + node as u64 % NODES_MAX).to_string()], &mut header);
        // Of an array of two items, not of one.
        let mut out = BytesMut::from(&b"*2\r\n"[..]);
        out.extend_from_slice(&header[4..]);
        out.extend_from_slice(&reply[cursor_end..]);
        out.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::Token;

    fn item(line: &str) -> Item {
        Item::new(line.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes())).collect())
    }

    #[test]
    fn a_request_names_its_level_and_policy() {
        let token = Token::parse(b"2-7").ok().map(|token| token.0);
        let third = Some(Wanted::Number(3));
        for (line, level, expected, policy) in [
            ("GET a", None, Need::Strong, None),
            ("GET a", Some(Wanted::Number(5)), Need::Weak, None),
            ("MGET a b", third, Need::Session(token.unwrap()), None),
            ("SCID.GET a LEVEL 4", third, Need::Prefix, None),
            ("SCID.GET a MAXLAG 5", third, Need::Strong, None),
            (
                "SCID.GET a route Optimal TOKEN 2-7",
                None,
                Need::Session(token.unwrap()),
                Some(Policy::Optimal),
            ),
            ("SCID.GET a LEVEL 1 ROUTE offloaded", None, Need::Strong, Some(Policy::Offloaded)),
        ] {
            let item = item(line);
            assert_eq!(item.need(level, token).unwrap(), expected, "{line}");
            assert_eq!(item.policy, policy, "{line}");
            assert!(!item.request.iter().any(|it| it.eq_ignore_ascii_case(b"route")), "{line}");
        }
        // The node refuses it.
        assert_eq!(item("SCID.GET a ROUTE other").request.len(), 4);
    }

    #[test]
    fn a_cursor_names_its_node() {
        let first = item("SCAN 0 COUNT 5");
        assert_eq!(first.walk, None);
        let reply = first.reply(3, Bytes::from("*2\r\n$2\r\n17\r\n*1\r\n$1\r\na\r\n"));
        assert_eq!(reply, Bytes::from("*2\r\n$5\r\n17411\r\n*1\r\n$1\r\na\r\n"));
        let second = item("SCAN 17411 COUNT 5");
        assert_eq!((second.walk, &second.request[1][..]), (Some(3), &b"17"[..]));
        for same in ["*2\r\n$1\r\n0\r\n*0\r\n", "-ERR a\r\n"] {
            assert_eq!(first.reply(3, Bytes::from(same)), Bytes::from(same));
        }
    }
}
