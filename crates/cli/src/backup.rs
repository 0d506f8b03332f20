//! `backup`: backups of a database in one folder or bucket, which share what is the same.
//!
//! Invariant: the exit code of `backup verify` is 0 only if nothing that was read is damaged.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use siltstone::ErrorKind;
use siltstone::backup::{BackupEngine, BackupInfo, PurgeSummary};

use crate::bucket::{BucketPlace, needs_folder, url_of};
use crate::engine::Existing;
use crate::exchange::note_unlogged;
use crate::files::{builder, files};
use crate::output::{Failure, Output};
use crate::{parts, progress};

/// The subcommands of `backup`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum BackupCommand {
    /// Adds a backup of a database, which another process may write meanwhile
    Create(CreateArgs),
    /// Lists the backups, the oldest first
    List(ListArgs),
    /// Reads all shared files, and names the damaged ones with the backups that need them
    ///
    /// The exit status is 1 if there is damage.
    Verify(VerifyArgs),
    /// Makes a database of a backup
    Restore(RestoreArgs),
    /// Deletes old backups, and the files that no other backup needs
    Purge(PurgeArgs),
}

/// The speed at which files are read.
#[derive(Debug, clap::Args)]
struct Pace {
    /// Read at most so many bytes a second; 0 is no limit
    #[arg(long, default_value_t = 0)]
    rate: u64,
    /// Files at a time, each with a thread and 8 MiB of memory [default: 1, and 4 in a bucket]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
}

impl Pace {
    fn of(&self, engine: BackupEngine) -> BackupEngine {
        let engine = engine.rate_limit(self.rate);
        match self.threads {
            Some(threads) => engine.threads(threads.into()),
            None => engine,
        }
    }
}

/// Arguments of `backup create`.
#[derive(Debug, clap::Args)]
pub(crate) struct CreateArgs {
    /// Folder of the database
    database: PathBuf,
    /// Folder of the backups, which is created if it does not exist, or URL of a bucket
    folder: PathBuf,
    #[command(flatten)]
    pace: Pace,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `backup list`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Folder of the backups, or URL of their bucket
    folder: PathBuf,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// Arguments of `backup verify`.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// Folder of the backups, or URL of their bucket
    folder: PathBuf,
    /// Only this backup
    #[arg(long)]
    id: Option<u32>,
    #[command(flatten)]
    pace: Pace,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// Arguments of `backup restore`.
#[derive(Debug, clap::Args)]
pub(crate) struct RestoreArgs {
    /// Folder of the backups, or URL of their bucket
    folder: PathBuf,
    /// Folder of the database; it must be empty or not exist
    database: PathBuf,
    /// This backup instead of the newest
    #[arg(long)]
    id: Option<u32>,
    #[command(flatten)]
    pace: Pace,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `backup purge`.
#[derive(Debug, clap::Args)]
pub(crate) struct PurgeArgs {
    /// Folder of the backups, or URL of their bucket
    folder: PathBuf,
    /// Delete all but so many of the newest
    #[arg(long, required_unless_present = "id", conflicts_with = "id")]
    keep: Option<usize>,
    /// Delete this one, which may be damaged
    #[arg(long)]
    id: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs a subcommand.
pub(crate) fn run(command: &BackupCommand) -> Result<(), Failure> {
    match command {
        BackupCommand::Create(args) => create(args),
        BackupCommand::List(args) => list(args),
        BackupCommand::Verify(args) => verify(args),
        BackupCommand::Restore(args) => restore(args),
        BackupCommand::Purge(args) => purge(args),
    }
}

/// The backups in a folder or bucket.
fn engine_in(folder: &Path) -> Result<BackupEngine, Failure> {
    Ok(match url_of(folder) {
        Some(url) => BucketPlace::new(url)?.remote.backups(),
        None => BackupEngine::open(folder).fs(files()),
    })
}

fn create(args: &CreateArgs) -> Result<(), Failure> {
    let other = "a bucket has the history of its database: remote restore";
    needs_folder(&args.database, "backup create", other)?;
    let engine = args.pace.of(engine_in(&args.folder)?);
    progress::end_at_interrupt(format!(
        "siltstone: interrupted; the backups in {} stay as they are\n  \
         the same command again uses what this one has copied",
        args.folder.display()
    ))?;
    // An open recovers what a dead writer has left. Next to a live one the files are read.
    let made = match Existing::open_alone_to_read(&args.database) {
        Err(Failure::Engine(error)) if error.kind() == ErrorKind::Locked => {
            engine.create_backup_of(builder(&args.database))?
        }
        opened => {
            let existing = opened?;
            let made = engine.create_backup(&existing.db)?;
            existing.close()?;
            made
        }
    };
    note_unlogged(&made.unlogged);
    let mut out = Output::new(args.json);
    out.line(text_of(&made), &json_of(&made))?;
    out.finish()
}

fn text_of(info: &BackupInfo) -> String {
    let BackupInfo { backup_id, timestamp, seq, size, new_bytes, .. } = info;
    format!(
        "backup {backup_id}: sequence {seq}, {size} bytes, {new_bytes} of them new, at {timestamp}"
    )
}

fn json_of(info: &BackupInfo) -> Value {
    json!({
        "backup": info.backup_id, "sequence": info.seq.get(), "bytes": info.size,
        "new_bytes": info.new_bytes, "files": info.number_files, "timestamp": info.timestamp,
        "unlogged": info.unlogged,
    })
}

fn list(args: &ListArgs) -> Result<(), Failure> {
    let engine = engine_in(&args.folder)?;
    let mut out = Output::new(args.json);
    for info in engine.info()? {
        out.line(text_of(&info), &json_of(&info))?;
    }
    for (id, error) in engine.corrupted()? {
        let what = error.to_string();
        out.line(
            format!("backup {id} is damaged: {what}"),
            &json!({ "backup": id, "damaged": what }),
        )?;
    }
    out.finish()
}

fn verify(args: &VerifyArgs) -> Result<(), Failure> {
    let engine = args.pace.of(engine_in(&args.folder)?);
    let report = engine.verify(args.id)?;
    let mut out = Output::new(args.json);
    for damaged in &report.damaged {
        let path = damaged.path.display().to_string();
        let backups: Vec<String> = damaged.backups.iter().map(u32::to_string).collect();
        let text = format!("damaged: {path}, of backup {}: {}", backups.join(", "), damaged.error);
        let what = damaged.error.to_string();
        out.line(text, &json!({ "damaged": path, "backups": damaged.backups, "what": what }))?;
    }
    let text = format!(
        "{} backups, {} shared files, {} bytes: {} damaged",
        report.backups.len(),
        report.files,
        report.bytes,
        report.damaged.len()
    );
    let json = json!({
        "backups": report.backups, "files": report.files, "bytes": report.bytes,
        "sound": report.is_sound(),
    });
    out.line(text, &json)?;
    out.finish()?;
    parts::verdict(!report.is_sound(), args.folder.display())
}

fn restore(args: &RestoreArgs) -> Result<(), Failure> {
    needs_folder(&args.database, "backup restore", "remote copies a database into a bucket")?;
    let engine = args.pace.of(engine_in(&args.folder)?);
    progress::end_at_interrupt(format!(
        "siltstone: interrupted; the backups in {} stay as they are, and {} is no database\n  \
         remove that folder, and restore again",
        args.folder.display(),
        args.database.display()
    ))?;
    let info = match args.id {
        Some(id) => engine.restore(id, &args.database)?,
        None => engine.restore_latest(&args.database)?,
    };
    let mut out = Output::new(args.json);
    out.line(format!("restored {}", text_of(&info)), &json_of(&info))?;
    out.finish()
}

fn purge(args: &PurgeArgs) -> Result<(), Failure> {
    let engine = engine_in(&args.folder)?;
    let PurgeSummary { backups, files, bytes, .. } = match (args.id, args.keep) {
        (Some(id), _) => engine.delete(id)?,
        (None, keep) => engine.purge_old(keep.unwrap_or(usize::MAX))?,
    };
    let mut out = Output::new(args.json);
    let text = format!("{} backups deleted, {files} files, {bytes} bytes", backups.len());
    out.line(text, &json!({ "backups": backups, "files": files, "bytes": bytes }))?;
    out.finish()
}
