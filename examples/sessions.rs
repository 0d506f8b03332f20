//! Sessions of users on a reader: each user sees their own writes and never goes back, and does not wait for those of
//! others. A token goes with the session, as in a cookie.
//!
//! `cargo run --example sessions`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use siltstone::secondary::{Level, SecondaryPartition};
use siltstone::{Commit, Db, Partition, Result};

/// The session of a user: the newest commit that it has written or seen.
#[derive(Default)]
struct Session {
    token: Option<Commit>,
}

impl Session {
    /// Writes at the primary.
    fn write(&mut self, posts: &Partition, key: &str, text: &str) -> Result<()> {
        self.see(posts.put(key, text)?);
        Ok(())
    }

    /// The number of posts on the reader, which is at least at the token.
    fn count(&mut self, posts: &SecondaryPartition) -> Result<usize> {
        let level = self.token.map_or(Level::Eventual, Level::Session);
        let reading = posts.at(level)?;
        self.see(reading.as_of());
        Ok(reading.iter().count())
    }

    fn see(&mut self, commit: Commit) {
        if self.token.is_none_or(|token| token.seq < commit.seq) {
            self.token = Some(commit);
        }
    }
}

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("siltstone-sessions-{}", std::process::id()));
    let db = Db::open(&folder)?;
    let posts = db.partition("posts")?;
    posts.put("1", "hello")?;
    // As a rule in another process, or on another machine.
    let reader = Db::secondary(&folder)?;
    let followed = reader.partition("posts")?;

    let mut alice = Session::default();
    let mut bob = Session::default();
    let first = bob.count(&followed)?;
    alice.write(&posts, "2", "by alice")?;
    let own = alice.count(&followed)?;
    assert_eq!(own, 2, "a session reads its own writes");
    println!("alice sees {own} posts after her write");
    let later = bob.count(&followed)?;
    assert!(later >= first, "a session never goes back");
    println!("bob saw {first} posts, and sees {later} now; he waited for no one");

    drop((followed, reader));
    db.close()?;
    let removed = std::fs::remove_dir_all(&folder);
    removed.expect("the folder can be removed");
    Ok(())
}
