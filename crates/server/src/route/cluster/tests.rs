//! Lists of nodes that change.

use std::io::Write;

use super::*;

fn list(file: &mut tempfile::NamedTempFile, first: usize, count: usize) {
    file.as_file().set_len(0).unwrap();
    let mut file = file.reopen().unwrap();
    (first..first + count).for_each(|at| writeln!(file, "10.0.0.1:{at}").unwrap());
}

#[test]
fn nodes_that_come_and_go_take_places_of_those_that_left() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    list(&mut file, 0, 400);
    let nodes = Nodes::File(file.path().to_owned());
    let cluster = Cluster::new(ClusterOptions::new(nodes)).unwrap();
    let busy = cluster.node(0).unwrap();
    let running = busy.begin(1, Duration::ZERO);
    for round in 1..10 {
        list(&mut file, round * 400, 400);
        cluster.reload().unwrap();
        let views = cluster.nodes();
        assert_eq!(views.iter().filter(|node| !node.is_leaving()).count(), 400);
        assert!(views.len() <= 800 && Arc::ptr_eq(&views[0], &busy), "{round}");
    }
    drop(running);
    list(&mut file, 4000, 1);
    cluster.reload().unwrap();
    assert_eq!(cluster.node(0).unwrap().address, "10.0.0.1:4000");
}
