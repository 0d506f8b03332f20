//! [`Keys`]: the keys of a request, for the check of their slots.

use bytes::Bytes;

use super::record::Record;
use super::slots::{SlotSet, slot_of};
use crate::commands::{COMMANDS, Spec};
use crate::failure::Failure;
use crate::session::{Queued, Watched};

/// The keys of a request.
#[derive(Clone, Copy)]
pub(crate) enum Keys<'a> {
    /// Those of a command with these arguments.
    Of(&'a Spec, &'a [Bytes]),
    /// Those of a transaction.
    Queued(&'a [Queued], &'a [Watched]),
    /// All keys of these slots.
    Slots(&'a SlotSet),
}

/// The keys among the arguments of a command.
pub(crate) fn keys_of<'a>(spec: &Spec, arguments: &'a [Bytes]) -> impl Iterator<Item = &'a Bytes> {
    // Counted from the name of the command on.
    let [first, last, step] = spec.keys.map(|place| usize::try_from(place).unwrap_or(usize::MAX));
    let count = if first == 0 { 0 } else { arguments.len().min(last) + 1 - first };
    arguments.iter().skip(first.saturating_sub(1)).take(count).step_by(step.max(1))
}

impl Keys<'_> {
    /// Refuses keys of slots that the shard does not own.
    pub(crate) fn check(&self, record: &Record) -> Result<(), Failure> {
        let refusal = match self {
            Keys::Of(spec, arguments) => {
                record.refusal(keys_of(spec, arguments).map(|key| slot_of(key)))
            }
            Keys::Queued(queue, watched) => {
                let queued =
                    queue.iter().flat_map(|it| keys_of(&COMMANDS[it.command], &it.arguments));
                let watched = watched.iter().map(|it| &it.key);
                record.refusal(queued.chain(watched).map(|key| slot_of(key)))
            }
            Keys::Slots(slots) => record.refusal(slots.slots()),
        };
        refusal.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::find;

    #[test]
    fn keys_are_those_of_the_command() {
        for (line, expected) in [
            ("GET a", "a"),
            ("SET a b EX 5", "a"),
            ("MSET a 1 b 2", "a b"),
            ("MGET a b c", "a b c"),
            ("SCAN 0 COUNT 5", ""),
            ("SCID.GET a LEVEL 1", "a"),
        ] {
            let words: Vec<Bytes> =
                line.split(' ').map(|it| Bytes::copy_from_slice(it.as_bytes())).collect();
            let spec = &COMMANDS[find(&words[0]).unwrap()];
            let keys = keys_of(spec, &words[1..]).map(|key| std::str::from_utf8(key).unwrap());
            assert_eq!(keys.collect::<Vec<_>>().join(" "), expected, "{line}");
        }
    }
}
