//! The programs in C: they compile without warnings, and run; under valgrind, where it is installed, also without a
//! wrong access and without a leak.

#![expect(clippy::disallowed_methods, reason = "it runs programs, and reads no database")]
#![expect(clippy::print_stdout, reason = "a test that skips a part says so")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder with the libraries, which is that of this program or its parent.
fn libraries() -> PathBuf {
    let program = std::env::current_exe().expect("a test is a program");
    let found = program.ancestors().skip(1).find(|folder| folder.join("libsiltstone.a").exists());
    found.expect("libsiltstone.a is there: run cargo build first").to_owned()
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&text));
    output
}

fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Compiles `source` with `flags`, and links it with the static library.
fn compile(source: &str, flags: &[&str], program: &Path) {
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-pthread"]);
    compiler.args(flags).arg("-I").arg(folder().join("include")).arg(folder().join(source));
    compiler.arg(libraries().join("libsiltstone.a")).args(["-lm", "-ldl"]);
    run(compiler.arg("-o").arg(program));
}

/// Compiles and runs `source`, and returns what it prints.
fn check(source: &str) -> String {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let program = scratch.path().join("program");
    compile(source, &[], &program);
    let output = run(Command::new(&program).arg(scratch.path().join("db")));
    if is_installed("valgrind") {
        let mut valgrind = Command::new("valgrind");
        // Reachable memory at the end is that of the library for the whole process.
        valgrind.args([
            "--error-exitcode=9",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite",
        ]);
        // One thread runs at a time under it, and a thread that polls could keep the others from running.
        valgrind.args(["--fair-sched=try", "--quiet"]);
        run(valgrind.arg(&program).arg(scratch.path().join("db of valgrind")));
    } else {
        println!("SKIPPED: valgrind is not installed");
    }
    String::from_utf8(output.stdout).expect("it prints text")
}

#[test]
fn the_example_in_c_runs() {
    let printed = check("examples/example.c");
    assert_eq!(printed, "alice = admin\nbob = author\n2 users, and no conflict\n");
}

#[test]
fn the_test_in_c_passes() {
    assert_eq!(check("tests/test.c"), "all checks passed\n");
}

#[test]
fn backups_changes_and_resources_work_in_c() {
    assert_eq!(check("tests/parts.c"), "all checks passed\n");
}

#[test]
fn hooks_in_c_are_called() {
    assert_eq!(check("tests/hooks.c"), "all checks passed\n");
}

#[test]
fn listeners_scans_of_transactions_and_streams_work_in_c() {
    assert_eq!(check("tests/scans.c"), "all checks passed\n");
}

#[test]
fn the_header_is_one_of_cpp_too() {
    if !is_installed("c++") {
        println!("SKIPPED: there is no compiler of C++");
        return;
    }
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let source = scratch.path().join("program.cc");
    std::fs::write(
        &source,
        "#include \"siltstone.h\"\nint main() { return siltstone_version() == nullptr; }\n",
    )
    .expect("a source");
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-c", "-I"]);
    compiler
        .arg(folder().join("include"))
        .arg(source)
        .arg("-o")
        .arg(scratch.path().join("program.o"));
    run(&mut compiler);
}
