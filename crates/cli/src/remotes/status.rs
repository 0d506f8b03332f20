//! `remote status`: what is in a bucket and why, how far back a restore reaches, and who reads.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use remote::{Ack, Amount, BucketStatus, LeaseStatus, UtcTime};
use serde_json::{Value, json};

use crate::bucket::BucketPlace;
use crate::moment;
use crate::output::{Failure, Output};
use crate::stats::bytes;

/// Arguments of `remote status`.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    /// URL of the bucket, or folder that is shipped to it
    bucket: PathBuf,
    /// Count as retained what a primary with this retention keeps
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = moment::parse_duration)]
    retention: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints the content of a bucket.
pub(super) fn run(args: &StatusArgs) -> Result<(), Failure> {
    let place = BucketPlace::of(&args.bucket)?;
    let remote = place.remote.clone().retention(args.retention);
    let status = place.during("listing", || remote.status())?;
    if status.number == 0 {
        return Err(place.nothing());
    }
    let mut out = Output::new(args.json);
    out.line(text(&status), &json(&status))?;
    out.finish()
}

/// The rows of the table: reason, amount, explanation.
fn reasons(status: &BucketStatus) -> [(&'static str, Amount, &'static str); 4] {
    [
        ("live", status.live, "an open of the newest state needs it"),
        ("retained", status.retained, "earlier states within the retention"),
        ("leased", status.leased, "readers and restores need it"),
        ("garbage", status.garbage, "the primary is about to delete it"),
    ]
}

fn acknowledgement(ack: Ack) -> &'static str {
    match ack {
        Ack::Stored => "stored",
        _ => "local",
    }
}

fn text(status: &BucketStatus) -> String {
    let mut text = String::new();
    let base = status.base.map_or("none".to_owned(), |base| base.to_string());
    text += &line_of("writer", format!("{:032x}", status.claimant));
    text += &line_of("commits", format!("acknowledged when {}", acknowledgement(status.ack)));
    text += &line_of("base", base);
    text += &line_of("newest", point(status.number, status.stored));
    text += &line_of("oldest", point(status.oldest, status.oldest_stored));
    let _ = write!(text, "\n{:<10} {:>9} {:>12}\n", "reason", "objects", "bytes");
    let mut sum = Amount::default();
    for (reason, amount, meaning) in reasons(status) {
        sum.objects += amount.objects;
        sum.bytes += amount.bytes;
        text += &row(reason, amount, meaning);
    }
    text += row("all", sum, "").trim_end();
    if !status.leases.is_empty() {
        let _ = write!(text, "\n\n{:<32} {:>9}  {:<24} state", "lease", "object", "renewed");
    }
    for lease in &status.leases {
        let LeaseStatus { id, number, renewed, is_live, .. } = lease;
        let state = if *is_live { "live" } else { "expired" };
        let _ =
            write!(text, "\n{id:<32} {number:>9}  {:<24} {state}", UtcTime(*renewed).to_string());
    }
    text
}

fn line_of(name: &str, value: String) -> String {
    format!("{name:<10} {value}\n")
}

/// A state that can be restored.
fn point(number: u64, stored: Duration) -> String {
    format!("journal object {number}, stored {}", UtcTime(stored))
}

fn row(reason: &str, amount: Amount, meaning: &str) -> String {
    format!("{reason:<10} {:>9} {:>12}  {meaning}\n", amount.objects, bytes(amount.bytes))
}

fn json(status: &BucketStatus) -> Value {
    let amounts = reasons(status).map(|(reason, amount, _)| {
        let value = json!({ "objects": amount.objects, "bytes": amount.bytes });
        (reason.to_owned(), value)
    });
    let leases = status.leases.iter().map(|lease| {
        json!({
            "id": lease.id,
            "number": lease.number,
            "objects": lease.objects,
            "renewed": UtcTime(lease.renewed).to_string(),
            "is_live": lease.is_live,
        })
    });
    json!({
        "claimant": format!("{:032x}", status.claimant),
        "acknowledged": acknowledgement(status.ack),
        "base": status.base,
        "newest": { "number": status.number, "stored": UtcTime(status.stored).to_string() },
        "oldest": { "number": status.oldest, "stored": UtcTime(status.oldest_stored).to_string() },
        "reasons": serde_json::Map::from_iter(amounts),
        "leases": leases.collect::<Vec<_>>(),
    })
}
