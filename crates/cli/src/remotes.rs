//! `remote`: databases in buckets: a look, a restore to a moment, a verification, a copy, a takeover.
//!
//! The calls are those of the crate `siltstone-remote`. After Ctrl-C each of them ends with an error of the store,
//! and the command says what it leaves.
//!
//! Invariant: the exit code of `verify` is 0 only if nothing that was read is damaged.

mod status;

use std::path::PathBuf;
use std::time::SystemTime;

use indicatif::HumanBytes;
use remote::{BucketReport, Primary, Remote, RestoreTarget};
use serde_json::{Value, json};
use siltstone::SeqNo;

use crate::bucket::{BucketPlace, ReadLength};
use crate::output::{Failure, Output};
use crate::parts::{printable, verdict};
use crate::progress;
use crate::stats::bytes;

/// A subcommand of `remote`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum RemoteCommand {
    /// Prints what is in a bucket, by the reason why it is there
    Status(status::StatusArgs),
    /// Makes an empty folder the database as of a moment, and verifies it
    ///
    /// The folder is an ordinary database afterwards, which no bucket follows. The bucket stays as it is. Commits that
    /// shared a put are restored together; the moment of a commit is that of its put, by the clock of the store.
    Restore(RestoreArgs),
    /// Reads the whole bucket and reports all damage
    ///
    /// It reads bases, the journal and the newest state, and looks for each object that an earlier state needs. The
    /// exit status is 1 if there is damage.
    Verify(VerifyArgs),
    /// Copies the newest state into an empty bucket, which opens there
    Copy(CopyArgs),
    /// Takes a database from the machine that writes it, into a folder here
    ///
    /// The writer before is fenced. Every commit that was stored is kept, and the folder has all files at the end:
    /// programs continue from it. The folder is empty, or of an earlier state of this database.
    TakeOver(TakeOverArgs),
}

/// Runs a subcommand of `remote`.
pub(crate) fn run(command: &RemoteCommand) -> Result<(), Failure> {
    match command {
        RemoteCommand::Status(args) => status::run(args),
        RemoteCommand::Restore(args) => restore(args),
        RemoteCommand::Verify(args) => verify(args),
        RemoteCommand::Copy(args) => copy(args),
        RemoteCommand::TakeOver(args) => take_over(args),
    }
}

/// The outcome of a call; after Ctrl-C, a sentence on what is left.
fn ended<T>(outcome: siltstone::Result<T>, left: impl Fn() -> String) -> Result<T, Failure> {
    match outcome {
        Err(_) if progress::is_interrupted() => {
            Err(Failure::Io(format!("interrupted; {}", left())))
        }
        outcome => Ok(outcome?),
    }
}

/// Arguments of `remote restore`.
#[derive(Debug, clap::Args)]
pub(crate) struct RestoreArgs {
    /// URL of the bucket, or folder that is shipped to it
    bucket: PathBuf,
    /// Folder to make; it must be empty or not exist
    folder: PathBuf,
    /// Restore the newest state without a commit after this sequence number
    #[arg(long, value_name = "NUMBER", conflicts_with = "time")]
    seq: Option<u64>,
    /// Restore what was stored by this moment, such as 2026-11-28T09:30:00Z, or seconds since 1970
    #[arg(long, value_name = "MOMENT", value_parser = crate::moment::parse)]
    time: Option<SystemTime>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl RestoreArgs {
    fn target(&self) -> Result<RestoreTarget, Failure> {
        match (self.seq, self.time) {
            (Some(seq), _) => {
                let seq = SeqNo::new(seq);
                let seq =
                    seq.ok_or_else(|| Failure::Usage("no such sequence number".to_owned()))?;
                Ok(RestoreTarget::Seq(seq))
            }
            (None, Some(time)) => Ok(RestoreTarget::Time(time)),
            (None, None) => Ok(RestoreTarget::Latest),
        }
    }
}

/// Restores a database.
fn restore(args: &RestoreArgs) -> Result<(), Failure> {
    let target = args.target()?;
    let place = BucketPlace::of(&args.bucket)?;
    progress::watch_for_interrupt()?;
    let restored = progress::during(
        "restoring",
        || progress::folder_bytes(&args.folder),
        || place.with_lease(|remote| remote.restore(&args.folder, target)),
    );
    let folder = args.folder.display();
    let made = ended(restored, || {
        let made = progress::folder_bytes(&args.folder);
        format!("{folder} has {made} of files and may be no database: delete it")
    })?;
    let seq = made.seq.get();
    let text = format!(
        "restored and verified {folder}\n  \
         sequence number {seq}, journal object {}; {} files, {}",
        made.number,
        made.files,
        bytes(made.bytes)
    );
    let json = json!({
        "folder": folder.to_string(),
        "sequence": seq,
        "number": made.number,
        "files": made.files,
        "bytes": made.bytes,
    });
    let mut out = Output::new(args.json);
    out.line(text, &json)?;
    out.finish()
}

/// Arguments of `remote verify`.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// URL of the bucket, or folder that is shipped to it
    bucket: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Verifies a bucket.
fn verify(args: &VerifyArgs) -> Result<(), Failure> {
    let place = BucketPlace::of(&args.bucket)?;
    progress::watch_for_interrupt()?;
    let report = place.during("verifying", || place.with_lease(Remote::verify));
    let report = ended(report, || "not all was read, and nothing was changed".to_owned())?;
    if report.is_sound() && report.checked.objects == 0 {
        return Err(place.nothing());
    }
    let mut out = Output::new(args.json);
    out.line(report_text(&report), &report_json(&report))?;
    out.finish()?;
    verdict(!report.is_sound(), place.url())
}

fn report_text(report: &BucketReport) -> String {
    let mut text = match report.wrong.len() {
        0 => "no damage".to_owned(),
        1 => "damage in 1 place".to_owned(),
        places => format!("damage in {places} places"),
    };
    text += &format!("; {} objects checked", report.checked.objects);
    for wrong in &report.wrong {
        text += &printable(format_args!("\n  {}\n    {}", wrong.name, wrong.what));
    }
    text
}

fn report_json(report: &BucketReport) -> Value {
    let wrong = report.wrong.iter().map(|it| json!({ "name": it.name, "what": it.what }));
    json!({
        "objects": report.checked.objects,
        "bytes": report.checked.bytes,
        "damage": wrong.collect::<Vec<_>>(),
    })
}

/// Arguments of `remote copy`.
#[derive(Debug, clap::Args)]
pub(crate) struct CopyArgs {
    /// URL of the bucket to copy, or folder that is shipped to it
    from: PathBuf,
    /// URL of the other bucket, which has no database
    to: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Copies the newest state.
fn copy(args: &CopyArgs) -> Result<(), Failure> {
    let from = BucketPlace::of(&args.from)?;
    let to = BucketPlace::of(&args.to)?;
    progress::watch_for_interrupt()?;
    let copied = to.during("copying", || from.with_lease(|remote| remote.copy_to(&to.remote)));
    let copied = ended(copied, || {
        format!("{} has a part of the objects, and another copy puts them again", to.url())
    })?;
    let text = format!("copied {} objects, {}", copied.objects, bytes(copied.bytes));
    let mut out = Output::new(args.json);
    out.line(text, &json!({ "objects": copied.objects, "bytes": copied.bytes }))?;
    out.finish()
}

/// Arguments of `remote take-over`.
#[derive(Debug, clap::Args)]
pub(crate) struct TakeOverArgs {
    /// URL of the bucket, or folder that is shipped to it
    bucket: PathBuf,
    /// Folder to continue in
    folder: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Fences the writer, brings all files into the folder, and closes the database.
fn take_over(args: &TakeOverArgs) -> Result<(), Failure> {
    let place = BucketPlace::of(&args.bucket)?;
    // Refuses an empty bucket, which a takeover would claim for a folder without a database.
    drop(place.reader(ReadLength::Short)?);
    progress::watch_for_interrupt()?;
    let folder = args.folder.display();
    let primary = place.during("taking over", || place.remote.take_over(&args.folder));
    let primary = ended(primary, || {
        format!("{} may be claimed for {folder} already; the same command continues", place.url())
    })?;
    let restored = progress::during("restoring", || restored_bytes(&primary), || primary.restore());
    ended(restored, || lacking(&primary, args))?;
    let seq = ended(recover(&primary), || lacking(&primary, args))?;
    let text = format!("taken over at sequence {seq}; the old primary is fenced");
    let mut out = Output::new(args.json);
    out.line(text, &json!({ "sequence": seq.get(), "folder": folder.to_string() }))?;
    out.finish()
}

fn restored_bytes(primary: &Primary) -> String {
    let restore = primary.status().restore;
    format!("{} of {}", HumanBytes(restore.bytes_done), HumanBytes(restore.bytes))
}

/// A sentence on the folder of a takeover that was interrupted.
fn lacking(primary: &Primary, args: &TakeOverArgs) -> String {
    let files = primary.status().remote_files;
    let folder = args.folder.display();
    format!(
        "the old primary is fenced, and {folder} lacks {files} files; the same command continues"
    )
}

/// Opens the database once, so that the bucket has what the recovery makes; returns its last sequence number.
fn recover(primary: &Primary) -> siltstone::Result<SeqNo> {
    let db = primary.builder().open()?;
    let seq = db.visible_seq();
    db.close()?;
    primary.ship()?;
    Ok(seq)
}
