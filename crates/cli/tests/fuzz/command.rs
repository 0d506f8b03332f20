//! The inputs of the command: arguments, what it reads from a file, and lines of its shell. Each case and random changes
//! of it are given to a process, which may take little memory and some time, and ends as documented.
//!
//! `scripts/fuzz.sh` does not run them, because libFuzzer sees no other process.

#![expect(clippy::unwrap_used, reason = "a test that fails should say where")]
#![expect(clippy::disallowed_methods, reason = "the input is a file outside every database")]

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use testkit::{Rng, mutate};

/// Changes of each case.
const MUTATIONS: usize = 12;
/// The memory that a process may take, in KiB: 64 MiB, and what it takes for a database without entries.
const DATA_KIB: u64 = 160 << 10;
/// A process that runs longer hangs.
const SECONDS_MAX: u32 = 60;

/// Arguments, with a space between them, and the content of the file `input`, which is the standard input, too.
const CASES: [(&str, &str); 22] = [
    ("load db input --format tsv", "k1\tv1\nk2\tv2\n"),
    ("load db input --format tsv --header --key name --value size", "name\tsize\na\t1\n"),
    ("load db input --format csv", "k1,v1\r\n\"k,2\",\"line\n\"\"2\"\"\"\n"),
    ("load db input --format csv --key 2 --value 1", "v1,k1\nv2,k2\n"),
    (
        "load db input --format jsonl",
        "{\"key\":\"a\",\"value\":\"1\"}\n{\"key_hex\":\"00ff\",\"value_base64\":\"YWJj\"}\n",
    ),
    ("load db input --format lines", "first\nsecond\n"),
    (
        "import db input",
        "VERSION=3\nformat=bytevalue\ntype=btree\nHEADER=END\n 6b\n 76\nDATA=END\n",
    ),
    (
        "import db input --partition p",
        "VERSION=3\nformat=print\nHEADER=END\n k\\00\n v\nDATA=END\n",
    ),
    ("shell db", "put a 1\nget a\nscan --limit 2\nuse default\ndelete a\nstats\nexit\n"),
    ("put db key value", ""),
    ("put db --hex 00ff 0a0b", ""),
    ("put db --base64 YWJj YWJj", ""),
    ("get db key --json", ""),
    ("scan db --from a --to z --limit 3 --reverse --hex", ""),
    ("scan db --prefix a --keys --json", ""),
    ("delete db --from a --to b", ""),
    ("count db --prefix k", ""),
    ("dump input", "SILTPIECno file of a database"),
    ("explain db key", ""),
    ("levels db --json", ""),
    ("partition set db default --block-bytes 4096", ""),
    ("verify db --json", ""),
];

/// Arguments, and the input, as bytes that can be changed.
fn encode((arguments, input): (&str, &str)) -> Vec<u8> {
    [arguments.replace(' ', "\n").as_bytes(), b"\0", input.as_bytes()].concat()
}

/// The arguments and the input; `None` for another subcommand, or for a place outside of the folder.
fn decode<'a>(bytes: &'a [u8], subcommand: &str) -> Option<(Vec<&'a OsStr>, &'a [u8])> {
    let (arguments, input) = bytes.split_at(bytes.iter().position(|byte| *byte == 0)?);
    let is_shell = subcommand == "shell";
    if arguments.contains(&b'/') || arguments.len() > 10_000 || is_shell && input.contains(&b'/') {
        return None;
    }
    let arguments: Vec<&OsStr> =
        arguments.split(|byte| *byte == b'\n').map(OsStr::from_bytes).collect();
    (arguments.first()?.as_bytes() == subcommand.as_bytes()).then_some((arguments, &input[1..]))
}

/// Runs the command in a folder with a small database. Returns what went wrong.
fn fault_of(arguments: &[&OsStr], input: &[u8], folder: &Path) -> Option<String> {
    std::fs::write(folder.join("input"), input).unwrap();
    let limited = format!("ulimit -d {DATA_KIB}; exec timeout -s KILL {SECONDS_MAX} \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &limited, env!("CARGO_BIN_EXE_siltstone")]).args(arguments);
    command.current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    // It may end before it has read everything.
    let _ = process.stdin.take().unwrap().write_all(input);
    let ended = process.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    let is_right = matches!(ended.status.code(), Some(0..=2)) && !said.contains("panicked at");
    let shown = input.get(..200).unwrap_or(input).escape_ascii();
    (!is_right).then(|| format!("{arguments:?} with \"{shown}\": {}\n{said}", ended.status))
}

#[test]
fn no_argument_and_no_input_makes_the_command_panic_hang_or_take_much_memory() {
    let mut rng = Rng::from_env_or(43);
    let encoded = CASES.map(encode);
    let mut faults = Vec::new();
    let mut runs = 0;
    for (case, bytes) in CASES.iter().zip(&encoded) {
        let subcommand = case.0.split(' ').next().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let put = ["put", "db", "key", "value"].map(OsStr::new);
        assert_eq!(fault_of(&put, b"", folder.path()), None);
        for n in 0..=MUTATIONS {
            let mut changed = bytes.clone();
            let other = rng.pick(&encoded).clone();
            if n > 0 {
                mutate(&mut rng, &mut changed, &other);
            }
            let Some((arguments, input)) = decode(&changed, subcommand) else { continue };
            faults.extend(fault_of(&arguments, input, folder.path()));
            runs += 1;
        }
    }
    println!("{} cases, {runs} runs", CASES.len());
    assert!(faults.is_empty(), "{} faults, the first:\n{}", faults.len(), faults[0]);
}
