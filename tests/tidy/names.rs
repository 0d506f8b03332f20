//! One word, one thing: a name of a type is given once in what users get.

use std::collections::BTreeMap;

use crate::check;
use crate::source::sources;

/// The parts whose types are read side by side.
const FOLDERS: [&str; 11] = [
    "src/",
    "crates/encryption/src/",
    "crates/lsm-core/src/",
    "crates/metahive/src/",
    "crates/largeval/src/",
    "crates/remote/src/",
    "crates/secondary/src/",
    "crates/storage/src/",
    "crates/streams/src/",
    "crates/tree/src/",
    "crates/typed/src/",
];
/// The types of siltstone that wrap one of another crate with the same name (design note 8).
const FACES: [&str; 8] = [
    "Batch",
    "BlobWriter",
    "Db",
    "Partition",
    "PartitionOptions",
    "PendingBlob",
    "Snapshot",
    "Transaction",
];
/// Names that several crates have given, with the number of types. A block is what the glossary says it
/// is, of a table and of a chunk file; builder and level are names that users know. The list only shrinks.
const SHARED: [(&str, usize); 4] = [("Block", 2), ("Builder", 3), ("Level", 2), ("Shared", 2)];

#[test]
fn a_type_has_a_name_of_its_own() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in sources().iter().filter(|source| source.is_production()) {
        if !FOLDERS.iter().any(|folder| source.path.starts_with(folder)) {
            continue;
        }
        for word in ["struct", "enum", "trait", "union"] {
            for at in source.words(word).filter(|&at| !source.is_test_at(at)) {
                let name: String = source.code[at + word.len()..]
                    .trim_start()
                    .chars()
                    .take_while(|c| c.is_alphanumeric() || *c == '_')
                    .collect();
                let place = format!("{}:{}", source.path, source.line_of(at));
                places.entry(name).or_default().push(place);
            }
        }
    }
    let mut breaches = Vec::new();
    for (name, places) in places.iter().filter(|(name, _)| !name.is_empty()) {
        let face = if FACES.contains(&name.as_str()) { 2 } else { 1 };
        let shared = SHARED.iter().find(|(shared, _)| shared == name);
        let allowed = shared.map_or(face, |(_, number)| *number);
        if places.len() > allowed {
            breaches.push(format!("{}: {name} is also {}", places[0], places[1..].join(", ")));
        }
    }
    for (name, allowed) in SHARED {
        let count = places.get(name).map_or(0, Vec::len);
        if count < allowed {
            breaches.push(format!("{name} is given {count} times; lower its number"));
        }
    }
    check(breaches);
}
