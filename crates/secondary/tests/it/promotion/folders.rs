//! Folders whose paths change under a secondary.

#![expect(clippy::disallowed_methods, reason = "it swaps folders as a user does")]

use super::*;

/// The secondary follows its folder, whatever its name is. A promotion and a verification used to
/// open the name.
#[test]
fn a_promotion_takes_over_the_database_that_is_followed() {
    let root = tempfile::tempdir().unwrap();
    let [ours, other, away] = ["ours", "other", "away"].map(|name| root.path().join(name));
    let old = open_at(&ours);
    let bystander = open_at(&other);
    for (db, value) in [(&old, "ours"), (&bystander, "other")] {
        db.partition("p").unwrap().put("k", value).unwrap();
    }
    let follower = Secondary::builder(&ours).options(options()).open().unwrap();
    let seen = follower.partition("p").unwrap().at(Level::Strong).unwrap().get("k").unwrap();
    assert_eq!(seen.as_deref(), Some(&b"ours"[..]));
    for (from, to) in [(&ours, &away), (&other, &ours), (&away, &other)] {
        std::fs::rename(from, to).unwrap();
    }
    let report = follower.verify(VerifyOptions::default()).unwrap();
    assert!(report.damage().is_empty());
    // The fence, the claim, the lease, and the files of the new primary, are in the folder that was
    // followed.
    let new = follower.promotion().options(options()).open().unwrap();
    let p = new.open_partition("p").unwrap();
    assert_eq!(p.get("k").unwrap().as_deref(), Some(&b"ours"[..]));
    p.put("l", "new").unwrap();
    p.flush().unwrap();
    bystander.partition("p").unwrap().put("l", "it goes on").unwrap();
    let refused = old.partition("p").unwrap().put("l", "late").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced);
    assert!(names_in(&other).iter().any(|name| name.starts_with("epoch-")));
    assert!(names_in(&ours).iter().all(|name| !name.starts_with("epoch-")));
    new.checkpoint(root.path().join("copy")).unwrap();
    let copy = open_at(&root.path().join("copy"));
    let copied = copy.open_partition("p").unwrap().get("l").unwrap();
    assert_eq!(copied.as_deref(), Some(&b"new"[..]));
    new.close().unwrap();
    bystander.close().unwrap();
    let again = open_at(&other);
    assert_eq!(again.open_partition("p").unwrap().get("l").unwrap().as_deref(), Some(&b"new"[..]));
}

fn open_at(path: &Path) -> Db {
    Db::builder(path).options(options()).open().unwrap()
}

fn names_in(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).unwrap().map(Result::unwrap);
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}
