//! The catalog: a partition with the types and indexes of each table.
//!
//! Read at each open of a table, and changed when a table or an index is created or dropped. The key is the name of the
//! table. The value is text, for people who look with `siltstone get DB users --partition siltstone.typed`:
//!
//! ```text
//! line                                            meaning
//! siltstone-typed 1                               version of this text and of the encodings of keys
//! key TAB NAME                                    type of keys (`Key::name`)
//! value TAB NAME TAB CODEC                        type of values, and the name of their codec
//! index TAB NAME TAB KIND TAB TYPE TAB STATE      one for each index, by name: `unique` or `many`, the type of its keys,
//!                                                 `ready` or `building`
//! ```

use siltstone::Readable;

use crate::error::{Result, TypedError};

/// The partition. No table has this name.
pub(crate) const CATALOG: &str = "siltstone.typed";
const VERSION: &str = "siltstone-typed 1";

/// The types and indexes of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableEntry {
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) codec: String,
    /// By name.
    pub(crate) indexes: Vec<IndexEntry>,
}

/// An index of a table. Public for the methods of a sealed trait; its module is not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IndexEntry {
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) is_unique: bool,
    /// It has all rows. Otherwise the next open begins to build it again.
    pub(crate) is_ready: bool,
}

impl TableEntry {
    pub(crate) fn to_text(&self) -> String {
        let mut text =
            format!("{VERSION}\nkey\t{}\nvalue\t{}\t{}\n", self.key, self.value, self.codec);
        for index in &self.indexes {
            let kind = if index.is_unique { "unique" } else { "many" };
            let state = if index.is_ready { "ready" } else { "building" };
            text.push_str(&format!("index\t{}\t{kind}\t{}\t{state}\n", index.name, index.key));
        }
        text
    }

    /// Reads the entry of `table`.
    pub(crate) fn from_text(table: &str, text: &[u8]) -> Result<TableEntry> {
        let entry = std::str::from_utf8(text).ok().and_then(TableEntry::parse);
        entry.ok_or_else(|| TypedError::OtherTypes {
            table: table.to_owned(),
            what: format!("its types are stored in another version than {VERSION:?}"),
        })
    }

    fn parse(text: &str) -> Option<TableEntry> {
        let mut lines = text.lines();
        if lines.next()? != VERSION {
            return None;
        }
        let key = lines.next()?.strip_prefix("key\t")?.to_owned();
        let (value, codec) = lines.next()?.strip_prefix("value\t")?.split_once('\t')?;
        let indexes = lines.map(IndexEntry::parse).collect::<Option<Vec<_>>>()?;
        Some(TableEntry { key, value: value.to_owned(), codec: codec.to_owned(), indexes })
    }

    /// Returns the entry of the index `name`.
    pub(crate) fn index(&self, name: &str) -> Option<&IndexEntry> {
        self.indexes.iter().find(|index| index.name == name)
    }

    /// Compares what is stored with what the definition of `table` says.
    pub(crate) fn check(&self, table: &str, wanted: &TableEntry) -> Result<()> {
        let mut differences = Vec::new();
        for (what, stored, wanted) in [
            ("keys", &self.key, &wanted.key),
            ("values", &self.value, &wanted.value),
            ("codec", &self.codec, &wanted.codec),
        ] {
            if stored != wanted {
                differences.push(format!(
                    "{what} are stored as {stored}, and the definition says {wanted}"
                ));
            }
        }
        for stored in self.indexes.iter().filter(|index| index.is_ready) {
            match wanted.index(&stored.name) {
                Some(wanted)
                    if (&wanted.key, wanted.is_unique) == (&stored.key, stored.is_unique) => {}
                Some(_) => differences.push(format!("index {} has other keys", stored.name)),
                None => differences.push(format!("the definition lacks the index {}", stored.name)),
            }
        }
        if differences.is_empty() {
            return Ok(());
        }
        Err(TypedError::OtherTypes { table: table.to_owned(), what: differences.join("; ") })
    }
}

/// Returns what the catalog says that the partition `name` is: a table, or an index of one.
pub(crate) fn owner(catalog: &impl Readable, name: &str) -> Result<Option<String>> {
    if catalog.contains(name)? {
        return Ok(Some(format!("the table {name:?}")));
    }
    for (at, _) in name.match_indices('.') {
        let table = &name[..at];
        let index = &name[at + 1..];
        let Some(text) = catalog.get(table)? else { continue };
        if TableEntry::from_text(table, &text)?.index(index).is_some() {
            return Ok(Some(format!("the index {index:?} of the table {table:?}")));
        }
    }
    Ok(None)
}

impl IndexEntry {
    fn parse(line: &str) -> Option<IndexEntry> {
        let fields: Vec<&str> = line.split('\t').collect();
        let ["index", name, kind @ ("unique" | "many"), key, state @ ("ready" | "building")] =
            fields[..]
        else {
            return None;
        };
        Some(IndexEntry {
            name: name.to_owned(),
            key: key.to_owned(),
            is_unique: kind == "unique",
            is_ready: state == "ready",
        })
    }
}
