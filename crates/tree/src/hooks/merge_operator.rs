//! [`MergeOperator`]: what a partition makes of a value and the operands that were merged into it; and
//! [`AttachedOperator`], the operator of a partition as the engine holds it.
//!
//! Called by reads, by jobs, by transactions for their own writes, and by memtables (under the lock of the log's
//! writer: see `memtable/folds.rs`). It does no I/O and calls no database.
//!
//! Invariants:
//! 1. An operator is associative, so that operands may be folded before their value is known: the result of folding
//!    them in order is the same in any grouping. The first operand of a key without a value is its value.
//! 2. A panic is an error that names partition, operator and call, as `guarded.rs` says. A job keeps the operands that
//!    it cannot fold.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::catch::HookId;
use super::{CompactionFilterFactory, HookProvider};
use crate::error::{Error, Result};
use crate::limits::FORMAT_VALUE_BYTES_MAX;
use crate::types::KeyForm;

/// The meaning of the operands that are merged into the keys of a partition.
///
/// # Contract
/// - It is associative: an operand may be merged into an older operand, which then stands for both. Written as an
///   operation, `(v + a) + b` equals `v + (a + b)` for any values and operands, in the order of their writes.
/// - A key without a value takes the first operand as its value.
/// - The same arguments give the same result, on every machine and in every version of the program: primaries,
///   secondaries and jobs fold the same operands at different times.
/// - It may be called under a lock of the engine. It must not call a database, and should not block.
pub trait MergeOperator: Send + Sync + 'static {
    /// Returns the name, which is stored with the partition.
    fn name(&self) -> &str;

    /// Returns the parameters, which are stored with the name. Default: none.
    fn params(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Checks an operand that is about to be written for `key`. Default: every operand is accepted.
    ///
    /// # Errors
    /// Anything: the write returns it, and nothing is written.
    fn check(&self, key: &[u8], operand: &[u8]) -> Result<()> {
        let _ = (key, operand);
        Ok(())
    }

    /// Changes `value`, the value of `key` or an operand that is older than `operand`, to the result of both.
    ///
    /// # Errors
    /// Anything, for a value that no operand can be merged into. Reads of the key return it, and jobs keep value and
    /// operands.
    fn merge(&self, key: &[u8], value: &mut Vec<u8>, operand: &[u8]) -> Result<()>;

    /// Changes `value` to the result of it and all `operands`, the oldest first. For an operator whose call costs much
    /// more than its work, as one in another language does. Default: [`merge`](Self::merge) with one after the other.
    ///
    /// # Errors
    /// Those of [`merge`](Self::merge).
    fn merge_all(
        &self,
        key: &[u8],
        value: &mut Vec<u8>,
        operands: &mut dyn Iterator<Item = &[u8]>,
    ) -> Result<()> {
        for operand in operands {
            self.merge(key, value, operand)?;
        }
        Ok(())
    }
}

/// A source of one merge operator.
pub struct SuppliedOperator(pub Arc<dyn MergeOperator>);

impl HookProvider for SuppliedOperator {
    fn compaction_filter(
        &self,
        _name: &str,
        _params: &[u8],
    ) -> Option<Arc<dyn CompactionFilterFactory>> {
        None
    }

    fn merge_operator(&self, name: &str, params: &[u8]) -> Option<Arc<dyn MergeOperator>> {
        let operator = Some(&self.0);
        operator.filter(|it| it.name() == name && it.params() == params).cloned()
    }
}

/// The merge operator of a partition, with its name.
pub struct AttachedOperator {
    hook: HookId,
    params: Vec<u8>,
    operator: Arc<dyn MergeOperator>,
    key_form: KeyForm,
    /// Operands that were folded, by reads and jobs. A statistic: relaxed.
    folded: AtomicU64,
}

impl AttachedOperator {
    /// The operator of `partition`, whose keys are stored in `key_form`.
    ///
    /// # Errors
    /// A panic of it.
    pub fn new(
        partition: &Arc<str>,
        operator: &Arc<dyn MergeOperator>,
        key_form: KeyForm,
    ) -> Result<Arc<AttachedOperator>> {
        let unnamed =
            HookId { partition: partition.clone(), kind: "merge operator", name: "?".into() };
        // Asked once: an operator that panics later must still be named.
        let name: Arc<str> = unnamed.call("name", || Ok(operator.name().into()))?;
        let hook = HookId { name, ..unnamed };
        let params = hook.call("params", || Ok(operator.params()))?;
        let operator = operator.clone();
        Ok(Arc::new(AttachedOperator { hook, params, operator, key_form, folded: 0.into() }))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.hook.name
    }

    /// Its parameters.
    pub fn params(&self) -> &[u8] {
        &self.params
    }

    /// The number of operands that were folded since the open.
    pub fn folded(&self) -> u64 {
        self.folded.load(Ordering::Relaxed)
    }

    /// Checks an operand for `key`, as the user gave it.
    ///
    /// # Errors
    /// Those of the operator.
    pub fn check(&self, key: &[u8], operand: &[u8]) -> Result<()> {
        self.named("check", key, || self.operator.check(key, operand))
    }

    /// Folds `operands`, the oldest first, into `value`, which is older; without it into the first of them. `key` is a
    /// stored key.
    ///
    /// # Errors
    /// Those of the operator; a limit for a result that is longer than any value.
    pub fn fold<'o>(
        &self,
        key: &[u8],
        value: Option<Vec<u8>>,
        operands: impl Iterator<Item = &'o [u8]>,
    ) -> Result<Vec<u8>> {
        let key = self.key_form.user(key);
        let mut operands = operands;
        // Without a value the first operand is one.
        let mut count = u64::from(value.is_none());
        let mut value = value.unwrap_or_else(|| operands.next().unwrap_or_default().to_vec());
        // One catch for all of them.
        let folded = self.named("merge", key, || {
            let counted = &mut operands.inspect(|_| count += 1);
            self.operator.merge_all(key, &mut value, counted)
        });
        self.folded.fetch_add(count, Ordering::Relaxed);
        folded?;
        if value.len() as u64 > FORMAT_VALUE_BYTES_MAX {
            let what = "length of a merged value";
            return Err(Error::limit(what, value.len() as u64, FORMAT_VALUE_BYTES_MAX).at_key(key));
        }
        Ok(value)
    }

    /// Makes the call `what`. Its error names partition, key and operator.
    fn named(&self, what: &str, key: &[u8], code: impl FnOnce() -> Result<()>) -> Result<()> {
        // Two results: a panic is named already, whatever the kind of an error that was returned.
        match self.hook.call(what, || Ok(code())) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.blamed(key, &error)),
            Err(panicked) => {
                let message = format!("{panicked}, for key \"{}\"", key.escape_ascii());
                Err(Error::new(panicked.kind(), message))
            }
        }
    }

    #[cold]
    fn blamed(&self, key: &[u8], error: &Error) -> Error {
        let HookId { partition, name, .. } = &self.hook;
        let key = key.escape_ascii();
        let message =
            format!("partition {partition:?}, key \"{key}\", merge operator {name:?}: {error}");
        Error::new(error.kind(), message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    /// Joins all operands in one call, and refuses the operand `no`.
    struct Joined;

    impl MergeOperator for Joined {
        fn name(&self) -> &'static str {
            "joined"
        }

        fn merge(&self, _key: &[u8], _value: &mut Vec<u8>, _operand: &[u8]) -> Result<()> {
            unreachable!("the engine calls `merge_all`")
        }

        fn merge_all(
            &self,
            _key: &[u8],
            value: &mut Vec<u8>,
            operands: &mut dyn Iterator<Item = &[u8]>,
        ) -> Result<()> {
            let all: Vec<&[u8]> = operands.collect();
            if all.contains(&&b"no"[..]) {
                return Err(Error::new(ErrorKind::HookPanicked, "refused"));
            }
            value.extend(b"<");
            value.extend(all.concat());
            value.extend(b">");
            Ok(())
        }
    }

    #[test]
    fn an_operator_gets_all_operands_in_one_call() {
        let operator: Arc<dyn MergeOperator> = Arc::new(Joined);
        let attached = AttachedOperator::new(&"p".into(), &operator, KeyForm::AsGiven).unwrap();
        let operands = [&b"a"[..], b"b", b"c"];
        let value = attached.fold(b"k", Some(b"v".to_vec()), operands.into_iter()).unwrap();
        assert_eq!(value, b"v<abc>");
        assert_eq!(attached.fold(b"k", None, operands.into_iter()).unwrap(), b"a<bc>");
        assert_eq!(attached.folded(), 6);
    }

    #[test]
    fn an_error_of_any_kind_names_partition_key_and_operator() {
        let operator: Arc<dyn MergeOperator> = Arc::new(Joined);
        let attached = AttachedOperator::new(&"p".into(), &operator, KeyForm::AsGiven).unwrap();
        let operands = [&b"a"[..], b"no"];
        let refused = attached.fold(b"k", None, operands.into_iter()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::HookPanicked);
        let text = "partition \"p\", key \"k\", merge operator \"joined\": refused";
        assert_eq!(refused.to_string(), text);
    }
}
