//! `watch`: prints the commits of a database in their order, those of another process, too.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use siltstone::changes::{CommittedBatch, FeedItem, KeyChange};
use siltstone::secondary::{Secondary, Target};
use siltstone::{Db, SeqNo};

use crate::bucket::{BucketPlace, ReadLength, url_of};
use crate::bytes::{Bytes, Encoding};
use crate::files::files;
use crate::output::{Failure, Output};

/// A wait ends this often, and begins again.
const WAIT: Duration = Duration::from_secs(60);

/// Arguments of `watch`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of the database, or URL of its bucket
    database: PathBuf,
    /// Print only changes of this partition
    #[arg(long)]
    partition: Option<String>,
    /// Print only changes of keys that begin with these bytes
    #[arg(long)]
    prefix: Option<OsString>,
    #[command(flatten)]
    encoding: Encoding,
    /// Begin after this sequence number of a commit; 0 is the first commit. Default: the present end
    #[arg(long, value_name = "SEQ")]
    from: Option<u64>,
    /// End when everything that is there is printed
    #[arg(long)]
    once: bool,
    /// Print JSON, one object for each commit
    #[arg(long)]
    json: bool,
}

/// Prints commits until interrupted.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let form = args.encoding.bytes();
    let secondary = open(args)?;
    let from = match args.from {
        Some(from) => SeqNo::new(from)
            .ok_or_else(|| Failure::Usage(format!("{from} is no sequence number")))?,
        // No partition is read.
        None => {
            secondary.sync_group(&[], Target::Durable)?.as_of().map_or(SeqNo::ZERO, |it| it.seq)
        }
    };
    let mut changes = secondary.changes(from)?;
    if let Some(partition) = &args.partition {
        changes = changes.in_partition(partition);
    }
    if let Some(prefix) = form.optional(args.prefix.as_ref())? {
        changes = changes.with_prefix(prefix);
    }
    let mut out = Output::new(args.json);
    loop {
        let item = if args.once { changes.try_next()? } else { changes.wait_next(WAIT)? };
        match item {
            Some(item) => print(&mut out, form, &item)?,
            None if args.once => return out.finish(),
            None => {}
        }
        if !args.once {
            out.flush()?;
        }
    }
}

fn open(args: &Args) -> Result<Secondary, Failure> {
    let Some(url) = url_of(&args.database) else {
        return Ok(Db::secondary_builder(&args.database).fs(files()).open()?);
    };
    let length = if args.once { ReadLength::Short } else { ReadLength::Long };
    Ok(BucketPlace::new(url)?.reader(length)?.secondary().open()?)
}

fn print(out: &mut Output, form: Bytes, item: &FeedItem) -> Result<(), Failure> {
    match item {
        FeedItem::Commit(batch) => commit(out, form, batch),
        FeedItem::Unlogged { first_seq, seq } => {
            let text = format!("{seq}\tnot in the log: {first_seq} to {seq}");
            let json = json!({ "seq": seq.get(), "unlogged_from": first_seq.get() });
            out.line(text, &json)
        }
        FeedItem::Dropped(partition) => {
            let json = json!({ "dropped": &*partition.name });
            out.line(format!("-\t{}\tdropped", escaped(&partition.name)), &json)
        }
        other => out.line(format!("{other:?}"), &json!({})),
    }
}

fn commit(out: &mut Output, form: Bytes, batch: &CommittedBatch) -> Result<(), Failure> {
    let mut lines = Vec::new();
    let mut objects = Vec::new();
    for (partition, change) in &batch.changes {
        let (text, mut object) = shown(form, change)?;
        lines.push(format!("{}\t{}\t{text}", batch.seq, escaped(&partition.name)));
        object["partition"] = json!(&*partition.name);
        objects.push(object);
    }
    out.line(lines.join("\n"), &json!({ "seq": batch.seq.get(), "changes": objects }))
}

/// A change as text, and as an object.
fn shown(form: Bytes, change: &KeyChange) -> Result<(String, Value), Failure> {
    Ok(match change {
        KeyChange::Put { key, value } => put(form, key, Some(value)),
        KeyChange::PutLarge { key, value } => put(form, key, value.read()?.as_deref()),
        KeyChange::Delete { key } => {
            let mut object = form.entry(key, None);
            object["operation"] = json!("delete");
            (format!("delete\t{}", form.text(key)), object)
        }
        KeyChange::DeleteRange { start, end } => {
            let end_key = end.as_deref();
            let end = end_key.map(|it| form.text(it));
            let object = json!({ "operation": "delete_range" });
            let object = form.with(object, "start", &**start);
            let object = form.with(object, "end", end_key);
            (format!("delete\t{}..{}", form.text(start), end.unwrap_or_default()), object)
        }
        KeyChange::Merge { key, operand } => {
            let (line, mut object) = put(form, key, Some(operand));
            object["operation"] = json!("merge");
            (line.replacen("put", "merge", 1), object)
        }
        KeyChange::Clear => ("clear".to_owned(), json!({ "operation": "clear" })),
        other => (format!("{other:?}"), json!({ "operation": "other" })),
    })
}

/// A value that is set; `None` if it is not in its place any more.
fn put(form: Bytes, key: &[u8], value: Option<&[u8]>) -> (String, Value) {
    let shown = value.map_or("(moved or reclaimed)".to_owned(), |it| form.text(it));
    let mut object = form.entry(key, value);
    object["operation"] = json!("put");
    (format!("put\t{}\t{shown}", form.text(key)), object)
}

fn escaped(name: &str) -> String {
    name.escape_debug().to_string()
}
