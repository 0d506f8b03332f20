//! The verification of a followed database: opened while its primary may write, and with a damaged log, too.
//!
//! Called by `follow/mod.rs`.

use std::path::Path;

use crate::db::{Builder, VerifyOptions, VerifyReport};
use crate::error::{Damage, Result};
use crate::fs::is_unreadable;

/// Verifies a database that another process may write, opened by what `builder` makes. Damage of the log that
/// refuses the open is a finding, and the rest is read without the log. If the manifest is damaged, there is
/// no rest.
///
/// # Errors
/// Those of the open, if nothing can be verified; those of [`Db::verify`](crate::db::Db::verify).
pub(super) fn verify_live(
    builder: impl Fn() -> Builder,
    dir: &Path,
    options: VerifyOptions<'_>,
) -> Result<VerifyReport> {
    let (db, found) = match builder().beside_writer(true).open() {
        Ok(db) => (db, None),
        Err(refused) if refused.is_corruption() || is_unreadable(&refused) => {
            let found = Damage::of(&refused, dir);
            match builder().beside_writer(true).skips_log(true).open() {
                Ok(db) => (db, Some(found)),
                Err(_) if refused.is_corruption() => {
                    return Ok(VerifyReport::of_damage(found));
                }
                Err(_) => return Err(refused),
            }
        }
        Err(refused) => return Err(refused),
    };
    let report = db.verify_with(options, found)?;
    db.close()?;
    Ok(report)
}
