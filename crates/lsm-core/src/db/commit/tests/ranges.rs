//! Requirements, and ranges of keys that other members of the group delete.

use super::*;

fn over(lower: Bound<&[u8]>, upper: Bound<&[u8]>, key: &'static str) -> Batch {
    let range = (lower.map(<[u8]>::to_vec), upper.map(<[u8]>::to_vec));
    Batch { requires: Some((Subject::Range(range), 1)), ..batch(key, 10, Durability::Os) }
}

/// A deleted range writes to each of its keys, and to no other one.
#[test]
fn requirements_see_that_an_earlier_member_of_the_group_deletes_a_range() {
    let path = Store::new(1 << 16);
    path.put("first", b"", Durability::Os).unwrap();
    let answers = path.commit_group(vec![
        batch(DELETE_RANGE, 0, Durability::Os),
        batch("b", 10, Durability::Os).requiring("first", 1),
        batch("c", 10, Durability::Os).requiring("p", 1),
        over(Bound::Unbounded, Bound::Included(b"d"), "r"),
        over(Bound::Unbounded, Bound::Excluded(b"b"), "s"),
        over(Bound::Excluded(b"o"), Bound::Unbounded, "t"),
        over(Bound::Included(b"p"), Bound::Excluded(b"q"), "u"),
    ]);
    let kinds: Vec<Option<ErrorKind>> =
        answers.into_iter().map(|answer| answer.err().map(|error| error.kind())).collect();
    let conflict = Some(ErrorKind::Conflict);
    assert_eq!(kinds, [None, conflict, None, conflict, None, conflict, None]);
    let verdicts = [("d", 1), ("d", 2), ("oz", 1), ("p", 1), ("czz", 1)];
    let verdicts = verdicts.map(|(key, at)| path.verdict(key, at));
    assert_eq!(verdicts, ["conflict", "holds", "conflict", "holds", "holds"]);
}
