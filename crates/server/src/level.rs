//! [`Wanted`]: the level that a read asks for; [`Served`]: the one that it got; tokens as text.

use std::fmt;
use std::time::Duration;

use siltstone::secondary::Level;
use siltstone::{Commit, Epoch, SeqNo};

use crate::failure::Failure;
use crate::reply::Reply;

/// The word for a token that its client does not know any more.
pub(crate) const LOST: &str = "LOST";

/// A commit as clients see it: `EPOCH-SEQUENCE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token(pub(crate) Commit);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0.epoch, self.0.seq.get())
    }
}

impl Token {
    pub(crate) fn parse(text: &[u8]) -> Result<Token, Failure> {
        let token = std::str::from_utf8(text).ok().and_then(Token::read);
        token.ok_or(Failure::fixed("ERR a token is EPOCH-SEQUENCE, as SCID.TOKEN returns it"))
    }

    /// Reads the argument of `SCID.TOKEN`; `None` for `LOST`.
    pub(crate) fn named(text: &[u8]) -> Result<Option<Commit>, Failure> {
        if text.eq_ignore_ascii_case(LOST.as_bytes()) {
            return Ok(None);
        }
        Token::parse(text).map(|token| Some(token.0))
    }

    fn read(text: &str) -> Option<Token> {
        let (epoch, seq) = text.split_once('-')?;
        let epoch = epoch.parse().ok().map(Epoch)?;
        let seq = seq.parse().ok().and_then(SeqNo::new)?;
        Some(Token(Commit { seq, epoch }))
    }
}

/// Returns the newer of two tokens. A later epoch continues the history of the one before, and none has the number 0:
/// a reader that has seen nothing names that.
pub(crate) fn newer(one: Option<Commit>, other: Commit) -> Option<Commit> {
    let is_newer = one.is_none_or(|one| (other.epoch, other.seq) > (one.epoch, one.seq));
    if is_newer && other.epoch > Epoch(0) { Some(other) } else { one }
}

/// The level that a read asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The strongest level that the node can serve.
    Auto,
    /// This level. Level 3 without a token is that of the connection's newest token.
    Number(u8),
}

impl Wanted {
    /// Reads `1` to `5`, or `AUTO`.
    pub fn parse(text: &str) -> Option<Wanted> {
        if text.eq_ignore_ascii_case("auto") {
            return Some(Wanted::Auto);
        }
        text.parse().ok().filter(|number| (1..=5).contains(number)).map(Wanted::Number)
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wanted::Auto => f.write_str("AUTO"),
            Wanted::Number(number) => number.fmt(f),
        }
    }
}

/// The age that a read at a predicted level 2 allows: a level 2 without a bound would promise nothing.
const PREDICTED_AGE: Duration = Duration::from_secs(1);

/// The options of one read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) level: Option<Wanted>,
    /// The level of a read that has none: predicted here or by a router.
    pub(crate) predicted: Option<u8>,
    pub(crate) token: Option<Commit>,
    pub(crate) age: Option<Duration>,
    pub(crate) operations: Option<u64>,
}

impl Asked {
    /// The level that the read names, or implies.
    fn own(&self) -> Option<Wanted> {
        let implied = match (self.token, self.age, self.operations) {
            (Some(_), ..) => Some(Wanted::Number(3)),
            (None, None, None) => None,
            (None, ..) => Some(Wanted::Number(2)),
        };
        self.level.or(implied)
    }

    /// The number of the level that the read names. `AUTO` asks for the strongest.
    pub(crate) fn named(&self) -> Option<u8> {
        self.own().map(|wanted| match wanted {
            Wanted::Auto => 1,
            Wanted::Number(number) => number,
        })
    }

    /// Returns whether someone has asked for level 3. `given` is the level of the connection or of the partition.
    pub(crate) fn is_third(&self, given: Option<Wanted>) -> bool {
        self.own().or(given) == Some(Wanted::Number(3))
    }

    /// Returns whether no one has asked for a level.
    pub(crate) fn is_open(&self, given: Option<Wanted>) -> bool {
        self.own().or(given).is_none()
    }

    /// Returns the level, and whether a weaker one may take its place. `given` is the level of the connection or of
    /// the partition, `seen` the newest token of the connection.
    pub(crate) fn level(
        &self,
        given: Option<Wanted>,
        seen: Option<Commit>,
    ) -> Result<(Level, bool), Failure> {
        let number = match (self.own().or(given), self.predicted) {
            (Some(Wanted::Number(number)), _) => number,
            // As with `AUTO`, no one has asked for this level, so the read is not refused for it.
            (None, Some(number)) => return Ok((level_of(number, seen, Some(PREDICTED_AGE)), true)),
            (Some(Wanted::Auto), _) | (None, None) => return Ok((Level::Strong, true)),
        };
        let has_bounds = self.age.is_some() || self.operations.is_some();
        if has_bounds && number != 2 {
            return Err(Failure::error("MAXAGE and MAXLAG are of level 2"));
        }
        if self.token.is_some() && number != 3 {
            return Err(Failure::error("TOKEN is of level 3"));
        }
        let level = match number {
            2 => Level::Bounded { operations: self.operations, age: self.age },
            _ => level_of(number, self.token.or(seen), None),
        };
        Ok((level, false))
    }
}

/// The level with this number, for a session that has seen `token`.
fn level_of(number: u8, token: Option<Commit>, age: Option<Duration>) -> Level {
    match number {
        1 => Level::Strong,
        2 => Level::Bounded { operations: None, age },
        3 => token.map_or(Level::Eventual, Level::Session),
        4 => Level::Prefix,
        _ => Level::Eventual,
    }
}

/// The level at which a read was served, and the newest commit that it may have seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) level: u8,
    pub(crate) as_of: Commit,
    pub(crate) is_primary: bool,
    /// The partition exists.
    pub(crate) has_partition: bool,
}

impl Served {
    pub(crate) fn pairs(&self) -> Vec<(Reply, Reply)> {
        let node = if self.is_primary { "primary" } else { "reader" };
        vec![
            (Reply::text("level"), Reply::Integer(i64::from(self.level))),
            (Reply::text("token"), Reply::text(Token(self.as_of).to_string())),
            (Reply::text("node"), Reply::text(node)),
        ]
    }
}

/// The number of a level.
pub(crate) fn number_of(level: Level) -> u8 {
    match level {
        Level::Strong => 1,
        Level::Bounded { .. } => 2,
        Level::Session(_) => 3,
        Level::Prefix => 4,
        _ => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> Option<Commit> {
        Token::parse(text.as_bytes()).ok().map(|token| token.0)
    }

    #[test]
    fn tokens_are_read_as_written() {
        let commit = token("3-1042").unwrap();
        assert_eq!((commit.epoch, commit.seq.get()), (Epoch(3), 1042));
        assert_eq!(Token(commit).to_string(), "3-1042");
        for wrong in ["", "3", "-", "3-", "a-1", "3-99999999999999999999", "4294967296-1"] {
            assert_eq!(token(wrong), None, "{wrong}");
        }
        assert_eq!(newer(token("3-9"), token("4-1").unwrap()), token("4-1"));
        assert_eq!(newer(token("3-9"), token("3-8").unwrap()), token("3-9"));
        assert_eq!(newer(None, token("0-0").unwrap()), None);
    }

    #[test]
    fn options_imply_their_level() {
        let seen = token("1-7");
        let asked = Asked::default();
        let third = Some(Wanted::Number(3));
        assert_eq!(asked.level(None, seen).unwrap(), (Level::Strong, true));
        assert_eq!(asked.level(Some(Wanted::Auto), seen).unwrap(), (Level::Strong, true));
        assert_eq!(asked.level(third, None).unwrap().0, Level::Eventual);
        assert_eq!(asked.level(third, seen).unwrap().0, Level::Session(seen.unwrap()));
        let bounded = Asked { operations: Some(5), ..asked };
        let expected = Level::Bounded { operations: Some(5), age: None };
        assert_eq!(bounded.level(Some(Wanted::Number(4)), seen).unwrap().0, expected);
        let of_token = Asked { token: token("1-9"), ..asked };
        assert_eq!(number_of(of_token.level(None, seen).unwrap().0), 3);
        assert!(Asked { level: Some(Wanted::Number(1)), ..bounded }.level(None, seen).is_err());
        assert!(Asked { level: Some(Wanted::Number(5)), ..of_token }.level(None, seen).is_err());
    }

    #[test]
    fn a_predicted_level_comes_after_all_others() {
        let seen = token("1-7");
        let predicted = Asked { predicted: Some(5), ..Asked::default() };
        let first = Asked { level: Some(Wanted::Number(1)), ..predicted };
        let auto = Asked { level: Some(Wanted::Auto), ..predicted };
        assert_eq!(predicted.level(None, seen).unwrap(), (Level::Eventual, true));
        assert_eq!(predicted.level(Some(Wanted::Auto), seen).unwrap(), (Level::Strong, true));
        assert_eq!(predicted.level(Some(Wanted::Number(4)), seen).unwrap(), (Level::Prefix, false));
        assert_eq!(first.level(Some(Wanted::Number(4)), seen).unwrap(), (Level::Strong, false));
        assert_eq!(auto.level(Some(Wanted::Number(4)), seen).unwrap(), (Level::Strong, true));
        let second = Asked { predicted: Some(2), ..Asked::default() };
        let bounded = Level::Bounded { operations: None, age: Some(PREDICTED_AGE) };
        assert_eq!(second.level(None, seen).unwrap(), (bounded, true));
        let third = Asked { predicted: Some(3), ..Asked::default() };
        assert!(third.is_open(None) && !third.is_third(None) && !third.is_open(Some(Wanted::Auto)));
        assert_eq!(third.level(None, None).unwrap(), (Level::Eventual, true));
    }
}
