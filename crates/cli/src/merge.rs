//! `merge`: an operand for a key, durable when the command ends.

use std::ffi::OsString;
use std::sync::Arc;

use serde_json::json;
use siltstone::operators::{MergeOperator, ready_made};
use siltstone::{Db, Durability, Partition};

use crate::bytes::Encoding;
use crate::engine::{Making, Target};
use crate::output::{Failure, Output};

/// The operators whose operands are integers.
const INTEGERS: [&str; 3] = ["add", "max", "min"];

/// A merge operator, which a partition keeps.
#[derive(Debug, clap::Args)]
pub(crate) struct OperatorArgs {
    /// The merge operator, for a partition that has none yet: add, max, min, append or set-bits
    #[arg(long)]
    operator: Option<String>,
    /// The separator of append
    #[arg(long, requires = "operator", default_value = "")]
    separator: OsString,
}

/// Arguments of `merge`.
#[derive(Debug, clap::Args)]
pub(crate) struct MergeArgs {
    #[command(flatten)]
    target: Target,
    /// The key
    key: OsString,
    /// The operand; for add, max and min a decimal integer, unless --hex or --base64 is given
    #[arg(allow_hyphen_values = true)]
    operand: OsString,
    #[command(flatten)]
    operator: OperatorArgs,
    #[command(flatten)]
    making: Making,
    #[command(flatten)]
    encoding: Encoding,
}

/// Merges an operand into the value of a key; makes the database and the partition if they do not exist.
pub(crate) fn merge(args: &MergeArgs) -> Result<(), Failure> {
    let bytes = args.encoding.bytes();
    let key = bytes.argument(&args.key)?;
    // All arguments are read before anything is made or bound.
    let named = match args.operator.find()? {
        Some(operator) => Some((operand(args, operator.name())?, operator)),
        None if !args.making.may_exist(&args.target.database, "merge")? => {
            return Err(no_operator());
        }
        None => None,
    };
    let written = args.making.open(&args.target.database, "merge")?;
    let (partition, operand) = match named {
        Some((operand, operator)) => (bound(args, &written.db, operator)?, operand),
        None => stored(args, &written.db)?,
    };
    partition.merge_with(&key, &operand, Durability::Sync)?;
    if args.target.json {
        let mut out = Output::new(true);
        out.line("", &bytes.with(json!({ "done": "merge" }), "key", &*key))?;
        out.finish()?;
    }
    Ok(written.close()?)
}

/// The partition, with the operator that the arguments name.
fn bound(
    args: &MergeArgs,
    db: &Db,
    operator: Arc<dyn MergeOperator>,
) -> Result<Partition, Failure> {
    let partition = db.partition(&args.target.partition)?;
    let options = partition.options().merge_operator(operator);
    Ok(db.partition_with(&args.target.partition, options)?)
}

/// The partition that has an operator, and the operand for it.
fn stored(args: &MergeArgs, db: &Db) -> Result<(Partition, Vec<u8>), Failure> {
    let name = &args.target.partition;
    let partition = db.has_partition(name).then(|| db.open_partition(name)).transpose()?;
    let partition = partition.ok_or_else(no_operator)?;
    let (operator, _) = partition.merge_operator().ok_or_else(no_operator)?;
    let operand = operand(args, &operator)?;
    Ok((partition, operand))
}

fn no_operator() -> Failure {
    Failure::Usage("the partition has no merge operator; name one by --operator".to_owned())
}

/// The operand of the arguments for the operator of this name.
fn operand(args: &MergeArgs, operator: &str) -> Result<Vec<u8>, Failure> {
    match args.encoding.is_text() && INTEGERS.contains(&operator) {
        true => Ok(integer(&args.operand)?.to_le_bytes().to_vec()),
        false => args.encoding.bytes().argument(&args.operand),
    }
}

impl OperatorArgs {
    /// The operator, if one is named.
    pub(crate) fn find(&self) -> Result<Option<Arc<dyn MergeOperator>>, Failure> {
        let Some(name) = &self.operator else { return Ok(None) };
        let found = ready_made(name, self.separator.as_encoded_bytes()).ok_or_else(|| {
            let known = "add, max, min, append (which may have a separator) and set-bits";
            let what =
                format!("there is no operator {name:?} with these options; there are {known}");
            Failure::Usage(what)
        })?;
        Ok(Some(found))
    }
}

fn integer(text: &OsString) -> Result<i64, Failure> {
    let parsed = text.to_str().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| {
        Failure::Usage(format!("\"{}\" is not an integer of 64 bits", text.display()))
    })
}
