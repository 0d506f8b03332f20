//! [`check_registers`]: a checker of linearizability, for histories of calls on registers.
//!
//! A history is linearizable if each call can be given one moment between its begin and its end, so that each read
//! returns the value of the last write before it. A history of several registers is so if that of each register is. For
//! one register the checker walks through the begins and ends in their order, with all states that are possible: the value,
//! and the pending calls that have had their moment (Wing and Gong, with the moments as late as possible). At the end of
//! a call each state needs its moment; a history without a state left is not linearizable.
//!
//! A call with an unknown outcome has no end: its moment may come at any time, or never.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;

/// The value of a register before the first write.
pub const INITIAL: u64 = 0;
/// More states than a history with a handful of clients has.
const STATES_MAX: usize = 1 << 20;

/// A call on a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterCall {
    /// Sets the value.
    Write(u64),
    /// Returned the value.
    Read(u64),
}

/// A call, and its time. Times are of one clock, and all different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The register.
    pub key: u64,
    /// The call, with its outcome.
    pub call: RegisterCall,
    /// Not after the call began.
    pub begun: u64,
    /// Not before the call ended; `None` if its outcome is unknown.
    pub ended: Option<u64>,
}

/// A call for which no moment is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The call.
    pub operation: Operation,
    /// The calls on its register that ran at the same time, or shortly before.
    pub near: Vec<Operation>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "no moment is left for {:?}; near it:", self.operation)?;
        self.near.iter().try_for_each(|operation| writeln!(f, "{operation:?}"))
    }
}

/// The value, and the pending calls that have had their moment.
type State = (u64, BTreeSet<usize>);

/// Checks a history of calls on registers.
///
/// # Errors
/// The first call, by its end, that makes a register's history not linearizable.
///
/// # Panics
/// If so many calls on one register run at the same time that the states have no bound.
pub fn check_registers(history: &[Operation]) -> Result<(), Violation> {
    let mut registers: BTreeMap<u64, Vec<Operation>> = BTreeMap::new();
    for operation in history {
        registers.entry(operation.key).or_default().push(*operation);
    }
    registers.values().try_for_each(|operations| check_register(operations))
}

fn check_register(operations: &[Operation]) -> Result<(), Violation> {
    let read: HashSet<u64> = operations
        .iter()
        .filter_map(|operation| match operation.call {
            RegisterCall::Read(value) if operation.ended.is_some() => Some(value),
            _ => None,
        })
        .collect();
    let mut events = Vec::new();
    for (at, operation) in operations.iter().enumerate() {
        // An open call that no one has seen may never have its moment.
        let is_seen = matches!(operation.call, RegisterCall::Write(value) if read.contains(&value));
        if operation.ended.is_some() || is_seen {
            events.push((operation.begun, at, false));
            events.extend(operation.ended.map(|ended| (ended, at, true)));
        }
    }
    events.sort_unstable();
    let mut pending = BTreeSet::new();
    let mut states: HashSet<State> = HashSet::from([(INITIAL, BTreeSet::new())]);
    for (_, at, is_end) in events {
        if !is_end {
            pending.insert(at);
            continue;
        }
        states = end(operations, &pending, &states, at);
        assert!(states.len() <= STATES_MAX, "{} states at {:?}", states.len(), operations[at]);
        pending.remove(&at);
        if states.is_empty() {
            return Err(violation(operations, at));
        }
        forget(&mut pending, &mut states, operations);
    }
    Ok(())
}

/// The states after the end of the call `at`, in which it has had its moment.
fn end(
    operations: &[Operation],
    pending: &BTreeSet<usize>,
    states: &HashSet<State>,
    at: usize,
) -> HashSet<State> {
    let mut ended = HashSet::new();
    let mut met: HashSet<State> = states.clone();
    let mut left: Vec<State> = states.iter().cloned().collect();
    while let Some((value, mut done)) = left.pop() {
        // A read changes nothing: its moment may as well be now.
        let waiting = pending.iter().filter(|other| !done.contains(other));
        let reads = waiting.filter(|other| operations[**other].call == RegisterCall::Read(value));
        let reads: Vec<usize> = reads.copied().collect();
        done.extend(reads);
        if done.remove(&at) {
            ended.insert((value, done));
            continue;
        }
        for other in pending.iter().filter(|other| !done.contains(other)) {
            let RegisterCall::Write(written) = operations[*other].call else { continue };
            let mut next = (written, done.clone());
            next.1.insert(*other);
            if met.insert(next.clone()) {
                left.push(next);
            }
        }
        assert!(met.len() <= STATES_MAX, "too many calls run at the same time");
    }
    ended
}

/// Forgets open calls that have had their moment in each state.
fn forget(pending: &mut BTreeSet<usize>, states: &mut HashSet<State>, operations: &[Operation]) {
    let open = pending.iter().filter(|at| operations[**at].ended.is_none());
    let settled = open.filter(|at| states.iter().all(|(_, done)| done.contains(at)));
    let settled: BTreeSet<usize> = settled.copied().collect();
    if settled.is_empty() {
        return;
    }
    pending.retain(|at| !settled.contains(at));
    let forgotten = states.drain().map(|(value, done)| (value, &done - &settled));
    *states = forgotten.collect();
}

fn violation(operations: &[Operation], at: usize) -> Violation {
    let operation = operations[at];
    let mut near: Vec<Operation> =
        operations.iter().filter(|other| Some(other.begun) < operation.ended).copied().collect();
    near.sort_unstable_by_key(|other| other.ended.unwrap_or(u64::MAX));
    // Those that end last, and are of interest: the others are long settled.
    let ended = near.iter().filter(|other| other.ended.is_some()).count();
    near.drain(..ended.saturating_sub(20));
    Violation { operation, near }
}

#[cfg(test)]
mod tests {
    use RegisterCall::{Read, Write};

    use super::*;
    use crate::Rng;

    fn operation(call: RegisterCall, begun: u64, ended: u64) -> Operation {
        Operation { key: 1, call, begun, ended: Some(ended).filter(|ended| *ended > 0) }
    }

    fn check(operations: &[Operation], expected: bool) {
        assert_eq!(check_registers(operations).is_ok(), expected, "{operations:?}");
    }

    #[test]
    fn what_an_order_explains_passes() {
        check(&[operation(Read(INITIAL), 1, 2), operation(Write(1), 3, 4)], true);
        // During a write a reader sees either value, and an open write may come late.
        check(
            &[operation(Write(1), 1, 9), operation(Read(0), 2, 3), operation(Read(1), 4, 5)],
            true,
        );
        check(
            &[operation(Write(1), 1, 0), operation(Read(0), 2, 3), operation(Read(1), 40, 50)],
            true,
        );
        let writes =
            [operation(Write(1), 1, 10), operation(Write(2), 2, 11), operation(Write(3), 3, 12)];
        let reads = [operation(Read(3), 4, 5), operation(Read(1), 6, 7), operation(Read(2), 8, 9)];
        check(&[&writes[..], &reads].concat(), true);
        // Registers have nothing to do with each other.
        let other = Operation { key: 2, ..operation(Read(0), 6, 7) };
        check(&[operation(Write(1), 1, 2), operation(Read(1), 4, 5), other], true);
    }

    #[test]
    fn what_no_order_explains_is_found() {
        // A stale read; a value that goes back; the future; a value that is of no write.
        check(&[operation(Write(1), 1, 2), operation(Read(0), 3, 4)], false);
        check(
            &[operation(Write(1), 1, 9), operation(Read(1), 2, 3), operation(Read(0), 4, 5)],
            false,
        );
        check(
            &[operation(Write(1), 1, 0), operation(Read(1), 2, 3), operation(Read(0), 4, 5)],
            false,
        );
        check(&[operation(Read(1), 1, 2), operation(Write(1), 3, 4)], false);
        check(&[operation(Write(1), 1, 0), operation(Read(2), 2, 3)], false);
        // Two readers see two writes in different orders.
        let writes = [operation(Write(1), 1, 20), operation(Write(2), 2, 21)];
        let one = [operation(Read(1), 3, 4), operation(Read(2), 7, 8)];
        let other = [operation(Read(2), 5, 6), operation(Read(1), 9, 10)];
        check(&[&writes[..], &one, &other].concat(), false);
    }

    /// Tries all orders, by the definition.
    fn has_order(operations: &[Operation], value: u64) -> bool {
        if operations.iter().all(|operation| operation.ended.is_none()) {
            return true;
        }
        (0..operations.len()).any(|at| {
            let next = operations[at];
            let is_first = operations.iter().all(|it| it.ended.is_none_or(|end| end > next.begun));
            let after = match next.call {
                Write(written) => written,
                Read(read) if read == value => value,
                Read(_) => return false,
            };
            let mut rest = operations.to_vec();
            rest.remove(at);
            is_first && has_order(&rest, after)
        })
    }

    #[test]
    fn the_checker_finds_what_the_definition_finds() {
        let mut rng = Rng::from_env_or(7);
        let mut sound = 0;
        for _ in 0..4000 {
            let count = rng.range(2..7);
            let mut times: Vec<u64> = (1..=2 * count).collect();
            rng.shuffle(&mut times);
            let operations: Vec<_> = (0..count as usize)
                .map(|at| {
                    let [one, other] = [times[2 * at], times[2 * at + 1]];
                    // Also values that several writes have.
                    let value = rng.below(4);
                    let call = if rng.chance(1, 2) { Write(value) } else { Read(value) };
                    let ended = if rng.chance(1, 6) { 0 } else { one.max(other) };
                    operation(call, one.min(other), ended)
                })
                .collect();
            let expected = has_order(&operations, INITIAL);
            check(&operations, expected);
            sound += u64::from(expected);
        }
        assert!((500..3500).contains(&sound), "{sound} histories are linearizable");
    }
}
