//! [`check_stored_key`]: the check of a stored key that enters a partition without a put.
//!
//! Called for the tables of an ingest, and for entries that a copy restores.

use crate::error::{Error, ErrorKind, Result};
use crate::hooks::Rules;
use crate::limits::check_key;
use crate::partition::{PartitionState, check_reserved};
use crate::types::KeyForm;

/// Checks a foreign stored key, in the form `theirs`, that enters the partition without a put: it is
/// refused if a put of it would be, or if the partition would store the key in another form. An entry
/// under such a key could not be found.
pub(in crate::db) fn check_stored_key(
    partition: &PartitionState,
    rules: &Rules,
    theirs: KeyForm,
    stored: &[u8],
) -> Result<()> {
    let own = partition.key_form;
    if !own.takes_any_key() {
        check_reserved(&partition.name, rules, stored)?;
    }
    let key = theirs.user(stored);
    let is_same = theirs.is_stored(stored) && own.with_stored(key, |own| own == stored);
    if is_same {
        return check_key(key);
    }
    let message = format!(
        "partition {:?} stores key \"{}\" in a different form than where it comes from",
        partition.name,
        stored.escape_ascii()
    );
    Err(Error::new(ErrorKind::InvalidArgument, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::drawing::draw;
    use crate::hooks::PartitionHooks;
    use crate::limits::USER_KEY_BYTES_MAX;

    /// The reason for which a partition of the form `own` refuses a stored key of the form
    /// `theirs`. If `own` does not take every key, it reserves keys that end in 1.
    fn refusal(own: KeyForm, theirs: KeyForm, stored: &[u8]) -> Option<ErrorKind> {
        let rules = Rules { reserved_suffix: vec![1], key_form: own, ..Rules::default() };
        let hooks = PartitionHooks { rules: rules.clone(), ..PartitionHooks::default() };
        let partition = PartitionState::alone(draw(""), hooks);
        let checked = check_stored_key(&partition, &rules, theirs, stored);
        checked.err().map(|error| error.kind())
    }

    #[test]
    fn a_key_comes_in_only_as_a_put_would_store_it() {
        use KeyForm::{AsGiven, Escaped, Terminated};
        let other_form = Some(ErrorKind::InvalidArgument);
        for own in [AsGiven, Escaped] {
            for theirs in [AsGiven, Escaped] {
                assert_eq!(refusal(own, theirs, b"plain"), None);
            }
        }
        assert_eq!(refusal(AsGiven, AsGiven, b"key\x01"), Some(ErrorKind::ReservedKey));
        assert_eq!(refusal(AsGiven, Escaped, b"key\x01\0"), other_form);
        assert_eq!(refusal(Escaped, Escaped, b"key\x01\0"), None);
        assert_eq!(refusal(Escaped, Escaped, b"key\x01"), other_form);
        assert_eq!(refusal(Escaped, AsGiven, b"key\0"), other_form);
        assert_eq!(refusal(Escaped, Terminated, b"key\0"), other_form);
        assert_eq!(refusal(Terminated, Terminated, b"key\0"), None);
        let longest = vec![b'k'; USER_KEY_BYTES_MAX];
        let too_long = vec![b'k'; USER_KEY_BYTES_MAX + 1];
        assert_eq!(refusal(AsGiven, AsGiven, &longest), None);
        assert_eq!(refusal(AsGiven, AsGiven, &too_long), Some(ErrorKind::LimitExceeded));
        assert_eq!(refusal(Escaped, AsGiven, &too_long), Some(ErrorKind::LimitExceeded));
    }
}
