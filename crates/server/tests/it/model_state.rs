//! [`State`]: what a server with these commands must answer.

use std::collections::{BTreeMap, BTreeSet};

type Key = (String, Vec<u8>);

/// An expected reply.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expected {
    Text(Vec<u8>),
    Number(i64),
    Nil,
    List(Vec<Expected>),
    Error,
}

impl Expected {
    fn count(count: usize) -> Expected {
        Expected::Number(i64::try_from(count).unwrap())
    }
}

fn ok() -> Expected {
    Expected::Text(b"OK".to_vec())
}

/// All entries, and the number of the last write to each key that ever was.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) entries: BTreeMap<Key, Vec<u8>>,
    touched: BTreeMap<Key, u64>,
    writes: u64,
}

/// A connection.
#[derive(Default)]
pub(crate) struct Connection {
    pub(crate) partition: String,
    queue: Option<Vec<Vec<Vec<u8>>>>,
    is_broken: bool,
    watched: BTreeSet<(Key, u64)>,
}

impl Connection {
    pub(crate) fn new() -> Connection {
        Connection { partition: "default".to_owned(), ..Connection::default() }
    }
}

fn key_of(partition: &str, key: &[u8]) -> Key {
    (partition.to_owned(), key.to_vec())
}

fn has(arguments: &[Vec<u8>], option: &[u8]) -> bool {
    arguments[2..].iter().any(|it| it == option)
}

fn number(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    text.parse().ok().filter(|number: &i64| number.to_string() == text)
}

impl State {
    fn write(&mut self, key: &Key, value: Option<Vec<u8>>) {
        self.writes += 1;
        self.touched.insert(key.clone(), self.writes);
        match value {
            Some(value) => drop(self.entries.insert(key.clone(), value)),
            None => drop(self.entries.remove(key)),
        }
    }

    fn version(&self, key: &Key) -> u64 {
        self.touched.get(key).copied().unwrap_or(0)
    }

    fn value(&self, key: &Key) -> Expected {
        self.entries.get(key).map_or(Expected::Nil, |value| Expected::Text(value.clone()))
    }

    /// Runs a request of a connection.
    pub(crate) fn run(&mut self, connection: &mut Connection, request: &[Vec<u8>]) -> Expected {
        let name = String::from_utf8(request[0].clone()).unwrap();
        let of_transaction = ["MULTI", "EXEC", "DISCARD", "WATCH"].contains(&name.as_str());
        if !of_transaction && let Some(queue) = &mut connection.queue {
            if name == "SELECT" || request.len() < 2 {
                connection.is_broken = true;
                return Expected::Error;
            }
            queue.push(request.to_vec());
            return Expected::Text(b"QUEUED".to_vec());
        }
        match name.as_str() {
            "MULTI" if connection.queue.is_some() => Expected::Error,
            "MULTI" => {
                connection.queue = Some(Vec::new());
                ok()
            }
            "DISCARD" if connection.queue.is_none() => Expected::Error,
            "DISCARD" => {
                *connection =
                    Connection { partition: connection.partition.clone(), ..Connection::default() };
                ok()
            }
            "EXEC" => self.exec(connection),
            "WATCH" if connection.queue.is_some() => {
                connection.is_broken = true;
                Expected::Error
            }
            "WATCH" => {
                for key in &request[1..] {
                    let key = (connection.partition.clone(), key.clone());
                    let version = self.version(&key);
                    connection.watched.insert((key, version));
                }
                ok()
            }
            "UNWATCH" => {
                connection.watched.clear();
                ok()
            }
            "SELECT" => {
                connection.partition = String::from_utf8(request[1].clone()).unwrap();
                ok()
            }
            _ => self.data(&connection.partition, request),
        }
    }

    fn exec(&mut self, connection: &mut Connection) -> Expected {
        let Some(queue) = connection.queue.take() else { return Expected::Error };
        let is_broken = std::mem::take(&mut connection.is_broken);
        let watched = std::mem::take(&mut connection.watched);
        if is_broken {
            return Expected::Error;
        }
        if watched.iter().any(|(key, version)| self.version(key) != *version) {
            return Expected::Nil;
        }
        let partition = connection.partition.clone();
        Expected::List(queue.iter().map(|request| self.data(&partition, request)).collect())
    }

    /// Runs a command on data.
    fn data(&mut self, partition: &str, request: &[Vec<u8>]) -> Expected {
        let name = String::from_utf8(request[0].clone()).unwrap();
        let arguments = &request[1..];
        let key = arguments.first().map(|key| key_of(partition, key)).unwrap_or_default();
        let old = self.entries.get(&key).cloned();
        match name.as_str() {
            "GET" => self.value(&key),
            "MGET" => Expected::List(
                arguments.iter().map(|key| self.value(&key_of(partition, key))).collect(),
            ),
            "SET" => self.set(&key, arguments),
            "MSET" => {
                arguments.chunks(2).for_each(|pair| {
                    self.write(&key_of(partition, &pair[0]), Some(pair[1].clone()));
                });
                ok()
            }
            "DEL" | "UNLINK" => {
                let mut count = 0;
                for key in arguments.iter().map(|key| key_of(partition, key)) {
                    if self.entries.contains_key(&key) {
                        self.write(&key, None);
                        count += 1;
                    }
                }
                Expected::Number(count)
            }
            "EXISTS" => {
                let found = arguments
                    .iter()
                    .filter(|key| self.entries.contains_key(&key_of(partition, key)));
                Expected::count(found.count())
            }
            "APPEND" => {
                let value = [&old.unwrap_or_default()[..], &arguments[1]].concat();
                let len = value.len();
                self.write(&key, Some(value));
                Expected::count(len)
            }
            "STRLEN" => Expected::count(old.map_or(0, |old| old.len())),
            "GETRANGE" => {
                let old = old.unwrap_or_default();
                // The test asks for parts that are in order and not negative.
                let [start, end] = [1, 2].map(|at| number(&arguments[at]).unwrap() as usize);
                let end = (end + 1).min(old.len());
                Expected::Text(old.get(start..end).unwrap_or_default().to_vec())
            }
            "INCR" => self.add(&key, Some(1)),
            "DECR" => self.add(&key, Some(-1)),
            "INCRBY" => self.add(&key, number(&arguments[1])),
            "DECRBY" => self.add(&key, number(&arguments[1]).and_then(i64::checked_neg)),
            other => panic!("{other} is not in the model"),
        }
    }

    fn set(&mut self, key: &Key, arguments: &[Vec<u8>]) -> Expected {
        let old = self.value(key);
        if has(arguments, b"NX") && has(arguments, b"XX") {
            return Expected::Error;
        }
        let is_refused = (has(arguments, b"NX") && old != Expected::Nil)
            || (has(arguments, b"XX") && old == Expected::Nil);
        if !is_refused {
            self.write(key, Some(arguments[1].clone()));
        }
        match (has(arguments, b"GET"), is_refused) {
            (true, _) => old,
            (false, true) => Expected::Nil,
            (false, false) => ok(),
        }
    }

    fn add(&mut self, key: &Key, amount: Option<i64>) -> Expected {
        let old = self.entries.get(key).map_or(Some(0), |old| number(old));
        let sum = old.and_then(|old| old.checked_add(amount?));
        let Some(sum) = sum else { return Expected::Error };
        self.write(key, Some(sum.to_string().into_bytes()));
        Expected::Number(sum)
    }
}
