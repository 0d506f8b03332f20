//! The table of commands: names, numbers of arguments, and the rights that they need.

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Append,
    Auth,
    Client,
    Command,
    Config,
    DbSize,
    Decr,
    DecrBy,
    Del,
    Discard,
    Echo,
    Exec,
    Exists,
    Get,
    GetRange,
    Hello,
    Incr,
    IncrBy,
    Info,
    MGet,
    MSet,
    Multi,
    Ping,
    Quit,
    Scan,
    ScidGet,
    ScidLag,
    ScidLast,
    ScidLevel,
    ScidMap,
    ScidNewest,
    ScidPart,
    ScidParts,
    ScidPredictions,
    ScidPromote,
    ScidScan,
    ScidSlots,
    ScidSync,
    ScidToken,
    Select,
    Set,
    StrLen,
    Unwatch,
    Watch,
}

/// The place in which a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// On the connection alone.
    Connection,
    /// On one key.
    Read,
    /// On many keys, which it sees at one moment.
    ReadMany,
    /// Reads and changes keys.
    Change,
    /// Asks or changes the node.
    Node,
}

/// The properties of a command before it runs.
#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) name: &'static str,
    pub(crate) verb: Verb,
    pub(crate) kind: Kind,
    /// The number of arguments with the name; if it is negative, the smallest one.
    pub(crate) arity: i64,
    /// The first and the last key, and the step between them, as `COMMAND` reports it.
    pub(crate) keys: [i64; 3],
}

const fn spec(name: &'static str, verb: Verb, kind: Kind, arity: i64, keys: [i64; 3]) -> Spec {
    Spec { name, verb, kind, arity, keys }
}

const NO_KEYS: [i64; 3] = [0; 3];
const ONE_KEY: [i64; 3] = [1, 1, 1];
const ALL_KEYS: [i64; 3] = [1, -1, 1];

/// All commands, by name.
pub(crate) const COMMANDS: [Spec; 45] = [
    spec("APPEND", Verb::Append, Kind::Change, 3, ONE_KEY),
    spec("AUTH", Verb::Auth, Kind::Connection, -2, NO_KEYS),
    spec("CLIENT", Verb::Client, Kind::Connection, -2, NO_KEYS),
    spec("COMMAND", Verb::Command, Kind::Connection, -1, NO_KEYS),
    spec("CONFIG", Verb::Config, Kind::Connection, -2, NO_KEYS),
    spec("DBSIZE", Verb::DbSize, Kind::ReadMany, 1, NO_KEYS),
    spec("DECR", Verb::Decr, Kind::Change, 2, ONE_KEY),
    spec("DECRBY", Verb::DecrBy, Kind::Change, 3, ONE_KEY),
    spec("DEL", Verb::Del, Kind::Change, -2, ALL_KEYS),
    spec("DISCARD", Verb::Discard, Kind::Connection, 1, NO_KEYS),
    spec("ECHO", Verb::Echo, Kind::Connection, 2, NO_KEYS),
    spec("EXEC", Verb::Exec, Kind::Connection, 1, NO_KEYS),
    spec("EXISTS", Verb::Exists, Kind::ReadMany, -2, ALL_KEYS),
    spec("GET", Verb::Get, Kind::Read, 2, ONE_KEY),
    spec("GETRANGE", Verb::GetRange, Kind::Read, 4, ONE_KEY),
    spec("HELLO", Verb::Hello, Kind::Connection, -1, NO_KEYS),
    spec("INCR", Verb::Incr, Kind::Change, 2, ONE_KEY),
    spec("INCRBY", Verb::IncrBy, Kind::Change, 3, ONE_KEY),
    spec("INFO", Verb::Info, Kind::Connection, -1, NO_KEYS),
    spec("MGET", Verb::MGet, Kind::ReadMany, -2, ALL_KEYS),
    spec("MSET", Verb::MSet, Kind::Change, -3, [1, -1, 2]),
    spec("MULTI", Verb::Multi, Kind::Connection, 1, NO_KEYS),
    spec("PING", Verb::Ping, Kind::Connection, -1, NO_KEYS),
    spec("QUIT", Verb::Quit, Kind::Connection, -1, NO_KEYS),
    spec("SCAN", Verb::Scan, Kind::ReadMany, -2, NO_KEYS),
    spec("SCID.GET", Verb::ScidGet, Kind::Read, -2, ONE_KEY),
    spec("SCID.LAG", Verb::ScidLag, Kind::Node, -1, NO_KEYS),
    spec("SCID.LAST", Verb::ScidLast, Kind::Connection, 1, NO_KEYS),
    spec("SCID.LEVEL", Verb::ScidLevel, Kind::Connection, -1, NO_KEYS),
    spec("SCID.MAP", Verb::ScidMap, Kind::Node, 1, NO_KEYS),
    spec("SCID.NEWEST", Verb::ScidNewest, Kind::Connection, 2, NO_KEYS),
    spec("SCID.PART", Verb::ScidPart, Kind::Node, -5, ONE_KEY),
    spec("SCID.PARTS", Verb::ScidParts, Kind::Connection, 2, NO_KEYS),
    spec("SCID.PREDICTIONS", Verb::ScidPredictions, Kind::Connection, 1, NO_KEYS),
    spec("SCID.PROMOTE", Verb::ScidPromote, Kind::Node, 1, NO_KEYS),
    spec("SCID.SCAN", Verb::ScidScan, Kind::ReadMany, -2, NO_KEYS),
    spec("SCID.SLOTS", Verb::ScidSlots, Kind::Node, -3, NO_KEYS),
    spec("SCID.SYNC", Verb::ScidSync, Kind::Node, -1, NO_KEYS),
    spec("SCID.TOKEN", Verb::ScidToken, Kind::Connection, -1, NO_KEYS),
    spec("SELECT", Verb::Select, Kind::Connection, 2, NO_KEYS),
    spec("SET", Verb::Set, Kind::Change, -3, ONE_KEY),
    spec("STRLEN", Verb::StrLen, Kind::Read, 2, ONE_KEY),
    spec("UNLINK", Verb::Del, Kind::Change, -2, ALL_KEYS),
    spec("UNWATCH", Verb::Unwatch, Kind::Connection, 1, NO_KEYS),
    spec("WATCH", Verb::Watch, Kind::Connection, -2, ALL_KEYS),
];

const NAME_BYTES_MAX: usize = 16;

/// Returns the index of the command `name` in [`COMMANDS`], in letters of any case.
pub(crate) fn find(name: &[u8]) -> Option<usize> {
    let mut upper = [0; NAME_BYTES_MAX];
    let upper = upper.get_mut(..name.len())?;
    upper.copy_from_slice(name);
    upper.make_ascii_uppercase();
    COMMANDS.binary_search_by(|spec| spec.name.as_bytes().cmp(upper)).ok()
}

impl Spec {
    /// Returns whether the number of arguments, with the name, is right.
    pub(crate) fn takes(&self, count: usize) -> bool {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        if self.arity < 0 { count >= -self.arity } else { count == self.arity }
    }

    /// Returns whether it reads data, and changes none.
    pub(crate) fn is_read(&self) -> bool {
        matches!(self.kind, Kind::Read | Kind::ReadMany)
    }

    /// Returns whether it may be in a transaction.
    pub(crate) fn is_queued(&self) -> bool {
        let is_data = matches!(self.kind, Kind::Read | Kind::ReadMany | Kind::Change);
        is_data && !matches!(self.verb, Verb::Scan | Verb::DbSize | Verb::ScidGet | Verb::ScidScan)
            || matches!(self.verb, Verb::Ping | Verb::Echo)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_found_by_its_name() {
        for (at, spec) in COMMANDS.iter().enumerate() {
            assert_eq!(find(spec.name.to_ascii_lowercase().as_bytes()), Some(at), "{}", spec.name);
        }
        for unknown in ["", "GETX", "GE", "LPUSH", "A-NAME-THAT-IS-LONGER-THAN-ALL-COMMANDS"] {
            assert_eq!(find(unknown.as_bytes()), None);
        }
    }
}
