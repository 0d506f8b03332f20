//! `encryption`: new keys, the keys of files, and a change of the key.

use std::path::{Path, PathBuf};

use encryption::{EncryptedFs, EncryptionKey, FileKeys, KeyId, KeyRing, RewrapSummary};
use serde_json::{Value, json};
use siltstone::fs::{Fs, OsFs};

use crate::bucket::url_of;
use crate::files::{self, encrypted_files};
use crate::output::{Failure, Output};

/// The folder of a folder of backups in which the pieces lie.
const SHARED: &str = "shared";

/// Subcommands of `encryption`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum EncryptionCommand {
    /// Prints a line with a new random key, for a file of keys
    ///
    /// `siltstone encryption new-key 2026-12 >> keys` makes it the key of new files. Keep the file where the data is not.
    NewKey(NewKeyArgs),
    /// Lists the files of a folder by the key that opens each, or prints the key of a bucket. Needs no key
    Keys(KeysArgs),
    /// Wraps the files of a database, of a folder of backups, or the key of a bucket, by the last key of --key-file
    ///
    /// No data is written again, and the database may be in use. A folder that is shipped and its bucket are two places. Before the old key is removed, every process that writes into
    /// the folder must have the new key as its last one: otherwise it makes files by the old one.
    Rotate(RotateArgs),
}

/// Arguments of `encryption new-key`.
#[derive(Debug, clap::Args)]
pub(crate) struct NewKeyArgs {
    /// Identifier of the key, such as a date: letters, digits and `._-:/`
    id: String,
}

/// Arguments of `encryption keys`.
#[derive(Debug, clap::Args)]
pub(crate) struct KeysArgs {
    /// Folder of the database or of backups, or the URL of a bucket
    folder: PathBuf,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// Arguments of `encryption rotate`.
#[derive(Debug, clap::Args)]
pub(crate) struct RotateArgs {
    /// Folder of the database or of backups, or the URL of a bucket
    folder: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs a subcommand.
pub(crate) fn run(command: &EncryptionCommand) -> Result<(), Failure> {
    match command {
        EncryptionCommand::NewKey(args) => new_key(args),
        EncryptionCommand::Keys(args) => keys(args),
        EncryptionCommand::Rotate(args) => rotate(args),
    }
}

fn new_key(args: &NewKeyArgs) -> Result<(), Failure> {
    let id = KeyId::new(args.id.as_str())?;
    let mut out = Output::new(false);
    out.raw(format!("{id} {}\n", EncryptionKey::random()?.to_hex()).as_bytes())?;
    out.finish()
}

/// The folder, and the one below it in which backups share files.
fn folders(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !folder.is_dir() {
        return Err(Failure::NotFound(format!("no folder {}", folder.display())));
    }
    let shared = folder.join(SHARED);
    let mut folders = vec![folder.to_owned()];
    if shared.is_dir() {
        folders.push(shared);
    }
    Ok(folders)
}

/// The key of a bucket.
fn bucket_keys(url: &str, as_json: bool) -> Result<(), Failure> {
    let id = files::bucket(url)?.key_id()?;
    let mut out = Output::new(as_json);
    let text = match &id {
        Some(id) => format!("{id}\t{url}"),
        None => format!("(not encrypted)\t{url}"),
    };
    let ids: Vec<&str> = id.iter().map(KeyId::as_str).collect();
    out.line(text, &json!({ "bucket": url, "keys": ids }))?;
    out.finish()
}

fn keys(args: &KeysArgs) -> Result<(), Failure> {
    if let Some(url) = url_of(&args.folder) {
        return bucket_keys(url, args.json);
    }
    // Identifiers are read without a key.
    let unused = KeyRing::new(KeyId::new("unused")?, EncryptionKey::random()?);
    let fs = EncryptedFs::new(std::sync::Arc::new(OsFs), std::sync::Arc::new(unused));
    let mut out = Output::new(args.json);
    for folder in folders(&args.folder)? {
        for entry in OsFs.list(&folder, "")? {
            let path = folder.join(entry.name);
            match fs.keys_of(&path) {
                Ok(keys) => out.line(text_of(&path, &keys), &json_of(&path, &keys))?,
                // Deleted meanwhile.
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    out.finish()
}

fn text_of(path: &Path, keys: &FileKeys) -> String {
    let path = path.display();
    match keys {
        FileKeys::One(id) => format!("{id}\t{path}"),
        FileKeys::Two(one, other) => format!("{one}, {other}\t{path}"),
        FileKeys::None => format!("(not encrypted)\t{path}"),
        FileKeys::Empty => format!("(empty)\t{path}"),
    }
}

fn json_of(path: &Path, keys: &FileKeys) -> Value {
    let ids: Vec<&str> = match keys {
        FileKeys::One(id) => vec![id.as_str()],
        FileKeys::Two(one, other) => vec![one.as_str(), other.as_str()],
        FileKeys::None | FileKeys::Empty => Vec::new(),
    };
    json!({ "file": path.display().to_string(), "keys": ids, "empty": *keys == FileKeys::Empty })
}

fn rotate(args: &RotateArgs) -> Result<(), Failure> {
    let Some(fs) = encrypted_files() else {
        let text = "rotate needs --key-file, with the old keys and the new one as the last";
        return Err(Failure::Usage(text.to_owned()));
    };
    if let Some(url) = url_of(&args.folder) {
        return rotate_bucket(fs, url, args.json);
    }
    let mut all = RewrapSummary::default();
    for folder in folders(&args.folder)? {
        let one = fs.rewrap_dir(&folder)?;
        all.rewrapped += one.rewrapped;
        all.unchanged += one.unchanged;
        all.others += one.others;
    }
    let id = fs.keys().current()?;
    let RewrapSummary { rewrapped, unchanged, others, .. } = all;
    let text = format!(
        "{rewrapped} files belong to the key {id} now, {unchanged} did before, {others} are not encrypted"
    );
    let mut out = Output::new(args.json);
    let json = json!({
        "key": id.as_str(), "rewrapped": rewrapped, "unchanged": unchanged, "others": others,
    });
    out.line(text, &json)?;
    out.finish()
}

/// Wraps the data key of a bucket again.
fn rotate_bucket(fs: &EncryptedFs, url: &str, as_json: bool) -> Result<(), Failure> {
    let is_changed = files::bucket(url)?.rewrap_key(&**fs.keys())?;
    let id = fs.keys().current()?;
    let text = match is_changed {
        true => format!("the bucket belongs to the key {id} now"),
        false => format!("the bucket belonged to the key {id} before"),
    };
    let mut out = Output::new(as_json);
    out.line(text, &json!({ "key": id.as_str(), "rewrapped": is_changed }))?;
    out.finish()
}
