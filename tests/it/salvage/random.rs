//! Several faults at once, by seeds.

use super::*;

#[test]
fn several_faults_at_once_leave_only_values_that_were_there() {
    let mut rng = Rng::from_env_or(77);
    for _ in 0..12 {
        let seed = rng.next_u64() % 1_000_000;
        let story = Story::new(seed, 5);
        for _ in 0..4 {
            let mut steps = Vec::new();
            for _ in 0..=rng.next_u64() % 3 {
                steps.push((rng.next_u64(), rng.next_u64(), rng.next_u64() % 4));
            }
            story.check(&format!("SEED={seed} {steps:?}"), |fs| {
                for (file, at, fault) in &steps {
                    let paths: Vec<_> =
                        fs.paths().into_iter().filter(|path| path.starts_with(DIR)).collect();
                    let path = &paths[(*file % paths.len() as u64) as usize];
                    let len = fs.read_raw(path).unwrap().len() as u64;
                    match fault {
                        _ if len == 0 => {}
                        0 => fs.remove_raw(path).unwrap(),
                        1 => fs.truncate_raw(path, at % len).unwrap(),
                        _ => fs.corrupt(path, at % len, 1 << (at % 7)).unwrap(),
                    }
                }
            });
        }
    }
}
