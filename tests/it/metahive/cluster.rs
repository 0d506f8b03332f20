//! The example of section 5.3 of the paper, as a test.

use std::collections::BTreeSet;

use siltstone::Result;
use testkit::Rng;

#[path = "../../../examples/heterogeneous_cluster.rs"]
#[expect(dead_code, reason = "the `main` of the example runs longer")]
mod example;

use example::{FIELDS, Plan, check, run};

#[test]
fn no_fault_leaves_the_node_that_has_metadata_and_old_nodes_never_see_any() -> Result<()> {
    let mut rng = Rng::from_env_or(53);
    let mut fields = BTreeSet::new();
    // One short run has about twenty faults, which may leave a field out.
    for _ in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        let seed = rng.next_u64();
        println!("seed {seed}");
        let folder = dir.path().to_owned();
        let report = run(&Plan { folder, seed, prefixes: 6, keys: 300, moves: 12 })?;
        check(&report);
        fields.extend(report.faults.into_keys());
    }
    assert_eq!(fields.len(), FIELDS, "each field was hit: {fields:?}");
    Ok(())
}
