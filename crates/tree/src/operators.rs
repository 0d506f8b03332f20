//! Ready-made merge operators. An open finds them by their names, so the application supplies nothing.
//!
//! Invariant: names, parameters and results never change. They are stored, and other machines fold the same operands.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::hooks::MergeOperator;

/// Operators on signed integers of 64 bits, little-endian: the bytes of [`i64::to_le_bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IntegerOperator {
    /// The sum. It wraps at the ends of the type, because a sum that stopped there would not be associative.
    Add,
    /// The greater one.
    Max,
    /// The smaller one.
    Min,
}

impl MergeOperator for IntegerOperator {
    fn name(&self) -> &str {
        match self {
            IntegerOperator::Add => "add",
            IntegerOperator::Max => "max",
            IntegerOperator::Min => "min",
        }
    }

    fn check(&self, _key: &[u8], operand: &[u8]) -> Result<()> {
        integer(operand).map(|_| ())
    }

    fn merge(&self, _key: &[u8], value: &mut Vec<u8>, operand: &[u8]) -> Result<()> {
        let old = integer(value)?;
        let operand = integer(operand)?;
        let new = match self {
            IntegerOperator::Add => old.wrapping_add(operand),
            IntegerOperator::Max => old.max(operand),
            IntegerOperator::Min => old.min(operand),
        };
        value.clear();
        value.extend_from_slice(&new.to_le_bytes());
        Ok(())
    }
}

fn integer(bytes: &[u8]) -> Result<i64> {
    let bytes = <[u8; 8]>::try_from(bytes).map_err(|_| {
        let what = format!("an integer has 8 bytes, and not {}", bytes.len());
        Error::new(ErrorKind::InvalidArgument, what)
    })?;
    Ok(i64::from_le_bytes(bytes))
}

/// Appends each operand to the value, with a separator in between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppendOperator {
    separator: Vec<u8>,
}

impl AppendOperator {
    /// The name that is stored.
    pub const NAME: &str = "append";

    /// An operator with this separator, which may be empty.
    pub fn new(separator: impl Into<Vec<u8>>) -> AppendOperator {
        AppendOperator { separator: separator.into() }
    }
}

impl MergeOperator for AppendOperator {
    fn name(&self) -> &str {
        AppendOperator::NAME
    }

    fn params(&self) -> Vec<u8> {
        self.separator.clone()
    }

    fn merge(&self, _key: &[u8], value: &mut Vec<u8>, operand: &[u8]) -> Result<()> {
        value.extend_from_slice(&self.separator);
        value.extend_from_slice(operand);
        Ok(())
    }
}

/// Sets the bits that are set in the operand. The shorter of value and operand counts as followed by zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetBitsOperator;

impl SetBitsOperator {
    /// The name that is stored.
    pub const NAME: &str = "set-bits";
}

impl MergeOperator for SetBitsOperator {
    fn name(&self) -> &str {
        SetBitsOperator::NAME
    }

    fn merge(&self, _key: &[u8], value: &mut Vec<u8>, operand: &[u8]) -> Result<()> {
        value.resize(value.len().max(operand.len()), 0);
        value.iter_mut().zip(operand).for_each(|(byte, bits)| *byte |= bits);
        Ok(())
    }
}

/// The ready-made operator with this name and these parameters.
pub fn ready_made(name: &str, params: &[u8]) -> Option<Arc<dyn MergeOperator>> {
    match name {
        AppendOperator::NAME => Some(Arc::new(AppendOperator::new(params))),
        SetBitsOperator::NAME if params.is_empty() => Some(Arc::new(SetBitsOperator)),
        _ => {
            let all = [IntegerOperator::Add, IntegerOperator::Max, IntegerOperator::Min];
            let found = all.into_iter().find(|it| it.name() == name && params.is_empty())?;
            Some(Arc::new(found))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fold(operator: &dyn MergeOperator, parts: &[&[u8]]) -> Vec<u8> {
        let mut value = parts[0].to_vec();
        for part in &parts[1..] {
            operator.check(b"k", part).unwrap();
            operator.merge(b"k", &mut value, part).unwrap();
        }
        value
    }

    fn check(operator: &dyn MergeOperator, parts: &[&[u8]], expected: &[u8]) {
        let found = ready_made(operator.name(), &operator.params()).expect("it is found by name");
        // All groupings in two parts: the operator is associative.
        for middle in 1..parts.len() {
            let older = fold(&*found, &parts[..middle]);
            let newer = fold(&*found, &parts[middle..]);
            assert_eq!(fold(&*found, &[&older, &newer]), expected);
        }
    }

    #[test]
    fn each_operator_is_found_by_its_name_and_associative() {
        let [one, five, least, most] = [1, 5, i64::MIN, i64::MAX].map(i64::to_le_bytes);
        check(&IntegerOperator::Add, &[&one, &five, &most], &(i64::MIN + 5).to_le_bytes());
        check(&IntegerOperator::Max, &[&one, &five, &least], &five);
        check(&IntegerOperator::Min, &[&five, &one, &most], &one);
        check(&AppendOperator::new(", "), &[b"a", b"", b"b"], b"a, , b");
        check(&SetBitsOperator, &[&[1], &[0, 4], &[2]], &[3, 4]);
    }

    #[test]
    fn an_integer_has_eight_bytes() {
        let error = IntegerOperator::Add.check(b"k", b"1234567").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(IntegerOperator::Max.merge(b"k", &mut vec![0; 9], &[0; 8]).is_err());
        assert!(ready_made("add", b"x").is_none(), "with parameters it is another operator");
    }
}
