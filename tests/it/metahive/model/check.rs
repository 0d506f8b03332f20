//! Compares every read of a store with its model.

use super::*;

/// The results that a check accepts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    /// All of them are right or errors.
    All,
    /// Verified reads are right or errors; plain reads trust a checksum that matches.
    Verified,
}

/// The part of a store whose reads return errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Loud {
    pub(super) keys: usize,
}

/// Compares every read with the model.
#[track_caller]
pub(super) fn check(store: &Store, reads: Reads, about: &dyn Fn() -> String) -> Loud {
    let Store { p, now, snapshots, .. } = store;
    let mut loud = Loud::default();
    let all: Vec<Vec<u8>> = now.keys().cloned().collect();
    let probes = all.iter().flat_map(|key| {
        let mut beside = key.clone();
        *beside.last_mut().unwrap() ^= 1;
        [key.clone(), beside, [&key[..], b"!"].concat()]
    });
    for key in probes {
        let expected = now.get(&key).and_then(Option::as_deref);
        if reads == Reads::All {
            loud.keys += usize::from(judge(&key, p.get(&key), expected, "get", about));
        }
        let verified = p.verified_get(&key).map(|found| found.map(|found| found.value));
        judge(&key, verified, expected, "verified get", about);
        for (snapshot, then) in snapshots {
            let expected = then.get(&key).and_then(Option::as_deref);
            if reads == Reads::All {
                judge(&key, snapshot.get(p, &key), expected, "get at a snapshot", about);
            }
            let verified = snapshot.verified_get(p, &key);
            let verified = verified.map(|found| found.map(|found| found.value));
            judge(&key, verified, expected, "verified get at a snapshot", about);
        }
    }
    let mut expected = pairs_of(now);
    walk(values(p.verified_range(..)), &expected, "verified scan", about);
    if reads == Reads::All {
        walk(p.iter(), &expected, "scan", about);
        let keys = p.keys().collect::<Result<Vec<_>, _>>().map(|keys| keys.len());
        assert!(keys.is_err() || keys.is_ok_and(|n| n == expected.len()), "count: {}", about());
    }
    for (snapshot, then) in snapshots {
        let expected = pairs_of(then);
        let scan = snapshot.verified_range(p, ..);
        walk(values(scan), &expected, "verified scan at a snapshot", about);
        if reads == Reads::All {
            walk(snapshot.iter(p), &expected, "scan at a snapshot", about);
        }
    }
    if reads == Reads::All {
        expected.reverse();
        walk(p.iter().rev(), &expected, "scan backwards", about);
    }
    loud
}

/// The keys that have a value.
fn pairs_of(model: &Model) -> Vec<(Vec<u8>, Vec<u8>)> {
    model.iter().filter_map(|(key, value)| Some((key.clone(), value.clone()?))).collect()
}

fn values(
    range: metahive::VerifiedRange,
) -> impl Iterator<Item = siltstone::Result<(siltstone::Slice, siltstone::Slice)>> {
    range.map(|pair| pair.map(|(key, found)| (key, found.value)))
}

/// Returns `true` if the result is an error. Otherwise it must be the true value.
#[track_caller]
fn judge(
    key: &[u8],
    found: siltstone::Result<Option<siltstone::Slice>>,
    expected: Option<&[u8]>,
    by: &str,
    about: &dyn Fn() -> String,
) -> bool {
    let key = key.escape_ascii();
    match found {
        Err(error) => {
            assert!(error.is_corruption(), "{by} of {key}: {error}: {}", about());
            true
        }
        Ok(found) => {
            assert_eq!(found.as_deref(), expected, "{by} of {key}: {}", about());
            false
        }
    }
}

/// A scan returns the pairs from the first one on, and either all of them or an error.
#[track_caller]
fn walk(
    scan: impl Iterator<Item = siltstone::Result<(siltstone::Slice, siltstone::Slice)>>,
    expected: &[(Vec<u8>, Vec<u8>)],
    by: &str,
    about: &dyn Fn() -> String,
) {
    let mut all = expected.iter();
    for pair in scan {
        match pair {
            Err(error) => {
                assert!(error.is_corruption(), "{by}: {error}: {}", about());
                return;
            }
            Ok((key, value)) => {
                let next = all.next().map(|(key, value)| (&key[..], &value[..]));
                assert_eq!(Some((&key[..], &value[..])), next, "{by}: {}", about());
            }
        }
    }
    assert_eq!(all.next(), None, "{by} ended too early: {}", about());
}
