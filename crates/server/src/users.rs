//! [`Users`]: names, passwords, and the partitions that a user may read or write.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use constant_time_eq::constant_time_eq;

use crate::failure::Failure;

/// The name of the first user, and that of the partition with the number 0.
pub(crate) const DEFAULT: &str = "default";

/// A right on a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    Read,
    Write,
}

/// The partitions of a right.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Partitions {
    All,
    Named(Vec<String>),
}

impl Partitions {
    fn has(&self, name: &str) -> bool {
        match self {
            Partitions::All => true,
            Partitions::Named(names) => names.iter().any(|it| it == name),
        }
    }

    fn parse(list: &str) -> Partitions {
        if list == "*" {
            return Partitions::All;
        }
        let names = list.split(',').filter(|name| !name.is_empty());
        Partitions::Named(names.map(str::to_owned).collect())
    }
}

/// A user.
#[derive(Clone)]
pub(crate) struct User {
    password: String,
    read: Partitions,
    write: Partitions,
}

/// Without the password.
impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User")
            .field("read", &self.read)
            .field("write", &self.write)
            .finish_non_exhaustive()
    }
}

impl User {
    /// Checks the right to a partition. The right to write includes that to read.
    pub(crate) fn check(&self, right: Right, partition: &str) -> Result<(), Failure> {
        let may_write = self.write.has(partition);
        let is_allowed = may_write || (right == Right::Read && self.read.has(partition));
        if is_allowed {
            return Ok(());
        }
        let deed = if right == Right::Read { "read" } else { "write" };
        let text = format!("NOPERM this user may not {deed} partition {partition:?}");
        Err(Failure::Refused(text.into()))
    }

    /// Returns whether the user may read all partitions.
    pub(crate) fn may_read_all(&self) -> bool {
        self.read == Partitions::All || self.write == Partitions::All
    }

    /// Checks the right to write all partitions, which commands on the node need.
    pub(crate) fn check_all(&self) -> Result<(), Failure> {
        if self.write == Partitions::All {
            return Ok(());
        }
        Err(Failure::fixed("NOPERM this command needs the right to write all partitions"))
    }
}

/// The users of a server. Without any, no password is needed.
#[derive(Clone, Debug, Default)]
pub struct Users {
    named: BTreeMap<String, Arc<User>>,
}

impl Users {
    /// Adds the user `default`, whose password `AUTH` takes without a name, with all rights.
    pub fn password(&mut self, password: &str) {
        let all = Partitions::All;
        let user = User { password: password.to_owned(), read: all.clone(), write: all };
        self.named.insert(DEFAULT.to_owned(), Arc::new(user));
    }

    /// Reads users, one a line: `NAME PASSWORD [read=PARTITION,...] [write=PARTITION,...]`. `*` is all partitions, and
    /// the right to write includes that to read. Empty lines and lines that begin with `#` are comments.
    ///
    /// # Errors
    /// The number of the line that is wrong. No password is in the text.
    pub fn parse(text: &str) -> Result<Users, String> {
        let mut users = Users::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let number = number + 1;
            let mut words = line.split_whitespace();
            let (Some(name), Some(password)) = (words.next(), words.next()) else {
                return Err(format!("line {number} of the users has no password"));
            };
            let none = Partitions::Named(Vec::new());
            let mut user = User { password: password.to_owned(), read: none.clone(), write: none };
            for word in words {
                match word.split_once('=') {
                    Some(("read", list)) => user.read = Partitions::parse(list),
                    Some(("write", list)) => user.write = Partitions::parse(list),
                    _ => {
                        return Err(format!(
                            "line {number} of the users has a right that is neither read= nor write="
                        ));
                    }
                }
            }
            if users.named.insert(name.to_owned(), Arc::new(user)).is_some() {
                return Err(format!("line {number} of the users has a name that is there already"));
            }
        }
        Ok(users)
    }

    pub(crate) fn need_password(&self) -> bool {
        !self.named.is_empty()
    }

    /// The user of a connection without `AUTH`, if there may be one.
    pub(crate) fn without_password(&self) -> Option<Arc<User>> {
        let all = Partitions::All;
        let user = User { password: String::new(), read: all.clone(), write: all };
        (!self.need_password()).then(|| Arc::new(user))
    }

    /// Returns the user. The time does not depend on how much of the password is right, nor on whether there is such
    /// a user.
    pub(crate) fn authenticate(&self, name: &[u8], password: &[u8]) -> Option<Arc<User>> {
        if !self.need_password() {
            return self.without_password();
        }
        let mut found = None;
        for (known, user) in &self.named {
            let is_name = constant_time_eq(known.as_bytes(), name);
            let is_password = constant_time_eq(user.password.as_bytes(), password);
            if is_name & is_password {
                found = Some(user.clone());
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_those_of_the_file() {
        let text =
            "# users\n\nalice secret read=users,posts write=posts\nroot key write=*\nnone x\n";
        let users = Users::parse(text).unwrap();
        let alice = users.authenticate(b"alice", b"secret").unwrap();
        assert!(
            alice.check(Right::Read, "users").is_ok()
                && alice.check(Right::Write, "users").is_err()
        );
        assert!(
            alice.check(Right::Read, "posts").is_ok() && alice.check(Right::Write, "posts").is_ok()
        );
        assert!(alice.check(Right::Read, "other").is_err() && alice.check_all().is_err());
        let root = users.authenticate(b"root", b"key").unwrap();
        assert!(root.check(Right::Read, "any").is_ok() && root.check_all().is_ok());
        assert!(users.authenticate(b"none", b"x").unwrap().check(Right::Read, "users").is_err());
        for (name, password) in
            [("alice", ""), ("alice", "secre"), ("alice", "key"), ("", ""), ("bob", "secret")]
        {
            assert!(users.authenticate(name.as_bytes(), password.as_bytes()).is_none());
        }
        assert!(!format!("{users:?}").contains("secret"));
    }

    #[test]
    fn wrong_lines_are_named_without_the_password() {
        for (text, line) in
            [("a", 1), ("\na b\na c", 3), ("a hidden write", 1), ("a hidden all=*", 1)]
        {
            let wrong = Users::parse(text).unwrap_err();
            assert!(
                wrong.starts_with(&format!("line {line} ")) && !wrong.contains("hidden"),
                "{wrong}"
            );
        }
        assert!(!Users::parse("# no user").unwrap().need_password());
    }
}
