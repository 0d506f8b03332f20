//! A search index that another process keeps in step with a database, across kills of both.
//!
//! `cargo run --example search_index`
//!
//! The program starts itself again as the indexer. That one follows the changes of the documents and stores the words of
//! each one in a database of its own, in one batch with the position after the last change. So a kill loses and repeats
//! nothing: the next indexer goes on after the position. The first process writes, kills the indexer several times, and in
//! the end compares the index with one that it makes from the documents.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use siltstone::changes::{FeedItem, KeyChange};
use siltstone::{Commit, Db, Durability, Epoch, ErrorKind, Options, Partition, Result, SeqNo};

const FOLDER: &str = "SEARCH_INDEX_FOLDER";
const WORDS: [&str; 6] = ["basalt", "clay", "gneiss", "marl", "schist", "siltstone"];

fn main() -> Result<()> {
    match std::env::var_os(FOLDER) {
        Some(folder) => index(Path::new(&folder)),
        None => write(),
    }
}

fn write() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("siltstone-search-{}", std::process::id()));
    // So that an indexer that was down for long finds what it has missed.
    let options = Options::new().log_retained_bytes(64 << 20);
    let db = Db::builder(folder.join("documents")).options(options).open()?;
    let documents = db.partition("documents")?;
    let mut number = 0;
    for round in 0..4 {
        let (mut indexer, mut lines) = start(&folder)?;
        for _ in 0..50 {
            number += 1;
            let id = format!("document {}", number % 40);
            let text = [WORDS[number % 6], WORDS[number * 7 % 5], WORDS[number / 9 % 6]].join(" ");
            match number % 11 {
                0 => documents.delete_with(&id, Durability::Sync)?,
                _ => documents.put_with(&id, text, Durability::Sync)?,
            };
        }
        // In the last round it may finish; before that it is killed wherever it is.
        let wanted = if round < 3 { 10 } else { usize::MAX };
        wait(&mut lines, db.visible_seq(), wanted);
        indexer.kill()?;
        indexer.wait()?;
    }
    let index = Db::open(folder.join("index"))?;
    let found: BTreeSet<Vec<u8>> = keys(&index.partition("words")?)?;
    let mut expected = BTreeSet::new();
    for entry in documents.iter() {
        let (id, text) = entry?;
        expected.extend(words(&id, &text));
    }
    assert!(found == expected, "the index is that of the documents");
    println!("{} entries of the index agree with the documents", found.len());
    drop((documents, index));
    db.close()?;
    Ok(std::fs::remove_dir_all(folder)?)
}

fn start(folder: &Path) -> Result<(Child, BufReader<ChildStdout>)> {
    let program = std::env::current_exe()?;
    let mut child = Command::new(program).env(FOLDER, folder).stdout(Stdio::piped()).spawn()?;
    let lines = BufReader::new(child.stdout.take().expect("it is piped"));
    Ok((child, lines))
}

/// Waits until the indexer reports `last`, or so many positions.
fn wait(lines: &mut BufReader<ChildStdout>, last: SeqNo, reports: usize) {
    for line in lines.lines().map_while(std::result::Result::ok).take(reports) {
        if line == last.to_string() {
            break;
        }
    }
}

/// The second process: follows the documents for ever.
fn index(folder: &Path) -> Result<()> {
    let index = Db::open(folder.join("index"))?;
    let words_of = index.partition("words")?;
    let texts = index.partition("texts")?;
    let state = index.partition("state")?;
    let source = Db::secondary(folder.join("documents"))?;
    let changes = match state.get("position")? {
        // Refused if the source was replaced by an older backup of it.
        Some(stored) => source.changes_from(position_of(&stored))?,
        None => source.changes(SeqNo::ZERO)?,
    };
    let mut changes = changes.in_partition("documents");
    loop {
        let item = match changes.wait_next(Duration::from_secs(1)) {
            Ok(Some(item)) => item,
            Ok(None) => continue,
            Err(error) if error.kind() == ErrorKind::TooOld => {
                // A real indexer reads all documents here, and goes on as docs/changes.md says.
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        // The index and the position in one batch: both are there after a kill, or neither.
        let mut batch = index.batch();
        if let FeedItem::Commit(commit) = &item {
            for (_, change) in &commit.changes {
                let (id, text) = match change {
                    KeyChange::Put { key, value } => (key, Some(value)),
                    KeyChange::Delete { key } => (key, None),
                    other => panic!("the writer does not do this: {other:?}"),
                };
                for entry in texts.get(id)?.iter().flat_map(|before| words(id, before)) {
                    batch = batch.delete(&words_of, entry);
                }
                for entry in text.iter().flat_map(|text| words(id, text)) {
                    batch = batch.put(&words_of, entry, "");
                }
                batch = match text {
                    Some(text) => batch.put(&texts, id, text),
                    None => batch.delete(&texts, id),
                };
            }
        }
        let Commit { seq, epoch } = changes.position();
        let position = [&seq.get().to_be_bytes()[..], &epoch.0.to_be_bytes()].concat();
        batch.put(&state, "position", position).commit(Durability::Sync)?;
        println!("{seq}");
    }
}

/// The position of these 12 bytes: a sequence number and an epoch.
fn position_of(stored: &[u8]) -> Commit {
    let (seq, epoch) = stored.split_at(8);
    let seq = u64::from_be_bytes(seq.try_into().expect("8 bytes"));
    let epoch = u32::from_be_bytes(epoch.try_into().expect("4 bytes"));
    Commit { seq: SeqNo::new(seq).expect("a number of a commit"), epoch: Epoch(epoch) }
}

/// The keys of the index for a document: each word with the document.
fn words(id: &[u8], text: &[u8]) -> Vec<Vec<u8>> {
    let words = text.split(|byte| *byte == b' ');
    words.map(|word| [word, b"/", id].concat()).collect()
}

fn keys(partition: &Partition) -> Result<BTreeSet<Vec<u8>>> {
    partition.keys().map(|key| key.map(|key| key.to_vec())).collect()
}
