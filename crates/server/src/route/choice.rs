//! [`choose`]: the node that serves a request. The router and programs share it.
//!
//! It is a function of what is known about the nodes, without clock and network; two random numbers are arguments.
//!
//! Invariants:
//! 1. A choice is never needed for a guarantee: each node checks the level itself, and refuses what it cannot serve.
//! 2. A request goes to a node that is up, or to none.

use std::fmt;

use siltstone::Commit;

/// The nodes to which reads go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Strong reads go to the primary: SCID-Optimal.
    Optimal,
    /// Strong reads go to readers, which catch up first: SCID-Offloaded.
    Offloaded,
    /// Each strong read goes where it is expected to be served first: the load of the primary against the lag of a
    /// reader.
    #[default]
    Cost,
}

impl Policy {
    /// Reads `optimal`, `offloaded` or `cost`.
    pub fn parse(text: &str) -> Option<Policy> {
        let all = [Policy::Optimal, Policy::Offloaded, Policy::Cost];
        all.into_iter().find(|policy| policy.to_string().eq_ignore_ascii_case(text))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Policy::Optimal => "optimal",
            Policy::Offloaded => "offloaded",
            Policy::Cost => "cost",
        })
    }
}

/// The state that a request needs of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// The primary: a write, or a transaction.
    Write,
    /// Everything that was acknowledged, or most of it: the levels 1 and 2, and `AUTO`.
    Strong,
    /// At least this commit: level 3.
    Session(Commit),
    /// A state of all partitions, which does not go back: level 4.
    Prefix,
    /// Any state: level 5.
    Weak,
}

/// The role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeRole {
    Primary,
    /// A primary that serves no level below 3: that of a bucket.
    BucketPrimary,
    Reader,
    /// A reader that catches up by calls of a bucket.
    BucketReader,
}

impl NodeRole {
    pub(crate) fn is_reader(self) -> bool {
        matches!(self, NodeRole::Reader | NodeRole::BucketReader)
    }
}

/// The knowledge about a node at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeView {
    /// `None` while it does not answer.
    pub(crate) role: Option<NodeRole>,
    /// Requests that it has not answered.
    pub(crate) load: u64,
    /// The usual time of a request.
    pub(crate) micros: u64,
    /// A commit that it has.
    pub(crate) position: Option<Commit>,
    /// It did not catch up for a read, and has not moved since.
    pub(crate) is_stuck: bool,
}

/// Operations that a reader applies in a microsecond while it catches up, about (`docs/secondary.md`).
const OPERATIONS_PER_MICRO: u64 = 1;
/// Operations that a reader of a folder may lack of a token: it catches up within a request. Without this all sessions that
/// have seen a commit go to the reader that was the first one to follow it, until the next question to the others.
const NEAR: u64 = 10_000 * OPERATIONS_PER_MICRO;

impl NodeView {
    fn is_reader(&self) -> bool {
        self.role.is_some_and(NodeRole::is_reader)
    }

    fn has(&self, token: Commit) -> bool {
        self.position.is_some_and(|it| (it.epoch, it.seq) >= (token.epoch, token.seq))
    }

    /// Returns whether it serves level 3 with `token` at once, or about so.
    fn is_near(&self, token: Commit) -> bool {
        let may_catch_up = self.role == Some(NodeRole::Reader) && !self.is_stuck;
        self.has(token) || may_catch_up && self.lacking(token) <= NEAR
    }

    /// Returns whether it serves a strong read, as far as is known. A stuck reader lets each one wait, and refuses it then.
    fn may_be_strong(&self, newest: Option<Commit>) -> bool {
        !self.is_stuck || newest.is_some_and(|newest| self.has(newest))
    }

    /// Operations up to `newest` that it lacks.
    fn lacking(&self, newest: Commit) -> u64 {
        match self.position {
            Some(own) if own.epoch == newest.epoch => {
                newest.seq.get().saturating_sub(own.seq.get())
            }
            // It does not know the newest epoch yet.
            _ => newest.seq.get(),
        }
    }

    /// The expected time of a request, with the time to catch up with `newest`.
    fn cost(&self, newest: Option<Commit>) -> u64 {
        let lacking = newest.filter(|_| self.is_reader()).map_or(0, |it| self.lacking(it));
        (self.load + 1).saturating_mul(self.micros.max(1)) + lacking / OPERATIONS_PER_MICRO
    }
}

/// Returns the primary. An old one may not know that it was taken over: the latest epoch counts.
pub(crate) fn primary_of(nodes: &[NodeView]) -> Option<usize> {
    let all = nodes.iter().enumerate();
    let primaries =
        all.filter(|(_, it)| matches!(it.role, Some(NodeRole::Primary | NodeRole::BucketPrimary)));
    let newest = primaries.max_by_key(|(_, it)| it.position.map(|position| position.epoch));
    newest.map(|(at, _)| at)
}

/// Returns the node for a request; `None` if no node that is up can serve it. `last` is the node of the last read at
/// level 4, and `random` chooses among equals.
pub(crate) fn choose(
    policy: Policy,
    need: Need,
    nodes: &[NodeView],
    last: Option<usize>,
    random: [usize; 2],
) -> Option<usize> {
    let primary = primary_of(nodes);
    let readers: Vec<usize> = (0..nodes.len()).filter(|at| nodes[*at].is_reader()).collect();
    let reader = two(nodes, &readers, random, None);
    match need {
        Need::Write => primary,
        Need::Strong => strong(policy, nodes, &readers, random),
        Need::Session(token) => {
            let near = readers.iter().copied().filter(|at| nodes[*at].is_near(token));
            let near: Vec<usize> = near.collect();
            let found = two(nodes, &near, random, Some(token));
            // A reader catches up, and the primary has it.
            found.or_else(|| strong(policy, nodes, &readers, random)).or(primary)
        }
        Need::Prefix => last.filter(|at| readers.contains(at)).or(reader).or(primary),
        Need::Weak => reader.or(primary),
    }
}

/// The node for a read of everything.
fn strong(
    policy: Policy,
    nodes: &[NodeView],
    readers: &[usize],
    random: [usize; 2],
) -> Option<usize> {
    let primary = primary_of(nodes);
    let newest = primary.and_then(|at| nodes[at].position);
    let able = readers.iter().copied().filter(|at| nodes[*at].may_be_strong(newest));
    let able: Vec<usize> = able.collect();
    let primary = primary.filter(|at| nodes[*at].role == Some(NodeRole::Primary));
    let found = match policy {
        Policy::Optimal => primary.or_else(|| two(nodes, &able, random, None)),
        Policy::Offloaded => two(nodes, &able, random, None).or(primary),
        Policy::Cost => {
            let reader = two(nodes, &able, random, newest);
            reader.into_iter().chain(primary).min_by_key(|at| nodes[*at].cost(newest))
        }
    };
    found.or_else(|| two(nodes, readers, random, None))
}

/// The cheaper one of two random nodes: less is known of all than it seems, and all routers would take the same best one.
fn two(
    nodes: &[NodeView],
    among: &[usize],
    random: [usize; 2],
    newest: Option<Commit>,
) -> Option<usize> {
    if among.is_empty() {
        return None;
    }
    let first = random[0] % among.len();
    // Another one, if there is another.
    let second = (first + 1 + random[1] % (among.len() - 1).max(1)) % among.len();
    // Ties go to the first, which is random.
    [among[first], among[second]]
        .into_iter()
        .min_by_key(|at| if newest.is_some() { nodes[*at].cost(newest) } else { nodes[*at].load })
}

#[cfg(test)]
mod tests {
    use siltstone::{Epoch, SeqNo};

    use super::*;

    fn commit(epoch: u32, seq: u64) -> Commit {
        Commit { epoch: Epoch(epoch), seq: SeqNo::new(seq).unwrap() }
    }

    /// `p` primary, `b` primary of a bucket, `r` reader, `s` stuck one, `f` reader of a bucket, `-` down; then the load, the time of a request and the position.
    fn node(role: char, load: u64, micros: u64, position: Commit) -> NodeView {
        let is_stuck = role == 's';
        let role = match role {
            'p' => Some(NodeRole::Primary),
            'b' => Some(NodeRole::BucketPrimary),
            'r' | 's' => Some(NodeRole::Reader),
            'f' => Some(NodeRole::BucketReader),
            _ => None,
        };
        NodeView { role, load, micros, position: Some(position), is_stuck }
    }

    /// A name, the request, the nodes, and those that may be chosen.
    type Case<'a> = (&'a str, Policy, Need, &'a [NodeView], &'a [usize]);

    /// All nodes that are chosen with some random numbers.
    fn chosen(policy: Policy, need: Need, nodes: &[NodeView], last: Option<usize>) -> Vec<usize> {
        let randoms = (0..6).flat_map(|one| (0..6).map(move |other| [one, other]));
        let found = randoms.filter_map(|random| choose(policy, need, nodes, last, random));
        let mut found: Vec<usize> = found.collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    #[test]
    fn each_request_goes_where_its_level_is_cheap() {
        use Need::{Prefix, Session, Strong, Weak, Write};
        use Policy::{Cost, Offloaded, Optimal};
        let new = commit(2, 900);
        let old = commit(2, 100);
        let all = [node('p', 0, 50, new), node('r', 0, 50, new), node('r', 0, 50, old)];
        let busy = [node('p', 99, 50, new), node('r', 3, 50, new), node('r', 1, 50, old)];
        let late = [node('p', 9, 50, new), node('r', 0, 50, old)];
        let alone = [node('p', 0, 50, new), node('-', 0, 50, new)];
        let orphans = [node('-', 0, 50, new), node('r', 0, 50, new), node('r', 0, 50, old)];
        let far = commit(2, 900 + NEAR);
        let bucket = [node('b', 0, 50, new), node('f', 9, 50, old)];
        let buckets = [node('p', 0, 50, new), node('f', 0, 50, new), node('f', 0, 50, old)];
        let lonely_bucket = [node('b', 0, 50, new)];
        let both = [node('p', 0, 50, commit(2, 950)), node('p', 0, 50, commit(3, 940))];
        let stuck = [node('p', 99, 50, new), node('r', 9, 50, old), node('s', 0, 50, old)];
        let all_stuck = [node('p', 99, 50, new), node('s', 0, 50, old)];
        let none_moves = [node('p', 99, 50, new), node('s', 0, 50, old), node('s', 0, 50, new)];
        let all_down = [node('-', 0, 50, new)];
        let cases: &[Case<'_>] = &[
            ("writes go to the primary", Cost, Write, &all, &[0]),
            ("the later epoch is the primary", Cost, Write, &both, &[1]),
            ("a write needs a primary", Cost, Write, &orphans, &[]),
            ("strong reads of Optimal go to it", Optimal, Strong, &all, &[0]),
            ("and to readers without it", Optimal, Strong, &orphans, &[1, 2]),
            ("Offloaded takes readers", Offloaded, Strong, &all, &[1, 2]),
            ("the one with less load", Offloaded, Strong, &busy, &[2]),
            ("and the primary without readers", Offloaded, Strong, &alone, &[0]),
            ("an idle primary costs least", Cost, Strong, &late, &[0]),
            ("a busy one costs more than a reader", Cost, Strong, &busy, &[1]),
            ("the primary of a bucket has no level 1", Optimal, Strong, &bucket, &[1]),
            ("so there is none without a reader", Cost, Strong, &lonely_bucket, &[]),
            ("level 3 takes a reader with the token", Optimal, Session(old), &all, &[1, 2]),
            ("or one that lacks little", Optimal, Session(far), &all, &[1]),
            ("which has less to do", Cost, Session(new), &late, &[1]),
            ("but not of a bucket", Optimal, Session(new), &buckets, &[1]),
            ("or the primary if none has it", Optimal, Session(commit(2, 901 + NEAR)), &all, &[0]),
            ("or a reader that catches up", Offloaded, Session(commit(2, 901)), &buckets, &[1, 2]),
            ("the primary of a bucket, too", Cost, Session(new), &lonely_bucket, &[0]),
            ("a later epoch is another history", Optimal, Session(commit(3, NEAR + 1)), &all, &[0]),
            ("level 3 takes no stuck reader", Offloaded, Session(new), &stuck, &[1]),
            ("and no strong read does", Offloaded, Strong, &stuck, &[1]),
            ("unless the reader lacks nothing", Offloaded, Strong, &none_moves, &[2]),
            ("the primary is better", Offloaded, Session(new), &all_stuck, &[0]),
            ("it is better than none", Offloaded, Strong, &all_stuck[1..], &[0]),
            ("a weak read takes it", Cost, Weak, &stuck, &[2]),
            ("level 4 takes a reader", Cost, Prefix, &all, &[1, 2]),
            ("level 5 the less loaded of two", Cost, Weak, &busy, &[2]),
            ("or the primary", Cost, Weak, &alone, &[0]),
            ("nothing is up", Cost, Weak, &all_down, &[]),
            ("there is nothing", Optimal, Strong, &[], &[]),
        ];
        for (case, policy, need, nodes, expected) in cases {
            assert_eq!(chosen(*policy, *need, nodes, None), *expected, "{case}");
        }
        assert_eq!(chosen(Cost, Prefix, &all, Some(2)), [2], "level 4 stays at its reader");
        assert_eq!(chosen(Cost, Prefix, &all, Some(0)), [1, 2], "which is no primary");
    }

    #[test]
    fn of_many_readers_the_most_loaded_is_never_taken() {
        let at = commit(1, 1);
        let nodes: Vec<NodeView> = (0..5).map(|load| node('r', load, 50, at)).collect();
        assert_eq!(chosen(Policy::Cost, Need::Weak, &nodes, None), [0, 1, 2, 3]);
    }

    #[test]
    fn policies_are_read_as_written() {
        for policy in [Policy::Optimal, Policy::Offloaded, Policy::Cost] {
            assert_eq!(Policy::parse(&policy.to_string().to_uppercase()), Some(policy));
        }
        assert_eq!(Policy::parse("other"), None);
    }
}
